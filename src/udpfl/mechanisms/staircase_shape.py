"""Which staircase: the period and split that give the least error for one release.

The paper's split 1/(1+e^{decay/2}) is best for one pure-DP release. Under Rényi accounting the best
period divides the shift of a coordinate and the best split is 1 (steps exactly where a shifted copy
of the noise has its own); in high dimension the period has to shrink further, until Staircase noise
turns into Laplace noise. The search asks for levels by the Rényi accountant; whatever it finds is
calibrated and certified afterwards like any other shape.
"""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar

from udpfl.errors import Infeasible
from udpfl.mechanisms.base import Family, Rank, ShapeSearch
from udpfl.mechanisms.laplace import Laplace
from udpfl.mechanisms.staircase import LARGEST_DECAY, Staircase

_BEYOND = 1 + 1e-6
"""How far beyond the clip a step lies. A run moves its sums by less than the clip, rounding
included (`engine.clipping.ROUNDING`); this is for clips that others compute, in float32."""
_DIVISORS = (16, 12, 8, 6, 5, 4, 3, 2, 1)  # periods tried, as parts of the shift of one coordinate
_DEFAULT, _HALF, _FULL = -1.0, 0.5, 1.0  # splits tried


def best_staircase(search: ShapeSearch) -> Family:
    """A family of equal period and split whose smallest private member has little error."""
    clip, shift, rank = search.clip, search.shift, search.rank
    if search.is_pure:
        return lambda level: _pure_shape(min(math.sqrt(2) / level, LARGEST_DECAY), clip, rank)
    level = search.least_level(Laplace.family(clip))

    def error(divisor: int, split: float) -> float:
        nonlocal level
        family = _steps(_BEYOND * shift / divisor, split, clip)
        try:
            level = search.least_level(family, level)
        except Infeasible:  # such a wide step cannot be that little noise
            return math.inf
        return family(level).error(rank)

    if shift == clip:  # evaluating is cheap, and more than one shape may be locally best
        tried = [(error(n, split), n, split) for n in _DIVISORS for split in (_FULL, _DEFAULT)]
    else:  # from fine to coarse until that stops paying, then the splits
        tried = []
        for divisor in _DIVISORS[::2]:
            tried.append((error(divisor, _HALF), divisor, _HALF))
            if tried[-1][0] > 1.002 * min(tried)[0]:
                break
        best = min(tried)[1]
        tried += [(error(best, split), best, split) for split in (_FULL, _DEFAULT)]
    _, divisor, split = min(tried)
    return _steps(_BEYOND * shift / divisor, split, clip)


def _steps(period: float, split: float, clip: float) -> Family:
    """All staircases of one period and split, by level of noise in units of the clip."""

    def at(level: float) -> Staircase:
        decay = math.sqrt(2) * period / (level * clip)
        return Staircase(min(decay, LARGEST_DECAY), period, split)

    return at


def _pure_shape(decay: float, clip: float, rank: Rank) -> Staircase:
    """The best split for pure DP, where period = clip is optimal (Geng et al. 2015, Theorem 1)."""
    if rank == "l1":
        return Staircase(decay, _BEYOND * clip)
    found = minimize_scalar(
        lambda split: Staircase(decay, 1.0, split).variance, bounds=(0.0, 1.0), method="bounded"
    )
    return Staircase(decay, _BEYOND * clip, float(found.x))
