"""Which staircase: the period and split that give the least error for one setting.

The paper's split 1/(1+e^{decay/2}) is best for one pure-DP release. Under Rényi accounting the best
period divides the shift of a coordinate and the best split is 1 (steps exactly where a shifted copy
of the noise has its own); in high dimension the period has to shrink further, until Staircase noise
turns into Laplace noise. The search uses the Rényi accountant; whatever it finds is calibrated and
certified afterwards like any other shape.
"""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar

from udpfl.errors import Infeasible
from udpfl.harmonizer.levels import Family, by_rdp, named_family
from udpfl.harmonizer.setting import Setting
from udpfl.mechanisms import Staircase
from udpfl.mechanisms.staircase import LARGEST_DECAY
from udpfl.sensitivity import Sensitivity

_BEYOND = 1 + 1e-6
"""How far beyond the clip a step lies. A run moves its sums by less than the clip, rounding
included (`engine.clipping.ROUNDING`); this is for clips that others compute, in float32."""
_COARSE = 3e-4  # tolerance of the noise level during the search
_DIVISORS = (16, 12, 8, 6, 5, 4, 3, 2, 1)  # periods tried, as parts of the shift of one coordinate
_DEFAULT, _HALF, _FULL = -1.0, 0.5, 1.0  # splits tried


def best_staircase(setting: Setting, rank: str) -> Family:
    """A family of equal period and split whose smallest private member has little error."""
    clip = setting.sensitivity.bound
    if setting.delta == 0:
        return lambda level: _pure_shape(min(math.sqrt(2) / level, LARGEST_DECAY), clip, rank)
    level = by_rdp(named_family("laplace", clip), setting, _COARSE)
    shift = _typical_shift(setting.sensitivity)

    def error(divisor: int, split: float) -> float:
        nonlocal level
        family = _steps(_BEYOND * shift / divisor, split, clip)
        try:
            level = by_rdp(family, setting, _COARSE, guess=level)
        except Infeasible:  # such a wide step cannot be that little noise
            return math.inf
        noise = family(level)
        return noise.noise_std if rank == "l2" else noise.mean_abs

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


def _typical_shift(sensitivity: Sensitivity) -> float:
    """How far one coordinate moves in the worst gradient for Laplace-like noise."""
    if sensitivity.norm == "l2":
        return sensitivity.bound / math.sqrt(sensitivity.coordinates)
    return sensitivity.bound


def _steps(period: float, split: float, clip: float) -> Family:
    """All staircases of one period and split, by level of noise in units of the clip."""

    def at(level: float) -> Staircase:
        decay = math.sqrt(2) * period / (level * clip)
        return Staircase(min(decay, LARGEST_DECAY), period, split)

    return at


def _pure_shape(decay: float, clip: float, rank: str) -> Staircase:
    """The best split for pure DP, where period = clip is optimal (Geng et al. 2015, Theorem 1)."""
    if rank == "l1":
        return Staircase(decay, _BEYOND * clip)
    found = minimize_scalar(
        lambda split: Staircase(decay, 1.0, split).variance, bounds=(0.0, 1.0), method="bounded"
    )
    return Staircase(decay, _BEYOND * clip, float(found.x))
