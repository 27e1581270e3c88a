"""The command line, called as a person calls it."""

from __future__ import annotations

import pytest

from udpfl.cli import main


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit code of `udpfl` with these arguments, and what it wrote to both streams."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err
