"""The grid that noisy numbers are rounded to, and what rounding still adds to epsilon and delta.

Noise on a computer lies on a lattice, a fine one near zero and one with gaps far out. Whoever knows
the lattice and guesses the sum sees whether a noisy number minus that sum lies on it. So noisy
numbers are rounded to a grid that is much coarser: a power of two near the deviation of the noise
over 1,024. Rounding what has its noise costs no privacy, and adds less than 4e-7 of the variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from udpfl.mechanisms.arrays import Floats
from udpfl.mechanisms.base import Mechanism
from udpfl.mechanisms.radial import Radial

_BITS = 10
SECOND_WORD = 2.0**-20
"""`Mechanism.second_word` of noise whose tail falls exponentially or faster."""
_BEYOND = tuple(2.0**-bits for bits in range(60, 23, -4))
"""Probabilities, any of them, that a number of a run has noise further out than is looked at."""
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
    given, epsilon = list(noises), min(epsilon, 500.0)
    if not sum(count for _, count in given):
        return Rounding(0.0, 0.0)
    found = [_looking(given, epsilon, beyond) for beyond in _BEYOND]
    least = min(own.total for own in found)
    # Of those about as good, the one with the smallest delta: it is what an audit can refute.
    return next(own for own in found if own.total <= 1.1 * least)


def _looking(noises: Sequence[tuple[Mechanism, int]], epsilon: float, beyond: float) -> Rounding:
    """The same for all runs but a share `beyond` of them, in which a number lies further out."""
    own = [_Error.of(noise, count, beyond * math.exp(-epsilon)) for noise, count in noises if count]
    squares = sum(each.squares for each in own)
    unlikely = _CONFIDENCE + epsilon
    smallest = 0.1 / max(each.largest for each in own)
    best = math.sqrt(unlikely / (0.6 * squares))
    # Above the smallest order, numbers far out count with e^(order h).
    orders = np.geomspace(min(smallest, best), best, 1 if smallest >= best else 64)
    far = sum(each.far(orders) for each in own)
    within = orders * (0.6 * squares + 0.5 * far) + unlikely / orders
    laws = sum(each.law for each in own)
    # e^k in front of delta is in the hundredth that is added here.
    return Rounding(2.01 * (float(np.min(within)) + laws), 3 * (math.exp(-_CONFIDENCE) + beyond))


@dataclass(frozen=True)
class _Error:
    """By how much the probabilities of the grid's points are off, for all numbers of one noise."""

    count: int
    squares: float
    """Sum over all numbers of the mean square of h."""
    tail: Floats
    """Tail probabilities from 1 down to the least that is looked at."""
    h: Floats
    """The largest there."""
    most: float
    """An h that is not looked at number by number: an order times it has to stay below a tenth."""
    law: float

    @classmethod
    def of(cls, mechanism: Mechanism, count: int, beyond: float) -> _Error:
        std = mechanism.noise_std
        unit = 2 * std / grid_of(mechanism)
        error = (mechanism.rounding + 1.25) * 2.0**-53 * unit
        least = math.log2(beyond / count)
        tail = 2.0 ** -np.linspace(0.0, -least, 4 * math.ceil(-least))
        sizes = np.asarray(mechanism.magnitude(tail), dtype=np.float64) / std
        # Where the lattice shows most is rare: ten times as much is made up for by the quarter.
        lattice = 2.0**-63 / SECOND_WORD * unit / 10 if mechanism.second_word < 1 else 0.0
        squares, h = count * error**2, 4 * (1 + sizes) * error
        if not isinstance(mechanism, Radial):
            return cls(count, squares, tail, h, lattice, 0.0)
        # Numbers of one vector are far out together.
        law = count / mechanism.dimension * _law_of_radius(mechanism.dimension)
        return cls(count, squares, tail, h, max(lattice, float(h[-1])), law)

    @property
    def largest(self) -> float:
        """The largest h that is looked at."""
        return max(float(self.h[-1]), self.most)

    def far(self, orders: Floats) -> Floats:
        """Sum over all numbers of the mean of h^2 e^(order h) where order h is above a tenth.

        Between two tail probabilities h is the larger one.
        """
        power = orders[:, None] * self.h[1:]
        mass = (self.tail[:-1] - self.tail[1:]) * self.h[1:] ** 2
        with np.errstate(over="ignore"):
            found = self.count * np.where(power > 0.1, mass * np.exp(power), 0.0).sum(1)
        return np.where(orders * self.most > 0.1 * (1 + 1e-9), np.inf, found)


def _law_of_radius(dimension: int) -> float:
    """By how much the logarithm of the density of a radius is off: the rounding of the number that
    decides whether it is kept."""
    return (64 + 8 * math.sqrt(dimension)) * 2.0**-53
