"""Interrupts that let a round finish."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_awaited: threading.Event | None = None
"""What the main thread waits for."""


@contextmanager
def patient_interrupt() -> Iterator[threading.Event]:
    """Set by the first interrupt, which lets the round finish; the second one does not.

    Only the main thread hears of interrupts. In any other this is what the main thread waits for,
    if it does.
    """
    global _awaited
    if threading.current_thread() is not threading.main_thread():
        yield _awaited or threading.Event()
        return
    asked, outer = threading.Event(), _awaited

    def handler(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        log.warning("interrupted: finishing this round, once more to stop at once")

    previous = {kind: signal.signal(kind, handler) for kind in (signal.SIGINT, signal.SIGTERM)}
    _awaited = asked
    try:
        yield asked
    finally:
        _awaited = outer
        for kind, old in previous.items():
            signal.signal(kind, old)
