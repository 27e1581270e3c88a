"""A service at a local socket: one long-lived process that holds records, ledger and model.

Whoever speaks to the network (a Flower SuperNode) runs as another user who can reach this socket
and nothing else. Code that a server ships to the site therefore sees what the gate hands out, never
a record. It also saves the seconds that loading torch takes for every message.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from udpfl.errors import InvalidInput
from udpfl.site.connection import Parcel, receive, send, socket_path
from udpfl.site.gate import Gate
from udpfl.site.reasons import plain

log = logging.getLogger(__name__)

_PATIENCE = 30.0
"""Seconds within which a process that connected has to say what it wants, and to take what it
gets."""
_TENSORS = 8
"""How many tensors of the size of the model a request may hold."""
_HEADER = 1 << 20


class Handler(Protocol):
    """Whoever answers: the gate of a site, or a shuffler."""

    def handle(self, about: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """What goes back: a table, and bytes."""

    def close(self) -> None:
        """No more will come."""


class Service:
    """Answers at a local socket, one request at a time.

    Args:
        handler: Decides and answers.
        path: Of the socket; members of its group may connect.
        most: Bytes that a request may have.
    """

    def __init__(self, handler: Handler, path: str | Path, most: int) -> None:
        self._handler, self._most = handler, most
        self.path = Path(socket_path(path))
        self._is_stopping = False
        _make_room(self.path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o117)
        try:
            self._socket.bind(str(self.path))
        except OSError as error:
            raise InvalidInput("socket", f"cannot be {str(self.path)!r}: {error}") from None
        finally:
            os.umask(before)
        self._socket.listen(16)

    def run(self) -> None:
        """Answer until `stop`."""
        with self._socket:
            while not self._is_stopping:
                try:
                    connection, _ = self._socket.accept()
                except OSError:
                    break
                with connection:
                    self._serve(connection)
        self.path.unlink(missing_ok=True)

    def stop(self) -> None:
        """End after the request that is being answered."""
        self._is_stopping = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket) -> None:
        try:
            asked = receive(connection, self._most, _PATIENCE)
        except Exception as error:  # whatever it is: the next one is answered
            log.warning("a request could not be read: %s", plain(error))
            return
        about, message = self._handler.handle(asked.about, asked.body)
        try:
            connection.settimeout(_PATIENCE)
            send(connection, Parcel(about, message))
        except OSError as error:  # it was charged and stored: whoever asks again gets the same
            log.warning("an answer could not be handed over: %s", error)


def _make_room(path: Path) -> None:
    """Remove the socket of a service that has died; refuse one that is alive."""
    if not path.exists() and not path.is_socket():
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise InvalidInput("socket", f"{str(path)!r} is in the way: {error}") from None
    raise InvalidInput("socket", f"another service answers at {str(path)!r}")


def longest_request(gate: Gate) -> int:
    """Bytes that a request to a gate may have."""
    return 4 * _TENSORS * gate.policy.server.parameters + _HEADER


def serve(
    handler: Handler, path: str | Path, most: int, ready: Callable[[], None] = lambda: None
) -> None:
    """Answer at a socket until the process is asked to stop; `ready` is called once it is there."""
    service = Service(handler, path, most)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log.debug("answering at %s", service.path)
    ready()
    try:
        service.run()
    finally:
        handler.close()
