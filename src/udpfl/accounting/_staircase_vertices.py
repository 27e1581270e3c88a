"""Points whose concave hull covers the divergence of Staircase noise, at every order.

Near zero the curve is followed exactly. Between kinks e^{(a-1) D} is affine in the shift (D itself
at order 1), so D is concave there, also as a function of the squared shift, and tangents at
neighbouring nodes meet above it.

Far from zero the kinks are too many. With n whole periods and a fraction f in the shift,
e^{(a-1) D} = P(f) e^{(a-1) decay n} + Q(f) e^{-a decay n}. At f = 0 this has the form of Laplace
noise, P = w and Q = 1 - w, and extends to a smooth curve L(n) through all whole periods. L is
convex in the shift and concave in its square as soon as w >= a/(2a-1), which taking the larger of
the two enforces. Between whole periods the curve stays below L plus a ripple: for fixed f the ratio
e^{(a-1)(D-L)} is monotone in n, so its values at the first and the infinitely distant period bound
it everywhere. Where a * decay is too large for that, L one period further on is a bound as well.

References: docs/mathematics.md, section 3.3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from udpfl.mechanisms import Staircase
from udpfl.mechanisms.arrays import Floats

_EXACT_PERIODS = 128  # bounds up to here are followed exactly all the way
_NEAR_PERIODS = 16  # larger ones up to here


class Vertices(NamedTuple):
    """Points on or above the curve; between neighbours it stays below the chord."""

    u: Floats
    """shift^power, [orders, points]."""
    y: Floats
    """Height, [orders, points]."""
    place: Floats
    """A u inside the piece of curve that the point was made for, [points]."""


def staircase_vertices(
    mechanism: Staircase, bound: float, spread: float, power: int, orders: Floats
) -> Vertices:
    """Points whose concave hull covers the divergence for all shifts up to `bound`."""
    exact = bound <= _EXACT_PERIODS * mechanism.period
    limit = bound if exact else _NEAR_PERIODS * mechanism.period
    near = _near(mechanism, limit, spread, power, orders)
    if exact:
        return near
    far = _far(mechanism, limit, bound, spread, power, orders)
    return Vertices(*(np.concatenate(both, axis=-1) for both in zip(near, far, strict=True)))


def _near(
    mechanism: Staircase, limit: float, spread: float, power: int, orders: Floats
) -> Vertices:
    kinks = np.concatenate([[0.0], mechanism.kinks(limit), [limit]])
    value = mechanism.renyi(orders[:, None], kinks[None, :])
    close = (kinks[1:] > spread / 4) & (kinks[:-1] < 4 * spread)
    thirds = np.diff(kinks)[close, None] * np.asarray([1 / 3, 2 / 3])
    inside = (kinks[:-1][close, None] + thirds).ravel()
    towards_zero = kinks[1] * 2.0 ** -np.arange(1.0, 24.0)
    nodes = np.concatenate([kinks, inside, towards_zero, [min(spread, limit)]])
    if len(kinks) < 64:  # at high orders D almost jumps behind a kink
        onset = np.diff(kinks)[:, None] * 4.0 ** -np.arange(1.0, 9.0)
        nodes = np.concatenate([nodes, (kinks[:-1, None] + onset).ravel()])
    nodes = np.unique(nodes)
    cell = np.searchsorted(kinks, nodes[:-1], side="right") - 1
    low, high, width = value[:, cell], value[:, cell + 1], kinks[cell + 1] - kinks[cell]
    thin = width < 1e-12 * mechanism.period
    linear = (orders == 1)[:, None]
    factor = np.where(linear, 1.0, (orders - 1)[:, None])
    rise = np.maximum(factor * (high - low), 0.0)
    share = np.exp(-rise)  # the ratio of the two ends of e^{(a-1) D}

    def curve(s: Floats) -> tuple[Floats, Floats]:
        """D and its slope at one end of every interval between nodes."""
        t = (s - kinks[cell]) / width
        mixed = t + (1 - t) * share
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            slope = (1 - share) / mixed / width / factor
            down_from_high = np.where(t == 0, low, high + np.log(mixed) / factor)
        up_from_low = low + np.log1p(t * np.expm1(np.minimum(rise, 1.0))) / factor
        d = np.where(rise < 1, up_from_low, down_from_high)
        d = np.where(linear, low + t * (high - low), d)
        # Two kinks that rounding alone keeps apart: take the higher end for both.
        d, slope = np.where(thin, high, d), np.where(thin, 0.0, slope)
        return d, np.where(linear & ~thin, np.maximum(high - low, 0.0) / width, slope)

    return _tangents(nodes, *curve(nodes[:-1]), *curve(nodes[1:]), power)


def _far(
    mechanism: Staircase, start: float, end: float, spread: float, power: int, orders: Floats
) -> Vertices:
    count = max(2, math.ceil(math.log(end / start) / 0.1))
    nodes = np.geomspace(start, end, count + 1)
    if start < spread < end:
        nodes = np.unique(np.append(nodes, spread))
    decay, period = mechanism.decay, mechanism.period
    a = orders[:, None]
    kl = a == 1
    safe = np.where(kl, 2.0, a)
    first = mechanism.renyi(a, period)
    # Weight w of the growing exponential from the value after one period, at least Laplace's.
    grow, fall = (safe - 1) * decay, -safe * decay
    with np.errstate(over="ignore", invalid="ignore"):
        w = (np.expm1((safe - 1) * first) - np.expm1(fall)) / (np.expm1(grow) - np.expm1(fall))
    w = np.where(grow < 500, w, 1.0)
    w = np.clip(w, safe / (2 * safe - 1), 1.0)
    kappa = np.clip((decay - first) / -math.expm1(-decay), 0.0, 1.0)

    def through_periods(n: Floats) -> tuple[Floats, Floats]:
        """L and its slope n periods out."""
        with np.errstate(divide="ignore"):
            up, down = np.log(w) + grow * n, np.log1p(-w) + fall * n
        log_sum = np.logaddexp(up, down)
        lead = np.exp(up - log_sum)
        value = log_sum / (safe - 1)
        slope = decay * (lead - (1 - lead) * safe / (safe - 1))
        value = np.where(kl, decay * n + kappa * np.expm1(-decay * n), value)
        return value, np.where(kl, decay * (1 - kappa * np.exp(-decay * n)), slope)

    # The ripple: D - L at the kinks of the first far period and of one infinitely far out.
    fractions = np.append(mechanism.kinks(1.5 * period) / period, 0.0)
    fractions = fractions[fractions < 1]
    n0 = math.floor(start / period + 0.5)
    beyond = n0 + math.ceil(40 / decay)
    n = np.concatenate([n0 + fractions, beyond + fractions])[None, :]
    gap = mechanism.renyi(a, n * period) - through_periods(n)[0]
    # Within a period e^{(a-1) L} sags below its chord by an eighth of its second derivative: at
    # most (a decay)^2 of itself, and near order 1, where 1 - w <= (a-1)/(2a-1) counts, less.
    bend = safe * decay
    curved = np.minimum(safe**2, (safe - 1) * (safe - 1 + safe**2 / (2 * safe - 1)))
    sag = np.minimum(curved * decay**2, 1.0) / 8 * np.exp(np.minimum(bend, 1.0))
    sag = np.log1p(sag) / (safe - 1)
    ripple = np.maximum(gap.max(axis=1, keepdims=True), 0.0) + np.where(kl, decay**2 / 8, sag)
    smooth = bend < 0.5
    value, slope = through_periods(nodes[None, :] / period + np.where(smooth, 0.0, 1.0))
    value, slope = value + np.where(smooth, ripple, 0.0), np.maximum(slope, 0.0) / period
    if power == 1:  # convex in the shift: chords between nodes lie above
        return Vertices(np.broadcast_to(nodes, value.shape), value, nodes)
    return _tangents(nodes, value[:, :-1], slope[:, :-1], value[:, 1:], slope[:, 1:], power)


def _tangents(
    nodes: Floats,
    left: Floats,
    left_slope: Floats,
    right: Floats,
    right_slope: Floats,
    power: int,
) -> Vertices:
    """The nodes themselves and, between each two, where the tangents there meet."""
    u = nodes**power
    if power == 2:  # slopes with respect to the squared shift; vertical at zero
        with np.errstate(divide="ignore", invalid="ignore"):
            left_slope = left_slope / (2 * nodes[:-1])
        right_slope = right_slope / (2 * nodes[1:])
    vertical = ~np.isfinite(left_slope)
    left_slope = np.where(vertical, 0.0, left_slope)
    gap = left_slope - right_slope
    bent = gap > 1e-12 * left_slope
    meet = (right - left + left_slope * u[:-1] - right_slope * u[1:]) / np.where(bent, gap, 1.0)
    meet = np.where(bent & ~vertical, np.clip(meet, u[:-1], u[1:]), u[:-1])
    height = np.where(bent | vertical, right - right_slope * (u[1:] - meet), left)
    ends = np.broadcast_to(u, (len(left), len(u)))
    at_ends = np.concatenate([left, right[:, -1:]], axis=1)
    return Vertices(
        u=np.concatenate([ends, meet], axis=1),
        y=np.concatenate([at_ends, height], axis=1),
        place=np.concatenate([u, (u[1:] + u[:-1]) / 2]),
    )
