"""A web server of our own with small files, and `udpfl data`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from tests import commands
from udpfl.data.formats import Checksum


def md5(content: bytes) -> Checksum:
    return Checksum("md5", hashlib.md5(content, usedforsecurity=False).hexdigest())


def command(capsys, *arguments: object) -> tuple[int, str, str]:
    code, out, err = commands.command(capsys, "data", *arguments)
    assert "Traceback" not in err
    return code, out, err


@dataclass
class Server:
    """Serves `files` on this machine, and can be told to misbehave."""

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    ranges: bool = True
    cut: int | None = None
    """Break off after so many bytes of a body."""
    wrong_range: bool = False
    address: str = ""


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
