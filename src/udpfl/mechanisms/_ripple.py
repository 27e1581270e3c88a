"""How far a sum over the steps of a staircase lies from the integral that it stands for.

With n running over 0, 1, 2, ... let

    H(x) = sum (n + x)^k e^{-decay (n + x)},  0 < x <= 1,   I = k! / decay^{k+1},

I the integral of y^k e^{-decay y} over all y > 0. Mass, tails, divergences and moments of noise
that is radial in l1 are quotients of such sums, with I cancelled: what is left are the values of
log(H / I), the ripple. Poisson's summation formula says how small it is,

    H(x) / I = 1 + 2 Re sum_{j >= 1} e^{2 pi i j x} (1 + 2 pi i j / decay)^{-(k+1)},

so it dies out like (1 + 4 pi^2 / decay^2)^{-(k+1)/2}: in many dimensions nothing of the steps
remains but their height.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bernoulli, gammaln

from udpfl.mechanisms.arrays import Floats

_DROP = 90.0  # terms are added up until they have fallen by e^-90
_MOST_TERMS = 1 << 14  # beyond that Poisson's formula, which needs a few


def log_ripple(power: int, start: Floats, decay: float) -> Floats:
    """log(H / I) for `power` k >= 1 at each start x; only its fraction counts, as H is periodic."""
    x = np.mod(np.asarray(start, dtype=np.float64), 1.0)
    above = _DROP + math.sqrt(_DROP * (_DROP + 2 * power))
    below = math.sqrt(2 * _DROP * power)
    if (above + below) / decay > _MOST_TERMS:
        return _by_waves(power, x, decay)
    peak = power / decay
    first = max(0, math.floor(peak - below / decay) - 1)
    steps = np.arange(float(first), math.ceil(peak + above / decay) + 3)
    return _by_terms(power, x, decay, steps)


def _by_terms(power: int, x: Floats, decay: float, steps: Floats) -> Floats:
    """Term by term, relative to the largest value of y^k e^{-decay y}, which is at k / decay."""
    place = (steps + x[..., None]) * (decay / power)
    with np.errstate(divide="ignore"):  # the term at y = 0 is zero
        terms = power * (np.log(place) - (place - 1))
    largest = terms.max(axis=-1, keepdims=True)
    total = np.log(np.exp(terms - largest).sum(axis=-1)) + largest[..., 0]
    return np.asarray(total + math.log(decay) - 0.5 * math.log(2 * math.pi * power) - _rest(power))


def _by_waves(power: int, x: Floats, decay: float) -> Floats:
    """By Poisson's formula. The steps are so many here that the first waves say it all, but for
    small powers, where Euler and Maclaurin's series takes their place."""
    if power < 4:
        return np.asarray(np.log1p(_euler_maclaurin(power, 1 - x, decay)))
    waves = np.arange(1, 17)
    sizes = np.exp(-(power + 1) * np.log(1 + 2j * math.pi * waves / decay))
    total = (np.exp(2j * math.pi * waves * x[..., None]) * sizes).sum(axis=-1).real
    return np.asarray(np.log1p(2 * total))


def _euler_maclaurin(power: int, y: Floats, decay: float) -> Floats:
    """H / I - 1 by Bernoulli's polynomials: e^{decay y} / (e^decay - 1), derived k times."""
    total = np.zeros(y.shape)
    for j in range(power + 1, power + 9):
        numbers = bernoulli(j)[::-1]
        polynomial = np.polyval([math.comb(j, i) * numbers[i] for i in range(j, -1, -1)], y)
        total += polynomial / (j * math.factorial(j - 1 - power)) * decay ** (j - 1 - power)
    return np.asarray((-1) ** power * decay ** (power + 1) / math.factorial(power) * total)


def _rest(power: int) -> float:
    """log k! beyond Stirling's k log k - k + log(2 pi k) / 2."""
    if power > 32:
        return 1 / (12 * power) - 1 / (360 * power**3) + 1 / (1260 * power**5)
    stirling = power * math.log(power) - power + 0.5 * math.log(2 * math.pi * power)
    return float(gammaln(power + 1)) - stirling
