"""Interrupts that let a round finish."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def patient_interrupt() -> Iterator[threading.Event]:
    """Set by the first interrupt, which lets the round finish; the second one does not.

    Only the main thread hears of interrupts; in any other this is never set.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handler(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        log.warning("interrupted: this round is finished first; interrupt again to stop now")

    previous = {kind: signal.signal(kind, handler) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for kind, old in previous.items():
            signal.signal(kind, old)
