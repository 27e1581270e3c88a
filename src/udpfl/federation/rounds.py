"""The server half and the round loop: select, ask, aggregate, evaluate, checkpoint."""

from __future__ import annotations

import copy
import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from udpfl.accounting import PrivacyStatement
from udpfl.accounting.statement import weakest_kind
from udpfl.algorithms import Algorithm, ClientMessage, Tensors, stacked
from udpfl.config import Config
from udpfl.data.records import Task
from udpfl.engine import LaneModel
from udpfl.errors import LedgerError
from udpfl.federation.clients import Answers, Clients, Site
from udpfl.federation.evaluation import evaluate
from udpfl.federation.interrupts import patient_interrupt
from udpfl.federation.local_training import Request
from udpfl.federation.observers import Observer
from udpfl.federation.participants import nothing_claimed
from udpfl.federation.schedule import learning_rate
from udpfl.federation.stages import Stage
from udpfl.federation.stages.averaging import Averaging
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

log = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop, and can be resumed from its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(str(folder))


def listed(names: Sequence[str]) -> str:
    """A few names in full, many by their number."""
    if len(names) <= 3:
        return ", ".join(names)
    return f"{len(names)} clients ({', '.join(names[:2])}, …)"


@dataclass
class Federation:
    """One run: everything the loop needs, and what it has come to."""

    config: Config
    folder: RunFolder
    run: str
    model: LaneModel
    algorithm: Algorithm
    clients: Clients
    sites: Sequence[Site]
    schedule: Sequence[Sequence[int]]
    ledger: Ledger
    test: tuple[Tensor, Tensor]
    task: Task
    observers: Sequence[Observer] = ()
    metrics: list[dict[str, Any]] = field(default_factory=list)
    assumptions: tuple[str, ...] = ()
    """What the statements take for granted."""
    answered: Counter[str] = field(default_factory=Counter)
    """Rounds that each client has answered."""
    stages: Sequence[Stage] = ()
    """What happens to messages and model, in this order; the last one averages models."""
    unclaimed: str | None = None
    """Why no privacy is claimed, whatever the ledger says."""
    stopped: str | None = None
    """Why the run ended before its last round."""
    _warned: set[str] = field(default_factory=set)

    def train(self, start: Tensor) -> Tensor:
        """All rounds, from the latest checkpoint on; returns the final parameters [d]."""
        server, done = self._restored(start)
        if done == len(self.schedule):
            log.warning(
                "all %d rounds of this run were trained before: nothing was left to do but to "
                "write its results again",
                done,
            )
        # Two checkpoints are kept, so clients keep their messages since the older one.
        settled, saved = 0, done
        with patient_interrupt() as interrupted:
            for round_ in range(done + 1, len(self.schedule) + 1):
                began = time.perf_counter()
                answers = self._ask(round_, server, settled)
                if self._exhausted(answers, round_):
                    if self.metrics and self.metrics[-1]["round"] > saved:
                        self._checkpoint(self.metrics[-1]["round"], server)
                    break
                if not answers.messages:
                    continue  # nobody who was asked had budget left
                self.answered.update(message.client for message in answers.messages)
                for stage in self.stages:
                    answers.messages = stage.receive(round_, server, answers.messages)
                    if stage.hides_participation:
                        answers.clipped_fraction = answers.signal_to_noise = None
                server = self.algorithm.aggregate(server, self._sorted(answers.messages))
                for stage in self.stages:
                    server = stage.publish(round_, server)
                self._observe(round_, answers)
                row = self._measure(round_, answers, time.perf_counter() - began)
                self.folder.append_metrics(row)
                if self._due(round_, self.config.training.checkpoint_every):
                    self._checkpoint(round_, server)
                    settled, saved = saved, round_
                self.metrics.append(row)
                for observer in self.observers:
                    observer.on_round(copy.deepcopy(row))
                if interrupted.is_set():
                    self._checkpoint(round_, server)
                    raise Interrupted(self.folder.path)
        self._measure_last()
        return self.averaging.model

    def _due(self, round_: int, every: int) -> bool:
        return round_ == len(self.schedule) or round_ % every == 0

    @cached_property
    def averaging(self) -> Averaging:
        """The last stage, which has the model of the run."""
        (stage,) = (stage for stage in self.stages if isinstance(stage, Averaging))
        return stage

    def _sorted(self, messages: Sequence[ClientMessage]) -> Sequence[ClientMessage]:
        for stage in self.stages:
            messages = stage.sort(messages)
        return messages

    def _restored(self, start: Tensor) -> tuple[Tensors, int]:
        """Server state and rounds done: from a checkpoint, or fresh."""
        found = self.folder.read_checkpoint()
        if found is None:
            if any(self.ledger.rounds_charged(self.run, site.account) for site in self.sites):
                raise LedgerError(
                    f"no checkpoint of {self.folder.path} can be read, and its rounds were charged "
                    "already: it cannot be resumed"
                )
            server = self.algorithm.init(start)
            self._checkpoint(0, server)
            return server, 0
        done, tensors, answered, _ = found
        self.answered = Counter(answered)
        tensors = {name: tensor.to(start.device) for name, tensor in tensors.items()}
        for stage in self.stages:
            stage.restore(tensors)
        own = {name: v for name, v in tensors.items() if name.startswith("server.")}
        server = {name.removeprefix("server."): v for name, v in own.items()}
        self.metrics = self.folder.read_metrics(done)
        self.folder.rewrite_metrics(self.metrics)
        return server, done

    def _checkpoint(self, round_: int, server: Tensors) -> None:
        named = {f"server.{name}": tensor for name, tensor in server.items()}
        for stage in self.stages:
            named |= stage.state()
        self.folder.write_checkpoint(round_, named, self.answered, self.ledger.head())

    def _ask(self, round_: int, server: Tensors, settled: int) -> Answers:
        received = self.algorithm.broadcast(server)
        for stage in self.stages:
            received = {**received, **stage.request()}
        rate = learning_rate(self.config.training, round_)
        chosen = [self.sites[client] for client in self.schedule[round_ - 1]]
        answers = self.clients.answer(Request(round_, received, rate, settled), chosen)
        size = sum(tensor.numel() * tensor.element_size() for tensor in received.values())
        answers.bytes_down = size * len(chosen)
        device = server["model"].device
        for message in answers.messages:
            for name, tensor in message.tensors.items():
                message.tensors[name] = tensor.to(device)
        return answers

    def _exhausted(self, answers: Answers, round_: int) -> bool:
        """Whether refusals end the run, because nobody else will come.

        What a run has reserved nobody else can spend, but a budget can be lowered meanwhile, or
        somebody can free a reservation by hand.
        """
        fresh = [client for client in answers.refused if client not in self._warned]
        if fresh:
            self._warned.update(fresh)
            reason = answers.refused[fresh[0]]
            log.warning("from round %d on without %s: %s", round_, listed(fresh), reason)
        to_come = {client for chosen in self.schedule[round_ - 1 :] for client in chosen}
        names = {self.sites[client].participant.name for client in to_come}
        alone = not answers.messages and names <= self._warned
        if answers.refused and alone:
            reason = next(iter(answers.refused.values()))
            self.stopped = (
                f"no client is left to train: {listed(list(answers.refused))}: {reason}; "
                f"`udpfl budget show {self.folder.path}` says what was spent"
            )
        return self.stopped is not None

    def _observe(self, round_: int, answers: Answers) -> None:
        if round_ in self.config.record_updates:
            for number, message in enumerate(self._sorted(answers.messages)):
                name = message.client or f"message-{number}"
                self.folder.write_update(round_, name, message.to_bytes())
        for observer in self.observers:
            for message in answers.messages:
                observer.on_message(message.copy())
            named = self.model.layout.named(self.averaging.model.detach().cpu().clone())
            observer.on_model(round_, named)

    def _measure(self, round_: int, answers: Answers, seconds: float) -> dict[str, Any]:
        row: dict[str, Any] = {"round": round_, "accuracy": None, "loss": None}
        if self._due(round_, self.config.training.evaluate_every):
            row |= self._evaluated()
            row |= self._spending()
        row |= {
            "participants": answers.count,
            "refused": len(answers.refused),
            "bytes_up": answers.bytes_up,
            "bytes_down": answers.bytes_down,
            "seconds": round(seconds, 4),
            "drift": _drift(answers.messages),
            **{name: value for stage in self.stages for name, value in stage.measure().items()},
            "learning_rate": learning_rate(self.config.training, round_),
            "simulation_only": {
                "clip_fraction": answers.clipped_fraction,
                "signal_to_noise": answers.signal_to_noise,
            },
        }
        return row

    def _evaluated(self) -> dict[str, Any]:
        return evaluate(self.model, self.averaging.model, *self.test, self.task).to_dict()

    def _measure_last(self) -> None:
        """A run that ends early still says how good its last model is."""
        if self.metrics and self.metrics[-1]["loss"] is None:
            self.metrics[-1] |= self._evaluated()
            self.metrics[-1] |= self._spending()
            self.folder.rewrite_metrics(self.metrics)

    def statements(
        self, up_to: int | None = None, *, so_far: bool = False
    ) -> dict[str, PrivacyStatement]:
        """What each client has spent: in the ledger, or nominally in this run.

        `up_to` is the number of the last charge that counts. `so_far` is for the rounds in between:
        what a run on its own ledger would have cost if it had been planned to end there.
        """
        if reason := self.unclaimed or nothing_claimed(self.config):
            return {site.participant.name: PrivacyStatement.none(reason) for site in self.sites}
        return {site.participant.name: self._statement(site, up_to, so_far) for site in self.sites}

    def _statement(self, site: Site, up_to: int | None, so_far: bool) -> PrivacyStatement:
        """Everything in the ledger; where this run is nominal, its own number in front of that."""
        delta, privacy = self._delta(site), self.config.privacy
        scalar = privacy.accounting == "scalar"
        statement = self.ledger.statement(
            site.account,
            delta,
            self.run if scalar else None,
            up_to,
            fixed_beforehand=so_far and self.ledger.filter(site.account) is None,
        )
        return replace(statement, notes=(*statement.notes, *self.assumptions))

    def _delta(self, site: Site) -> float:
        """The delta of the client's budget, in the ledger or in this run; else its own."""
        budget = self.ledger.budget(site.account) or site.participant.budget
        delta = budget.delta if budget else site.participant.delta
        assert delta is not None, "whoever takes part in a private run has a delta"
        return delta

    def _spending(self) -> dict[str, Any]:
        statements = list(self.statements(so_far=True).values())
        kind = weakest_kind(statements)
        if kind == "none":
            return {"privacy": "none", "epsilon": None}
        values = [statement.epsilon for statement in statements]
        row: dict[str, Any] = {"privacy": kind, "epsilon": _spread(values)}
        if kind == "nominal":
            row["guaranteed_epsilon"] = _spread([s.vector_epsilon for s in statements])
        return row


def _drift(messages: Sequence[ClientMessage]) -> float | None:
    """How far released updates lie from their mean: a root mean square over clients."""
    if len(messages) < 2 or "update" not in messages[0].tensors:
        return None
    updates = stacked(messages, "update")
    return math.sqrt(float((updates - updates.mean(0)).square().sum()) / len(updates))


def _spread(values: Sequence[float]) -> dict[str, float | str]:
    figures = {"max": max(values), "median": statistics.median(values), "min": min(values)}
    return {name: "inf" if value == float("inf") else value for name, value in figures.items()}
