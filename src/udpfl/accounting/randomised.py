"""Messages of a randomiser, as a plan holds them: what they are charged as is pure DP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from udpfl.accounting.events import PureDP, Repeated, Unit
from udpfl.errors import InvalidInput
from udpfl.mechanisms.randomiser import Randomiser, randomiser_of
from udpfl.sensitivity import Sensitivity


@dataclass(frozen=True)
class Randomised:
    """Answers of a randomiser about a clipped vector, in the place of noise on it.

    Guarantee: the event holds for any two vectors, so also for a unit that is there or not.

    Example:
        >>> from udpfl.accounting.randomised import Randomised
        >>> from udpfl.mechanisms import CoordinateResponse
        >>> Randomised(CoordinateResponse(0.5, bound=1.0, dimension=3, answers=2)).event.count
        2
    """

    randomiser: Randomiser
    """What is asked, and how surely it is answered."""
    unit: Unit = "client"
    """Whose vector it is."""

    @property
    def event(self) -> Repeated:
        """What one message costs: its answers are independent of each other."""
        own = self.randomiser
        return Repeated(PureDP(own.epsilon, self.unit, discrete=own.discrete), own.answers)

    @property
    def sensitivity(self) -> Sensitivity:
        """The ball that vectors are clipped to. The event does not depend on it."""
        own = self.randomiser
        return Sensitivity(own.bound, own.norm, own.dimension)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"randomiser": self.randomiser.to_dict(), "unit": self.unit}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Randomised:
        """The inverse of `to_dict`; anything else raises."""
        if plain.keys() != {"randomiser", "unit"} or plain["unit"] not in get_args(Unit):
            raise InvalidInput("release", f"is neither noise nor a randomiser: {plain!r}")
        return cls(randomiser_of(plain["randomiser"]), plain["unit"])
