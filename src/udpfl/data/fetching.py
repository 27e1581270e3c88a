"""Data sets downloaded from their public sources, and believed only with the right checksum.

A file grows as NAME.part and gets its name when its sum is right, so that what has a name is whole.
An interrupted download goes on where it stopped. What is there already is never overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from udpfl._version import __version__
from udpfl.data._unpacking import unpack
from udpfl.data.checking import digest_of, findings, presences
from udpfl.data.formats import Download, File, Format, Source
from udpfl.errors import InvalidInput, UdpflError

Progress = Callable[[str, int, int | None], None]
"""Told the file, how many bytes are there, and how many there will be, if that is known."""

TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 1 << 18
_MOST = 1 << 30  # bytes, where the size of a file is not known


class FetchFailed(UdpflError):
    """A file could not be downloaded, or is not the published one. Nothing wrong was kept."""


class _Unreachable(Exception):
    """This address did not give the file; another one may."""


@dataclass(frozen=True)
class Fetched:
    """Where a data set is now, and what had to be downloaded for it."""

    format: str
    place: Path
    downloaded: tuple[str, ...]


def fetch(
    source: Source, directory: Path, *, base: str | None = None, progress: Progress | None = None
) -> Fetched:
    """Download what is missing of a data set into its folder in `directory`.

    `base` is the address of a folder that has the same files, in place of the public one. The
    checksums stay the published ones.
    """
    if base is not None:
        _check(base)
    for present in presences(source, directory):
        if present.complete:
            _missing(present.form, present.place)
            return Fetched(present.form.name, present.place, ())
    form = source.fetched
    if form is None:
        raise InvalidInput("data.name", f"{source.name} has no direct download")
    place = directory / source.folder
    missing = _missing(form, place)
    opener = _opener(base)
    with _writing(place):
        place.mkdir(parents=True, exist_ok=True)
    done = []
    for download in form.downloads:
        if download.unpacked is None and download.file.name not in missing:
            continue
        target = place / download.file.name
        by_hand = target.is_file()
        if by_hand:
            _verify(target, download.file, str(target))
        else:
            _obtain(download, target, base, opener, progress)
            done.append(download.file.name)
        if download.unpacked is not None:
            with _writing(place):
                unpack(target, place, inside=download.inside, limit=download.unpacked)
                if not by_hand:
                    target.unlink()
    if left := _missing(form, place):
        raise FetchFailed(f"{source.name} is still incomplete: it lacks {', '.join(left)}")
    return Fetched(form.name, place, tuple(done))


def _missing(form: Format, place: Path) -> list[str]:
    """The parts that are not there. One that is there and not the published one is refused."""
    found = findings(form, place)
    for finding in found:
        if finding.status == "changed":
            raise FetchFailed(
                f"{place / finding.name} is not the published one "
                f"({finding.detail}): move it away and try again"
            )
    return [finding.name for finding in found if finding.status == "missing"]


def _obtain(
    download: Download,
    target: Path,
    base: str | None,
    opener: OpenerDirector,
    progress: Progress | None,
) -> None:
    """Download a file from the first address that has it."""
    name = download.file.name
    part = target.with_name(f"{name}.part")
    addresses = _addresses(download, base)
    problems = []
    for address in addresses:
        try:
            _transfer(address, part, download.file, opener, progress)
        except _Unreachable as problem:
            problems.append(str(problem))
            continue
        try:
            _verify(part, download.file, address)
        except FetchFailed:
            part.unlink()
            raise
        with _writing(target):
            os.replace(part, target)
        return
    raise FetchFailed(
        f"cannot download {name}: {'; '.join(problems)}. Try the same command again later, or "
        f"download {addresses[0]} where there is a network and put it into {target.parent}"
    )


def _addresses(download: Download, base: str | None) -> list[str]:
    folders = download.addresses if base is None else (base.rstrip("/"),)
    return [f"{folder}/{download.file.name}" for folder in folders]


def _check(base: str) -> None:
    try:
        parts = urlsplit(base)
        understood = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        understood = False
    if not understood:
        raise InvalidInput(
            "source", f"must be an address such as https://HOST/FOLDER, got {base!r}"
        )


def _verify(path: Path, file: File, origin: str) -> None:
    assert file.checksum is not None  # every download has one
    found = digest_of(path, file.checksum)
    if found != file.checksum.digest:
        raise FetchFailed(
            f"{origin} has the {file.checksum.algorithm.upper()} sum {found}, but the published "
            f"file has {file.checksum.digest}: it is not used"
        )


def _transfer(
    address: str, part: Path, file: File, opener: OpenerDirector, progress: Progress | None
) -> None:
    """Append what is missing of `part`, or write it from the start where that cannot be had."""
    host = urlsplit(address).hostname
    most = file.size or _MOST
    begun = part.stat().st_size if part.is_file() else 0
    if begun == file.size:
        return  # whole already; its checksum decides
    with _opened(address, begun if begun < most else 0, opener) as response:
        begun = _starts_at(response, begun)
        length = response.headers.get("Content-Length", "")
        total = begun + int(length) if length.isdecimal() else file.size
        with _writing(part), part.open("ab" if begun else "wb") as output:
            for block in _blocks(response):
                begun += len(block)
                if begun > most:
                    part.unlink()
                    raise FetchFailed(
                        f"{address} sends more than {most:,} bytes: it is not the published file"
                    )
                output.write(block)
                if progress:
                    progress(file.name, begun, total)
    if total is not None and begun < total:
        raise _Unreachable(f"{host} closed the connection after {begun:,} of {total:,} bytes")


def _opened(address: str, begun: int, opener: OpenerDirector) -> HTTPResponse:
    host = urlsplit(address).hostname
    request = Request(address, headers={"Range": f"bytes={begun}-"} if begun else {})
    try:
        response: HTTPResponse = opener.open(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and begun:  # nothing after what we have: that cannot be a part of it
            return _opened(address, 0, opener)
        raise _Unreachable(f"{host} answers {error.code} ({error.reason})") from None
    except (OSError, HTTPException, UnicodeError) as error:
        raise _Unreachable(f"{host} cannot be reached ({_reason(error)})") from None
    return response


def _starts_at(response: HTTPResponse, begun: int) -> int:
    """Where in the file the answer starts: some servers send all of it whatever they are asked."""
    if response.status != 206:
        return 0
    if not response.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
        raise _Unreachable(
            f"{urlsplit(response.url).hostname} sent another part of the file than requested"
        )
    return begun


def _blocks(response: HTTPResponse) -> Iterator[bytes]:
    """The body. Trouble with the network is told apart from trouble with the disk here."""
    while True:
        try:
            block = response.read(_BLOCK)
        except (OSError, HTTPException) as error:
            host = urlsplit(response.url).hostname
            raise _Unreachable(f"{host} closed the connection ({_reason(error)})") from None
        if not block:
            return
        yield block


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    return (isinstance(cause, OSError) and cause.strerror) or str(cause) or type(cause).__name__


def _opener(base: str | None) -> OpenerDirector:
    """Public sources and https addresses stay protected; only an http address of yours does not."""
    open_too = base is not None and urlsplit(base).scheme == "http"
    opener = build_opener(_Redirects(open_too=open_too))
    opener.addheaders = [("User-Agent", f"udpfl/{__version__}")]
    return opener


class _Redirects(HTTPRedirectHandler):
    """Follows redirects, but not from a protected connection to an open one."""

    def __init__(self, *, open_too: bool) -> None:
        self._schemes = ("http", "https") if open_too else ("https",)

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """The request to follow, unless it leaves https."""
        if urlsplit(newurl).scheme not in self._schemes:
            refusal = f"redirects to {newurl}, which is not https"
            raise HTTPError(newurl, code, refusal, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FetchFailed(f"cannot write {path}: {error.strerror or error}") from None
