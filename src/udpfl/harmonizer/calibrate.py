"""The smallest noise that keeps a budget.

Guarantee: the returned noise is on the private side. Its own statement, computed by the accountant
it names, has epsilon at or below the target; 0.02 % less noise of the same shape would not.

(The paper's Algorithm "Rényi Accountant" says to *lower* the noise when the budget is exceeded and
so never finds it; see docs/mathematics.md, section 8.)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from udpfl.accounting import loss_distribution, pure, rdp
from udpfl.accounting.accountant import (
    Accountant,
    Accounting,
    account,
    as_scalar,
    check_choices,
)
from udpfl.accounting.events import Event, PoissonSampled, Release, Repeated, Unit
from udpfl.accounting.sensitivity import Sensitivity
from udpfl.accounting.statement import PrivacyStatement
from udpfl.errors import Infeasible, InvalidInput, Unsupported
from udpfl.mechanisms import Gaussian, Laplace, Mechanism, Staircase
from udpfl.mechanisms.staircase import LARGEST_DECAY

log = logging.getLogger(__name__)

Family = Callable[[float], Mechanism]
"""A mechanism for every noise level: more noise for a larger argument."""

_TOLERANCE = 1e-4  # of the noise level, on the private side


@dataclass(frozen=True)
class Setting:
    """What is going to be released, how often, and what it may cost."""

    epsilon: float
    delta: float
    releases: int
    sensitivity: Sensitivity
    rate: float = 1.0
    unit: Unit = "record"
    accountant: Accountant = "best"
    accounting: Accounting = "vector"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise InvalidInput("epsilon", f"must be a finite number above 0, got {self.epsilon!r}")
        check_choices(self.delta, self.accountant, self.accounting)
        self.event(Gaussian(1.0))  # checks rate and releases
        if self.rate < 1 and self.delta > 0:
            ever_used = -math.expm1(self.releases * math.log1p(-self.rate))
            if self.delta >= ever_used:
                raise InvalidInput(
                    "delta",
                    f"{self.delta:g} is at least the probability {ever_used:.3g} that a record is "
                    "ever used, so it permits publishing records outright; choose a smaller one",
                )

    def event(self, mechanism: Mechanism) -> Event:
        """All releases with this noise."""
        release = Release(mechanism, self.sensitivity, self.unit)
        return Repeated(PoissonSampled(self.rate, release), self.releases)

    def accounted_event(self, mechanism: Mechanism) -> Event:
        """The event as the chosen accounting reads it."""
        event = self.event(mechanism)
        return event if self.accounting == "vector" else as_scalar(event)


@dataclass(frozen=True)
class Calibrated:
    """A noise mechanism, what it is used for, and the statement that holds then."""

    mechanism: Mechanism
    setting: Setting
    statement: PrivacyStatement

    @property
    def event(self) -> Event:
        """All the releases, ready to be accounted or charged."""
        return self.setting.event(self.mechanism)


def calibrate(mechanism: str | Mechanism, setting: Setting, rank: str = "l2") -> Calibrated:
    """The smallest noise of one kind that keeps the budget.

    `mechanism` is a name, or an instance whose shape is kept and whose scale is adjusted. Under
    vector accounting "staircase" also chooses period and split, to make the error named by `rank`
    (l2: variance, l1: expected absolute value) small; scalar accounting keeps period = clip and the
    default split, as the paper does.
    """
    from udpfl.harmonizer.staircase_shape import best_staircase

    if isinstance(mechanism, str):
        if mechanism == "staircase" and setting.accounting == "vector":
            return calibrate_family(best_staircase(setting, rank), setting)
        family = named_family(mechanism, setting.sensitivity.bound)
    else:
        unit = mechanism.scaled(setting.sensitivity.bound / mechanism.noise_std)
        family = unit.scaled
    return calibrate_family(family, setting)


def named_family(name: str, clip: float) -> Family:
    """The built-in mechanisms by name; a level is roughly the standard deviation over the clip."""
    match name:
        case "gaussian":
            return lambda level: Gaussian(level * clip)
        case "laplace":
            return lambda level: Laplace(level * clip / math.sqrt(2))
        case "staircase":
            return lambda level: Staircase(min(math.sqrt(2) / level, LARGEST_DECAY), clip)
    raise InvalidInput("mechanism", f"must be gaussian, laplace or staircase, got {name!r}")


def calibrate_family(family: Family, setting: Setting) -> Calibrated:
    """The smallest level of a one-parameter family of noises that keeps the budget."""
    level = least_level(family, setting)
    mechanism = family(level)
    statement = account(
        setting.event(mechanism), setting.delta, setting.accountant, setting.accounting
    )
    return Calibrated(mechanism, setting, statement)


def least_level(family: Family, setting: Setting) -> float:
    """The smallest noise level over the accountants that may answer."""
    if setting.delta == 0:
        return _by_pure(family, setting)
    if setting.accountant == "rdp":
        return by_rdp(family, setting)
    if setting.accountant == "pld":
        return _by_loss(family, setting, by_rdp(family, setting))
    levels = [by_rdp(family, setting)]
    searches: list[Callable[[], float]] = [lambda: _by_pure(family, setting)]
    if setting.delta >= loss_distribution.SMALLEST_DELTA:
        reason = loss_distribution.supports(setting.accounted_event(family(levels[0])))
        if reason is None:
            searches.append(lambda: _by_loss(family, setting, levels[0]))
        else:
            log.debug("pld accountant: %s", reason)
    for search in searches:
        try:
            levels.append(search())
        except (Unsupported, Infeasible) as error:
            log.debug("no tighter level: %s", error)
    return min(levels)


def by_rdp(
    family: Family, setting: Setting, tolerance: float = _TOLERANCE, guess: float | None = None
) -> float:
    """The smallest level by the Rényi accountant."""

    def excess(level: float) -> float:
        value = rdp.epsilon(setting.accounted_event(family(level)), setting.delta)
        return _log_ratio(value, setting.epsilon)

    if guess is None:  # many releases behave like one Gaussian of this size
        spread = setting.releases * setting.rate**2 * 2 * math.log(1 / setting.delta)
        guess = math.sqrt(spread) / setting.epsilon + 0.3
    return least_root(excess, guess, tolerance)


def _by_pure(family: Family, setting: Setting) -> float:
    def excess(level: float) -> float:
        value = pure.epsilon(setting.accounted_event(family(level)))
        return _log_ratio(value, setting.epsilon)

    return least_root(excess, 1 / setting.epsilon, 1e-9)


def _by_loss(family: Family, setting: Setting, start: float) -> float:
    """The smallest level by loss distributions: a coarse search, then a fine correction."""
    if setting.delta < loss_distribution.SMALLEST_DELTA:
        raise Unsupported(
            f"loss distributions need delta >= {loss_distribution.SMALLEST_DELTA:g}; use rdp"
        )

    def excess_on(coarser: float) -> Callable[[float], float]:
        def excess(level: float) -> float:
            event = setting.accounted_event(family(level))
            if coarser > 1:
                losses = loss_distribution.LossDistribution(event, coarser, both_ways=False)
            else:
                losses = loss_distribution.composed_loss(event)
            return max(-30.0, math.log(max(losses.delta(setting.epsilon), 1e-300) / setting.delta))

        return excess

    coarse = least_root(excess_on(4.0), start * 0.94, 1e-3, slope=-20.0)
    return least_root(excess_on(1.0), coarse * 0.999, _TOLERANCE, slope=-20.0)


def _log_ratio(value: float, target: float) -> float:
    """log(value / target), bounded so that searches see numbers only."""
    if value <= 0:
        return -30.0
    return min(30.0, max(-30.0, math.log(value / target))) if math.isfinite(value) else 30.0


def least_root(
    excess: Callable[[float], float], guess: float, tolerance: float, slope: float = -1.0
) -> float:
    """The smallest level with excess <= 0, for a decreasing excess, from above to `tolerance`.

    Secant steps in the logarithm of the level, each aimed half a tolerance to the private side and
    kept inside the bracket once there is one. `slope` is a first idea of d excess / d log level.
    """
    x, y = math.log(guess), excess(guess)
    low, high = -math.inf, math.inf  # excess is above 0 at `low`, at or below 0 at `high`
    for _ in range(100):
        if y <= 0:
            high = min(high, x)
        else:
            low = max(low, x)
        # Done once the bracket, or the slope seen so far, says that the root is this close.
        if high - low <= tolerance or (x == high and y >= slope * tolerance):
            return math.exp(high)
        step = max(-2.0, min(2.0, -y / slope)) + tolerance / 2
        target = x + step
        if not low < target < high:
            bracketed = math.isfinite(low) and math.isfinite(high)
            target = (low + high) / 2 if bracketed else x + math.copysign(0.5, y)
        if target > 60:
            raise Infeasible("no amount of noise of this shape meets the budget")
        if target < -60:
            raise Infeasible("this budget is so large that any noise of this shape meets it")
        before = x, y
        x, y = target, excess(math.exp(target))
        if y != before[1] and abs(y) < 30:
            slope = min(-0.05, (y - before[1]) / (x - before[0]))
    return math.exp(high)
