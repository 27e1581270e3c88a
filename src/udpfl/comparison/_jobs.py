"""The runs of a comparison that are still to be done, and how far they have come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from udpfl.config import Config, load
from udpfl.errors import UdpflError
from udpfl.federation import Observer, Resumed
from udpfl.federation.configured_names import refuse_unknown
from udpfl.running import run as train
from udpfl.running import run_together
from udpfl.runs.files import has_begun, has_ended

log = logging.getLogger(__name__)

Tell = Callable[[float, int, str], None]
"""Hears of progress: runs done (a run under way counts by its rounds), runs in all, and which."""


@dataclass(frozen=True)
class Job:
    """One run that is still to be done, or to be gone on with."""

    folder: Path
    config: Config

    def train(self, advance: Callable[[float], None]) -> str | None:
        """Train it to its end; returns why it failed. `advance` gets the share of rounds done."""
        try:
            wanted = self.wanted()
            if isinstance(wanted, Resumed):
                train(resume=wanted.folder, observers=self.observers(advance))
            else:
                train(wanted, observers=self.observers(advance))
        except Exception as error:  # one cell may fail in any way without ending the others
            return self.why(error)
        return None

    def wanted(self) -> Config | Resumed:
        """What is to be run: the cell, or what has been begun of it."""
        if not self.begun:
            return load(self.config, self._place)
        refuse_unknown([self.config])  # not the folder, the person who compares names them
        return Resumed(self.folder)

    def observers(self, advance: Callable[[float], None]) -> Sequence[Observer]:
        """Those of its run."""
        return [_Rounds(self.config.training.rounds, advance)]

    def why(self, error: Exception) -> str:
        """Why it failed, in words for people."""
        if isinstance(error, UdpflError):
            return str(error)
        log.debug("%s failed", self.folder, exc_info=error)
        return f"{type(error).__name__}: {error}"

    @property
    def _place(self) -> dict[str, Any]:
        """Where the run is kept, and the ledger with a filter that it alone uses, if it has one."""
        own: dict[str, Any] = {"out": str(self.folder)}
        if self.config.privacy.ledger is not None:
            own["privacy"] = {"ledger": f"{self.folder}.sqlite"}
        return own

    @property
    def begun(self) -> bool:
        """Whether there is something to go on with."""
        return has_begun(self.folder)

    @property
    def finished(self) -> bool:
        """Whether its run folder is complete."""
        return has_ended(self.folder)


def train_together(jobs: Sequence[Job], progress: Progress) -> None:
    """Train these side by side in this process, each to its end or until it fails."""
    wanted: dict[int, Config | Resumed] = {}
    for number, job in enumerate(jobs):
        progress.advance(job, 0.0)
        try:
            wanted[number] = job.wanted()
        except Exception as error:
            progress.end(job, job.why(error))
    own = [jobs[number] for number in wanted]
    outcomes = run_together(
        list(wanted.values()),
        observers=lambda place: own[place].observers(partial(progress.advance, own[place])),
    )
    for job, outcome in zip(own, outcomes, strict=True):
        progress.end(job, job.why(outcome) if isinstance(outcome, Exception) else None)


class _Rounds(Observer):
    """An observer that only counts."""

    shows_progress = True

    def __init__(self, rounds: int, advance: Callable[[float], None]) -> None:
        self._rounds, self._advance = rounds, advance

    def on_round(self, row: dict[str, Any]) -> None:
        self._advance(row["round"] / self._rounds)


@dataclass
class Progress:
    """How far all jobs together have come."""

    tell: Tell
    total: int
    done: int
    failed: dict[Path, str] = field(default_factory=dict)
    _shares: dict[str, float] = field(default_factory=dict)

    def advance(self, job: Job, share: float) -> None:
        """A job under way has come this far."""
        self._shares[job.folder.name] = share
        self._tell()

    def end(self, job: Job, failed: str | None) -> None:
        """A job came to its end, or failed for this reason."""
        self._shares.pop(job.folder.name, None)
        self.done += 1
        if failed is not None:
            self.failed[job.folder] = failed
        self._tell()

    def _tell(self) -> None:
        self.tell(self.done + sum(self._shares.values()), self.total, "  ".join(self._shares))
