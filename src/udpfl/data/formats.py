"""What a data set consists of on disk and on the web: files, formats, checksums, downloads.

Each data set describes itself in its own file. A checksum is written there only where it can be
compared with something: the publisher or a widely used library names it, or it was computed from
the compact files whose contents were checked against independent copies. Comments say which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

_Load = TypeVar("_Load", bound=Callable[..., Any])


@dataclass(frozen=True)
class Checksum:
    """What the bytes of a file have to hash to."""

    algorithm: Literal["md5", "sha256"]
    digest: str

    def __str__(self) -> str:
        return f"{self.algorithm.upper()} {self.digest}"


@dataclass(frozen=True)
class File:
    """One file, named relative to the folder of its data set."""

    name: str
    checksum: Checksum | None = None
    size: int | None = None


def md5(name: str, digest: str, size: int | None = None) -> File:
    """A file with its MD5 sum."""
    return File(name, Checksum("md5", digest), size)


def sha256(name: str, digest: str) -> File:
    """A file with its SHA-256 sum."""
    return File(name, Checksum("sha256", digest))


@dataclass(frozen=True)
class Pictures:
    """A folder of image files. They are counted: nobody publishes a sum for each of them."""

    name: str
    count: int


Version = File | Pictures
Part = tuple[Version, ...]
"""One thing a format needs, in any of these versions, say plain or gzipped."""


@dataclass(frozen=True)
class Download:
    """A file that can be had from public addresses, tried in this order."""

    file: File
    addresses: tuple[str, ...]
    """Folders on the web; the file's name follows."""
    unpacked: int | None = None
    """The most bytes an archive may unpack to; None for a file that is used as it is."""
    inside: str = ""
    """The folder in the archive whose contents are wanted."""


@dataclass(frozen=True)
class Format:
    """One of the forms in which a data set is read."""

    name: str
    parts: tuple[Part, ...]
    downloads: tuple[Download, ...] = ()


@dataclass(frozen=True)
class Source:
    """All there is to know about a data set before it is read."""

    name: str
    """As in `data.name`."""
    title: str
    """What it holds, in a line."""
    samples: str = ""
    """How many records there are."""
    licence: str = ""
    """Under which its files may be used."""
    homepage: str = ""
    """Where it is described."""
    citation: str = ""
    """How its authors want to be cited."""
    folder: str = ""
    """Its place in the data directory; empty where it is not read from there."""
    anywhere: str = ""
    """What decides where its files lie, if that is not the data directory."""
    also: tuple[str, ...] = ()
    """Further names of its folder, as archives unpack."""
    formats: tuple[Format, ...] = ()
    """The forms in which it is read."""
    package: str = ""
    """The Python package that brings it along, and the path of the file in there."""
    by_hand: tuple[str, ...] = ()
    """What to do where there is no direct download; `{folder}` stands for its folder."""

    is_benchmark: bool = False
    """Whether everybody knows its sizes and labels, so that nothing is assumed about them."""
    is_own: bool = False
    """Whether it reads a user's own file: labels and test records are not public by themselves."""
    takes: tuple[str, ...] = ()
    """Keys of the section `data` that its loader reads as options as well."""
    options: tuple[str, ...] = ()
    """What `data.options` may hold."""
    needs: tuple[str, ...] = ()
    """Options that have to be there."""

    @property
    def fetched(self) -> Format | None:
        """The format that a download gives, if there is one."""
        return next((form for form in self.formats if form.downloads), None)


def described_by(source: Source) -> Callable[[_Load], _Load]:
    """Put the description of a data set on the function that loads it, as `source`."""

    def describe(load: _Load) -> _Load:
        load.source = source  # type: ignore[attr-defined]
        return load

    return describe
