"""The grid that noisy numbers are rounded to, and what rounding still adds to epsilon and delta.

Noise on a computer lies on a lattice, a fine one near zero and one with gaps far out. Whoever knows
the lattice and guesses the sum sees whether a noisy number minus that sum lies on it. So noisy
numbers are rounded to a grid that is much coarser: a power of two near the deviation of the noise
over 1,024. Rounding what has its noise costs no privacy, and adds less than 4e-7 of the variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from udpfl.mechanisms.base import Mechanism
from udpfl.mechanisms.radial import Radial

_BITS = 10
SECOND_WORD = 2.0**-20
"""Tail probability below which noise is made of two random words: 63 bits would leave gaps."""
_BEYOND = 2.0**-60
"""Probability that any number of a run has noise further out than is looked at."""
_CONFIDENCE = 32.0
"""How improbable it is that the bound on epsilon fails, as a negative logarithm."""


class Rounding(NamedTuple):
    """What rounding adds at most to the epsilon and the delta of exact noise, in a whole run."""

    epsilon: float
    delta: float

    @property
    def total(self) -> float:
        """What it adds at most to delta, where epsilon stays as it is.

        P <= e^(epsilon + a) Q + delta is at most e^epsilon Q + e^a - 1 + delta, unless e^epsilon Q
        is above 1 and there is nothing to show.
        """
        return min(1.0, math.expm1(min(self.epsilon, 1.0)) + self.delta)


def grid_of(mechanism: Mechanism) -> float:
    """The spacing of the grid: the smallest power of two from the deviation over 1,024 on."""
    return 2.0 ** (math.ceil(math.log2(mechanism.noise_std)) - _BITS)


def rounding_of(noises: Iterable[tuple[Mechanism, int]], epsilon: float) -> Rounding:
    """For so many numbers with noise of each mechanism, and the epsilon of exact noise.

    Where noise is off by e, the probability of a point of the grid is off by a factor within
    e^(+-h), h = 2 e / grid. Over n numbers the factors multiply to one within e^(+-k), but for a
    tiny probability, where k grows with the root of n times the mean square of h. The radius of
    whole vectors has a law that is off by a factor as well: docs/mathematics.md, section 9.
    """
    squares, largest, epsilon, laws = 0.0, 0.0, min(epsilon, 500.0), 0.0
    for mechanism, count in noises:
        std = mechanism.noise_std
        unit = 2 * std / grid_of(mechanism)
        lattice = 2.0**-63 / SECOND_WORD * unit  # at most, and 2^-53 of a deviation on average
        error = (mechanism.rounding + 1.25) * 2.0**-53 * unit
        beyond = np.asarray(_BEYOND * math.exp(-epsilon) / count)
        far = float(mechanism.magnitude(beyond)) / std
        squares += count * error**2
        if isinstance(mechanism, Radial):
            laws += count / mechanism.dimension * _law_of_radius(mechanism.dimension)
        # Where the lattice shows most is rare: ten times as much is made up for by the quarter.
        largest = max(largest, 4 * (1 + far) * error, lattice / 10)
    if not squares:
        return Rounding(0.0, 0.0)
    unlikely = _CONFIDENCE + epsilon
    order = min(math.sqrt(unlikely / (0.6 * squares)), 0.1 / largest)
    within = 0.6 * order * squares + unlikely / order + laws
    # e^k in front of delta is in the hundredth that is added here.
    return Rounding(2.01 * within, 3 * math.exp(-_CONFIDENCE))


def _law_of_radius(dimension: int) -> float:
    """By how much the logarithm of the density of a radius is off: the rounding of the number that
    decides whether it is kept."""
    return (64 + 8 * math.sqrt(dimension)) * 2.0**-53
