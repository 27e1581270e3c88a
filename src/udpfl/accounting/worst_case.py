"""The vector accountant: the worst gradient that the clipping allows.

Most noise is independent per coordinate, so one release with gradient difference v has divergence
sum_i D(|v_i|), and the accountant needs the supremum over all v inside the bound:

    l2:   d * H(c^2 / d), H the least nondecreasing concave majorant of u -> D(sqrt(u)) on [0, c^2]
    l1:   d * H(c / d),   H the same for D itself on [0, c]
    linf: d * max of D on [0, c]

Guarantee: every number returned is an upper bound. Where the shape of D is proved (Gaussian,
Laplace) it is the exact supremum. Elsewhere the majorant is built from points that lie on or above
the curve: tangents where D is known to be concave between kinks (Staircase), the value at the
right end of each cell where D is nondecreasing (any unimodal density), a Lipschitz bound otherwise.

Noise with one density for the whole vector (`Radial`) has D at the largest l1 norm of v.

References: docs/mathematics.md, section 3.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatch

import numpy as np

from udpfl.accounting._few_coordinates import MOST_COORDINATES, MOST_PERIODS, fewer_at_once
from udpfl.accounting._staircase_vertices import staircase_vertices
from udpfl.errors import Unsupported
from udpfl.mechanisms import Mechanism, Radial, Staircase, Tabulated
from udpfl.mechanisms.arrays import Floats
from udpfl.sensitivity import Sensitivity

_LATTICE = math.log(1.004)


def worst_case(mechanism: Mechanism, sensitivity: Sensitivity, orders: Floats) -> Floats:
    """Upper bound, at each finite order >= 1, on the Rényi divergence of one release.

    Args:
        mechanism: The noise.
        sensitivity: Bounds the vector by which one record moves the sum.
        orders: Finite Rényi orders from 1; order 1 is the Kullback-Leibler divergence.

    Returns:
        One bound for each order, over all vectors within the sensitivity.

    Raises:
        InvalidInput: The dimension is needed and not known.

    Example:
        >>> import numpy as np
        >>> from udpfl.accounting import worst_case
        >>> from udpfl import Gaussian, Sensitivity
        >>> worst_case(Gaussian(2.0), Sensitivity(1.0), np.asarray([1.0, 8.0]))
        array([0.125, 1.   ])
    """
    column = np.asarray(orders, dtype=np.float64)
    if mechanism.is_isotropic:
        return mechanism.renyi(column, sensitivity.largest("l2"))
    if isinstance(mechanism, Radial):
        return mechanism.renyi(column, sensitivity.largest("l1"))
    # Divergences do not change with the unit of length. Tables remember those at scale 1.
    if isinstance(mechanism, Tabulated):
        bound, mechanism = sensitivity.bound / mechanism.scale, replace(mechanism, scale=1.0)
    else:
        bound, mechanism = 1.0, mechanism.scaled(1 / sensitivity.bound)
    dimension = sensitivity.coordinates
    if sensitivity.norm == "linf" or dimension == 1:
        return dimension * _largest_up_to(mechanism, bound, column)
    if sensitivity.norm == "l2" and mechanism.even_spread_is_worst:
        return dimension * mechanism.renyi(column, bound / math.sqrt(dimension))
    if sensitivity.norm == "l1" and mechanism.one_coordinate_is_worst:
        return mechanism.renyi(column, bound)
    power = 2 if sensitivity.norm == "l2" else 1
    return _majorant(mechanism, bound, dimension, power, column)


def worst_loss(mechanism: Mechanism, sensitivity: Sensitivity) -> float:
    """The largest privacy loss of one release: epsilon of pure DP, inf where there is none."""
    if not mechanism.has_pure_guarantee:
        return math.inf
    if isinstance(mechanism, Radial):
        return float(mechanism.renyi(math.inf, sensitivity.largest("l1")))
    dimension = sensitivity.coordinates
    if dimension == 1:
        return float(_largest_up_to(mechanism, sensitivity.bound, np.asarray([math.inf]))[0])
    alone = float(mechanism.renyi(math.inf, sensitivity.bound))
    single = mechanism.one_coordinate_is_worst
    rate = alone / sensitivity.bound if single else mechanism.steepest  # |loss| <= rate * |v|_1
    if math.isinf(rate) and math.isfinite(alone):
        raise Unsupported(
            f"independent {mechanism.name} noise is known to be pure-DP in one dimension only: the "
            f"slope of its log-density has no bound, so with {dimension} coordinates even a tiny "
            f"change of each may cost {dimension} x the loss of one; use laplace or staircase-l1"
        )
    return rate * sensitivity.largest("l1")


def _largest_up_to(mechanism: Mechanism, bound: float, orders: Floats) -> Floats:
    """The maximum of D over all shifts up to `bound`."""
    if mechanism.unimodal:
        return mechanism.renyi(orders, bound)
    shifts = np.linspace(0, bound, 257)
    return np.asarray(_cells(mechanism, shifts, orders).max(axis=1))


def _cells(mechanism: Mechanism, shifts: Floats, orders: Floats) -> Floats:
    """Upper bound on D over each cell between neighbouring shifts, [orders, cells]."""
    value = mechanism.renyi(orders[:, None], shifts[None, :])
    if mechanism.unimodal:
        return value[:, 1:]
    rate = mechanism.steepest
    if math.isinf(rate):
        raise Unsupported(
            f"{mechanism.name}: a density that is neither unimodal nor log-Lipschitz has no "
            "certified worst case"
        )
    # |log p(x - s) - log p(x - t)| <= rate |s - t| carries over to the divergence.
    lipschitz = (value[:, :-1] + value[:, 1:] + rate * np.diff(shifts)) / 2
    # ... and a loss of at most rate * s is (rate s)^2 / 2 zero-concentrated (Bun and Steinke 2016).
    concentrated = orders[:, None] * (rate * shifts[1:]) ** 2
    return np.minimum(lipschitz, concentrated / 2)


@singledispatch
def _majorant(
    mechanism: Mechanism, bound: float, dimension: int, power: int, orders: Floats
) -> Floats:
    """Upper bound on the worst case by the concave majorant at the even spread, per order.

    For any mechanism; one whose divergence has more structure may have a tighter one of its own.
    """
    spread = bound / dimension ** (1 / power)
    shifts = np.append(0.0, _shift_grid(min(spread / 32, bound / 2), bound, spread))
    cells = _cells(mechanism, shifts, orders)
    ends = np.broadcast_to(shifts**power, (len(orders), len(shifts)))
    u = np.concatenate([ends[:, :-1], ends[:, 1:]], axis=1)
    return dimension * hull_at(u, np.concatenate([cells, cells], axis=1), spread**power)


@_majorant.register
def _of_steps(
    mechanism: Staircase, bound: float, dimension: int, power: int, orders: Floats
) -> Floats:
    spread = bound / dimension ** (1 / power)
    vertices = staircase_vertices(mechanism, bound, spread, power, orders)
    whole = dimension * hull_at(vertices.u, vertices.y, spread**power)
    if dimension > MOST_COORDINATES or bound > MOST_PERIODS * mechanism.period:
        return whole
    return fewer_at_once(mechanism, vertices, bound, dimension, power, orders, whole)


def _shift_grid(start: float, end: float, spread: float) -> Floats:
    """Shifts from start to end on a fixed geometric lattice, finest where the worst case may lie.

    That is around the even spread, where divergences grow almost linearly in the squared shift and
    every cell counts, and just below the end, where one coordinate takes everything. The lattice is
    fixed so that mechanisms which remember their divergences meet the same shifts again.
    """
    index = np.arange(
        math.floor(math.log(start) / _LATTICE) + 1, math.ceil(math.log(end) / _LATTICE)
    )
    shifts = np.exp(_LATTICE * index)
    away = np.maximum(shifts / spread, spread / shifts)
    stride = np.select([(away < 8) | (shifts > end / 2), away < 16, away < 32], [1, 2, 4], 8)
    inner = shifts[index % stride == 0]
    return np.concatenate([[start], inner[(inner > start) & (inner < end)], [end]])


def hull_at(u: Floats, y: Floats, at: float) -> Floats:
    """Value at `at` of the nondecreasing concave hull of the points (u, y), per row of y.

    For every slope k >= 0 the line touching the points from above with that slope bounds the hull,
    and the least such bound is the hull. Pivoting between the supporting points on either side
    finds the least one; stopping early would only be loose, never wrong.
    """
    infinite = np.isinf(y).any(axis=1)  # some shift within reach gives everything away
    if infinite.any():
        result = np.full(len(y), np.inf)
        if not infinite.all():
            result[~infinite] = hull_at(u[~infinite], y[~infinite], at)
        return result
    rows = np.arange(len(y))
    left = np.where(u <= at, y, -np.inf).argmax(axis=1)
    right = np.where(u >= at, y, -np.inf).argmax(axis=1)
    best = np.full(len(y), np.inf)
    for _ in range(64):
        run = u[rows, right] - u[rows, left]
        rise = y[rows, right] - y[rows, left]
        slope = np.where(run > 0, np.maximum(rise / np.where(run > 0, run, 1.0), 0.0), 0.0)
        lifted = y - slope[:, None] * (u - at)
        touch = lifted.argmax(axis=1)
        bound = lifted[rows, touch]
        chord = y[rows, left] + slope * (at - u[rows, left])
        best = np.minimum(best, bound)
        if np.all(bound - chord <= 1e-12 * np.abs(bound)):
            break
        goes_left = u[rows, touch] <= at
        left, right = np.where(goes_left, touch, left), np.where(goes_left, right, touch)
    return best
