"""Rényi accounting: one curve per event, added over a composition, converted once at the end.

Guarantee: every value is an upper bound on the divergence of the event at that order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from udpfl.accounting import _subsampling, shuffling
from udpfl.accounting._conversion import delta_at, epsilon_at
from udpfl.accounting.events import (
    Event,
    Leaf,
    NominallyShuffled,
    PoissonSampled,
    PureDP,
    Release,
    SecretlySelected,
    Shuffled,
    leaves,
)
from udpfl.accounting.worst_case import worst_case
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Radial
from udpfl.mechanisms.arrays import Floats

TOPS = (64, 1024, 16384)
"""Largest order tried, in turn: the next one only if the best order is close to the last."""


@lru_cache(maxsize=8)
def order_grid(top: int) -> Floats:
    """Orders at which curves are compared: fractional up to 11, then integers up to `top`."""
    fractional = 1 + 0.02 * 1.15 ** np.arange(45)
    small = np.arange(2.0, 33.0)
    large = np.unique(np.round(32 * 1.06 ** np.arange(1, 200)))
    grid = np.unique(np.concatenate([fractional[fractional < 11], small, large[large < top]]))
    result = np.append(grid, float(top))
    result.setflags(write=False)
    return result


def whole_knots(top: int) -> Floats:
    """Integer orders at which an expensive divergence is evaluated."""
    large = np.unique(np.round(16 * 1.08 ** np.arange(1, 200)))
    return np.unique(np.concatenate([np.arange(2.0, 17.0), large[large < top], [float(top)]]))


@lru_cache(maxsize=32)
def log_moments(release: Release, top: int) -> Floats:
    """(k-1) g(k) of the unsampled release for k = 0 ... top.

    As a function of the order this is convex (a cumulant function, or a supremum of such), so a
    chord between two orders is an upper bound in between: knots suffice where g is expensive.
    """
    every = np.arange(0.0, top + 1)
    mechanism, norm = release.mechanism, release.sensitivity.norm
    closed = mechanism.even_spread_is_worst and mechanism.one_coordinate_is_worst
    alone = norm == "linf" or isinstance(mechanism, Radial)  # one shift is the worst at all orders
    closed = closed or (alone and mechanism.is_closed_form)
    knots = every[2:] if closed else whole_knots(top)
    at_knots = (knots - 1) * worst_case(mechanism, release.sensitivity, knots)
    moments = np.asarray(np.interp(every, np.append(1.0, knots), np.append(0.0, at_knots)))
    moments.setflags(write=False)
    return moments


def randomised_response(orders: Floats, epsilon: float) -> Floats:
    """The divergence of binary randomised response, which no epsilon-DP pair exceeds."""
    a = np.asarray(orders, dtype=np.float64)
    x = (a - 1) * epsilon
    # The moment is cosh(x) + tanh(epsilon/2) sinh(x); its excess over 1 without cancellation.
    bounded = np.minimum(x, 30.0)
    excess = 2 * np.sinh(bounded / 2) ** 2 + math.tanh(epsilon / 2) * np.sinh(bounded)
    truth = -math.log1p(math.exp(-epsilon))  # log of e^eps / (1 + e^eps)
    return np.where(x < 30, np.log1p(excess), x + truth + np.exp(-2 * x - epsilon)) / (a - 1)


def _sampled(event: PoissonSampled, orders: Floats) -> Floats:
    (inner, passes), rate = event.passes, event.rate
    if rate == 1:
        return passes * leaf_curve(inner, orders)
    top = max(2, math.ceil(orders.max()))
    if isinstance(inner, PureDP):
        every = np.arange(0.0, top + 1)
        moments = np.zeros(top + 1)
        moments[2:] = (every[2:] - 1) * randomised_response(every[2:], inner.epsilon)
    else:
        moments = log_moments(inner, top)
    integer = np.maximum(np.union1d(np.floor(orders), np.ceil(orders)), 2.0)
    integer = np.unique(integer)
    # One coin decides about all passes: their divergences add up before the sampling counts.
    at_integers = _subsampling.poisson(integer, passes * moments, rate)
    # Between integers (a-1) RDP(a) is convex, so the chord is an upper bound; it vanishes at 1.
    chord = np.interp(orders, np.append(1.0, integer), np.append(0.0, (integer - 1) * at_integers))
    values: Floats = np.asarray(chord / (orders - 1))
    if isinstance(inner, Release) and inner.mechanism.is_isotropic:
        # Passes with Gaussian noise are one with a root of their number less of it.
        ratio = math.sqrt(passes) * inner.sensitivity.largest("l2") / inner.mechanism.noise_std
        fractional = (orders != np.floor(orders)) & (orders * ratio < 500)
        if ratio < 30 and np.any(fractional):
            exact = _subsampling.gaussian_fractional(orders[fractional], ratio, rate)
            values[fractional] = np.minimum(values[fractional], exact)
    return values


def leaf_curve(leaf: Leaf, orders: Floats) -> Floats:
    """Divergence of one leaf event at every order."""
    match leaf:
        case Release(mechanism, sensitivity):
            return worst_case(mechanism, sensitivity, orders)
        case PureDP(epsilon):
            return randomised_response(orders, epsilon)
        case PoissonSampled():
            return _sampled(leaf, orders)
        case SecretlySelected(probability, inner):
            return _subsampling.secret_selection(orders, curve(inner, orders), probability)
        case Shuffled(inner):
            return shuffling.amplify(leaf, orders, leaf_curve(inner, orders))
        case NominallyShuffled(inner, clients, releases):
            message = releases * leaf_curve(inner, orders)  # the lemma is about all of it
            return shuffling.nominal(orders, message, clients) / releases


def add_up(parts: Iterable[tuple[Leaf, int]], orders: Floats) -> Floats:
    """Adaptive composition: divergences at the same order add."""
    total = np.zeros(len(orders))
    for leaf, count in parts:
        total += count * _known_curve(leaf, tuple(orders))
    return total


@lru_cache(maxsize=256)
def _known_curve(leaf: Leaf, orders: tuple[float, ...]) -> Floats:
    """`leaf_curve`, for a history that grows by the same releases every round."""
    values = leaf_curve(leaf, np.array(orders))
    values.setflags(write=False)
    return values


def curve(event: Event, orders: Floats) -> Floats:
    """Divergence of a whole event at every order above 1."""
    grid = np.asarray(orders, dtype=np.float64)
    if not np.all(grid > 1):
        raise InvalidInput("orders", "must all be above 1")
    return add_up(leaves(event).items(), grid)


def epsilon(event: Event, delta: float) -> float:
    """The smallest epsilon that the curve certifies at `delta`.

    (a-1) RDP(a) is convex, so epsilon has a single minimum in the order: the grid brackets it, and
    two finer looks between its neighbours find it.
    """
    for top in TOPS:
        orders = order_grid(top)
        best, order = epsilon_at(orders, curve(event, orders), delta)
        if order < 0.8 * top:
            break
    for _ in range(2):
        if best == 0 or not math.isfinite(best):
            break
        place = int(np.searchsorted(orders, order))
        low, high = orders[max(place - 1, 0)], orders[min(place + 1, len(orders) - 1)]
        orders = np.linspace(low, high, 9)
        value, order = epsilon_at(orders, curve(event, orders), delta)
        best = min(best, value)
    return best


def delta(event: Event, epsilon: float) -> float:
    """The smallest delta that the curve certifies at `epsilon`."""
    return min(delta_at(grid, curve(event, grid), epsilon) for grid in map(order_grid, TOPS[:2]))
