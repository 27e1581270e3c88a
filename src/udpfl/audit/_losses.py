"""A lower bound on epsilon from two distributions of outputs, with and without a record.

The line of outputs is cut into bins and bins of like privacy loss are merged, both of which only
post-process the outputs; losses are then rounded down, and composed with a Fourier transform.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import signal, special

from udpfl.audit._events import Noise

Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]
"""Probabilities of the same bins with the record and without it."""

_BINS = 1 << 16
_LOSSES = 1 << 15
_MOST_POINTS = 1 << 19
_MERGED = 512
_RARE = 1e-12


def _below(noise: Noise, x: Floats) -> Floats:
    """Probability that the noise is below x <= 0; the upper half follows by symmetry."""
    if noise.name == "gaussian":
        return np.asarray(special.ndtr(x / noise.numbers[0]))
    if noise.name == "laplace":
        return np.asarray(np.exp(x / noise.numbers[0]) / 2)
    decay, period, split = noise.numbers
    y = np.minimum(-x / period, 1e15)
    whole = np.floor(y)
    step = math.exp(-decay)
    area = split + step * (1 - split)
    covered = np.minimum(y - whole, split) + step * np.maximum(y - whole - split, 0.0)
    return np.asarray(np.exp(-decay * whole) / 2 * (1 - (1 - step) * covered / area))


def _masses(noise: Noise, edges: Floats) -> Floats:
    """Probability of every bin between the edges."""
    low, high = edges[:-1], edges[1:]
    left = _below(noise, np.minimum(high, 0.0)) - _below(noise, np.minimum(low, 0.0))
    right = _below(noise, np.minimum(-low, 0.0)) - _below(noise, np.minimum(-high, 0.0))
    return np.maximum(left + right, 0.0)


def _edges(noise: Noise, shift: float) -> Floats:
    far = noise.numbers[0] * (9.5 if noise.name == "gaussian" else 46.0)
    steps: Floats = np.zeros(0)
    if noise.name == "staircase":
        decay, period, split = noise.numbers
        periods = math.ceil(46.0 / decay) + 1
        far = period * periods
        if periods + shift / period < _BINS / 4:
            r = np.arange(periods + math.ceil(shift / period) + 1)
            side = np.concatenate([r, r + split]) * period
            steps = np.concatenate([side, -side])
    lines = np.linspace(-far, far + shift, _BINS)
    edges = np.sort(np.concatenate([lines, steps, steps + shift, [0.0, shift]]))
    apart = np.diff(edges, prepend=-np.inf) > 1e-9 * far
    return np.concatenate([[-np.inf], edges[apart], [np.inf]])


@lru_cache(maxsize=64)
def pair_of(noise: Noise | None, size: float) -> Pair:
    """Bins with and without the record; `size` is its shift, or a pure epsilon."""
    if noise is None:
        answers = special.expit(np.array([1.0, -1.0]) * min(size, 500.0))
        return answers, answers[::-1]
    if noise.name == "staircase-l1":
        return _radial_pair(noise, size)
    edges = _edges(noise, size)
    if size < 1e-7 * edges[-2]:  # too small to be told from rounding errors
        return np.ones(1), np.ones(1)
    return _masses(noise, edges - size), _masses(noise, edges)


def _radial_pair(noise: Noise, size: float) -> Pair:
    """Bins of equal loss where staircase-l1 noise moves by `size` along one coordinate.

    Balls of radius m + split periods, each less probable than the one before: two of them whose
    radii differ by j periods have (r - (s - j)/2)^d in common, in units of the period.
    """
    decay, dimension, period, split = noise.numbers
    shift = size / period
    steps = np.arange(math.ceil((dimension + 12 * math.sqrt(dimension) + 100) / decay) + 3)
    losses = np.arange(math.ceil(shift) + 1)
    if steps.size * losses.size > _MOST_POINTS * 8:
        return np.ones(1), np.ones(1)
    reach = steps + split - np.maximum(shift - losses, 0.0)[:, None] / 2
    with np.errstate(divide="ignore"):
        volumes = dimension * np.log(np.maximum(reach, 0.0)) - decay * steps
    common = special.logsumexp(volumes, axis=1)
    outside = np.diff(np.exp(common - common[-1]))  # of the balls with j periods more
    from_here_on = np.append(outside * np.exp(-decay * losses[1:]) / -math.expm1(-decay), 0.0)
    without = -np.diff(from_here_on)
    with_ = without * np.exp(decay * losses[1:])
    rest = max(0.0, 1 - float(without.sum() + with_.sum()))
    first = np.concatenate([without[::-1], [rest], with_])
    return first, first[::-1]


@lru_cache(maxsize=64)
def spread_pair(noise: Noise | None, size: float, parts: int) -> Pair:
    """Bins where the record moves that many coordinates by `size` each, in one pass or several."""
    square = _merged(pair_of(noise, size))
    pair: Pair = (np.ones(1), np.ones(1))
    while parts:  # by repeated squaring
        if parts % 2:
            pair = _merged(_product(pair, square))
        parts //= 2
        square = _merged(_product(square, square))
    return pair


def _product(one: Pair, other: Pair) -> Pair:
    return np.outer(one[0], other[0]).ravel(), np.outer(one[1], other[1]).ravel()


def _merged(pair: Pair) -> Pair:
    """The pair with bins of like loss as one, the rare ends as one bin each."""
    p, q = (np.maximum(side, 1e-300) for side in pair)
    loss = np.log(p) - np.log(q)
    order = np.argsort(loss)
    both, ranked = np.cumsum((p + q)[order]) / 2, loss[order]
    low = float(ranked[int(np.searchsorted(both, _RARE))])
    high = float(ranked[min(int(np.searchsorted(both, 1 - _RARE)), loss.size - 1)])
    if high <= low:
        return pair
    place = np.rint((np.clip(loss, low, high) - low) * ((_MERGED - 1) / (high - low)))
    cells = place.astype(np.int64)
    first, second = (np.bincount(cells, side, _MERGED).astype(np.float64) for side in pair)
    return first, second


def sampled(pair: Pair, rate: float) -> Pair:
    """The pair where the record takes part with that probability only."""
    return (1 - rate) * pair[1] + rate * pair[0], pair[1]


def divergence(pair: Pair, order: float) -> float:
    """Rényi divergence at an order above 1, in the direction in which it is larger."""
    both = (pair[0] > 0) & (pair[1] > 0)
    logs = np.log(pair[0][both]), np.log(pair[1][both])
    found = [
        float(special.logsumexp(order * p + (1 - order) * q)) / (order - 1)
        for p, q in (logs, logs[::-1])
    ]
    return max(0.0, *found)


def least_epsilon(pairs: list[tuple[Pair, int]], delta: float) -> float:
    """The least epsilon of these pairs of distributions, composed; never too much."""
    total = sum(count for _, count in pairs)
    cut = 1e-4 * delta / total
    losses = [_losses(pair, cut) for pair, _ in pairs]
    spread = math.sqrt(
        sum(n * _variance(*each) for each, (_, n) in zip(losses, pairs, strict=True))
    )
    step = max(float(np.ptp(loss)) for loss, _, _ in losses) / _LOSSES
    step = max(step, 24 * spread / _MOST_POINTS, 1e-12)
    counts = [count for _, count in pairs]
    while True:
        grids = [_rounded(*each, step) for each in losses]
        begin, size = _window([p for _, _, p in grids], counts, cut)
        if size <= 4 * _MOST_POINTS:
            break
        step *= 2 * size / (4 * _MOST_POINTS)  # rare large losses need a wide window
    lowest = sum(n * first for n, (first, _, _) in zip(counts, grids, strict=True))
    offset = sum(n * shift for n, (_, shift, _) in zip(counts, grids, strict=True))
    length = 1 << max(size - 1, *(p.size for _, _, p in grids)).bit_length()
    spectrum = np.ones(length // 2 + 1, dtype=np.complex128)
    for n, (_, _, p) in zip(counts, grids, strict=True):
        folded = np.bincount(np.arange(p.size) % length, p, length)
        spectrum *= np.fft.rfft(folded) ** n
    mass = np.roll(np.fft.irfft(spectrum, length), -(begin % length))
    loss = (lowest + begin + np.arange(length)) * step + offset
    mass, loss = mass[loss > 0], loss[loss > 0]
    # What the window and the transform may have put in the wrong place.
    wanted = delta * (1 + 3e-4) + 1e-13 + 1e-15 * total + float(length) * 1e-19
    if not mass.size:
        return 0.0
    # At the losses themselves: delta(e) is the sum of mass (1 - e^{e - loss}) over losses above e.
    above = np.cumsum(mass[::-1])[::-1]
    other = signal.lfilter([1.0], [1.0, -math.exp(-step)], mass[::-1])[::-1]
    held = np.flatnonzero(above - other >= wanted)
    return float(loss[held[-1]]) if held.size else 0.0


def _losses(pair: Pair, cut: float) -> tuple[Floats, Floats, Floats]:
    """Privacy losses with both masses; rare large losses count less, rare small ones not at all."""
    p, q = (side[pair[0] > 0] for side in pair)
    q = np.maximum(q, 1e-300)  # no loss is infinite: more on that side only hides the record
    loss = np.log(p) - np.log(q)
    order = np.argsort(loss)
    p, q, loss = p[order], q[order], loss[order]
    upper = min(int(np.searchsorted(-np.cumsum(p[::-1])[::-1], -cut)), p.size - 1)
    lower = int(np.searchsorted(np.cumsum(p), cut))
    loss[upper:] = loss[upper]
    lower = min(lower, upper)
    return loss[lower:], p[lower:], q[lower:]


def _variance(loss: Floats, p: Floats, _: Floats) -> float:
    mean = float(p @ loss) / float(p.sum())
    return float(p @ (loss - mean) ** 2)


def _rounded(loss: Floats, p: Floats, q: Floats, step: float) -> tuple[int, float, Floats]:
    """Masses on a grid: its first index, by how much it is shifted, and the masses.

    Bins of nearly equal loss are merged first. Their common loss lies so close to the middle that
    with the right shift of the grid hardly anything is lost by rounding down.
    """
    near = np.rint(loss / step).astype(np.int64)
    near -= (first := int(near.min()))
    p_sum, q_sum = np.bincount(near, p), np.bincount(near, q)
    kept = np.flatnonzero((p_sum > 0) & (q_sum > 0))
    p_sum = p_sum[kept]
    exact = np.log(p_sum) - np.log(q_sum[kept])
    guarded = np.minimum(exact, loss[-1]) - 1e-13
    rest = guarded / step - (kept + first)
    tries = np.unique(np.quantile(rest, np.linspace(0, 1, 65), method="lower"))
    lost = [float(p_sum @ np.mod(rest - shift, 1.0)) for shift in tries]
    shift = float(tries[int(np.argmin(lost))])
    index = np.floor(guarded / step - shift).astype(np.int64)
    index -= (begin := int(index.min()))
    return begin, shift * step, np.asarray(np.bincount(index, p_sum), dtype=np.float64)


def _window(masses: list[Floats], counts: list[int], tail: float) -> tuple[int, int]:
    """Where the sum of all losses lies but for `tail` on either side (Chernoff), in grid steps."""
    top = sum(n * (p.size - 1) for p, n in zip(masses, counts, strict=True))
    low, high, needed = 0.0, float(top), math.log(1 / tail)
    places = [np.arange(p.size) for p in masses]
    mean = [float(p @ k) / float(p.sum()) for p, k in zip(masses, places, strict=True)]
    spread = sum(
        n * float(p @ (k - m) ** 2) for p, n, k, m in zip(masses, counts, places, mean, strict=True)
    )
    centre = sum(n * m for n, m in zip(counts, mean, strict=True))
    unit = 1 / math.sqrt(max(spread, 1e-300)) if spread > 0 else 1.0
    for order in unit * np.geomspace(0.05, 50.0, 25):
        for sign in (1.0, -1.0):
            moment = sum(
                n * float(special.logsumexp(sign * order * (k - m), b=p))
                for p, n, k, m in zip(masses, counts, places, mean, strict=True)
            )
            reach = (moment + needed) / order
            if sign > 0:
                high = min(high, centre + reach)
            else:
                low = max(low, centre - reach)
    begin = math.floor(low)
    return begin, max(1, math.ceil(high) - begin + 1)
