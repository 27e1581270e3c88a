"""The runs of a comparison that are still to be done, and how far they have come."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from udpfl.config import Config, load
from udpfl.errors import UdpflError
from udpfl.federation import Observer
from udpfl.federation.configured_names import refuse_unknown
from udpfl.running import run as train
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
        observers: list[Observer] = [_Rounds(self.config.training.rounds, advance)]
        try:
            if self.begun:
                refuse_unknown([self.config])  # not the folder, the person who compares names them
                train(resume=self.folder, observers=observers)
            else:
                train(load(self.config, self._place), observers=observers)
        except UdpflError as error:
            return str(error)
        except Exception as error:  # one cell may fail in any way without ending the others
            log.debug("%s failed", self.folder, exc_info=True)
            return f"{type(error).__name__}: {error}"
        return None

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
