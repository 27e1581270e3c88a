"""Interrupts that let a round finish."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

log = logging.getLogger(__name__)

Interrupts = Callable[[], AbstractContextManager[threading.Event]]
"""Sets an event when a run is to stop after its round."""


@contextmanager
def patient_interrupt(asked: threading.Event | None = None) -> Iterator[threading.Event]:
    """Set by the first interrupt, which lets the round finish; the second one does not.

    `asked` is the event to be set, where several runs look at one.

    Only the main thread hears of interrupts; in any other this is never set.
    """
    asked = asked or threading.Event()
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
