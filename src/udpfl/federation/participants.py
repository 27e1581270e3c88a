"""Who takes part, when, and with which noise: settled from public facts before any training."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from udpfl.accounting import (
    Norm,
    PoissonSampled,
    PrivacyStatement,
    Release,
    Repeated,
    Sensitivity,
)
from udpfl.accounting.events import Event
from udpfl.accounting.serial import event_from_dict, event_to_dict
from udpfl.config import Config, PrivacyConfig, per_client
from udpfl.data import DataSet, partition, sizes_are_public
from udpfl.data.records import Indices
from udpfl.errors import InvalidInput
from udpfl.harmonizer import Budget, Client, Setting, harmonize
from udpfl.mechanisms import BUILT_IN, Mechanism
from udpfl.plugins import resolve

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Participant:
    """One client of a run. `release` is None where no privacy is claimed."""

    name: str
    declared_size: int
    rate: float
    rounds: int
    """How many rounds the schedule asks of it."""
    steps: int
    """Releases per round."""
    release: Release | None = None
    budget: Budget | None = None

    @property
    def round_event(self) -> Event | None:
        """What one round costs this client."""
        if self.release is None:
            return None
        return Repeated(PoissonSampled(self.rate, self.release), self.steps)

    @property
    def run_event(self) -> Event | None:
        """What the whole run costs this client."""
        event = self.round_event
        return None if event is None or not self.rounds else Repeated(event, self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the run folder."""
        return {
            "name": self.name,
            "declared_size": self.declared_size,
            "rate": self.rate,
            "rounds": self.rounds,
            "steps": self.steps,
            "release": None if self.release is None else event_to_dict(self.release),
            "budget": None if self.budget is None else [self.budget.epsilon, self.budget.delta],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Participant:
        """The inverse of `to_dict`."""
        release = None if data["release"] is None else event_from_dict(data["release"])
        assert release is None or isinstance(release, Release)
        budget = None if data["budget"] is None else Budget(*data["budget"])
        return cls(**{**data, "release": release, "budget": budget})


def selection(config: Config) -> list[tuple[int, ...]]:
    """The clients of every round, drawn from the public seed before anything is planned.

    Everybody may know it: no amplification by client choice is claimed.
    """
    clients, picked = config.data.clients, config.training.clients_per_round
    if picked is None or picked == clients:
        return [tuple(range(clients))] * config.training.rounds
    rng = np.random.default_rng([*b"selection", config.seed])
    return [
        tuple(sorted(int(i) for i in rng.choice(clients, picked, replace=False)))
        for _ in range(config.training.rounds)
    ]


def divided(config: Config, data: DataSet) -> tuple[list[Indices], Indices]:
    """Each client's records, and the public ones that no client holds."""
    from udpfl.data import split

    everything = np.arange(len(data.train))
    if data.owners is not None:
        if config.data.public:
            raise InvalidInput("data.public", "needs one data set, not one per client")
        return list(data.owners), everything[:0]
    rng = np.random.default_rng([*b"partition", config.seed])
    targets = data.train.targets
    kept, public = split(len(everything), config.data.public, rng, targets, parameter="data.public")
    parts = partition(
        config.data.partition,
        config.data.clients,
        rng,
        targets=targets[kept],
        classes=data.classes,
        columns={name: column[kept] for name, column in data.columns.items()},
        alpha=config.data.alpha,
        shards=config.data.shards,
        by=config.data.by,
        exponent=config.data.exponent,
    )
    return [kept[part] for part in parts], public


def declared_sizes(config: Config, data: DataSet, parts: Sequence[Indices]) -> list[int]:
    """The public constants that stand for the clients' sizes.

    They are the same whether or not any one record is there. Where the real sizes follow from the
    configuration alone they are used; elsewhere everyone declares the mean.
    """
    declared = config.data.declared_sizes
    if isinstance(declared, list):
        return declared
    if isinstance(declared, int):
        return [declared] * len(parts)
    if declared == "partition" or (data.owners is None and sizes_are_public(config.data.partition)):
        return [len(part) for part in parts]
    mean = max(1, round(sum(len(part) for part in parts) / len(parts)))
    log.warning(
        "client sizes depend on the data, so every client declares the mean, %d; set "
        "data.declared_sizes to what is public, or to 'partition' if the true sizes are", mean
    )  # fmt: skip
    return [mean] * len(parts)


def participants(
    config: Config, sizes: Sequence[int], schedule: Sequence[Sequence[int]], dimension: int
) -> list[Participant]:
    """Calibrate every client's noise to its own budget and its own number of releases."""
    clients, training = len(sizes), config.training
    rounds = [sum(client in chosen for chosen in schedule) for client in range(clients)]
    plain = [
        Participant(f"client-{i}", size, training.sampling_rate, rounds[i], training.local_steps)
        for i, size in enumerate(sizes)
    ]
    if not isinstance(config.privacy, PrivacyConfig):
        return plain
    privacy = config.privacy
    epsilons, deltas = per_client(privacy.epsilon, clients), per_client(privacy.delta, clients)
    clips, names = per_client(privacy.clip, clients), per_client(privacy.mechanism, clients)
    mechanisms = [_mechanism(name) for name in names]
    wanted = [
        Client(
            own.name,
            Setting(
                epsilons[i],
                deltas[i],
                own.rounds * own.steps,
                sensitivity_of(clips[i], privacy.norm, dimension),
                own.rate,
                privacy.unit,
                privacy.accountant,
                privacy.accounting,
            ),
            mechanisms[i],
        )
        for i, own in enumerate(plain)
        if own.rounds
    ]
    planned = {plan.client.name: plan for plan in harmonize(wanted)}
    result = []
    for i, own in enumerate(plain):
        plan = planned.get(own.name)
        if plan is None:
            result.append(own)
            continue
        release = Release(plan.calibrated.mechanism, plan.client.setting.sensitivity, privacy.unit)
        result.append(replace(own, release=release, budget=Budget(epsilons[i], deltas[i])))
    return result


def sensitivity_of(clip: float, norm: Norm, dimension: int) -> Sensitivity:
    """What the engine's clipper with this bound declares."""
    from udpfl.engine import NormClipper

    return NormClipper(norm, [clip]).sensitivity(0, dimension)


def _mechanism(name: str) -> str | Mechanism:
    """A name the harmonizer knows, or somebody's own mechanism at scale 1."""
    if name == "auto" or name in BUILT_IN:
        return name
    found = resolve("mechanisms", name, {**BUILT_IN, "auto": "auto"})
    if isinstance(found, type) and issubclass(found, Mechanism):
        make: Any = found
        found = make(1.0)
    if not isinstance(found, Mechanism):
        raise InvalidInput("privacy.mechanism", f"{name!r} is not a mechanism: {found!r}")
    return found


def statement_of(event: Event | None, config: Config, delta: float) -> PrivacyStatement:
    """What this run's own releases cost, in the accounting that was asked for."""
    from udpfl.accounting import account

    if not isinstance(config.privacy, PrivacyConfig):
        return PrivacyStatement.none("privacy is turned off")
    if config.privacy.randomness == "seeded":
        return PrivacyStatement.none("noise and sampling are seeded, for tests only")
    if event is None:
        return PrivacyStatement(0.0, delta, "guarantee", "pure", vector_epsilon=0.0)
    return account(event, delta, "best", config.privacy.accounting)
