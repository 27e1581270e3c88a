"""Who takes part, when, and with which noise: settled from public facts before any training."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from udpfl.accounting import (
    PoissonSampled,
    Release,
    Repeated,
)
from udpfl.accounting.events import Event
from udpfl.accounting.serial import event_from_dict, event_to_dict
from udpfl.config import Config, PrivacyConfig, per_client
from udpfl.data import DataSet
from udpfl.data.records import Indices
from udpfl.engine import NormClipper
from udpfl.errors import InvalidInput
from udpfl.federation.shares import client_names, declared_sizes
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
    """Local steps of one training, each a release."""
    release: Release | None = None
    budget: Budget | None = None
    trainings: int = 1
    """Trainings per round, as the method declares."""

    @property
    def round_event(self) -> Event | None:
        """What one round costs this client."""
        if self.release is None:
            return None
        step = PoissonSampled(self.rate, self.release)
        return Repeated(step, self.steps * self.trainings)

    def rest_event(self, answered: int) -> Event | None:
        """What the run still costs this client, after the rounds it has answered."""
        event, left = self.round_event, self.rounds - answered
        return None if event is None or left <= 0 else Repeated(event, left)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the run folder."""
        return {
            "name": self.name,
            "declared_size": self.declared_size,
            "rate": self.rate,
            "rounds": self.rounds,
            "steps": self.steps,
            "trainings": self.trainings,
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


def planned(
    config: Config,
    data: DataSet,
    parts: Sequence[Indices],
    schedule: Sequence[Sequence[int]],
    dimension: int,
    trainings: int,
) -> list[Participant]:
    """The participants of a run on this data, under their own names."""
    sizes, names = declared_sizes(config, data, parts), client_names(config, data, parts)
    return participants(config, sizes, schedule, dimension, trainings, names)


def participants(
    config: Config,
    sizes: Sequence[int],
    schedule: Sequence[Sequence[int]],
    dimension: int,
    trainings: int = 1,
    names: Sequence[str] | None = None,
) -> list[Participant]:
    """Calibrate every client's noise to its own budget and its own number of releases."""
    training = config.training
    rounds = Counter(client for chosen in schedule for client in chosen)
    plain = [
        Participant(
            name=names[i] if names else f"client-{i}",
            declared_size=size,
            rate=training.sampling_rate,
            rounds=rounds[i],
            steps=training.local_steps,
            trainings=trainings,
        )
        for i, size in enumerate(sizes)
    ]
    if not isinstance(config.privacy, PrivacyConfig):
        return plain
    try:
        return _calibrated(config.privacy, plain, dimension)
    except InvalidInput as error:  # under the configuration key that the value came from
        if "." in error.parameter:
            raise
        section = "privacy" if error.parameter in PrivacyConfig.model_fields else "training"
        raise InvalidInput(f"{section}.{error.parameter}", error.message) from None


def _calibrated(
    privacy: PrivacyConfig, plain: Sequence[Participant], dimension: int
) -> list[Participant]:
    clients = len(plain)
    epsilons, deltas = per_client(privacy.epsilon, clients), per_client(privacy.delta, clients)
    mechanisms = [_mechanism(name) for name in per_client(privacy.mechanism, clients)]
    clipper = NormClipper(privacy.norm, per_client(privacy.clip, clients))
    settings = {
        own.name: Setting(
            epsilons[i],
            deltas[i],
            own.rounds * own.steps * own.trainings,
            clipper.sensitivity(i, dimension),
            own.rate,
            privacy.unit,
            privacy.accountant,
            privacy.accounting,
        )
        for i, own in enumerate(plain)
        if own.rounds  # who is never picked releases nothing
    }
    wanted = [
        Client(own.name, settings[own.name], mechanisms[i])
        for i, own in enumerate(plain)
        if own.name in settings
    ]
    for own, delta in zip(plain, deltas, strict=True):
        if delta * own.declared_size >= 1:
            log.warning(
                "privacy.delta = %g is not below one over the %d records of a client: it would "
                "permit publishing one of them",
                delta,
                own.declared_size,
            )
            break
    noise = {plan.client.name: plan.calibrated.mechanism for plan in harmonize(wanted)}
    return [
        replace(
            own,
            release=Release(noise[own.name], settings[own.name].sensitivity, privacy.unit)
            if own.name in noise
            else None,
            budget=Budget(epsilons[i], deltas[i]),
        )
        for i, own in enumerate(plain)
    ]


def _mechanism(name: str) -> str | Mechanism:
    """A name the harmonizer knows, or somebody's own mechanism at scale 1."""
    if name == "auto" or name in BUILT_IN:
        return name
    found = resolve("mechanisms", name, {**BUILT_IN, "auto": "auto"})
    if isinstance(found, type) and issubclass(found, Mechanism):
        make: Any = found
        try:
            found = make(1.0)
        except TypeError as error:  # it is abstract, or has parameters without a default
            raise InvalidInput(
                "privacy.mechanism",
                f"{name!r} cannot be built from a scale alone: {error}; name an instance of it",
            ) from None
    if not isinstance(found, Mechanism):
        raise InvalidInput("privacy.mechanism", f"{name!r} is not a mechanism: {found!r}")
    return found


def nothing_claimed(config: Config) -> str | None:
    """Why a run with this configuration claims no privacy; None where it claims some."""
    if not isinstance(config.privacy, PrivacyConfig):
        return "privacy is turned off"
    if config.privacy.randomness == "seeded":
        return "noise and sampling are seeded, for tests only"
    return None
