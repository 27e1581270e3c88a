"""The figures of a round in words, and the time that the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from udpfl.accounting.statement import shown


def quality_of(row: Mapping[str, Any]) -> str:
    """Accuracy, or the error of a regression; empty where the round was not evaluated."""
    if row.get("loss") is None:
        return ""
    name = "accuracy" if row.get("accuracy") is not None else "mae" if "mae" in row else "loss"
    value = row[name]
    return f"{name} {value if isinstance(value, str) else format(value, '.4f')}"


def privacy_of(row: Mapping[str, Any]) -> str:
    """The largest epsilon of any client so far; empty where the round was not evaluated."""
    if row.get("loss") is None:
        return ""
    if row["privacy"] == "none":
        return "not private"
    epsilon = row["epsilon"]["max"]
    said = "ε" if row["privacy"] == "guarantee" else "nominal ε"
    return f"{said} {epsilon if epsilon == 'inf' else shown(epsilon)}"


class Pace:
    """How long the rounds that are left will take, by those of this process.

    Args:
        rounds: Of the whole run.
        clock: Seconds, from any beginning.
    """

    def __init__(self, rounds: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.rounds = rounds
        self._clock = clock
        self._began = clock()
        self._done = 0

    def seconds_left(self, round_: int) -> float:
        """After that round; a resumed run counts the rounds since it was resumed."""
        self._done += 1
        return (self._clock() - self._began) / self._done * max(0, self.rounds - round_)


def in_words(seconds: float) -> str:
    """A time for people: 42 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
