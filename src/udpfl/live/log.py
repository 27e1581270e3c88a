"""One line in the log for every round."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from udpfl.config import Config
from udpfl.federation.observers import Follower
from udpfl.live.figures import Pace, in_words, privacy_of, quality_of

log = logging.getLogger(__name__)


class RoundLog(Follower):
    """Logs round, accuracy, epsilon, seconds and the time left, at the level INFO.

    `udpfl.run` adds it to every run. A program that wants the lines turns them on:
    `logging.basicConfig(level="INFO")`.

    Example:
        >>> from udpfl.live import RoundLog
        >>> RoundLog().on_round({"round": 1, "loss": None, "seconds": 0.5})
    """

    def __init__(self) -> None:
        self._pace: Pace | None = None

    def on_start(self, config: Config, folder: Path) -> None:
        self._pace = Pace(config.training.rounds)

    def on_round(self, row: dict[str, Any]) -> None:
        parts = [quality_of(row), privacy_of(row), f"{row['seconds']:.1f} s"]
        of = ""
        if self._pace is not None:
            left = self._pace.seconds_left(row["round"])
            of = f" of {self._pace.rounds}"
            if row["round"] < self._pace.rounds:
                parts.append(f"{in_words(left)} left")
        log.info("round %d%s: %s", row["round"], of, ", ".join(part for part in parts if part))
