from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.data.serving import Server


@pytest.fixture
def plain_surroundings(monkeypatch):
    for name in ("UDPFL_DATA_DIR", "FORCE_COLOR", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.requests.append((self.path, wanted))
            if self.path in state.redirects:
                self.send_response(302)
                self.send_header("Location", state.redirects[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = state.files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            if wanted and state.ranges:
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206)
                said = 1 if state.wrong_range else start
                self.send_header("Content-Range", f"bytes {said}-{len(body) - 1}/{len(body)}")
                body = body[start:]
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if state.cut is None else body[: state.cut])

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.handle_error = lambda *_: None  # somebody who hangs up early is no news
    state.address = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    listening.shutdown()
    listening.server_close()
    thread.join()
