"""Which staircase: the period and split that give the least error for one release.

The paper's split 1/(1+e^{decay/2}) is best for one pure-DP release. Under Rényi accounting the best
period divides the shift of a coordinate and the best split is 1 (steps exactly where a shifted copy
of the noise has its own); in high dimension the period has to shrink further, until Staircase noise
turns into Laplace noise. The search asks for levels by the Rényi accountant; whatever it finds is
calibrated and certified afterwards like any other shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from udpfl.errors import Infeasible
from udpfl.mechanisms.base import Family, Mechanism, Rank, ShapeSearch
from udpfl.mechanisms.laplace import Laplace
from udpfl.mechanisms.staircase import LARGEST_DECAY, Staircase
from udpfl.mechanisms.staircase_l1 import StaircaseL1

Steps = Callable[[float, float, float], Mechanism]
"""The noise of a decay, a period and a split."""
Error = Callable[[int, float], float]
"""That of the smallest private noise of a period, as a part of the shift, and a split."""

_BEYOND = 1 + 1e-6
"""How far beyond the clip a step lies. A run moves its sums by less than the clip, rounding
included (`engine.clipping.ROUNDING`); this is for clips that others compute, in float32."""
_DIVISORS = (16, 12, 8, 6, 5, 4, 3, 2, 1)  # periods tried, as parts of the shift of one coordinate
_DEFAULT, _HALF, _FULL = -1.0, 0.5, 1.0  # splits tried


def best_staircase(search: ShapeSearch) -> Family:
    """A family of equal period and split whose smallest private member has little error."""
    if search.is_pure:
        return _pure_family(Staircase, search.clip, search.rank)
    error = _errors(Staircase, search, search.shift)
    if search.shift == search.clip:
        divisor, split = _best_of_all(error)
    else:
        divisor, split = _from_fine_to_coarse(error)
    return _steps(Staircase, _BEYOND * search.shift / divisor, split, search.clip)


def best_staircase_l1(search: ShapeSearch) -> Family:
    """The same for one density of a whole vector, to which the l1 norm of a gradient counts."""

    def noise(decay: float, period: float, split: float) -> Mechanism:
        return StaircaseL1(decay, period, split, search.dimension)

    if search.is_pure:
        return _pure_family(noise, search.radius, search.rank)
    divisor, split = 1, _DEFAULT
    if search.radius == search.clip:  # else it needs far more than others, whatever its shape
        divisor, split = _best_of_all(_errors(noise, search, search.clip))
    return _steps(noise, _BEYOND * search.radius / divisor, split, search.radius)


def _errors(noise: Steps, search: ShapeSearch, shift: float) -> Error:
    level = search.least_level(Laplace.family(search.clip))

    def error(divisor: int, split: float) -> float:
        nonlocal level
        family = _steps(noise, _BEYOND * shift / divisor, split, search.clip)
        try:
            level = search.least_level(family, level)
        except Infeasible:  # such a wide step cannot be that little noise
            return math.inf
        return family(level).error(search.rank)

    return error


def _best_of_all(error: Error) -> tuple[int, float]:
    """Where evaluating is cheap: more than one shape may be locally best."""
    tried = [(error(n, split), n, split) for n in _DIVISORS for split in (_FULL, _DEFAULT)]
    return min(tried)[1:]


def _from_fine_to_coarse(error: Error) -> tuple[int, float]:
    """Periods until wider ones stop paying, then the splits."""
    tried = []
    for divisor in _DIVISORS[::2]:
        tried.append((error(divisor, _HALF), divisor, _HALF))
        if tried[-1][0] > 1.002 * min(tried)[0]:
            break
    best = min(tried)[1]
    tried += [(error(best, split), best, split) for split in (_FULL, _DEFAULT)]
    return min(tried)[1:]


def _steps(noise: Steps, period: float, split: float, clip: float) -> Family:
    """All staircases of one period and split, by level of noise in units of the clip."""

    def at(level: float) -> Mechanism:
        decay = math.sqrt(2) * period / (level * clip)
        return noise(min(decay, LARGEST_DECAY), period, split)

    return at


def _pure_family(noise: Steps, clip: float, rank: Rank) -> Family:
    """The best split for pure DP, where period = clip is optimal (Geng et al. 2015, Theorem 1)."""

    def size(own: Mechanism) -> float:
        return own.variance if rank == "l2" else own.mean_abs

    def at(level: float) -> Mechanism:
        from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

        decay = min(math.sqrt(2) / level, LARGEST_DECAY)
        if rank == "l1" and noise is Staircase:  # its default split is the best
            return Staircase(decay, _BEYOND * clip)
        found = minimize_scalar(
            lambda split: size(noise(decay, 1.0, split)), bounds=(0.0, 1.0), method="bounded"
        )
        return noise(decay, _BEYOND * clip, float(found.x))

    return at
