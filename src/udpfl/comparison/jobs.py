"""The runs of a comparison that are still to be done, and how far they have come."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from udpfl.config import Config, load
from udpfl.engine import TrainRound
from udpfl.errors import UdpflError
from udpfl.federation import Observer
from udpfl.federation import run as train

log = logging.getLogger(__name__)

Tell = Callable[[float, int, str], None]
"""Hears of progress: runs done (a run under way counts by its rounds), runs in all, and which."""


@dataclass(frozen=True)
class Job:
    """One run that is still to be done, or to be gone on with."""

    folder: Path
    config: Config

    def train(self, heard: Callable[[float], None], engine: TrainRound | None = None) -> str | None:
        """Train it to its end, telling the share of rounds done; returns why it failed."""
        observers: list[Observer] = [_Rounds(self.config.training.rounds, heard)]
        try:
            if self.begun:
                train(resume=self.folder, observers=observers, engine=engine)
            else:
                own = load(self.config, {"out": str(self.folder)})
                train(own, observers=observers, engine=engine)
        except UdpflError as error:
            return str(error)
        except Exception as error:  # one cell may fail in any way without ending the others
            log.debug("%s failed", self.folder, exc_info=True)
            return f"{type(error).__name__}: {error}"
        return None

    @property
    def begun(self) -> bool:
        """Whether there is something to go on with."""
        return (self.folder / "run.json").is_file()

    @property
    def finished(self) -> bool:
        """Whether its run folder is complete."""
        return (self.folder / "summary.json").is_file()


class _Rounds:
    """An observer that only counts."""

    def __init__(self, rounds: int, heard: Callable[[float], None]) -> None:
        self._rounds, self._heard = rounds, heard

    def on_message(self, message: Any) -> None: ...

    def on_model(self, round_: int, model: Any) -> None: ...

    def on_round(self, row: dict[str, Any]) -> None:
        self._heard(row["round"] / self._rounds)


class Hears(Protocol):
    """Whoever wants to know how far jobs have come."""

    def hears(self, job: Job, share: float) -> None:
        """A job under way has come this far."""

    def ends(self, job: Job, failed: str | None) -> None:
        """A job came to its end, or failed for this reason."""


@dataclass
class Progress(Hears):
    """How far all jobs together have come."""

    tell: Tell
    total: int
    done: int
    failed: dict[Path, str] = field(default_factory=dict)
    _shares: dict[str, float] = field(default_factory=dict)

    def hears(self, job: Job, share: float) -> None:
        self._shares[job.folder.name] = share
        self._say()

    def ends(self, job: Job, failed: str | None) -> None:
        self._shares.pop(job.folder.name, None)
        self.done += 1
        if failed is not None:
            self.failed[job.folder] = failed
        self._say()

    def _say(self) -> None:
        self.tell(self.done + sum(self._shares.values()), self.total, "  ".join(self._shares))
