"""The release plan of a client: what it will release, how often, and with which noise.

`ReleasePlan.event` is where a release becomes an event. Noise is calibrated for these events; they
are what is reserved, charged and audited.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from udpfl.accounting import Composed, Release, Repeated
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Event, Unit, leaves, message_of
from udpfl.accounting.filter import Filter
from udpfl.accounting.randomised import Randomised
from udpfl.accounting.serial import event_from_json, event_to_dict
from udpfl.errors import InvalidInput
from udpfl.harmonizer import Matched
from udpfl.mechanisms import Mechanism
from udpfl.runs.schema import ClientRow
from udpfl.sensitivity import Sensitivity


@dataclass(frozen=True)
class ReleasePlan:
    """What one client of a run will release. `release` is None where no privacy is claimed.

    Example:
        >>> from udpfl import Gaussian, Release, Sensitivity
        >>> from udpfl.federation import ReleasePlan
        >>> release = Release(Gaussian(2.0), Sensitivity(1.0))
        >>> plan = ReleasePlan("clinic", 100, rate=0.1, rounds=5, steps=4, release=release)
        >>> plan.event().count
        4
    """

    name: str
    """Of the client."""
    declared_size: int
    """Records that it says it has; a public number."""
    rate: float
    """Probability with which a record takes part in a sample."""
    rounds: int
    """How many rounds the schedule asks of it."""
    steps: int
    """Local steps of one training, each a release; where they are shared out, on average."""
    release: Release | Randomised | None = None
    """Noise, sensitivity and unit of one release, or the randomiser in their place."""
    budget: Budget | None = None
    """What all of it may cost; None where nothing is bounded."""
    trainings: int = 1
    """Trainings per round, as the method declares."""
    batches: int = 1
    """Into how many a sample is split at random; each step takes one."""
    epochs: int = 1
    """Passes over the batches of a sample, before another one is drawn."""
    participation: float = 1.0
    """Probability of the coin that decides in secret whether it takes part in a round."""
    count: Release | None = None
    """What is asked once a round, where the clip adapts: how many records lie within it."""
    factors: tuple[float, ...] = ()
    """Noise of every round of the run over that of `release`; empty where all are alike."""
    levels: tuple[float, ...] = ()
    """What the noise of a round over that of `release` may be, the largest first, where it follows
    results; all rounds are planned with 1 then."""
    asked: tuple[int, ...] = ()
    """The rounds that ask it, where they are not alike."""
    penalty: float = 0.0
    """How strongly its steps are pulled towards the model of the client with the largest budget."""
    shuffled: int = 0
    """Messages of a round among which its own is mixed, with all releases of the round but the
    count, where nominal accounting counts on that; a guarantee never does."""
    parameters: bool = False
    """Whether it releases its clipped parameters, and not how far they moved."""
    diameter: bool = False
    """Whether what it would send without records may lie anywhere within the clip, as what it sends
    with them: then its sensitivity is the diameter of that ball, twice the clip."""
    delta: float | None = None
    """At which its releases are stated where it has no budget."""
    shares_steps: bool = False
    """Whether the method shares out the steps of all rounds, so that rounds have more or less."""
    matched: Matched | None = None
    """The Gaussian that its noise was matched to, if it was, and what both cost."""

    def __post_init__(self) -> None:
        if self.batches < 1 or self.epochs < 1 or self.steps % (self.batches * self.epochs):
            raise InvalidInput(
                "steps",
                f"{self.steps} are not {self.epochs} epochs of {self.batches} batches for each "
                "sample",
            )

    @property
    def sampled(self) -> tuple[float, int]:
        """The rate at which the unit takes part in a sample, and the samples of one training.

        A record takes part in each sample by chance. A whole client is in or out, and its steps are
        its own business until the update that comes of them is released.
        """
        if self._hides_client:
            return self.participation, 1
        return self.rate, self.steps // (self.batches * self.epochs)

    @property
    def passes(self) -> int:
        """Releases of one sample that a unit takes part in.

        A record is in one batch of a sample, so it takes part in one release of every epoch.
        """
        return 1 if self._hides_client else self.epochs

    @property
    def _hides_client(self) -> bool:
        return self.release is not None and self.release.unit == "client"

    @property
    def expected_batch(self) -> float:
        """Records that a step is expected to take; public, and what its noisy sum is divided by."""
        return self.rate * self.declared_size / self.batches

    def event(self, trainings: int = 1) -> Event | None:
        """What so many trainings cost this client; None where no privacy is claimed."""
        if trainings not in self._events:  # asked for in every round, several times
            self._events[trainings] = self._event(trainings)
        return self._events[trainings]

    @cached_property
    def _events(self) -> dict[int, Event | None]:
        return {}

    def _event(self, trainings: int) -> Event | None:
        if self.release is None:
            return None
        rate, count = self.sampled
        if isinstance(self.release, Randomised):  # holds for whoever takes part: no rate lowers it
            return Repeated(self.release.event, count * trainings)
        releases = count * self.trainings
        same, times = _Same(self.release), count * trainings
        return _event_of(same, rate, self.shuffled, releases, self.passes, times)

    @property
    def count_event(self) -> Event | None:
        """What the count of one round costs."""
        return None if self.count is None else message_of(self.count, self.rate)

    def round_event(self, round_: int) -> Event | None:
        """What this round costs this client, the first is 1."""
        event, count = self.at(round_).event(self.trainings), self.count_event
        return event if event is None or count is None else Composed((event, count))

    def with_noise(self, mechanism: Mechanism, sensitivity: Sensitivity, unit: Unit) -> ReleasePlan:
        """The plan with this noise on every release."""
        return replace(self, release=Release(mechanism, sensitivity, unit))

    def at(self, round_: int) -> ReleasePlan:
        """The plan of this round, the first is 1."""
        if not self.factors or not isinstance(self.release, Release):
            return self
        return replace(self, release=self.release.scaled(noise=self.factors[round_ - 1]))

    def at_level(self, level: float) -> ReleasePlan:
        """The plan with this noise over the planned one in all rounds."""
        assert isinstance(self.release, Release), "only a plan with noise has levels"
        return replace(self, release=self.release.scaled(noise=level), levels=())

    def asked_from(self, round_: int) -> int:
        """How many rounds ask it from this one on, of a plan that knows its rounds."""
        return sum(own >= round_ for own in self.asked)

    def rest_event(self, answered: int = 0, released: int = 0) -> Event | None:
        """What the run still costs this client, after the rounds it has answered.

        `released` is how many releases these had. It counts where steps are shared out.
        """
        event, left = self.round_event(1), self.rounds - answered
        if event is None or left <= 0:
            return None
        if self.shares_steps and answered:
            each = sum(leaves(event).values())
            one = replace(self, steps=1, trainings=1).event()
            assert one is not None
            unreleased = self.rounds * each - released
            return Repeated(one, unreleased) if unreleased > 0 else None
        if not self.factors:
            return Repeated(event, left)
        kinds = Counter(self.factors[round_ - 1] for round_ in self.asked[answered:])
        first = {factor: self.factors.index(factor) + 1 for factor in kinds}
        events = [(self.round_event(first[factor]), times) for factor, times in kinds.items()]
        return Composed(Repeated(event, times) for event, times in events if event is not None)

    def mixed_with(self, messages: int) -> ReleasePlan:
        """The plan of a round in which so many clients answer: others may have been refused."""
        return replace(self, shuffled=messages) if messages < self.shuffled else self

    def to_row(self) -> ClientRow:
        """The plan as the run folder keeps it."""
        plain = {own.name: getattr(self, own.name) for own in fields(self)}
        return ClientRow(
            **{
                **plain,
                "release": _plain(self.release),
                "count": None if self.count is None else event_to_dict(self.count),
                "budget": None if self.budget is None else astuple(self.budget),
            }
        )

    @classmethod
    def from_row(cls, row: ClientRow) -> ReleasePlan:
        """The inverse of `to_row`."""
        plain = {own.name: getattr(row, own.name) for own in fields(row)}
        own = {
            "release": _release(row.release),
            "count": _noise(row.count),
            "budget": None if row.budget is None else Budget(*row.budget),
        }
        return cls(**{**plain, **own})


@dataclass(frozen=True)
class Past:
    """What a ledger that runs share knows of a client before a run is planned."""

    rule: Filter
    """How its releases are added up."""
    budget: Budget | None
    held: Event | None = None
    """What it has spent and reserved, for which the budget has to pay as well."""

    @property
    def history(self) -> list[Event]:
        """The same as a list."""
        return [] if self.held is None else [self.held]


@dataclass(frozen=True)
class CountNoise:
    """What the noise of an adaptive clip's counts is planned for."""

    rounds: int | None = None
    """So many counts keep `privacy.clip_share` of the budget; None for one in each round of the
    run."""
    mechanisms: tuple[str, ...] = ()
    """The noise that they may have; empty for any that is built in."""


ONE_RUN = CountNoise()


class _Same(NamedTuple):
    """A release by its identity: what is kept under it is of this very object."""

    release: Release

    def __hash__(self) -> int:
        return id(self.release)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.release is other.release


@lru_cache(maxsize=1024)
def _event_of(
    own: _Same, rate: float, shuffled: int, releases: int, passes: int, count: int
) -> Event:
    """One event for all clients with the same release: a ledger reads an object once a round."""
    message = message_of(own.release, rate, shuffled, releases, passes)
    return Repeated(message, count)


def _plain(release: Release | Randomised | None) -> dict[str, Any] | None:
    if isinstance(release, Randomised):
        return release.to_dict()
    return None if release is None else event_to_dict(release)


def _noise(data: Mapping[str, Any] | None) -> Release | None:
    if data is None:
        return None
    release = event_from_json(json.dumps(data, sort_keys=True))  # one for all that are equal
    assert isinstance(release, Release)
    return release


def _release(data: Mapping[str, Any] | None) -> Release | Randomised | None:
    if data is not None and "randomiser" in data:
        return Randomised.from_dict(data)
    return _noise(data)
