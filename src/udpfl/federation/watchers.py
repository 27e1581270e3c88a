"""Those who watch a run: metrics, checkpoints, observers, interrupts.

None of them changes what is computed. Checkpoints decide which messages clients may forget, and an
interrupt ends the run. They are called in the order in which a run lists them.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from udpfl.algorithms import ClientMessage, stacked
from udpfl.engine import LaneModel
from udpfl.errors import LedgerError
from udpfl.federation.evaluation import Evaluation
from udpfl.federation.observers import Observer
from udpfl.federation.request import Answers
from udpfl.federation.server import Server
from udpfl.federation.statements import Statements
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedRound:
    """A round that was aggregated."""

    round: int
    answers: Answers
    messages: Sequence[ClientMessage]
    """As they are after all stages, in the order in which they arrived."""
    began: float
    """By `time.perf_counter`."""


class Watcher:
    """Sees every round of a run. All methods may be left out.

    Example:
        >>> from udpfl.federation import Watcher
        >>> class Count(Watcher):
        ...     rounds = 0
        ...     def after_round(self, done):
        ...         self.rounds += 1
        >>> Count().rounds
        0
    """

    def after_round(self, done: FinishedRound) -> None:
        """A round was aggregated."""

    def before_next(self) -> None:
        """A round has ended, and another one may begin; also where nobody answered."""

    def after_last(self) -> None:
        """The run has ended, be it early."""


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop, and can be resumed from its folder.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(str(folder))


@dataclass(frozen=True)
class Messages(Watcher):
    """Shows released messages and models to observers, and keeps those that are to be recorded."""

    server: Server
    model: LaneModel
    folder: RunFolder
    recorded: Collection[int]
    """The rounds whose messages are written to the folder."""
    observers: Sequence[Observer]

    def after_round(self, done: FinishedRound) -> None:
        if done.round in self.recorded:
            for number, message in enumerate(self.server.sort(done.messages)):
                name = message.client or f"message-{number}"
                self.folder.write_update(done.round, name, message.to_bytes())
        for observer in self.observers:
            for message in done.messages:
                observer.on_message(message.copy())
            named = self.model.layout.named(self.server.model.detach().cpu().clone())
            observer.on_model(done.round, named)


class Metrics(Watcher):
    """Writes one line of metrics for every round."""

    def __init__(
        self,
        server: Server,
        folder: RunFolder,
        evaluate: Callable[[], Evaluation],
        statements: Statements,
        is_due: Callable[[int], bool],
        learning_rate: Callable[[int], float],
    ) -> None:
        self._server, self._folder, self._evaluate = server, folder, evaluate
        self._statements, self._is_due, self._learning_rate = statements, is_due, learning_rate
        self.rows = folder.read_metrics(server.round)
        """Of the rounds so far."""
        if folder.metrics.exists():
            folder.rewrite_metrics(self.rows)  # without those of rounds that run again

    def after_round(self, done: FinishedRound) -> None:
        row = self._measure(done)
        self._folder.append_metrics(row)
        self.rows.append(row)

    def after_last(self) -> None:
        """A run that ends early still says how good its last model is."""
        if self.rows and self.rows[-1]["loss"] is None:
            self.rows[-1] |= self._evaluated()
            self._folder.rewrite_metrics(self.rows)

    def _evaluated(self) -> dict[str, Any]:
        return {**self._evaluate().to_dict(), **self._statements.spending()}

    def _measure(self, done: FinishedRound) -> dict[str, Any]:
        row: dict[str, Any] = {"round": done.round, "accuracy": None, "loss": None}
        if self._is_due(done.round):
            row |= self._evaluated()
        answers, is_hidden = done.answers, self._server.hides_participation
        return row | {
            "participants": len(answers.messages),
            "refused": len(answers.refused),
            "bytes_up": answers.bytes_up,
            "bytes_down": answers.bytes_down,
            "seconds": round(time.perf_counter() - done.began, 4),
            "drift": _drift(done.messages),
            **self._server.measure(),
            "learning_rate": self._learning_rate(done.round),
            "simulation_only": {
                "clip_fraction": None if is_hidden else answers.clipped_fraction,
                "signal_to_noise": None if is_hidden else answers.signal_to_noise,
            },
        }


class Checkpoints(Watcher):
    """Keeps the server's state, so that a run that was interrupted goes on."""

    def __init__(
        self, server: Server, folder: RunFolder, ledger: Ledger, is_due: Callable[[int], bool]
    ) -> None:
        self._server, self._folder, self._ledger, self._is_due = server, folder, ledger, is_due
        self._answered: Counter[str] = Counter()
        self._saved = 0

    def restore(self, run: str, accounts: Sequence[int]) -> None:
        """Put the server where the latest checkpoint left it; write the first one of a new run."""
        found = self._folder.read_checkpoint()
        if found is not None:
            self._answered = Counter(found.answered)
            self._server.restore(found.round, found.tensors)
            self._saved = found.round
        elif any(self._ledger.rounds_charged(run, account) for account in accounts):
            raise LedgerError(
                f"the run {self._folder.path} cannot be resumed: no checkpoint can be read, and "
                f"its rounds are already charged"
            )
        else:
            self.save()

    def after_round(self, done: FinishedRound) -> None:
        self._answered.update(message.client for message in done.answers.messages)
        if self._is_due(done.round):
            self.save()
            self._server.note_saved()

    def after_last(self) -> None:
        if self._server.round > self._saved:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the server as it is."""
        self._folder.write_checkpoint(
            self._server.round, self._server.state(), self._answered, self._ledger.head()
        )
        self._saved = self._server.round


@dataclass(frozen=True)
class Lines(Watcher):
    """Shows every line of metrics to observers, once the round is safe."""

    metrics: Metrics
    observers: Sequence[Observer]

    def after_round(self, done: FinishedRound) -> None:
        for observer in self.observers:
            observer.on_round(copy.deepcopy(self.metrics.rows[-1]))


@dataclass(frozen=True)
class Interrupts(Watcher):
    """Ends a run after the round in which that was asked for."""

    asked: threading.Event
    checkpoints: Checkpoints
    folder: Path

    def before_next(self) -> None:
        if self.asked.is_set():
            self.checkpoints.save()
            raise Interrupted(self.folder)


def _drift(messages: Sequence[ClientMessage]) -> float | None:
    """How far released updates lie from their mean: a root mean square over clients."""
    if len(messages) < 2 or "update" not in messages[0].tensors:
        return None
    updates = stacked(messages, "update")
    return math.sqrt(float((updates - updates.mean(0)).square().sum()) / len(updates))
