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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from udpfl.accounting import PrivacyStatement
from udpfl.accounting.statement import weakest_kind
from udpfl.algorithms import Algorithm, ClientMessage, Tensors, stacked, weighted_mean
from udpfl.config import Config
from udpfl.data.records import Task
from udpfl.engine import LaneModel
from udpfl.errors import LedgerError, Unsupported
from udpfl.federation.clients import Answers, Clients, Site
from udpfl.federation.evaluation import evaluate
from udpfl.federation.interrupts import patient_interrupt
from udpfl.federation.local_training import CLIP, WEAKEST, WITHIN, Request
from udpfl.federation.observers import Observer
from udpfl.federation.own_noise import Downlink
from udpfl.federation.participants import nothing_claimed
from udpfl.federation.schedule import learning_rate
from udpfl.federation.shuffler import Shuffler, by_content
from udpfl.federation.trusted import TrustedServer
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
    trusted: TrustedServer | None = None
    """Who adds the noise, where clients do not."""
    shuffler: Shuffler | None = None
    """Who stands between clients and server and takes names and order off messages."""
    downlink: Downlink | None = None
    """Noise on what the server sends, where a method brings its own."""
    unclaimed: str | None = None
    """Why no privacy is claimed, whatever the ledger says."""
    stopped: str | None = None
    """Why the run ended before its last round."""
    _warned: set[str] = field(default_factory=set)
    _clip: Tensor | None = None
    """Today's clip over the one that was planned, where it adapts."""
    _weakest: Tensor | None = None
    """The model that the clients with the largest budget released last, where others are pulled
    towards it."""

    def train(self, start: Tensor) -> Tensor:
        """All rounds, from the latest checkpoint on; returns the final parameters [d]."""
        server, average, done = self._restored(start)
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
                        self._checkpoint(self.metrics[-1]["round"], server, average)
                    break
                if not answers.messages:
                    continue  # nobody who was asked had budget left
                self.answered.update(message.client for message in answers.messages)
                self._remember_weakest(server["model"], answers.messages)
                self._adapt_clip(answers.messages)
                if self.trusted is not None:
                    answers.messages = self.trusted.merged(round_, answers.messages)
                    # From how many were clipped one could tell how many took part.
                    answers.clipped_fraction = answers.signal_to_noise = None
                received = answers.messages
                if self.shuffler is not None:
                    # From here on nobody knows who sent what. The server reads in an order of its
                    # own, so that a round which runs again after a crash ends the same.
                    answers.messages = self.shuffler.mixed(round_, answers.messages)
                    received = by_content(answers.messages)
                server = self.algorithm.aggregate(server, received)
                if self.downlink is not None:
                    server = self.downlink.noised(round_, server)
                average = self._averaged(average, server["model"], round_)
                self._observe(round_, average, answers)
                row = self._measure(round_, average, answers, time.perf_counter() - began)
                self.folder.append_metrics(row)
                if self._due(round_, self.config.training.checkpoint_every):
                    self._checkpoint(round_, server, average)
                    settled, saved = saved, round_
                self.metrics.append(row)
                for observer in self.observers:
                    observer.on_round(copy.deepcopy(row))
                if interrupted.is_set():
                    self._checkpoint(round_, server, average)
                    raise Interrupted(self.folder.path)
        self._measure_last(average)
        return average

    def _due(self, round_: int, every: int) -> bool:
        return round_ == len(self.schedule) or round_ % every == 0

    def _restored(self, start: Tensor) -> tuple[Tensors, Tensor, int]:
        """Server state, averaged model and rounds done: from a checkpoint, or fresh."""
        found = self.folder.read_checkpoint()
        if found is None:
            if any(self.ledger.rounds_charged(self.run, site.account) for site in self.sites):
                raise LedgerError(
                    f"no checkpoint of {self.folder.path} can be read, and its rounds were charged "
                    "already: it cannot be resumed"
                )
            server = self.algorithm.init(start)
            self._checkpoint(0, server, start)
            return server, start, 0
        done, tensors, answered, _ = found
        self.answered = Counter(answered)
        tensors = {name: tensor.to(start.device) for name, tensor in tensors.items()}
        self._weakest, self._clip = tensors.get(WEAKEST), tensors.get(CLIP)
        own = {name: v for name, v in tensors.items() if name.startswith("server.")}
        server = {name.removeprefix("server."): v for name, v in own.items()}
        self.metrics = self.folder.read_metrics(done)
        self.folder.rewrite_metrics(self.metrics)
        return server, tensors.get("average", server["model"]), done

    def _checkpoint(self, round_: int, server: Tensors, average: Tensor) -> None:
        named = {f"server.{name}": tensor for name, tensor in server.items()}
        if self.config.training.averaging:
            named["average"] = average
        named |= self._beside()
        self.folder.write_checkpoint(round_, named, self.answered, self.ledger.head())

    def _ask(self, round_: int, server: Tensors, settled: int) -> Answers:
        received = self.algorithm.broadcast(server)
        received = {**received, **self._beside()}
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

    def _beside(self) -> Tensors:
        """What clients receive beside the method's own, and a checkpoint keeps."""
        own = {WEAKEST: self._weakest, CLIP: self._clip}
        return {name: tensor for name, tensor in own.items() if tensor is not None}

    def _adapt_clip(self, messages: Sequence[ClientMessage]) -> None:
        """Andrew et al. 2021, "Differentially private learning with adaptive clipping", Section 2:
        the clip moves by a factor, up where too few records were within it, down where too many.

        Guarantee: made of noisy counts alone, so it costs what those cost.
        """
        privacy = self.config.privacy
        if privacy.clip_quantile is None:
            return
        within = weighted_mean(messages, WITHIN).clamp(0.0, 1.0)
        before = torch.ones_like(within) if self._clip is None else self._clip
        moved = before * torch.exp(-privacy.clip_rate * (within - privacy.clip_quantile))
        self._clip = moved.clamp(1e-3, 1e3)

    def _remember_weakest(self, model: Tensor, messages: Sequence[ClientMessage]) -> None:
        """The mean of what the clients with the largest budget have just released."""
        if not self.config.training.penalty:
            return
        people = {site.participant.name: site.participant for site in self.sites}
        largest = [
            m for m in messages if people[m.client].penalty == 0 and people[m.client].release
        ]
        if any("update" not in message.tensors for message in largest):
            raise Unsupported("training.penalty needs a method whose clients send updates")
        if largest:
            self._weakest = model + weighted_mean(largest, "update")

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

    def _averaged(self, average: Tensor, model: Tensor, round_: int) -> Tensor:
        decay = min(self.config.training.averaging, (1 + round_) / (10 + round_))
        return model if decay == 0 else decay * average + (1 - decay) * model

    def _observe(self, round_: int, model: Tensor, answers: Answers) -> None:
        if round_ in self.config.record_updates:
            kept = by_content(answers.messages) if self.shuffler else answers.messages
            for number, message in enumerate(kept):
                name = message.client or f"message-{number}"
                self.folder.write_update(round_, name, message.to_bytes())
        for observer in self.observers:
            for message in answers.messages:
                observer.on_message(message.copy())
            named = self.model.layout.named(model.detach().cpu().clone())
            observer.on_model(round_, named)

    def _measure(
        self, round_: int, model: Tensor, answers: Answers, seconds: float
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"round": round_, "accuracy": None, "loss": None}
        if self._due(round_, self.config.training.evaluate_every):
            row |= evaluate(self.model, model, *self.test, self.task).to_dict()
            row |= self._spending()
        row |= {
            "participants": answers.count,
            "refused": len(answers.refused),
            "bytes_up": answers.bytes_up,
            "bytes_down": answers.bytes_down,
            "seconds": round(seconds, 4),
            "drift": _drift(answers.messages),
            **({} if self._clip is None else {"clip_factor": round(float(self._clip), 6)}),
            "learning_rate": learning_rate(self.config.training, round_),
            "simulation_only": {
                "clip_fraction": answers.clipped_fraction,
                "signal_to_noise": answers.signal_to_noise,
            },
        }
        return row

    def _measure_last(self, model: Tensor) -> None:
        """A run that ends early still says how good its last model is."""
        if self.metrics and self.metrics[-1]["loss"] is None:
            self.metrics[-1] |= evaluate(self.model, model, *self.test, self.task).to_dict()
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
