"""Proxies that record what leaves a site, cut the network, and spoil replies."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from udpfl.site.connection import Parcel, ask, receive, send

HOST = "127.0.0.1"
_MESSAGE = re.compile(
    rb'\\"client\\": \\"([^"\\]+)\\".{0,4000}?\\"round\\": (\d+).{10,100}?}} *(.{24})', re.DOTALL
)
"""The header of a message, and the beginning of its tensors, which no two messages share."""
_SPOILED = struct.pack("<6f", *[math.nan] * 6)
"""What a test makes of a message on its way."""
_LONGEST = 1 << 32


@dataclass
class RecordingProxy:
    """Between SuperNodes and SuperLink: notes every message that goes up, and can be cut.

    The traffic is plain text, so a message shows by the header of its tensors.
    """

    target: int
    port: int = 0
    seen: Counter = field(default_factory=Counter)
    """How often each message went by: site, round, and what is in it."""
    is_cut: bool = False
    _connections: set = field(default_factory=set)

    def __post_init__(self):
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self.is_cut:
                near.close()
                continue
            try:
                far = socket.create_connection((HOST, self.target), timeout=5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            self._connections |= {near, far}
            for one, other, is_up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(one, other, is_up), daemon=True).start()

    def _pump(self, source, sink, is_up):
        buffer = b""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_up:
                    buffer = self._noted(buffer + data)
                sink.sendall(data)
        for own in (source, sink):
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)
        self._connections -= {source}
        source.close()  # the thread of the other direction closes the other one

    def _noted(self, buffer: bytes) -> bytes:
        """Note the messages in a buffer; what may be the beginning of one is kept."""
        end = 0
        for found in _MESSAGE.finditer(buffer):
            end = found.end()
            if found[3] != _SPOILED:  # that one was not sent by its site
                self.seen[found[1].decode(), int(found[2]), found[3].hex()] += 1
        return buffer[max(end, len(buffer) - 5000) :]

    def cut(self, seconds: float):
        """Break all connections, and let none begin for a while."""
        self.is_cut = True
        self.drop()
        time.sleep(seconds)
        self.is_cut = False

    def drop(self):
        """Break all connections."""
        for own in list(self._connections):
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)

    def distinct(self, site: str) -> int:
        """How many different messages of a site went by."""
        return len({content for name, _, content in self.seen if name == site})

    def close(self):
        self._server.close()
        self.drop()


@dataclass
class FaultySocket:
    """Between a SuperNode and the service of its site: the next replies may be spoiled."""

    path: Path
    service: Path
    faults: list = field(default_factory=list)
    """Each takes the reply to a request to train, and returns the one that the node gets."""
    answered: int = 0

    def __post_init__(self):
        self.path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(self.path))
        self._server.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, contextlib.suppress(Exception):
            asked = receive(connection, _LONGEST)
            reply = ask(self.service, asked.about, asked.body)
            if asked.about.get("ask") == "train" and self.faults and reply.body:
                reply = self.faults.pop(0)(reply)
                self.answered += 1
            send(connection, Parcel(dict(reply.about), reply.body))

    def close(self):
        self._server.close()
