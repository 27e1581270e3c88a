"""What is going to be released, how often, and what it may cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from udpfl.accounting import loss_distribution
from udpfl.accounting.accountant import Accountant, Accounting, as_scalar, check_choices
from udpfl.accounting.events import Composed, Event, Release, Repeated, Unit, message_of
from udpfl.accounting.filter import Filter
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Gaussian, Mechanism
from udpfl.mechanisms.base import positive
from udpfl.sensitivity import Sensitivity


@dataclass(frozen=True)
class Setting:
    """What is going to be released, how often, and what it may cost.

    Raises:
        InvalidInput: A number is out of range, or `delta` is so large that it permits publishing
            records outright.

    Example:
        >>> from udpfl import Sensitivity, Setting
        >>> Setting(2.0, delta=1e-5, releases=1000, sensitivity=Sensitivity(1.0), rate=0.01).unit
        'record'
    """

    epsilon: float
    """Of the budget, above 0."""
    delta: float
    """Of the budget, in [0, 1); 0 asks for pure DP."""
    releases: int
    """How many there are in all."""
    sensitivity: Sensitivity
    """How far one unit can move a release."""
    rate: float = 1.0
    """Probability in (0, 1] with which a unit takes part in a release."""
    unit: Unit = "record"
    """Whose presence is hidden: "record" or "client"."""
    accountant: Accountant | Filter = "best"
    """Who computes the cost: "rdp", "pld", "best" of both, or a `Filter`."""
    accounting: Accounting = "vector"
    """How gradients are read: "vector" for a guarantee, "scalar" for the paper's nominal number."""
    factors: tuple[tuple[float, int], ...] = ()
    """Releases with so many times the noise, and how many; empty where all are alike."""
    besides: tuple[Event, ...] = ()
    """What else the budget has to pay for."""
    shuffled: int = 0
    """Messages of one release each that a shuffler mixes in a round; 0 without a shuffler."""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        check_choices(self.delta, self.accountant, self.accounting)
        self.event(Gaussian(1.0))  # checks rate and releases
        if self.accountant == "pld" and 0 < self.delta < loss_distribution.SMALLEST_DELTA:
            raise InvalidInput(
                "delta", f"the pld accountant needs {loss_distribution.SMALLEST_DELTA:g} or more"
            )
        if self.rate < 1 and self.delta > 0:
            ever_used = -math.expm1(self.releases * math.log1p(-self.rate))
            if self.delta >= ever_used:
                raise InvalidInput(
                    "delta",
                    f"{self.delta:g} is at least the probability {ever_used:.3g} that a "
                    f"{self.unit} is ever used, so it would permit publishing {self.unit}s "
                    f"without noise; choose a smaller delta",
                )

    def event(self, mechanism: Mechanism) -> Event:
        """All releases with this noise, and everything besides."""
        alike = ((1.0, self.releases),)
        parts = [self._releases(mechanism, *own) for own in self.factors or alike]
        return Composed((*parts, *self.besides)) if self.factors or self.besides else parts[0]

    def _releases(self, mechanism: Mechanism, factor: float, count: int) -> Event:
        noise = mechanism if factor == 1 else mechanism.scaled(factor)
        release = Release(noise, self.sensitivity, self.unit)
        return Repeated(message_of(release, self.rate, self.shuffled), count)

    def accounted_event(self, mechanism: Mechanism) -> Event:
        """The event as the chosen accounting reads it."""
        event = self.event(mechanism)
        return event if self.accounting == "vector" else as_scalar(event)
