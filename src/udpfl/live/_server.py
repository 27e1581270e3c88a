"""The web server of a live page: local, read-only, with a token, and nothing but this page.

It listens on 127.0.0.1. Other people on the machine do not know the token. A web page of somebody
else can make the browser ask for an address here, but does not know the token, and is not served
under a host name of its own (DNS rebinding), because the header Host is checked.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from udpfl.errors import InvalidInput
from udpfl.report.page import asset, source_hash

Since = Callable[[int], Mapping[str, Any]]
"""What a page that has so many rows does not know yet; `state` says whether more will come."""

ENDED = ("finished", "stopped", "interrupted", "failed")
_WATCHED = 3.0
"""Somebody who asked within so many seconds is still there."""


class PageServer:
    """Serves the page and its data in a thread.

    Args:
        since: Called for every answer, from other threads.
        port: Where to listen; 0 takes a free port.
    """

    def __init__(self, since: Since, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self._asked = -_WATCHED
        self._has_told_end = threading.Event()
        self._since = since
        owner = self

        class Handler(_Handler):
            server_of_page = owner

        try:
            self._http = _QuietServer(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise InvalidInput("live_port", f"cannot listen on port {port}: {error}") from None
        self._http.daemon_threads = True
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )

    @property
    def address(self) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self, farewell: float) -> None:
        """Answer until a page that is being watched knows the end, or for so many seconds."""
        if time.monotonic() - self._asked < _WATCHED:
            self._has_told_end.wait(farewell)
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, row: int) -> bytes:
        """What is new, as JSON."""
        self._asked = time.monotonic()
        known = self._since(row)
        body = json.dumps(known, allow_nan=False, ensure_ascii=False).encode()
        if known["state"] in ENDED:
            self._has_told_end.set()
        return body


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A request that makes no sense, or a browser that goes away, is nobody's news."""


class _Handler(BaseHTTPRequestHandler):
    server_of_page: PageServer
    server_version, sys_version = "udpfl", ""
    timeout = 10

    def do_GET(self) -> None:
        page, asked = self.server_of_page, urlsplit(self.path)
        if self.headers.get("Host", "") not in (f"{n}:{page.port}" for n in _HOSTS):
            return self._send(403, "text/plain", b"this address is not served here\n")
        token, _, name = asked.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), page.token.encode()):
            return self._send(404, "text/plain", b"there is no such page\n")
        if name == "":
            return self._send(200, "text/html; charset=utf-8", document()[0].encode())
        if name == "data":
            (row,) = parse_qs(asked.query).get("after", ["0"])[-1:]
            after = int(row) if row.isascii() and row.isdigit() and len(row) < 10 else 0
            return self._send(200, "application/json", page.answer(after))
        return self._send(404, "text/plain", b"there is no such page\n")

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": document()[1],
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nobody's news."""


_HOSTS = ("127.0.0.1", "localhost")


@cache
def document() -> tuple[str, str]:
    """The page, and the policy that lets its own script and styles run and nothing else."""
    here = files("udpfl.live")
    script = asset("elements.js") + (here / "page.js").read_text(encoding="utf-8")
    style = asset("style.css") + (here / "page.css").read_text(encoding="utf-8")
    text = (here / "page.html").read_text(encoding="utf-8")
    page = text.replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        f"default-src 'none'; script-src 'sha256-{source_hash(script)}'; connect-src 'self'; "
        f"style-src 'sha256-{source_hash(style)}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; img-src data:"
    )
    return page, policy
