"""What the command logs, and where: warnings as notes, and lines of progress without a terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Notes(logging.Formatter):
    """A warning is a note; whatever was turned on below that is printed as it is."""

    def format(self, record: logging.LogRecord) -> str:
        said = super().format(record)
        return f"note: {said}" if record.levelno >= logging.WARNING else said


def set_up_log(verbose: bool, quiet: bool) -> None:
    """Log to standard error: everything, nothing but errors, or notes."""
    level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.WARNING
    logging.basicConfig(level=level, format="%(name)s: %(message)s")
    if not verbose:
        for handler in logging.getLogger().handlers:
            if type(handler) is logging.StreamHandler:
                handler.setFormatter(_Notes())
    for chatty in ("matplotlib", "PIL"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def is_quiet() -> bool:
    """Whether `--quiet` was given."""
    return logging.getLogger().level == logging.ERROR


@contextmanager
def logged_rounds() -> Iterator[None]:
    """Print a line for every round, unless `--quiet` was given."""
    logger = logging.getLogger("udpfl.live")
    before = logger.level
    logger.setLevel(logging.WARNING if is_quiet() else logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
