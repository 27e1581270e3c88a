"""A tighter worst case in few dimensions, where coordinates cannot be mixed at will.

The concave majorant lets any share of the coordinates sit on each bump of the curve. With d
coordinates only whole numbers do. Cut the curve at its convex kinks into arcs; on each it is
concave. For every way to put k_j of the d coordinates on arc j, Lagrange's bound

    sum_j k_j max_{u on arc j} (y(u) - m u) + m U        (any m >= 0, U the whole budget)

holds, and the largest of these over all ways bounds the worst case. Minimising over m for each way
on its own makes it as tight as the arcs are.
"""

from __future__ import annotations

import numpy as np

from udpfl.accounting._staircase_vertices import Vertices
from udpfl.mechanisms import Staircase
from udpfl.mechanisms.arrays import Floats

MOST_COORDINATES = 64
MOST_PERIODS = 16  # beyond them the bumps are small and their combinations too many
_MOST_WAYS = 400
_SLOPES = np.geomspace(0.02, 1e6, 160)


def fewer_at_once(
    mechanism: Staircase,
    vertices: Vertices,
    bound: float,
    dimension: int,
    power: int,
    orders: Floats,
    coarse: Floats,
) -> Floats:
    """Bound on the sum over `dimension` coordinates, never above `coarse` (the majorant's)."""
    budget = bound**power
    starts = _arc_starts(mechanism, bound, orders) ** power
    ways = _ways(starts, budget, dimension)
    if ways is None or len(starts) == 1:
        return coarse
    ends = np.append(starts[1:], budget)
    with np.errstate(invalid="ignore"):
        slope = (coarse / budget)[:, None] * _SLOPES
    lines = vertices.y[:, None, :] - slope[:, :, None] * vertices.u[:, None, :]
    place, tiny = vertices.place, 1e-12 * budget  # points on a cut belong to both arcs
    best = np.stack(
        [
            lines[:, :, (place >= low - tiny) & (place <= high + tiny)].max(axis=-1)
            for low, high in zip(starts, ends, strict=True)
        ]
    )
    totals = np.tensordot(ways.astype(np.float64), best, axes=1) + slope * budget
    worst = totals.min(axis=2).max(axis=0)
    return np.where(np.isfinite(coarse), np.minimum(coarse, worst), coarse)


def _arc_starts(mechanism: Staircase, bound: float, orders: Floats) -> Floats:
    """Zero and the kinks at which the slope of D rises at some order."""
    kinks = np.concatenate([[0.0], mechanism.kinks(bound), [bound]])
    value = mechanism.renyi(orders[:, None], kinks[None, :])
    width = np.diff(kinks)
    linear = (orders == 1)[:, None]
    factor = np.where(linear, 1.0, (orders - 1)[:, None])
    rise = np.maximum(factor * np.diff(value, axis=1), 0.0)
    with np.errstate(over="ignore"):  # a slope beyond floating point is steep all the same
        at_left = np.where(linear, rise, np.expm1(np.minimum(rise, 700.0))) / width
    at_right = np.where(linear, rise, -np.expm1(-rise)) / width
    convex = np.any(at_left[:, 1:] > at_right[:, :-1] * (1 + 1e-9), axis=0)
    return np.append(0.0, kinks[1:-1][convex])


def _ways(starts: Floats, budget: float, dimension: int) -> Floats | None:
    """All count vectors over the arcs that fit the budget; None where there are too many."""
    found: list[list[int]] = []

    def extend(arc: int, counts: list[int], left: float, free: int) -> bool:
        if arc == 0:
            found.append([free, *counts])
            return len(found) <= _MOST_WAYS
        # A cut itself belongs to the arc below, so those above it need strictly more than k cuts.
        most = min(free, int(left / starts[arc]))
        return all(
            extend(arc - 1, [k, *counts], left - k * starts[arc], free - k)
            for k in range(most + 1)
            if k == 0 or k * starts[arc] < left
        )

    complete = extend(len(starts) - 1, [], budget, dimension)
    return np.asarray(found) if complete else None
