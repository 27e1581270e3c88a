"""Archives unpacked so that they can do no harm: plain files only, inside one folder, not too many.

A member with a path that leads elsewhere, a link or a device is refused, and so is an archive that
holds more than it should: then nothing of it is kept. Files that are there already are left alone.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zlib
from gzip import BadGzipFile
from pathlib import Path, PurePosixPath

from udpfl.errors import UdpflError

_MEMBERS = 100_000


class UnsafeArchive(UdpflError):
    """An archive that holds something other than a reasonable number of plain files."""


def unpack(archive: Path, folder: Path, *, inside: str = "", limit: int) -> None:
    """Put what is in the folder `inside` of a .tar.gz archive into `folder`; at most `limit` bytes.

    Everything is unpacked beside first, so that a bad archive leaves nothing behind.
    """
    aside = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder))
    try:
        try:
            _extract(archive, aside, limit)
        except (tarfile.TarError, BadGzipFile, EOFError, zlib.error) as error:
            raise UnsafeArchive(f"{archive} cannot be unpacked: {error}") from None
        _move(aside / inside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _extract(archive: Path, aside: Path, limit: int) -> None:
    total = 0
    with tarfile.open(archive, "r:gz") as tar:
        for number, member in enumerate(tar):
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or "\\" in member.name:
                raise UnsafeArchive(
                    f"{archive} holds {member.name!r}, which would be unpacked outside its folder"
                )
            if member.isdir():
                continue  # made below where a file needs it
            if not member.isreg():
                raise UnsafeArchive(f"{archive} holds {member.name!r}, which is not a regular file")
            total += member.size
            if total > limit or number >= _MEMBERS:
                raise UnsafeArchive(
                    f"{archive} unpacks to more than {limit:,} bytes or {_MEMBERS:,} files"
                )
            if hasattr(tarfile, "data_filter"):  # a second opinion, where Python has it
                member = tarfile.data_filter(member, str(aside))
            target = aside / path
            target.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            # The archive's owners, modes and times are of no use here.
            with content, target.open("xb") as file:
                shutil.copyfileobj(content, file)


def _move(wanted: Path, folder: Path) -> None:
    for path in sorted(wanted.rglob("*")):
        target = folder / path.relative_to(wanted)
        if path.is_file() and not path.name.startswith(".") and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
