"""Which noise a kernel draws, adds and rounds in one pass, and what it has to know for that.

A mechanism says how its noise is drawn (`Mechanism.draw`); here is which kernel does the same. A
class that draws in another way than the one that the kernel is for does not count as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from udpfl.mechanisms import Gaussian, Laplace, Mechanism, Radial, Staircase, StaircaseL1, Tabulated
from udpfl.mechanisms.grid import grid_of


class Law(NamedTuple):
    """What a kernel has to know of a lane's noise."""

    kernel: str
    """A key of `_triton_noise.KINDS`; "vectors" for noise of whole vectors, and "" for none."""
    dimension: int
    """Of a vector; 1 for independent noise."""
    numbers: tuple[float, ...]
    """The grid, and what noise in units of it is made with."""


_NOTHING = 2.0**-1000
"""Below every tail probability: nothing lies beyond a table that ends."""


def _staircase(noise: Staircase) -> Sequence[float]:
    """Decay, period, where the mass of a period ends and by how much it falls to there, the area of
    a period, what mass is ahead at the lower step, and how much of a step lies ahead by mass."""
    end, fallen, high = math.exp(-noise.decay), -math.expm1(-noise.decay), noise._high_share
    low = end * (1 - noise.split) / high
    steep = (1 - noise.split) / low if low > 0 else 0.0
    return noise.decay, noise.period, end, fallen, high, low, steep


def _tabulated(noise: Tabulated) -> Sequence[float]:
    """Scale, tail, and cells by the first step of a binary search among them, half their number."""
    table = noise._table
    last = float(table.survival[-1]) or _NOTHING
    tail = last, float(table.knots[-1]), table.tail_rate
    return noise.scale, *tail, len(table.cells) // 2, *table.cells.ravel().tolist()


def _staircase_l1(noise: StaircaseL1) -> Sequence[float]:
    """What `StaircaseL1.radii` computes with."""
    shape = noise.dimension - 1 / 3
    return noise.decay, noise.period, noise.split, shape, 1 / math.sqrt(9 * shape)


FUSED: dict[Any, tuple[str, Callable[[Any], Sequence[float]]]] = {
    Gaussian: ("gaussian", lambda noise: (noise.std,)),
    Laplace: ("laplace", lambda noise: (noise.scale,)),
    Staircase: ("staircase", _staircase),
    Tabulated: ("tabulated", _tabulated),
    StaircaseL1: ("vectors", _staircase_l1),
}
"""The kernel of a class, and the numbers of its law behind the grid."""
_DRAWING = "draw from_signed magnitude scaled radii directed _table _high_share".split()  # noqa: SIM905
"""What decides how noise is drawn."""


@lru_cache(maxsize=256)
def law_of(mechanism: Mechanism) -> Law:
    """The law of a mechanism; a subclass that draws in its own way has no kernel."""
    grid, own = grid_of(mechanism), type(mechanism)
    dimension = mechanism.dimension if isinstance(mechanism, Radial) else 1
    for kind in own.__mro__:
        if kind not in FUSED:
            continue
        if any(getattr(own, name, None) is not getattr(kind, name, None) for name in _DRAWING):
            break
        kernel, numbers_of = FUSED[kind]
        numbers = tuple(map(float, numbers_of(mechanism.scaled(1 / grid))))
        if np.isnan(numbers).any():
            break
        return Law(kernel, dimension, (grid, *numbers))
    return Law("", dimension, (grid,))
