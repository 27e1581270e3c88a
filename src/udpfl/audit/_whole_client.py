"""A whole client under audit: what it lets out with its records and without any.

Both worlds go through the code that a run uses. The adversary is the server: it chooses what the
client receives beside the model, and a learning rate at which the update has to be clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from udpfl.accounting import Release
from udpfl.accounting.randomised import Randomised
from udpfl.algorithms import Algorithm, Tensors
from udpfl.audit.canaries import clipped
from udpfl.audit.worlds import coordinates_that_tell
from udpfl.engine import (
    Clipper,
    Entropy,
    LaneModel,
    Limits,
    Noiseless,
    Noiser,
    PrivateStream,
)
from udpfl.engine.randomness import Key
from udpfl.errors import Unsupported
from udpfl.federation.local_training import Trainer
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.protection import planned_protection
from udpfl.federation.request import PULL_TARGET, Request
from udpfl.federation.stage_builder import sum_noise
from udpfl.federation.stages.trusted_server import TrustedServer
from udpfl.mechanisms.arrays import Floats
from udpfl.runs.folder import RunFolder

_AT_MOST = {False: 10, True: 2}
"""Rounds that are replayed; a trusted server answers one trial at a time."""

_TOO_LONG = 3.0
"""How many times the clip an update is, before it is clipped."""
_NORMS = {"l1": 1.0, "l2": 2.0, "linf": float("inf")}


def rounds_to_try(plan: ReleasePlan, trusted: bool) -> list[tuple[int, ...]]:
    """Rounds to be audited together; where noise differs, those with least and most by themselves.

    With the wrong noise in some rounds, one of the two has less than it was charged for.
    """
    if plan.factors:
        order = sorted(plan.asked, key=lambda round_: plan.factors[round_ - 1])
        return [(order[0],), (order[-1],)]
    return [tuple(range(1, 1 + min(plan.rounds, _AT_MOST[trusted])))]


@dataclass(frozen=True)
class Worlds:
    """What noise is added to [d]: where the client has its records, and where it has none."""

    present: Floats
    absent: Floats

    @property
    def shift(self) -> Floats:
        """How far the client moves the release."""
        return self.present - self.absent

    def size(self, norm: str) -> float:
        """The same as a number."""
        return float(np.linalg.norm(self.shift, _NORMS[norm]))


@dataclass(frozen=True)
class ClientUnderAudit:
    """A client as the run would train it, with all its records in every step: what is hidden is the
    client, however it trains."""

    plan: ReleasePlan
    algorithm: Algorithm
    model: LaneModel
    inputs: Tensor
    targets: Tensor
    learning_rate: float

    def worst(self) -> Worlds:
        """The two worlds that lie furthest apart, of those that the adversary tries."""
        assert self.plan.release is not None
        bounded = self.plan.release.sensitivity
        size = self._worlds({}, self.learning_rate).size(bounded.norm)
        if size == 0:
            raise Unsupported(f"{self.plan.name} learns nothing at this model: it has no update")
        rate = self.learning_rate * max(1.0, _TOO_LONG * bounded.bound / size)
        tried = [self._worlds(sent, rate) for sent in ({}, *self._led_astray(rate))]
        return max(tried, key=lambda worlds: worlds.size(bounded.norm))

    def _led_astray(self, rate: float) -> Iterator[Tensors]:
        """What a server may send beside the model to lead a client without records elsewhere: half
        the way that its records lead it, there and in the opposite direction."""
        start = self.model.initial()
        sent = self.algorithm.broadcast(self.algorithm.init(start))
        names = [name for name, own in sent.items() if name != "model" and own.shape == start.shape]
        learned = torch.from_numpy(self._unbounded()._worlds({}, rate).shift).float()
        steps, pull = self.plan.steps, self.plan.penalty
        for half in (0.5 * learned, -0.5 * learned):
            if names:
                yield dict.fromkeys(names, half / (rate * steps))
            if pull:  # each step leaves 1 - rate * pull of the distance
                yield {PULL_TARGET: start - half / (1 - (1 - rate * pull) ** steps)}

    def _unbounded(self) -> ClientUnderAudit:
        """The same client with so large a clip that it clips nothing."""
        release = self.plan.release
        assert release is not None
        loose: Release | Randomised
        if isinstance(release, Randomised):
            loose = replace(release, randomiser=replace(release.randomiser, bound=1e9))
        else:
            loose = replace(release, sensitivity=replace(release.sensitivity, bound=1e9))
        return replace(self, plan=replace(self.plan, release=loose))

    def _worlds(self, sent: Tensors, rate: float) -> Worlds:
        rows = torch.arange(len(self.inputs))
        present = self._released(rows, sent, rate)
        if self.algorithm.trusts_server:  # whoever is not there adds nothing to the sum
            return Worlds(present, np.zeros_like(present))
        return Worlds(present, self._released(rows[:0], sent, rate))

    def _released(self, records: Tensor, sent: Tensors, rate: float) -> Floats:
        """What noise is added to, or what goes to the trusted server who adds it [d]."""
        seen: list[Tensor] = []

        def protection(plans: Sequence[ReleasePlan]) -> tuple[Clipper, Noiser]:
            return planned_protection(plans)[0], _Recorder(seen)

        received = self.algorithm.broadcast(self.algorithm.init(self.model.initial()))
        request = Request(1, {**received, **sent}, rate)
        plan = replace(
            self.plan, rate=1.0, declared_size=max(1, len(self.inputs)), participation=1.0
        )
        trainer = Trainer(
            "audit", self.model, self.inputs, self.targets, self.algorithm, Entropy(),
            Limits(1, 64), protection,
        )  # fmt: skip
        step = trainer.train(request, [plan], [records], trainer.initial_state(request, 1))
        found = step.tensors["update"] if self.algorithm.trusts_server else seen[0]
        released: Floats = found[0].double().cpu().numpy()
        return released


class _Recorder(Noiseless):
    """Keeps what it should add noise to."""

    def __init__(self, seen: list[Tensor]) -> None:
        self._seen = seen

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        self._seen.append(sums.detach().clone())
        return sums


class AsReleased(Noiser):
    """Adds noise as a client of the run would, or as its trusted server.

    A row of zeros is the world without the client; any other row is the world with it. For the
    server there is another client's update in the same sum, turned round, which is known. Both are
    too long when they arrive, and have to be clipped.
    """

    def __init__(
        self, plan: ReleasePlan, rounds: Sequence[int], worlds: Worlds, trusted: bool
    ) -> None:
        self._plan, self._rounds = plan, rounds
        assert isinstance(plan.release, Release), "answers are replayed elsewhere"
        used = coordinates_that_tell(plan.release.mechanism, worlds.shift)
        self._present, self._absent = (
            torch.from_numpy(world[used]) for world in (worlds.present, worlds.absent)
        )
        self._server = None
        if trusted:
            self._server = TrustedServer(
                RunFolder(Path()), "audit", Entropy(), sum_noise([plan] * 2)
            )

    def lanes(self, which: slice) -> Noiser:
        raise Unsupported("updates of a client are replayed one after the other")

    def std(self, device: torch.device) -> Tensor:
        raise Unsupported("updates of a client are replayed one after the other")

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        (key,), present = keys, sums.view(-1, len(self._present)).any(1, keepdim=True)
        round_ = self._rounds[key.step]
        plan = self._plan.at(round_)
        rows = torch.where(present, self._present, self._absent)
        if self._server is None:
            _, noiser = planned_protection([plan] * len(rows))
            own = [key._replace(client=f"{key.client}, {i}") for i in range(len(rows))]
            noisy = noiser.add(rows, stream, own)
            return (noisy - self._absent).view(1, -1)
        assert isinstance(plan.release, Release)
        updates, other = _TOO_LONG * rows.float(), -_TOO_LONG * self._present.float()
        known = torch.from_numpy(clipped(other.double().numpy(), plan.release.sensitivity))
        found = [
            self._server.noisy_sum(round_, torch.stack([update, other])) - known
            for update in updates
        ]
        return torch.cat(found).view(1, -1)
