"""Accounting by privacy-loss distributions (PLD): tighter than Rényi where a worst pair is known.

A release is described by its hockey-stick curve delta(epsilon) between the worst pair of output
distributions. Sampling transforms that curve exactly. It is discretised pessimistically ("connect
the dots") and composed by Fourier transforms (`_grid_loss`). Adding and removing a record are
composed separately and the larger answer counts.

A worst pair is known for Gaussian noise (any dimension, by its l2 norm), for noise whose density
falls with the l1 norm (under l1 clipping, one coordinate), and for every symmetric unimodal noise
in one dimension or, as a product over coordinates, under l-infinity clipping. All else raises
`Unsupported`; the Rényi accountant covers it. Several releases of one sample are dominated by the
product of their worst pairs, and sampling transforms the curve of that. A shuffled message costs
what it costs unshuffled.

Guarantee: the result is an upper bound. Discretisation rounds towards more leakage; floating-point
error of the Fourier transforms is covered by an allowance added to delta.

References: Sommer, Meiser and Mohammadi 2019; Zhu, Dong and Wang 2022, "Optimal accounting of
differential privacy via characteristic function", Theorems 10 and 11 (dominating pairs, sampling);
Doroshenko et al. 2022, "Connect the dots".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import fft

from udpfl.accounting import rdp
from udpfl.accounting._grid_loss import GridLoss, connect_dots
from udpfl.accounting.events import (
    Event,
    Leaf,
    NominallyShuffled,
    PoissonSampled,
    PureDP,
    Release,
    Shuffled,
    leaves,
)
from udpfl.errors import Unsupported
from udpfl.mechanisms import Radial
from udpfl.mechanisms.arrays import Floats

Curve = Callable[[Floats], Floats]
"""The hockey-stick divergence of a pair as a function of epsilon >= 0, the same both ways round."""

SMALLEST_DELTA = 1e-10
_MOST_POINTS = 1 << 23
_LARGEST_LOSS = 650.0  # of one release: e^loss has to stay within floating point
_LOWER_TAIL = 1e-11  # mass of small losses that may be rounded up
_TAIL = 1e-16  # mass cut off each tail of one release, per release, added back as infinite loss


class _Sample(NamedTuple):
    """What is released of the records that are drawn at a rate."""

    release: Release | PureDP
    passes: int
    """How many times, each free to depend on the results before."""
    rate: float


@lru_cache(maxsize=16)
def _curve(leaf: Release | PureDP, passes: int, releases: int, near: float) -> tuple[Curve, float]:
    """The hockey-stick curve of the worst pair of one unsampled release, or of several of the same
    sample, and mass to add to it.

    Passes that look at each other's results are dominated by the product of their worst pairs.
    """
    if isinstance(leaf, PureDP):

        def response(eps: Floats) -> Floats:
            truth = 1 / (1 + math.exp(-leaf.epsilon))
            return np.asarray(-np.expm1(np.minimum(eps - leaf.epsilon, 0.0)) * truth)

        return (response, 0.0) if passes == 1 else _product(response, passes, releases, near)
    _check_pair(leaf)
    mechanism, shift = leaf.mechanism, _single_shift(leaf)
    if mechanism.is_isotropic and shift is not None:
        own = math.sqrt(passes) * shift
        return lambda eps: mechanism.hockey_stick(eps, own), 0.0
    bound = leaf.sensitivity.bound
    parts = passes if shift is not None else passes * leaf.sensitivity.coordinates
    # Where the shifted noise misses a part of the support the loss there is infinite.
    moved = bound if shift is None else shift
    lost = float(mechanism.hockey_stick(700.0, moved))

    def single(eps: Floats) -> Floats:
        return np.maximum(mechanism.hockey_stick(eps, moved) - lost, 0.0)

    if parts == 1:
        return single, lost
    curve, more = _product(single, parts, releases, near)
    return curve, parts * lost + more


@lru_cache(maxsize=32)
def _discretised(
    sample: _Sample, adding: bool, releases: int, coarser: float, near: float
) -> GridLoss:
    """One of about so many samples, on the grid of a total of about `near`."""
    curve, _ = _curve(sample.release, sample.passes, releases, coarser * near)
    step = coarser * grid_step(near, releases)
    return _pmf(_sampled(curve, sample.rate, adding), step, releases)


def _single_shift(release: Release) -> float | None:
    """The shift that makes the worst pair by itself; None where all coordinates move at once."""
    mechanism, sensitivity = release.mechanism, release.sensitivity
    if mechanism.is_isotropic:
        return sensitivity.largest("l2")
    if isinstance(mechanism, Radial):
        return sensitivity.largest("l1")
    if sensitivity.coordinates == 1 or (mechanism.falls_with_l1 and sensitivity.norm == "l1"):
        return sensitivity.bound
    return None


def _check_pair(release: Release) -> None:
    """Raise where no worst pair of output distributions is known."""
    mechanism, sensitivity = release.mechanism, release.sensitivity
    if mechanism.is_isotropic:
        return
    if not mechanism.unimodal:
        raise Unsupported(
            f"{mechanism.name}: a loss distribution needs a unimodal density, whose hockey-stick "
            "divergence grows with the shift; use the rdp accountant"
        )
    if _single_shift(release) is None and sensitivity.norm != "linf":
        raise Unsupported(
            f"no worst pair is known for {mechanism.name} noise under {sensitivity.norm} in "
            f"{sensitivity.dimension} dimensions; use the rdp accountant"
        )


def _product(single: Curve, parts: int, releases: int, near: float) -> tuple[Curve, float]:
    """The curve of so many independent parts, each at its worst: coordinates, passes or both.

    The Fourier transform leaves rounding noise that never dies out. The noise floor is taken off
    the curve and handed back as mass of infinite loss instead.
    """
    step = grid_step(near / math.sqrt(releases), parts)
    pmf = _self_compose(_pmf(_sampled(single, 1.0, adding=False), step, parts), parts)
    probs = np.maximum(pmf.probs, 0.0)
    losses = pmf.losses
    above_p = np.append(np.cumsum(probs[::-1])[::-1], 0.0)
    above_q = np.append(np.cumsum((probs * np.exp(-losses))[::-1])[::-1], 0.0)
    floor = 1e-13 + 32 * parts * np.finfo(float).eps

    def curve(eps: Floats) -> Floats:
        first = np.searchsorted(losses, eps, side="right")
        finite = above_p[first] - np.exp(np.minimum(eps, 700.0)) * above_q[first]
        return np.asarray(np.clip(finite - floor, 0.0, 1.0))

    return curve, 2 * floor + pmf.infinite


def _both_signs(curve: Curve, eps: Floats) -> Floats:
    """Extend a symmetric pair's curve to negative epsilon: d(-e) = 1 - e^-e + e^-e d(e)."""
    size = np.abs(eps)
    value = curve(size)
    return np.where(eps >= 0, value, -np.expm1(-size) + np.exp(-size) * value)


def _sampled(curve: Curve, rate: float, adding: bool) -> Curve:
    """The curve after Poisson sampling, for removing or for adding the record."""
    if rate == 1:
        return lambda eps: _both_signs(curve, eps)
    if not adding:
        # ((1-q) Q + q P) against Q: only the threshold moves.
        def remove(eps: Floats) -> Floats:
            inside = np.expm1(np.minimum(eps, 700.0)) + rate
            threshold = np.log(np.where(inside > 0, inside, 1.0) / rate)
            return np.where(
                inside > 0, rate * _both_signs(curve, threshold), -np.expm1(np.minimum(eps, 0.0))
            )

        return remove

    # Q against ((1-q) Q + q P).
    def add(eps: Floats) -> Floats:
        left = 1 - np.exp(np.minimum(eps, 700.0)) * (1 - rate)
        safe = np.where(left > 0, left, 1.0)
        threshold = np.where(left > 0, eps + math.log(rate) - np.log(safe), 0.0)
        return np.where(left > 0, safe * _both_signs(curve, threshold), 0.0)

    return add


def _range(curve: Curve, tail: float) -> float:
    """An epsilon beyond which the curve is at most `tail`."""
    high = 1.0
    while float(curve(np.asarray([high]))[0]) > tail:
        high *= 2
        if high > 1e4:
            return high
    low = 0.0
    for _ in range(20):
        middle = (low + high) / 2
        if float(curve(np.asarray([middle]))[0]) > tail:
            low = middle
        else:
            high = middle
    return high


def grid_step(near: float, releases: int) -> float:
    """Grid interval for a total of about `near`, made of `releases` parts.

    Rounding adds at most interval^2 to the variance of every release, so the interval shrinks as
    1/sqrt(releases). The constants keep the result within about 0.2 % of the exact epsilon: at
    small totals the interval follows the spread of the loss (about near / 4.5), at large ones
    epsilon; with few releases one interval is the error of a bounded loss.
    """
    return min(math.sqrt(min(2.5e-4 * near**2, 5e-4 * near) / releases), 1e-3 * near)


def _pmf(curve: Curve, step: float, releases: int) -> GridLoss:
    """One direction of one release, discretised pessimistically."""
    tail = _TAIL / releases
    upper = math.ceil(_range(curve, tail) / step)
    # Below the range, delta is the trivial 1 - e^eps up to the mass that lies there. That mass is
    # moved up into the range, which is pessimistic, so a rough cut will do.
    lower = -math.ceil(_range(lambda eps: curve(-eps) + np.expm1(-eps), _LOWER_TAIL) / step)
    if upper * step > _LARGEST_LOSS or upper - lower > _MOST_POINTS // 8:
        raise Unsupported("the privacy loss is too spread out for a loss distribution; use rdp")
    grid = np.asarray(np.arange(lower, upper + 1) * step, dtype=np.float64)
    deltas = np.clip(curve(grid), 0.0, 1.0)
    if not np.all(np.isfinite(deltas)):
        raise Unsupported("the privacy loss leaves the range of floating point; use rdp")
    deltas = np.minimum.accumulate(deltas)
    loss = connect_dots(step, lower, deltas)
    loss.probs.setflags(write=False)  # others get it from a cache
    return loss


def _self_compose(loss: GridLoss, count: int) -> GridLoss:
    """The loss of `count` equal releases; refuses what would not fit into memory."""
    if count == 1:
        return loss
    low, high = _bulk(loss.probs, count)
    if high - low > _MOST_POINTS:
        raise Unsupported("the composed loss is too spread out for a loss distribution")
    points = high - low + 1
    size = fft.next_fast_len(max(points, len(loss.probs)), real=True)
    # The transform wraps around: place k of the sum is found at k modulo its size.
    wrapped = fft.irfft(fft.rfft(loss.probs, size) ** count, size)
    probs = np.roll(wrapped, -low)[:points]
    infinite = _TAIL - math.expm1(count * math.log1p(-loss.infinite))
    return GridLoss(loss.step, loss.lowest * count + low, probs, infinite)


_ORDERS = 20
"""Chernoff bounds are tried with moments up to e^20 over the length of the grid."""


def _bulk(probs: Floats, count: int) -> tuple[int, int]:
    """Places between which all but `_TAIL` of the `count`-fold sum lies, by Chernoff's bound."""
    last = len(probs) - 1
    low, high = 0, last * count
    slack = math.log(2 / _TAIL)
    once = np.exp(np.arange(len(probs)) / len(probs))
    up, down = probs, probs
    for multiple in range(1, _ORDERS + 1):
        up, down, order = up * once, down / once, multiple / len(probs)
        above, below = float(up.sum()), float(down.sum())
        if above > 0:
            high = min(high, math.ceil((count * math.log(above) + slack) / order))
        if below > 0:
            low = max(low, math.floor(-(count * math.log(below) + slack) / order))
    return low, high


class LossDistribution:
    """The composed loss of a whole event, adding and removing side by side.

    The grid depends on the event alone, so the same event always gets the same answer. For a quick
    search `coarser` widens it and `both_ways=False` leaves out the adding of a record.
    """

    def __init__(self, event: Event, coarser: float = 1.0, both_ways: bool = True) -> None:
        parts = leaves(event)
        total = sum(parts.values())
        # The grid is that of the next power of two, so that a history that grows shares its parts.
        rounded = 1 << (total - 1).bit_length()
        # Roughly the epsilon to expect, to a power of two: it sets how fine the grid is.
        near = max(rdp.epsilon(event, 1e-5), 1e-3)
        near = 2.0 ** math.floor(math.log2(near)) if math.isfinite(near) else 1.0
        # Each factor of a product of `total` transforms carries a few rounding errors.
        self._allowance = 32 * total * float(np.finfo(float).eps)
        samples: list[tuple[_Sample, int]] = []
        for leaf, count in parts.items():
            sample = _sample_of(leaf)
            _, lost = _curve(sample.release, sample.passes, rounded, coarser * near)
            self._allowance += count * sample.rate * lost  # unsampled records lose nothing
            samples.append((sample, count))
        one_way = all(sample.rate == 1 for sample, _ in samples)
        self._losses: list[GridLoss] = []
        for adding in (False, True) if both_ways and not one_way else (False,):
            composed: GridLoss | None = None
            for sample, count in samples:
                part = _discretised(sample, adding, rounded, coarser, near)
                part = _self_compose(part, count)
                composed = part if composed is None else composed.plus(part, _TAIL)
            assert composed is not None, "an event has at least one release"
            self._losses.append(composed)

    def delta(self, epsilon: float) -> float:
        """The delta that goes with `epsilon`, rounding allowance included."""
        answers = [loss.delta(epsilon) for loss in self._losses]
        return min(1.0, max(answers) + self._allowance) if all(a <= 2 for a in answers) else 1.0

    def epsilon(self, delta: float) -> float:
        """The epsilon that goes with `delta`, rounding allowance included."""
        left = delta - self._allowance
        if left <= 0:
            return math.inf
        answers = [loss.epsilon(left) for loss in self._losses]
        return max(answers) if all(answer >= 0 for answer in answers) else math.inf


@lru_cache(maxsize=2)
def composed_loss(event: Event) -> LossDistribution:
    """The loss of an event on its own grid. Cached: calibration ends where a statement begins."""
    return LossDistribution(event)


def _sample_of(leaf: Leaf) -> _Sample:
    match leaf:
        case Release() | PureDP():
            return _Sample(leaf, 1, 1.0)
        case PoissonSampled(rate):
            return _Sample(*leaf.passes, rate)
        case Shuffled(event=message) | NominallyShuffled(event=message):
            return _sample_of(message)  # mixing is post-processing; no amplification is known
        case _:
            raise Unsupported(
                f"no loss distribution is known for a {type(leaf).__name__} event; use rdp"
            )


def check(event: Event) -> None:
    """Raise `Unsupported`, with the reason, where this accountant does not apply."""
    for leaf in leaves(event):
        release = _sample_of(leaf).release
        if isinstance(release, Release):
            _check_pair(release)


def epsilon(event: Event, delta: float) -> float:
    """The smallest epsilon that the loss distribution certifies at `delta`."""
    if delta < SMALLEST_DELTA:
        raise Unsupported(
            f"loss distributions are accurate down to delta = {SMALLEST_DELTA:g}, asked for "
            f"{delta:g}; use the rdp accountant"
        )
    return composed_loss(event).epsilon(delta)
