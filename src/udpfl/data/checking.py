"""Which files of a data set are there, and whether they are the published ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from udpfl.data._pictures import picture_files
from udpfl.data.formats import Checksum, File, Format, Part, Pictures, Source, Version
from udpfl.errors import InvalidInput

Status = Literal["ok", "missing", "changed", "no published checksum"]
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Presence:
    """A format of a data set, as far as it is there. Nothing is read for this."""

    form: Format
    place: Path
    missing: tuple[str, ...]
    """The parts that are not there, each by the name of its first version."""

    @property
    def complete(self) -> bool:
        """Whether the data set can be read from there."""
        return not self.missing


@dataclass(frozen=True)
class Finding:
    """What a check says of one file, or of one folder of pictures."""

    name: str
    status: Status
    detail: str = ""


def presences(source: Source, directory: Path | None) -> list[Presence]:
    """Every format of which something is there, complete ones first."""
    if source.package:
        return _packaged(source)
    if directory is None:
        return []
    own = directory / source.folder
    places = (own, *(folder / other for other in source.also for folder in (directory, own)))
    found = []
    for form in source.formats:
        # In the directory itself a data set counts only as a whole: some other train.csv is not it.
        beside = _presence(form, directory)
        inside = [_presence(form, place) for place in places if _begun(form, place)]
        found.extend([beside] if beside.complete else sorted(inside, key=_lacking)[:1])
    return sorted(found, key=_lacking)


def findings(form: Format, place: Path) -> list[Finding]:
    """Every part of a format compared with its checksum; this reads all of the files."""
    return [_finding(part, place) for part in form.parts]


def digest_of(path: Path, checksum: Checksum) -> str:
    """The sum of a file, by the algorithm of `checksum`."""
    found = hashlib.new(checksum.algorithm, usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except OSError as error:
        raise InvalidInput("data_dir", f"cannot read {path}: {error.strerror}") from None
    return found.hexdigest()


def _packaged(source: Source) -> list[Presence]:
    package, _, name = source.package.partition("/")
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (Path(folder) / name).is_file():
            return [Presence(Format(f"part of {package}", ()), Path(folder), ())]
    return []


def _presence(form: Format, place: Path) -> Presence:
    missing = tuple(part[0].name for part in form.parts if _version(part, place) is None)
    return Presence(form, place, missing)


def _lacking(presence: Presence) -> int:
    return len(presence.missing)


def _begun(form: Format, place: Path) -> bool:
    return any(
        _pictures(path) if isinstance(version, Pictures) else path.is_file()
        for part in form.parts
        for version in part
        for path in (place / version.name,)
    )


def _version(part: Part, place: Path) -> Version | None:
    """The version of a part that is there."""
    for version in part:
        if isinstance(version, File):
            if (place / version.name).is_file():
                return version
        elif _pictures(place / version.name) >= version.count:
            return version
    return None


def _pictures(folder: Path) -> int:
    return len(picture_files(folder)) if folder.is_dir() else 0


def _finding(part: Part, place: Path) -> Finding:
    version = _version(part, place)
    if version is None:
        return _missing(part[0], place)
    if isinstance(version, Pictures):
        count = _pictures(place / version.name)
        if count > version.count:
            return Finding(version.name, "changed", f"{count:,} files instead of {version.count:,}")
        return Finding(version.name, "no published checksum", f"{count:,} files, as published")
    if version.checksum is None:
        return Finding(version.name, "no published checksum")
    found = digest_of(place / version.name, version.checksum)
    if found == version.checksum.digest:
        return Finding(version.name, "ok")
    named = version.checksum.algorithm.upper()
    return Finding(version.name, "changed", f"{named} {found}, not {version.checksum.digest}")


def _missing(version: Version, place: Path) -> Finding:
    if isinstance(version, Pictures) and (count := _pictures(place / version.name)):
        return Finding(version.name, "missing", f"{count:,} of {version.count:,} files are there")
    return Finding(version.name, "missing")
