from __future__ import annotations

import sys

import pytest

from udpfl.cli import main


@pytest.fixture
def udpfl_(capsys, monkeypatch):
    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["udpfl", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as done:
            code = done.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err

    return command
