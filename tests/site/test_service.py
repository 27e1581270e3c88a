"""The service of a site at its socket: what it takes, what it refuses, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import tomli_w

from tests.repository import IMPORTS
from tests.site.samples import policy, request
from udpfl import InvalidInput, Ledger
from udpfl.site import Policy, service
from udpfl.site.connection import _LENGTHS, ServiceUnreachable, ask, socket_path
from udpfl.site.service import _make_room


@pytest.fixture
def serving(tmp_path):
    """A site's service in a process of its own; stopped at the end."""
    file, short = tmp_path / "policy.toml", Path(tempfile.mkdtemp(prefix="u"))
    own = policy(tmp_path).model_dump(exclude_none=True)
    file.write_text(tomli_w.dumps({**own, "state": "state"}))
    path, started = short / "s", []

    def start():
        environment = {**os.environ, "PYTHONPATH": IMPORTS, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "udpfl", "site", "serve", str(file), "--socket", str(path)],
            stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        started.append(process)
        ends = time.monotonic() + 60
        while not path.is_socket() and process.poll() is None and time.monotonic() < ends:
            time.sleep(0.02)
        return process

    yield file, path, start
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def train(path, round_=1, **changes):
    sent = request(round_, **changes)
    return ask(path, {"ask": "train", "address": sent.address()}, sent.body())


def test_a_service_answers_and_goes_on_after_a_kill(serving):
    file, path, start = serving
    process = start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert ask(path, {"ask": "describe"}, b"").about["site"] == "client-0"
    first = train(path)
    assert first.about["refused"] == ""
    ledger = Policy.read(file).ledger
    # A process that says nothing, and one that says too much, are in nobody's way.
    nested = b"[" * 100_000
    with (
        socket.socket(socket.AF_UNIX) as silent,
        socket.socket(socket.AF_UNIX) as large,
        socket.socket(socket.AF_UNIX) as deep,
    ):
        deep.connect(str(path))
        deep.sendall(len(nested).to_bytes(4, "little") + bytes(8) + nested)
        silent.connect(str(path))
        silent.close()
        large.connect(str(path))
        large.sendall((1).to_bytes(4, "little") + (2**50).to_bytes(8, "little"))
        assert train(path).body == first.body
    with pytest.raises(InvalidInput, match="another service"):
        _make_room(path)
    process.kill()
    process.wait()
    with pytest.raises(ServiceUnreachable):
        train(path)
    _make_room(path)  # the socket of a service that died
    start()
    assert train(path).body == first.body
    second = train(path, 2)
    assert second.about["head"][0] == 2
    with Ledger(ledger, read_only=True) as found:
        assert found.verify() == []


def test_a_service_ends_after_the_request_that_it_is_answering(serving):
    _, path, start = serving
    process = start()
    ask(path, {"ask": "describe"}, b"")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(train(path)))
    thread.start()
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert answers[0].about["refused"] == "", "the request was answered"
    assert process.wait(30) == 0
    assert not path.exists()


def test_passing_a_request_on_loads_no_torch():
    code = (
        "import sys, udpfl.site.connection; "
        "print([name for name in ('torch', 'numpy', 'scipy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_long_paths_of_sockets_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="too long"):
        socket_path(tmp_path / ("x" * 120))


class _Echo:
    """Answers whatever comes."""

    def handle(self, about, body):
        return dict(about), body

    def close(self):
        pass


def test_who_sends_a_byte_now_and_then_keeps_nobody_waiting_for_long(monkeypatch):
    monkeypatch.setattr(service, "_PATIENCE", 0.5)
    path = Path(tempfile.mkdtemp(prefix="u")) / "s"
    own = service.Service(_Echo(), path, 1000)
    threading.Thread(target=own.run, daemon=True).start()
    over = threading.Event()

    def trickle():
        with socket.socket(socket.AF_UNIX) as slow, contextlib.suppress(OSError):
            slow.connect(str(path))
            slow.sendall(_LENGTHS.pack(60, 0))
            while not over.wait(0.2):
                slow.sendall(b" ")

    threading.Thread(target=trickle, daemon=True).start()
    time.sleep(0.2)
    began = time.monotonic()
    assert ask(path, {"ask": "anything"}, b"")
    assert time.monotonic() - began < 8
    over.set()
    own.stop()
