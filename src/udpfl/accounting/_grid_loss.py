"""A privacy loss on a grid: discretised pessimistically, added up, read as epsilon and delta.

The loss is a random number. It takes values that are multiples of a step, or is infinite.

Guarantee: `connect_dots` gives a pair that dominates the pair it was made from, and `plus` cuts
tails towards more leakage: small losses are moved up, large ones become infinite.

References: Doroshenko et al. 2022, "Connect the dots: tighter discrete approximations of privacy
loss distributions", Algorithm 1; Sommer, Meiser and Mohammadi 2019 (composition is convolution).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft

from udpfl.mechanisms.arrays import Floats


@dataclass(frozen=True, eq=False)
class GridLoss:
    """The distribution of a privacy loss."""

    step: float
    """Between two points of the grid."""
    lowest: int
    """The smallest loss that is possible, in steps."""
    probs: Floats
    """Of the losses from the smallest on; Fourier transforms may leave some just below 0."""
    infinite: float
    """Probability of an infinite loss."""

    @property
    def losses(self) -> Floats:
        """The values that the loss can take, infinity aside."""
        return np.asarray((np.arange(len(self.probs)) + self.lowest) * self.step)

    def plus(self, other: GridLoss, tail: float) -> GridLoss:
        """The sum of two independent losses; each tail is cut where it holds half of `tail`."""
        assert self.step == other.step, "losses on different grids cannot be added"
        points = len(self.probs) + len(other.probs) - 1
        size = fft.next_fast_len(points, real=True)
        product = fft.rfft(self.probs, size) * fft.rfft(other.probs, size)
        probs = fft.irfft(product, size)[:points]
        first = _length_within(probs, tail / 2)
        last = max(points - _length_within(probs[::-1], tail / 2), first + 1)
        kept = probs[first:last].copy()
        kept[0] += probs[:first].sum()
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        infinite += float(probs[last:].sum())
        return GridLoss(self.step, self.lowest + other.lowest + first, kept, infinite)

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence: the expected excess of the loss over epsilon, as mass."""
        losses = self.losses
        above = losses > epsilon
        excess = -np.expm1(epsilon - losses[above])
        return self.infinite + float(np.dot(excess, self.probs[above]))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 whose divergence is at most delta; may be infinite."""
        if self.infinite > delta:
            return math.inf
        losses, probs = self.losses[::-1], self.probs[::-1]
        # Mass of losses above a point under either distribution of the pair. Between two points
        # delta(eps) = mass_p - e^eps mass_q, which is solved for eps.
        mass_p = self.infinite + np.concatenate(([0.0], np.cumsum(probs)))
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            ratios = np.exp(-np.maximum(losses, -700.0))  # a bound where floating point ends
            mass_q = np.concatenate(([0.0], np.cumsum(ratios * probs)))
            crossing = np.log((mass_p[:-1] - delta) / mass_q[:-1])
            is_reached = (mass_p[:-1] > delta) & (mass_q[:-1] > 0) & (crossing >= losses)
        is_too_large = (mass_p[1:] >= delta) & (mass_q[1:] == 0)  # for e^-loss
        stops = np.flatnonzero(is_reached | is_too_large)
        place = int(stops[0]) if len(stops) else len(losses)
        if len(stops) and not is_reached[place]:
            return max(0.0, float(losses[place]))
        if mass_p[place] <= mass_q[place] + delta:
            return 0.0
        left, ratio = float(mass_p[place] - delta), float(mass_q[place])
        return math.log(left / ratio) if ratio > 0 else math.inf


def connect_dots(step: float, lowest: int, deltas: Floats) -> GridLoss:
    """The loss whose divergence has these values at the points of the grid, and is linear in
    e^epsilon between them. Such a divergence is convex, so it lies above every other one with the
    same values.

    Args:
        step: Between two points.
        lowest: The first point, in steps.
        deltas: Divergences at the points, between 0 and 1, never rising.
    """
    if len(deltas) == 1:
        return GridLoss(step, lowest, 1 - deltas, float(deltas[0]))
    falls = np.diff(deltas)
    grows = math.expm1(step)
    probs = np.empty_like(deltas)
    probs[0] = 1 - deltas[0] + falls[0] / grows
    probs[1:-1] = (falls[1:] - math.exp(step) * falls[:-1]) / grows
    probs[-1] = falls[-1] / math.expm1(-step)
    return GridLoss(step, lowest, np.maximum(probs, 0.0), float(deltas[-1]))


def _length_within(probs: Floats, mass: float) -> int:
    """How many of the first probabilities add up to no more than `mass`."""
    beyond = np.cumsum(probs) > mass
    return int(np.argmax(beyond)) if beyond.any() else len(probs)
