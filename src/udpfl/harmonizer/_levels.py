"""The smallest noise level of a one-parameter family that keeps a budget."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from udpfl.accounting import loss_distribution, paper, pure, rdp
from udpfl.accounting.events import Event
from udpfl.accounting.filter import Filter
from udpfl.errors import Infeasible, InvalidInput, Unsupported
from udpfl.harmonizer._reference import matched_multiplier
from udpfl.harmonizer.setting import Setting
from udpfl.mechanisms import BUILT_IN, Family, Mechanism, Radial
from udpfl.sensitivity import Sensitivity

log = logging.getLogger(__name__)

_TOLERANCE = 1e-4  # of the noise level, on the private side


def built_in(name: str) -> type[Mechanism]:
    """The class of a built-in mechanism; a name that is none raises."""
    if name not in BUILT_IN:
        raise InvalidInput("mechanism", f"must be one of {', '.join(BUILT_IN)}, got {name!r}")
    return BUILT_IN[name]


def family_of(mechanism: str | Mechanism, sensitivity: Sensitivity) -> Family:
    """A built-in family by name, or all scalings of one mechanism, level 1 with std = clip."""
    if isinstance(mechanism, str):
        kind = built_in(mechanism)
        is_radial = issubclass(kind, Radial)
        return kind.family(sensitivity.largest("l1") if is_radial else sensitivity.bound)
    if isinstance(mechanism, Mechanism):
        own = mechanism.in_dimension(sensitivity.dimension)
        return own.scaled(sensitivity.bound / own.noise_std).scaled
    raise InvalidInput("mechanism", f"must be a name or a mechanism, got {mechanism!r}")


def in_dimension(family: Family, dimension: int | None) -> Family:
    """The same family for vectors of so many coordinates."""
    return lambda level: family(level).in_dimension(dimension)


def least_level(family: Family, setting: Setting) -> float:
    """The smallest noise level that matches the reference; where there is none, the smallest over
    the accountants that may answer."""
    if setting.reference is not None:
        return by_match(family, setting, setting.reference)
    if setting.delta == 0:
        return _by_pure(family, setting)
    if setting.accountant in ("rdp", "paper") or isinstance(setting.accountant, Filter):
        return by_rdp(family, setting)
    if setting.accountant == "pld":
        return _by_loss(family, setting)
    levels, refusals = [], []
    for search in (by_rdp, _by_loss, _by_pure):
        try:
            levels.append(search(family, setting))
        except (Unsupported, Infeasible) as refusal:
            log.debug("%s: %s", search.__name__, refusal)
            refusals.append(refusal)
    if not levels:
        raise refusals[0]
    return min(levels)


def by_rdp(
    family: Family, setting: Setting, tolerance: float = _TOLERANCE, guess: float | None = None
) -> float:
    """The smallest level by the Rényi accountant: the paper's, or a filter's, where one is set."""
    epsilon = _renyi(setting)

    def excess(level: float) -> float:
        value = epsilon(setting.accounted_event(family(level)), setting.delta)
        return _log_ratio(value, setting.epsilon)

    if guess is None:  # many releases behave like one Gaussian of this size
        spread = setting.releases * setting.rate**2 * 2 * math.log(1 / setting.delta)
        guess = math.sqrt(spread) / setting.epsilon + 0.3
    return least_root(excess, guess, tolerance)


def _renyi(setting: Setting) -> Callable[[Event, float], float]:
    chosen = setting.accountant
    if isinstance(chosen, Filter):
        return chosen.epsilon
    return paper.epsilon if chosen == "paper" else rdp.epsilon


def by_match(
    family: Family, setting: Setting, reference: float, tolerance: float = 1e-6,
    guess: float | None = None,
) -> float:  # fmt: skip
    """The smallest level that matches a Gaussian with this noise multiplier."""
    sensitivity = setting.accounted_sensitivity

    def excess(level: float) -> float:
        matched = matched_multiplier(family(level), sensitivity)
        return _log_ratio(reference / matched if matched else math.inf, 1.0)

    return least_root(excess, guess or reference, tolerance)


def _by_pure(family: Family, setting: Setting) -> float:
    def excess(level: float) -> float:
        value = pure.epsilon(setting.accounted_event(family(level)))
        return _log_ratio(value, setting.epsilon)

    return least_root(excess, 1 / setting.epsilon, 1e-9)


def _by_loss(family: Family, setting: Setting) -> float:
    """The smallest level by loss distributions: a coarse search, then a fine correction."""
    if setting.delta < loss_distribution.SMALLEST_DELTA:
        raise Unsupported(
            f"loss distributions need delta >= {loss_distribution.SMALLEST_DELTA:g}; use rdp"
        )
    loss_distribution.check(setting.accounted_event(family(1.0)))
    try:
        start = 0.94 * by_rdp(family, setting, tolerance=1e-2)
    except Infeasible:  # bounded noise has no Rényi divergence and may still have a loss
        start = 1.0

    def excess_on(coarser: float) -> Callable[[float], float]:
        def excess(level: float) -> float:
            event = setting.accounted_event(family(level))
            if coarser > 1:
                losses = loss_distribution.LossDistribution(event, coarser, both_ways=False)
            else:
                losses = loss_distribution.composed_loss(event)
            return max(-30.0, math.log(max(losses.delta(setting.epsilon), 1e-300) / setting.delta))

        return excess

    coarse = least_root(excess_on(4.0), start, 1e-3, slope=-20.0)
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
    kept inside the bracket once there is one; until then they grow, so that no plateau stalls the
    search. `slope` is a first idea of d excess / d log level. What is not a number is not private.
    """
    x, y = math.log(guess), excess(guess)
    low, high = -math.inf, math.inf  # excess is above 0 at `low`, at or below 0 at `high`
    least_step = tolerance
    for _ in range(200):
        if y <= 0:
            high = min(high, x)
        else:
            low = max(low, x)
        # Done once the bracket, or the slope seen so far, says that the root is this close.
        if high - low <= tolerance or (x == high and y >= slope * tolerance):
            return math.exp(high)
        size = min(max(abs(y / slope), least_step), 4.0) if abs(y) < 30 else 2.0
        target = x + tolerance / 2 + (-size if y <= 0 else size)
        if math.isinf(low) or math.isinf(high):
            least_step *= 4
        elif not low < target < high:
            target = (low + high) / 2
        if target > 60:
            raise Infeasible("no amount of noise of this shape meets the budget")
        if target < -60:
            raise Infeasible("this budget is so large that any noise of this shape meets it")
        before = x, y
        x, y = target, excess(math.exp(target))
        if y != before[1] and abs(y) < 30:
            slope = min(-0.05, (y - before[1]) / (x - before[0]))
    if math.isinf(high):
        raise Infeasible("the search for enough noise did not end")
    return math.exp(high)
