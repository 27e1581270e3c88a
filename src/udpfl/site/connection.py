"""How a process beside the site reaches its service: parcels over a local socket.

A parcel is a table of plain data and some bytes. Only the standard library is needed here, so that
a process that lives for one message starts quickly.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from udpfl.errors import InvalidInput, UdpflError

_LENGTHS = struct.Struct("<IQ")
_LONGEST_PATH = 100
"""Of a socket, in bytes; the system allows a few more."""
_MOST_ABOUT = 1 << 20
_PIECE = 1 << 20


class Parcel(NamedTuple):
    """What goes over a socket in one direction."""

    about: dict[str, Any]
    body: bytes = b""


class ServiceUnreachable(UdpflError):
    """The service of the site does not answer."""


def socket_path(path: str | Path) -> str:
    """The path of a socket, which must not be long."""
    text = str(Path(path).absolute())
    if len(text.encode()) > _LONGEST_PATH:
        raise InvalidInput(
            "socket", f"{text!r} is too long for a socket: use one of at most {_LONGEST_PATH} bytes"
        )
    return text


def send(connection: socket.socket, parcel: Parcel) -> None:
    """Write a parcel."""
    about = json.dumps(parcel.about).encode()
    connection.sendall(_LENGTHS.pack(len(about), len(parcel.body)) + about)
    if parcel.body:  # else the other side may have answered and gone by now
        connection.sendall(parcel.body)


def receive(connection: socket.socket, most: int, within: float | None = None) -> Parcel:
    """Read a parcel with at most so many bytes in its body.

    Args:
        connection: Where it comes from.
        most: Bytes that its body may have.
        within: Seconds until all of it has to be there; None waits as long as it takes.

    Raises:
        ValueError: It is longer, or is no parcel.
        OSError: The connection broke, or the time is over.
    """
    ends = None if within is None else time.monotonic() + within
    about, body = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size, ends))
    if about > _MOST_ABOUT or body > most:
        raise ValueError(f"a parcel of {about + body:,} bytes is longer than {most:,}")
    table = json.loads(_exactly(connection, about, ends))
    if not isinstance(table, dict):
        raise ValueError("a parcel begins with a table")
    return Parcel(table, _exactly(connection, body, ends))


def _exactly(connection: socket.socket, length: int, ends: float | None) -> bytes:
    pieces, left = [], length
    while left:
        if ends is not None:  # a byte now and then is not to keep everybody else waiting
            connection.settimeout(max(1e-3, ends - time.monotonic()))
        piece = connection.recv(min(left, _PIECE))
        if not piece:
            raise ConnectionError("the connection ended in the middle of a parcel")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def ask(path: str | Path, about: Mapping[str, Any], body: bytes, most: int = 1 << 33) -> Parcel:
    """Hand a parcel to the service at this socket, and wait for what it returns.

    Raises:
        ServiceUnreachable: Nobody is there, or the connection broke.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(socket_path(path))
            send(connection, Parcel(dict(about), body))
            return receive(connection, most)
    except (OSError, ValueError) as error:
        raise ServiceUnreachable(f"no service answers at {path}: {error}") from None
