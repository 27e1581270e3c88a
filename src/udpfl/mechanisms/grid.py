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

_BITS = 10
SECOND_WORD = 2.0**-20
"""Tail probability below which noise is made of two random words: 63 bits would leave gaps."""
_BEYOND = 2.0**-60
"""Probability that any number of a run has noise further out than is looked at."""
_CONFIDENCE = 32.0
"""How improbable it is that the bound on epsilon fails, as a negative logarithm."""


class Rounding(NamedTuple):
    """What rounding adds at most to the epsilon and the delta of exact noise."""

    epsilon: float
    delta: float


def grid_of(mechanism: Mechanism) -> float:
    """The spacing of the grid: the smallest power of two from the deviation over 1,024 on."""
    return 2.0 ** (math.ceil(math.log2(mechanism.noise_std)) - _BITS)


def rounding_of(noises: Iterable[tuple[Mechanism, int]], epsilon: float) -> Rounding:
    """For so many numbers with noise of each mechanism, epsilon with exact noise.

    If noise is off by at most e, the probability of a point of the grid is off by a factor within
    e^(+-h), h = 2 e / grid. Over n numbers the factors multiply to one within e^(+-k), but for a
    tiny probability, where k grows with the root of n: docs/mathematics.md, section 9.
    """
    squares, largest = 0.0, 0.0
    for mechanism, count in noises:
        std = mechanism.noise_std
        unit = 2 * std / grid_of(mechanism)
        error = (mechanism.rounding + 1) * 2.0**-53 * unit
        far = float(mechanism.magnitude(np.asarray(_BEYOND / count))) / std
        squares += 12 * count * error**2
        largest = max(largest, (1 + far) * error, 2.0**-63 / SECOND_WORD * unit)
    if not squares:
        return Rounding(0.0, 0.0)
    unlikely = _CONFIDENCE + min(epsilon, 700.0)
    order = min(math.sqrt(unlikely / (0.6 * squares)), 0.1 / largest)
    within = 0.6 * order * squares + unlikely / order
    return Rounding(2 * within, 3 * math.exp(-_CONFIDENCE))
