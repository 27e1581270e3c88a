"""Your own noise, from nothing but a symmetric log-density.

    @dataclass(frozen=True)
    class Logistic(Tabulated):
        name = "logistic"

        def shape(self, x):
            return -x - 2 * np.log1p(np.exp(-x))

The shape is tabulated once. The table, linear in the log-density between its knots and exponential
beyond the last, *is* the mechanism: the sampler inverts exactly that density and the accountant
integrates exactly that density, tails included, so an inaccurate table costs fidelity, never
privacy.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats, cell_index, like, namespace
from udpfl.mechanisms.base import Mechanism, positive

_CELLS = 256
_DROP = 45.0  # the table ends where the density has fallen by e^-45
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2


def _log_mean_exp(a: Floats, b: Floats) -> Floats:
    """Log of the mean of e^y as y runs linearly from a to b."""
    gap = np.abs(a - b)
    safe = np.where(gap < 1e-8, 1.0, gap)
    return np.maximum(a, b) + np.where(gap < 1e-8, -gap / 2, np.log(-np.expm1(-safe) / safe))


def _refined(log_width: Floats, p: Floats, q: Floats) -> tuple[Floats, Floats, Floats]:
    """The same pieces, cut until neither log-density changes by more than 1 along one.

    Six Gauss nodes integrate such a piece to ten digits, however steep the table is.
    """
    change = np.maximum(np.abs(p[1] - p[0]), np.abs(q[1] - q[0]))
    parts = np.maximum(np.ceil(change), 1).astype(int)
    piece = np.repeat(np.arange(parts.size), parts)
    first = np.repeat(np.cumsum(parts) - parts, parts)
    ends = (np.arange(piece.size) - first + np.asarray([[0.0], [1.0]])) / parts[piece]

    def cut(y: Floats) -> Floats:
        return np.asarray(y[0, piece] + (y[1] - y[0])[piece] * ends)

    return log_width[piece] - np.log(parts[piece]), cut(p), cut(q)


@dataclass(frozen=True)
class _Table:
    """Knots x >= 0 at scale 1, the normalised log-density there, and what lies beyond."""

    knots: Floats
    log_density: Floats
    survival: Floats
    """P(|noise| > knot)."""
    tail_rate: float
    """Rate of the exponential tail beyond the last knot; inf where the support ends there."""

    @cached_property
    def cells(self) -> Floats:
        """What the inverse needs of every cell: survival at its start, start, width, how much the
        log-density rises along it, and its mass if it did not [cells, 5]."""
        width = np.diff(self.knots)
        height = 2 * np.exp(self.log_density[:-1]) * width
        slope = np.diff(self.log_density)
        return np.stack([self.survival[:-1], self.knots[:-1], width, slope, height], axis=1)

    def at(self, x: Floats) -> Floats:
        y = np.abs(x)
        inside = np.interp(y, self.knots, self.log_density)
        beyond = y - self.knots[-1]
        with np.errstate(invalid="ignore"):
            tail = np.where(beyond > 0, self.tail_rate * beyond, 0.0)
        return np.asarray(inside - tail)


def _knots(core: float, end: float) -> Floats:
    """Even steps of core/16 near zero that grow geometrically towards the end."""
    from scipy.optimize import brentq  # slow to import, and seldom needed

    stretch = 16 * end / (core * _CELLS)
    if stretch <= 1.001:
        return np.linspace(0.0, end, _CELLS + 1)
    growth = brentq(lambda g: math.sinh(g) / g - stretch, 1e-6, 700.0)
    return np.asarray(end * np.sinh(growth * np.linspace(0, 1, _CELLS + 1)) / math.sinh(growth))


@lru_cache(maxsize=64)
def _tabulate(unit: Tabulated) -> _Table:
    """Table of a mechanism at scale 1. Cached: mechanisms are immutable."""

    def drop(x: float) -> float:
        return float(start - unit.shape(np.asarray([x]))[0])

    start = float(np.asarray(unit.shape(np.asarray([0.0])))[0])
    if not math.isfinite(start):
        raise InvalidInput("shape", f"the log-density at 0 must be finite, got {start}")

    def last_below(level: float) -> float:
        """The largest x found, by doubling and bisection, with drop(x) < level from there on."""
        high = 1e-6
        while drop(high) < level:
            high *= 2
            if high > 1e15:
                raise InvalidInput("shape", "the density does not fall off: it has no finite mass")
        low = high / 2
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if drop(middle) < level else (low, middle)
        return low

    end = last_below(_DROP)
    bounded = math.isinf(drop(end * (1 + 1e-9) + 1e-300))
    knots = _knots(last_below(0.5), end)
    values = np.asarray(unit.shape(knots), dtype=np.float64)
    if not np.all(np.isfinite(values)):
        raise InvalidInput("shape", "the log-density must be finite inside its support")
    if bounded:
        tail_rate, log_tail = math.inf, -math.inf
    else:
        tail_rate = float((values[-2] - values[-1]) / (knots[-1] - knots[-2]))
        if tail_rate <= 0:
            raise InvalidInput("shape", "the density must fall in its tail")
        log_tail = values[-1] - math.log(tail_rate)
    log_mass = np.log(np.diff(knots)) + _log_mean_exp(values[:-1], values[1:])
    log_mass = np.append(log_mass, log_tail)
    total = float(logsumexp(log_mass))
    survival = np.cumsum(np.exp(log_mass - total)[::-1])[::-1]
    survival[0] = 1.0
    return _Table(knots, values - total - math.log(2), survival, tail_rate)


@dataclass(frozen=True)
class Tabulated(Mechanism):
    """Noise with density proportional to e^{shape(|x| / scale)}.

    Subclass it, give it a `name` and a `shape`; further parameters are further dataclass fields.

    Raises:
        InvalidInput: `scale` is not a finite number above 0, or the shape has no finite mass.

    Example:
        >>> from udpfl import Tabulated
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Root(Tabulated):
        ...     def shape(self, x):
        ...         return -(x**0.5)
        >>> Root(1.0).scaled(2.0).scale
        2.0
    """

    scale: float
    """What the shape is stretched by, in the unit of the clip."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("scale", self.scale)

    @abstractmethod
    def shape(self, x: Any) -> Any:
        """Log-density at scale 1 up to a constant, for an array of x >= 0; -inf outside."""

    @property
    def _table(self) -> _Table:
        return _tabulate(replace(self, scale=1.0))

    @property
    def unimodal(self) -> bool:
        return bool(np.all(np.diff(self._table.log_density) <= 1e-12))

    @property
    def steepest(self) -> float:
        table = self._table
        slopes = np.abs(np.diff(table.log_density) / np.diff(table.knots))
        return max(float(slopes.max()), table.tail_rate) / self.scale

    def log_density(self, x: ArrayLike) -> Floats:
        return self._table.at(np.asarray(x, dtype=np.float64) / self.scale) - math.log(self.scale)

    def _merged(self, shift: float) -> tuple[Floats, Floats, Floats]:
        """Log widths of the pieces on which both log-densities are linear, and those densities.

        Both come as arrays [2, pieces]: their values at the left and right end of each piece.
        """
        table = self._table
        knots = np.concatenate([-table.knots[:0:-1], table.knots])
        edges = np.unique(np.concatenate([knots, knots + shift]))
        if math.isinf(table.tail_rate):  # nothing lies outside the support
            edges = edges[np.abs(edges) <= table.knots[-1]]
        p, q = table.at(edges), table.at(edges - shift)
        return np.log(np.diff(edges)), np.stack([p[:-1], p[1:]]), np.stack([q[:-1], q[1:]])

    def renyi(self, order: ArrayLike, shift: ArrayLike) -> Floats:
        """Exact for the table: on every piece the integrand is the exponential of a line."""
        orders, shifts = np.broadcast_arrays(
            np.asarray(order, dtype=np.float64),
            np.abs(np.asarray(shift, dtype=np.float64)) / self.scale,
        )
        unit = replace(self, scale=1.0)
        flat_orders, flat_shifts = orders.ravel(), shifts.ravel()
        result = np.zeros(flat_orders.size)
        values, group = np.unique(flat_shifts, return_inverse=True)
        members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
        for s, where in zip(values.tolist(), members, strict=True):
            if s > 0:
                result[where] = _unit_renyi(unit, tuple(flat_orders[where].tolist()), s)
        return result.reshape(orders.shape)

    def _renyi_at(self, orders: Floats, s: float) -> Floats:
        table = self._table
        rate = table.tail_rate
        if math.isinf(rate):  # the shifted noise misses a part of the support
            return np.full(orders.shape, np.inf)
        log_width, p, q = self._merged(s)
        loss = p - q
        a = np.where(np.isinf(orders) | (orders == 1), 2.0, orders)[:, None]
        pieces = log_width + _log_mean_exp(p[0] + (a - 1) * loss[0], p[1] + (a - 1) * loss[1])
        half_tail = math.log(table.survival[-1] / 2)
        left = half_tail + (a - 1) * rate * s
        right = half_tail - rate * s - (a - 1) * rate * s
        total = logsumexp(np.concatenate([pieces, left, right], axis=1), axis=1)
        value = total / (a[:, 0] - 1)
        value = np.where(np.isinf(orders), max(float(loss.max()), rate * s), value)
        small = np.nonzero((orders == 1) | ((total < 1e-3) & np.isfinite(orders)))[0]
        if small.size == 0:
            return value
        # Small divergences as an excess over 1, which loses no digits, and order 1 as a mean loss.
        log_width, p, q = _refined(log_width, p, q)
        loss = p - q
        mass = np.exp(p[0][:, None] + (p[1] - p[0])[:, None] * _NODES)
        mass = (mass * _WEIGHTS * np.exp(log_width)[:, None]).ravel()
        losses = (loss[0][:, None] + (loss[1] - loss[0])[:, None] * _NODES).ravel()
        tail = math.exp(half_tail)
        for i in small:
            if orders[i] == 1:
                value[i] = mass @ losses + tail * rate * s * -math.expm1(-rate * s)
                continue
            x = (orders[i] - 1) * rate * s
            tails = math.expm1(x) + math.exp(-rate * s) * math.expm1(-x)
            excess = mass @ np.expm1((orders[i] - 1) * losses) + tail * tails
            value[i] = math.log1p(max(excess, 0.0)) / (orders[i] - 1)
        return np.maximum(value, 0.0)

    def hockey_stick(self, epsilon: ArrayLike, shift: float) -> Floats:
        """Exact for the table: cut each piece where the loss crosses epsilon."""
        eps = np.asarray(epsilon, dtype=np.float64)
        s, table = abs(shift) / self.scale, self._table
        log_width, p, q = self._merged(s)
        if math.isinf(table.tail_rate):
            outside = q.min(axis=0) == -np.inf
            lost = float(np.exp(log_width + _log_mean_exp(p[0], p[1]))[outside].sum())
            log_width, p, q = log_width[~outside], p[:, ~outside], q[:, ~outside]
            tails = [(lost, math.inf)]
        else:
            rate, half = table.tail_rate, table.survival[-1] / 2
            tails = [(half, rate * s), (half * math.exp(-rate * s), -rate * s)]
        # A piece whose loss lies above epsilon counts whole; a piece that crosses it, in part.
        loss = p - q
        low, high = loss.min(axis=0), loss.max(axis=0)
        grid, back = np.unique(eps, return_inverse=True)
        order = np.argsort(low)
        whole = [np.exp(log_width + _log_mean_exp(y[0], y[1]))[order] for y in (p, q)]
        above_p, above_q = (np.append(np.cumsum(y[::-1])[::-1], 0.0) for y in whole)
        first = np.searchsorted(low[order], grid, side="right")
        with np.errstate(divide="ignore"):
            result = above_p[first] - np.exp(np.minimum(grid + np.log(above_q[first]), 700.0))
        start, stop = np.searchsorted(grid, low), np.searchsorted(grid, high)
        count = np.maximum(stop - start, 0)
        piece = np.repeat(np.arange(count.size), count)
        at = np.arange(piece.size) - np.repeat(np.cumsum(count) - count, count) + start[piece]
        here, rise = grid[at], (loss[1] - loss[0])[piece]
        cross = np.clip((here - loss[0, piece]) / rise, 0.0, 1.0)
        left, right = np.where(rise > 0, cross, 0.0), np.where(rise > 0, 1.0, cross)
        share = log_width[piece] + np.log(np.maximum(right - left, 1e-300))
        p0, q0 = p[0, piece], q[0, piece]
        dp, dq = (p[1] - p[0])[piece], (q[1] - q[0])[piece]
        part_p = np.exp(share + _log_mean_exp(p0 + dp * left, p0 + dp * right))
        part_q = np.exp(share + here + _log_mean_exp(q0 + dq * left, q0 + dq * right))
        result += np.bincount(at, np.maximum(part_p - part_q, 0.0), minlength=grid.size)
        for mass, value in tails:
            result += mass * -np.expm1(np.minimum(grid - value, 0.0))
        return np.asarray(np.maximum(result, 0.0)[back].reshape(eps.shape))

    def _moment(self, power: int) -> float:
        """E|noise|^power at scale 1."""
        table = self._table
        values = np.stack([table.log_density[:-1], table.log_density[1:]])
        log_width, values, _ = _refined(np.log(np.diff(table.knots)), values, values)
        edges = np.append(0.0, np.cumsum(np.exp(log_width)))
        x = edges[:-1, None] + np.diff(edges)[:, None] * _NODES
        density = np.exp(values[0][:, None] + (values[1] - values[0])[:, None] * _NODES)
        inside = 2 * np.diff(edges) @ ((density * x**power) @ _WEIGHTS)
        if math.isinf(table.tail_rate):
            return float(inside)
        end, mean = table.knots[-1], 1 / table.tail_rate
        beyond = end + mean if power == 1 else (end + mean) ** 2 + mean**2
        return float(inside + table.survival[-1] * beyond)

    @property
    def variance(self) -> float:
        return self.scale**2 * self._moment(2)

    @property
    def mean_abs(self) -> float:
        return self.scale * self._moment(1)

    def magnitude(self, tail: Any) -> Any:
        xp, table = namespace(tail), self._table
        i = cell_index(like(-table.survival, tail), -tail)
        survival, start, width, slope, height = (like(own, tail)[i] for own in table.cells.T)
        mass = (survival - tail) / height
        flat = slope == 0
        safe = xp.where(flat, xp.ones_like(slope), slope)
        bent = xp.log1p((safe * mass).clip(-1 + 1e-12, None)) / safe
        inside = start + width * xp.where(flat, mass, bent).clip(0.0, 1.0)
        if math.isinf(table.tail_rate):
            return self.scale * inside
        last = float(table.survival[-1])
        end = float(table.knots[-1])
        beyond = end - xp.log((tail / last).clip(None, 1.0)) / table.tail_rate
        return self.scale * xp.where(tail < last, beyond, inside)

    def scaled(self, factor: float) -> Self:
        return self._rescaled(factor, "scale")


@lru_cache(maxsize=1 << 14)
def _unit_renyi(unit: Tabulated, orders: tuple[float, ...], shift: float) -> Floats:
    """Divergences at scale 1. Cached: calibration asks for the same shifts again and again."""
    return unit._renyi_at(np.asarray(orders), shift)
