"""The release plan of a client: what it will release, how often, and with which noise.

`ReleasePlan.event` is where a release becomes an event. What is reserved, charged and audited is
what it returns, and a plan whose events are not those that were calibrated is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from udpfl.accounting import Composed, Release, Repeated
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Event, message_of
from udpfl.accounting.serial import event_from_dict, event_to_dict
from udpfl.runs.schema import ClientRow


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
    """Probability with which a record takes part in a step."""
    rounds: int
    """How many rounds the schedule asks of it."""
    steps: int
    """Local steps of one training, each a release."""
    release: Release | None = None
    """Noise, sensitivity and unit of one release."""
    budget: Budget | None = None
    """What all of it may cost; None where nothing is bounded."""
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
        """What so many trainings cost this client; None where no privacy is claimed."""
        if self.release is None:
            return None
        rate, count = self.sampled
        return Repeated(message_of(self.release, rate, self.shuffled), count * trainings)

    @property
    def count_event(self) -> Event | None:
        """What the count of one round costs."""
        return None if self.count is None else message_of(self.count, self.rate)

    @property
    def round_event(self) -> Event | None:
        """What one round costs this client, of a plan for that round (`at`)."""
        event, count = self.event(self.trainings), self.count_event
        return event if event is None or count is None else Composed((event, count))

    def at(self, round_: int) -> ReleasePlan:
        """The plan of this round, the first is 1."""
        if not self.factors or self.release is None:
            return self
        return replace(self, release=self.release.scaled(noise=self.factors[round_ - 1]))

    def rest_event(self, answered: int = 0) -> Event | None:
        """What the run still costs this client, after the rounds it has answered."""
        event, left = self.round_event, self.rounds - answered
        if event is None or left <= 0:
            return None
        if not self.factors:
            return Repeated(event, left)
        kinds = Counter(self.factors[round_ - 1] for round_ in self.asked[answered:])
        first = {factor: self.factors.index(factor) + 1 for factor in kinds}
        events = [(self.at(first[factor]).round_event, times) for factor, times in kinds.items()]
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
                "release": None if self.release is None else event_to_dict(self.release),
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
            "count": _release(row.count),
            "budget": None if row.budget is None else Budget(*row.budget),
        }
        return cls(**{**plain, **own})


def _release(data: Mapping[str, Any] | None) -> Release | None:
    if data is None:
        return None
    release = event_from_dict(dict(data))
    assert isinstance(release, Release)
    return release
