"""What live views share: the time that is left, and notes that do not run through the bar."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text


@contextmanager
def running(bar: Progress) -> Iterator[None]:
    """Show the bar; notes go above it instead of through it."""
    logger = logging.getLogger()
    handlers = logger.handlers[:]
    bar.start()
    logger.handlers[:] = [_Above(bar.console)]
    try:
        yield
    finally:
        bar.stop()
        logger.handlers[:] = handlers


class TimeLeft(ProgressColumn):
    """Minutes and seconds to go."""

    def render(self, task: Task) -> Text:
        """The time, once some of the work tells how long the rest takes."""
        if task.finished:
            return Text("done")
        if task.time_remaining is None:
            return Text("preparing" if not task.completed else "")
        minutes, seconds = divmod(int(task.time_remaining), 60)
        return Text(f"{minutes}:{seconds:02d} left")


class _Above(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(Text(f"note: {record.getMessage()}", style="yellow"))
