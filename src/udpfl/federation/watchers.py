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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch

from udpfl.accounting.events import Leaf, PureDP, Release, leaves
from udpfl.accounting.serial import event_from_json
from udpfl.algorithms import ClientMessage
from udpfl.algorithms.rows import rows_of
from udpfl.engine import LaneModel
from udpfl.errors import UdpflError
from udpfl.federation._statements import spread
from udpfl.federation.evaluation import Evaluation
from udpfl.federation.observers import Observer, sees_messages, sees_models
from udpfl.federation.request import Answers
from udpfl.federation.server import Server
from udpfl.runs.folder import RunFolder
from udpfl.runs.targets import Target

log = logging.getLogger(__name__)

_AT_ONCE = 1 << 26
"""Numbers of a round's updates that are compared with their mean at once."""


@dataclass(frozen=True)
class FinishedRound:
    """A round that was aggregated."""

    round: int
    answers: Answers
    messages: Sequence[ClientMessage]
    """After all stages, in the order in which the last one left them."""
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
class MessageRecorder(Watcher):
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
            if sees_messages(observer):
                for message in done.messages:
                    observer.on_message(message.copy())
            if sees_models(observer):
                named = self.model.layout.named(self.server.model.detach().cpu().clone())
                observer.on_model(done.round, named)


class MetricsWriter(Watcher):
    """Writes one line of metrics for every round."""

    def __init__(
        self,
        server: Server,
        folder: RunFolder,
        evaluate: Callable[[], Evaluation] | None,
        spending: Callable[[], dict[str, Any]],
        is_due: Callable[[int], bool],
        learning_rate: Callable[[int], float],
        target: Target | None = None,
    ) -> None:
        self._server, self._folder, self._evaluate = server, folder, evaluate
        self._target = target
        self._spending, self._is_due, self._learning_rate = spending, is_due, learning_rate
        self.rows = folder.read_metrics(server.round)
        """Of the rounds so far."""
        self._known: tuple[Answers, dict[str, Any]] | None = None
        """The facts of a round that were asked for before it was charged."""

    def after_round(self, done: FinishedRound) -> None:
        known = self._known
        facts = known[1] if known and known[0] is done.answers else self.facts(done)
        self._known = None  # it holds the messages of a round
        self._append(facts, done.began)

    def note_missing(self, facts: Mapping[str, Any]) -> None:
        """Write the line of a round that was charged and aggregated before a crash, if it is not
        there."""
        if not self.rows or self.rows[-1]["round"] < facts["round"]:
            self._append(facts)

    def _append(self, facts: Mapping[str, Any], began: float | None = None) -> None:
        row = dict(facts)
        if self._is_due(row["round"]):
            row |= self._evaluated()
        if began is not None:
            row["seconds"] = round(time.perf_counter() - began, 4)
        row |= self._newly_reached(row)
        self._folder.append_metrics(row)
        self.rows.append(row)

    def after_last(self) -> None:
        """A run that ends early still says how good its last model is."""
        if self.rows and self.rows[-1]["loss"] is None and self._evaluate is not None:
            last = self.rows.pop() | self._evaluated()
            self.rows.append(last | self._newly_reached(last))
            self._folder.rewrite_metrics(self.rows)

    def _evaluated(self) -> dict[str, Any]:
        measured = {} if self._evaluate is None else self._evaluate().to_dict()
        return {**measured, **self._spending()}

    def _newly_reached(self, row: dict[str, Any]) -> dict[str, Any]:
        """What it took to reach the target, in the line of the first round that did."""
        if self._target is None or any("reached" in before for before in self.rows):
            return {}
        reached = self._target.first_reached([*self.rows, row])
        return {} if reached is None else {"reached": reached.to_dict()}

    def facts(self, done: FinishedRound) -> dict[str, Any]:
        """A round's line of metrics, without an evaluation."""
        answers, is_hidden = done.answers, self._server.hides_participation
        facts: dict[str, Any] = {
            "round": done.round,
            "accuracy": None,
            "loss": None,
            "participants": len(answers.messages),
            "refused": len(answers.refused),
            "bytes_up": answers.bytes_up,
            "bytes_down": answers.bytes_down,
            "seconds": round(time.perf_counter() - done.began, 4),
            "drift": _drift(done.messages),
            "noise_std": _noise_std(answers.messages),
            **({"ignored": len(answers.ignored)} if answers.ignored else {}),
            **self._server.measure(),
            "learning_rate": self._learning_rate(done.round),
            "simulation_only": {
                "clip_fraction": None if is_hidden else answers.clipped_fraction,
                "signal_to_noise": None if is_hidden else answers.signal_to_noise,
            },
        }
        self._known = answers, facts
        return facts


class CheckpointWriter(Watcher):
    """Keeps the server's state, so that a run that was interrupted goes on."""

    def __init__(
        self, server: Server, write: Callable[[Server], None], is_due: Callable[[int], bool]
    ) -> None:
        self._server, self._write, self._is_due = server, write, is_due
        self._saved = server.round

    def after_round(self, done: FinishedRound) -> None:
        if self._is_due(done.round):
            self.save()
            self._server.note_saved()

    def after_last(self) -> None:
        if self._server.round > self._saved:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the server as it is."""
        self._write(self._server)
        self._saved = self._server.round


@dataclass(frozen=True)
class MetricsAnnouncer(Watcher):
    """Shows every line of metrics to observers, once the round is safe."""

    metrics: MetricsWriter
    observers: Sequence[Observer]

    def after_round(self, done: FinishedRound) -> None:
        for observer in self.observers:
            observer.on_round(copy.deepcopy(self.metrics.rows[-1]))


@dataclass(frozen=True)
class InterruptWatcher(Watcher):
    """Ends a run after the round in which that was asked for."""

    asked: threading.Event
    checkpoints: CheckpointWriter
    folder: Path

    def before_next(self) -> None:
        if self.asked.is_set():
            self.checkpoints.save()
            raise Interrupted(self.folder)


def _noise_std(messages: Sequence[ClientMessage]) -> dict[str, float | str] | None:
    """The standard deviation of the noise on clipped sums, as it was charged; None without any.

    Where the clip adapts, in units of the planned clip.
    """
    charged = [_std_of(message.events[0]) for message in messages if message.events]
    known = [std for std in charged if std is not None]
    return spread(known) if known else None


@lru_cache(maxsize=1024)
def _std_of(event: str) -> float | None:
    """Of the first release; None without noise, or where only a file names the mechanism."""
    try:
        leaf = next(iter(leaves(event_from_json(event))))
    except UdpflError:
        return None
    while not isinstance(leaf, Release | PureDP):
        leaf = cast("Leaf", leaf.event)
    return float(leaf.mechanism.noise_std) if isinstance(leaf, Release) else None


def _drift(messages: Sequence[ClientMessage]) -> float | None:
    """How far released updates lie from their mean: a root mean square over clients."""
    if len(messages) < 2 or "update" not in messages[0].tensors:
        return None
    updates = rows_of(messages, "update").flatten(1)
    count, columns = updates.shape
    # Some columns at a time: differences of all of them at once would be another copy of the round.
    width = max(1, (_AT_ONCE if updates.is_cuda else _AT_ONCE // 64) // count)
    squares = torch.zeros((), dtype=torch.float64, device=updates.device)
    for start in range(0, columns, width):
        part = updates[:, start : start + width]
        squares += (part - part.mean(0)).square().sum()
    return math.sqrt(float(squares) / count)
