"""Who takes part, when, and with which noise: settled from public facts before any training."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from udpfl.accounting import (
    Composed,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    Shuffled,
)
from udpfl.accounting.accountant import Accountant
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Event
from udpfl.accounting.filter import Filter
from udpfl.accounting.pacing import noise_factors
from udpfl.accounting.serial import event_from_dict, event_to_dict
from udpfl.algorithms import Algorithm, OwnNoise
from udpfl.config import Config, PrivacyConfig, per_client
from udpfl.data import DataSet
from udpfl.data.records import Indices
from udpfl.engine import BallClipper, NormClipper
from udpfl.engine.counting import SENSITIVITY as COUNTED
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.own_noise import own_noise
from udpfl.federation.shares import client_names, declared_sizes
from udpfl.harmonizer import Choice, Client, Setting, choose, harmonize
from udpfl.mechanisms import BUILT_IN, Mechanism
from udpfl.plugins import resolve

log = logging.getLogger(__name__)

NO_PASTS: Mapping[str, Past] = {}
"""Of clients that no shared ledger knows."""


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
    participation: float = 1.0
    """Probability of the coin that decides in secret whether it takes part in a round."""
    count: Release | None = None
    """What is asked once a round, where the clip adapts: how many records lie within it."""
    factors: tuple[float, ...] = ()
    """Noise of every round of the run over that of `release`; empty where all are alike."""
    asked: tuple[int, ...] = ()
    """The rounds that ask it, where they are not alike."""
    penalty: float = 0.0
    """How strongly its steps are pulled towards the model of the client with the largest budget."""
    shuffled: int = 0
    """Messages of a round among which its own is mixed, where nominal accounting counts on that; a
    guarantee never does."""
    parameters: bool = False
    """Whether it releases its clipped parameters, and not how far they moved."""
    diameter: bool = False
    """Whether what it would send without records may lie anywhere within the clip, as what it sends
    with them: then its sensitivity is the diameter of that ball, twice the clip."""
    delta: float | None = None
    """At which its releases are stated where it has no budget."""

    @property
    def sampled(self) -> tuple[float, int]:
        """The rate at which the unit takes part in a release, and the releases of one training.

        A record takes part in each step by chance. A whole client is in or out, and its steps are
        its own business until the update that comes of them is released.
        """
        if self.release is not None and self.release.unit == "client":
            return self.participation, 1
        return self.rate, self.steps

    def event(self, trainings: int = 1) -> Event | None:
        """What so many trainings cost this client."""
        if self.release is None:
            return None
        rate, count = self.sampled
        message = PoissonSampled(rate, self.release)
        mixed = Shuffled(message, self.shuffled) if self.shuffled else message
        return Repeated(mixed, count * trainings)

    @property
    def count_event(self) -> Event | None:
        """What the count of one round costs."""
        return None if self.count is None else PoissonSampled(self.rate, self.count)

    @property
    def round_event(self) -> Event | None:
        """What one round costs this client, one like `at` made it."""
        event, count = self.event(self.trainings), self.count_event
        return event if event is None or count is None else Composed((event, count))

    def at(self, round_: int) -> Participant:
        """The client as it is in this round, the first is 1."""
        if not self.factors or self.release is None:
            return self
        return replace(self, release=scaled(self.release, noise=self.factors[round_ - 1]))

    def rest_event(self, answered: int) -> Event | None:
        """What the run still costs this client, after the rounds it has answered."""
        event, left = self.round_event, self.rounds - answered
        if event is None or left <= 0:
            return None
        if not self.factors:
            return Repeated(event, left)
        kinds = Counter(self.factors[round_ - 1] for round_ in self.asked[answered:])
        first = {factor: self.factors.index(factor) + 1 for factor in kinds}
        events = [(self.at(first[factor]).round_event, times) for factor, times in kinds.items()]
        return Composed(Repeated(own, times) for own, times in events if own is not None)

    def among(self, messages: int) -> Participant:
        """The same client in a round where so many answer: others may have been refused."""
        return replace(self, shuffled=messages) if messages < self.shuffled else self

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the run folder."""
        return {
            "name": self.name,
            "declared_size": self.declared_size,
            "rate": self.rate,
            "rounds": self.rounds,
            "steps": self.steps,
            "trainings": self.trainings,
            "participation": self.participation,
            "penalty": self.penalty,
            "parameters": self.parameters,
            "diameter": self.diameter,
            "delta": self.delta,
            "count": None if self.count is None else event_to_dict(self.count),
            "factors": list(self.factors),
            "asked": list(self.asked),
            "shuffled": self.shuffled,
            "release": None if self.release is None else event_to_dict(self.release),
            "budget": None if self.budget is None else [self.budget.epsilon, self.budget.delta],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Participant:
        """The inverse of `to_dict`."""
        budget = None if data["budget"] is None else Budget(*data["budget"])
        own = {
            "release": _release(data["release"]),
            "count": _release(data.get("count")),
            "factors": tuple(data.get("factors", ())),
            "asked": tuple(data.get("asked", ())),
            "diameter": data.get("diameter", data.get("parameters", False)),
            "budget": budget,
        }
        return cls(**{**data, **own})


@dataclass(frozen=True)
class Past:
    """What a ledger that runs share knows of a client before a run is planned."""

    rule: Filter
    """How its releases are added up."""
    budget: Budget | None
    held: Event | None = None
    """What it has spent and reserved, for which the budget has to pay besides."""

    @property
    def history(self) -> list[Event]:
        """The same as a list."""
        return [] if self.held is None else [self.held]


def _release(data: dict[str, Any] | None) -> Release | None:
    if data is None:
        return None
    release = event_from_dict(data)
    assert isinstance(release, Release)
    return release


def scaled(release: Release, *, noise: float = 1.0, clip: float = 1.0) -> Release:
    """The release with other noise, or with both noise and clip in another unit of length."""
    bound = replace(release.sensitivity, bound=release.sensitivity.bound * clip)
    return replace(release, mechanism=release.mechanism.scaled(noise * clip), sensitivity=bound)


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
    algorithm: Algorithm,
    pasts: Mapping[str, Past] = NO_PASTS,
) -> list[Participant]:
    """The participants of a run on this data, under their own names."""
    sizes, names = declared_sizes(config, data, parts), client_names(config, data, parts)
    return participants(config, sizes, schedule, dimension, algorithm, names, pasts)


def participants(
    config: Config,
    sizes: Sequence[int],
    schedule: Sequence[Sequence[int]],
    dimension: int,
    algorithm: Algorithm,
    names: Sequence[str] | None = None,
    pasts: Mapping[str, Past] = NO_PASTS,
) -> list[Participant]:
    """Calibrate every client's noise to its own budget and its own number of releases.

    Where a client has a past on a ledger, by that ledger's rule; the budget there has to pay for
    all that the past holds as well.
    """
    training = config.training
    rounds = Counter(client for chosen in schedule for client in chosen)
    paced = config.privacy.pace != "uniform"
    plain = [
        Participant(
            name=names[i] if names else f"client-{i}",
            declared_size=size,
            rate=training.sampling_rate,
            rounds=rounds[i],
            steps=training.local_steps,
            trainings=algorithm.trainings,
            asked=tuple(r for r, chosen in enumerate(schedule, 1) if i in chosen) if paced else (),
            participation=algorithm.participation,
        )
        for i, size in enumerate(sizes)
    ]
    if not config.privacy.enabled:
        return plain
    try:
        if noise := own_noise(config, algorithm, sizes):
            return _prescribed(config.privacy, noise, plain, dimension)
        return _calibrated(config, config.privacy, plain, schedule, dimension, algorithm, pasts)
    except InvalidInput as error:  # under the configuration key that the value came from
        if "." in error.parameter:
            raise
        section = "privacy" if error.parameter in PrivacyConfig.model_fields else "training"
        raise InvalidInput(f"{section}.{error.parameter}", error.message) from None


def _calibrated(
    config: Config,
    privacy: PrivacyConfig,
    plain: Sequence[Participant],
    schedule: Sequence[Sequence[int]],
    dimension: int,
    algorithm: Algorithm,
    pasts: Mapping[str, Past],
) -> list[Participant]:
    clients = len(plain)
    epsilons, deltas = per_client(privacy.epsilon, clients), per_client(privacy.delta, clients)
    mechanisms = [_mechanism(name) for name in per_client(privacy.mechanism, clients)]
    if ("gaussian", 0) in zip(mechanisms, deltas, strict=True):
        raise InvalidInput(
            "privacy.delta",
            "0 asks for pure DP, and gaussian noise has no pure-DP guarantee: set it above 0, such "
            "as 1e-5, or privacy.mechanism to laplace",
        )
    whole = privacy.unit == "client"
    # A trusted server adds nothing for a client that is not there; its own sum moves by the clip.
    diameter = whole and algorithm.without_records is None and not algorithm.trusts_server
    if diameter:
        log.warning(
            "%s does not say what a client without records sends (`without_records`): twice the "
            "clip is charged",
            config.training.algorithm,
        )
    clipper = (BallClipper if diameter else NormClipper)(
        privacy.norm, per_client(privacy.clip, clients)
    )
    factors = noise_factors(privacy.pace, privacy.pace_ratio, config.training.rounds)
    if privacy.clip_quantile is not None:
        log.info("planning the noise of the counts for privacy.clip_quantile")
    counts = {own.name: _count(privacy, own, epsilons[i], deltas[i]) for i, own in enumerate(plain)}
    spendable = [
        _spendable(pasts.get(own.name), epsilons[i], deltas[i]) for i, own in enumerate(plain)
    ]
    fewest: dict[int, int] = {}
    for chosen in schedule:
        for i in chosen:
            fewest[i] = min(len(chosen), fewest.get(i, len(chosen)))
    settings = {
        own.name: Setting(
            spendable[i].epsilon,
            spendable[i].delta,
            own.rounds * _per_round(privacy, own),
            clipper.sensitivity(i, dimension),
            own.participation if whole else own.rate,
            privacy.unit,
            _accountant(privacy, pasts.get(own.name)),
            privacy.accounting,
            tuple(
                (factor, times * _per_round(privacy, own))
                for factor, times in Counter(factors[r - 1] for r in own.asked).items()
            )
            if factors
            else (),
            (*_counts(own, counts[own.name]), *_history(pasts.get(own.name))),
            _mixed_among(config, privacy, own, fewest[i]),
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
        crowd = clients if whole else own.declared_size
        if delta * crowd >= 1:
            log.warning(
                "privacy.delta = %g is not below one over the %d %s: it would permit publishing "
                "one of them",
                delta,
                crowd,
                "clients" if whole else "records of a client",
            )
            break
    log.info("planning the noise of %d clients", len(wanted))
    plans = {plan.client.name: plan for plan in harmonize(wanted)}
    return [
        replace(
            own,
            release=Release(
                plans[own.name].calibrated.mechanism, settings[own.name].sensitivity, privacy.unit
            )
            if own.name in plans
            else None,
            count=counts[own.name],
            factors=factors,
            diameter=diameter,
            budget=Budget(epsilons[i], deltas[i]),
            penalty=config.training.penalty * plans[own.name].penalty if own.name in plans else 0.0,
            shuffled=settings[own.name].shuffled if own.name in plans else 0,
        )
        for i, own in enumerate(plain)
    ]


def _spendable(past: Past | None, epsilon: float, delta: float) -> Budget:
    """The budget that has to pay: the run's own, or all of the account's beside what it holds."""
    return past.budget if past and past.budget and past.held else Budget(epsilon, delta)


def _accountant(privacy: PrivacyConfig, past: Past | None) -> Accountant | Filter:
    return past.rule if past and privacy.accounting == "vector" else privacy.accountant


def _history(past: Past | None) -> list[Event]:
    return past.history if past else []


def _prescribed(
    privacy: PrivacyConfig, noise: OwnNoise, plain: Sequence[Participant], dimension: int
) -> list[Participant]:
    """Noise that the method brings along, charged as what it is; a budget could not be kept."""
    clients = len(plain)
    clipper = BallClipper(privacy.norm, per_client(privacy.clip, clients))
    deltas = per_client(privacy.delta, clients)
    return [
        replace(
            own,
            release=Release(noise.up, clipper.sensitivity(i, dimension), privacy.unit),
            parameters=True,
            diameter=True,
            delta=deltas[i],
        )
        for i, own in enumerate(plain)
    ]


@lru_cache(maxsize=64)
def _best(setting: Setting) -> Choice:
    return choose(setting)[0]


def _count(
    privacy: PrivacyConfig, own: Participant, epsilon: float, delta: float
) -> Release | None:
    """The noise of a client's counts: what is best for one number and a share of the budget."""
    if privacy.clip_quantile is None or not own.rounds:
        return None
    share, one = privacy.clip_share, Sensitivity(COUNTED, "l2", 1)
    setting = Setting(
        share * epsilon, share * delta, own.rounds, one, own.rate, privacy.unit, privacy.accountant
    )
    best = _best(setting)
    if best.calibrated is None:
        raise Unsupported(f"{own.name}: no noise fits the counts of an adaptive clip ({best.why})")
    return Release(best.calibrated.mechanism, one, privacy.unit)


def _per_round(privacy: PrivacyConfig, own: Participant) -> int:
    """Releases of a round, counts aside: every step of a record, every training of a client."""
    return own.trainings * (1 if privacy.unit == "client" else own.steps)


def _counts(own: Participant, count: Release | None) -> tuple[Event, ...]:
    """What the counts of all rounds cost."""
    return () if count is None else (Repeated(PoissonSampled(own.rate, count), own.rounds),)


def _mixed_among(config: Config, privacy: PrivacyConfig, own: Participant, fewest: int) -> int:
    """The messages that the paper's lemma counts in a round; 0 where it is not used.

    As many as are asked in the smallest of the client's rounds: some may be left out of the run.

    It is about messages of one release each. For several local steps it would be a lemma on their
    sum, which no event here stands for: nothing is amplified then.
    """
    releases = _per_round(privacy, own) + (privacy.clip_quantile is not None)
    if not config.training.shuffle or privacy.accounting == "vector" or releases > 1:
        return 0
    return fewest


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
    if not config.privacy.enabled:
        return "privacy is turned off"
    if config.privacy.randomness == "seeded":
        return "noise and sampling are seeded, for tests only"
    return None
