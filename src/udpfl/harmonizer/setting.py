"""What is going to be released, how often, and what it may cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from udpfl.accounting import loss_distribution
from udpfl.accounting.accountant import Accountant, Accounting, as_scalar, check_choices
from udpfl.accounting.events import Event, Release, Repeated, Unit, message_of
from udpfl.accounting.filter import Filter
from udpfl.errors import InvalidInput
from udpfl.harmonizer._reference import Reference
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
    """Of the budget, above 0; inf for none, where there is a reference."""
    delta: float
    """Of the budget, in [0, 1); 0 asks for pure DP."""
    releases: int
    """How many there are in all."""
    sensitivity: Sensitivity
    """How far one unit can move a release."""
    rate: float = 1.0
    """Probability in (0, 1] with which a unit takes part in a release."""
    unit: Unit = "record"
    """Whose presence is hidden: "record", "person" or "client"."""
    accountant: Accountant | Filter = "best"
    """Who computes the cost: "rdp", "pld", "best" of both, a `Filter`, or with scalar accounting
    "paper", the paper's own."""
    accounting: Accounting = "vector"
    """How gradients are read: "vector" for a guarantee, "scalar" for the paper's nominal number."""
    pays_for: Callable[[Mechanism], Event] | None = None
    """All that the budget has to pay for, by the noise; None for `releases` that are alike."""
    reference: float | None = None
    """Noise multiplier of the Gaussian that the noise has to match; the budget is a bound then. If
    None, the noise is the smallest that keeps the budget."""

    def __post_init__(self) -> None:
        if self.reference is not None:
            positive("reference", self.reference)
            if self.delta == 0:
                raise InvalidInput("delta", "a Gaussian, to be matched, costs no finite ε at 0")
        if self.reference is None or self.epsilon != math.inf:
            positive("epsilon", self.epsilon)
        check_choices(self.delta, self.accountant, self.accounting)
        self.event(Gaussian(1.0))  # checks rate and releases
        if self.accountant == "pld" and 0 < self.delta < loss_distribution.SMALLEST_DELTA:
            raise InvalidInput(
                "delta", f"the pld accountant needs {loss_distribution.SMALLEST_DELTA:g} or more"
            )
        if self.accountant == "paper" and self.delta == 0:
            raise InvalidInput(
                "delta", "the paper accountant has no pure DP: it needs a delta above 0"
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
        """All that the budget has to pay for, with this noise."""
        if self.pays_for is not None:
            return self.pays_for(mechanism)
        release = Release(mechanism, self.sensitivity, self.unit)
        return Repeated(message_of(release, self.rate), self.releases)

    @property
    def accounted_sensitivity(self) -> Sensitivity:
        """The sensitivity as the chosen accounting reads it."""
        return self.sensitivity if self.accounting == "vector" else self.sensitivity.scalar()

    def reference_noise(self, multiplier: float) -> Reference:
        """The Gaussian with this noise multiplier."""
        return Reference(multiplier * self.accounted_sensitivity.largest("l2"))

    def accounted_event(self, mechanism: Mechanism) -> Event:
        """The event as the chosen accounting reads it."""
        event = self.event(mechanism)
        return event if self.accounting == "vector" else as_scalar(event)
