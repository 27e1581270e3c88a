"""Files that appear whole or not at all, so that a crash never corrupts one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from udpfl.errors import UdpflError


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file in one step, on disk before the call returns."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with explained(path):
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_secret(path: Path, data: bytes) -> None:
    """A new file that nobody else can read, from its first moment on, on disk before the return."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """The same with plain data."""
    write_whole(path, (json.dumps(value, indent=2) + "\n").encode())


def append_line(path: Path, line: str) -> None:
    """Add a line at the end of a file, on disk before the call returns."""
    with explained(path), path.open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say of which file it was that it could not be written."""
    try:
        yield
    except OSError as error:
        raise UdpflError(f"cannot write {path}: {error.strerror}") from None
