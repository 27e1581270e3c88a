"""Processes of a federation on this machine: they end, and so does all that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import pytest

from udpfl.deploy.local import Process, ended_by_signals

STARTS_ONE = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True)
pathlib.Path("child").write_text(str(child.pid))
time.sleep(60)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


def is_running(number):
    """A process that ended and that nobody has waited for is not."""
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
@pytest.mark.parametrize("child", ["import time; time.sleep(60)", STUBBORN])
def test_what_a_process_started_in_a_session_of_its_own_ends_with_it(tmp_path, monkeypatch, child):
    monkeypatch.setattr("udpfl.deploy.local._ENDS_IN", 1.0)
    script = STARTS_ONE.format(child=child)
    process = Process([sys.executable, "-c", script], tmp_path / "log", {}, tmp_path)
    process.start()
    number, ends = 0, time.monotonic() + 20
    while not number and time.monotonic() < ends:
        with contextlib.suppress(FileNotFoundError, ValueError):
            number = int((tmp_path / "child").read_text())
    time.sleep(0.3)
    assert is_running(number)
    process.stop()
    assert not is_running(number)
    assert not process.is_running


@pytest.fixture
def hears_signals():
    """Handlers as of a process in the foreground: one in the background may ignore some signals."""
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {kind: signal.signal(kind, handler) for kind, handler in usual.items()}
    yield usual
    for kind, handler in before.items():
        signal.signal(kind, handler)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_to_end_is_an_interrupt_and_a_second_one_is_none(kind, hears_signals):
    before, ended = hears_signals[kind], []

    def interrupted():
        try:
            signal.raise_signal(kind)
        finally:
            signal.raise_signal(signal.SIGTERM)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        interrupted()
    assert ended
    assert signal.getsignal(kind) is before


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_machine_without_ps_ends_what_it_has_started(tmp_path, monkeypatch):
    waits = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = Process(waits, tmp_path / "log", {}, tmp_path)
    process.start()
    assert process.is_running
    monkeypatch.setenv("PATH", str(tmp_path))
    process.stop()
    assert not process.is_running
