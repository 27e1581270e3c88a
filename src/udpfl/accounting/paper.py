"""The Rényi accountant as the paper prints it: for nominal numbers alone.

Orders are whole numbers from 2 on. At each of them the divergences of all releases are added up,
and epsilon is the smallest gamma + log(1/delta) / (a-1). The paper says that records are sampled at
a rate and prints no formula for that; the one for whole orders of the works that it cites is used
(`accounting._subsampling`). Shuffled messages are read by its lemma (`accounting.shuffling`).

Only scalar accounting asks this accountant, so what it says is about one coordinate and never a
guarantee for a gradient.

References: the UDP-FL paper, "RDP to DP Conversion" and its Algorithm "Rényi Accountant"; Mironov
2017, "Rényi differential privacy", Proposition 3.
"""

from __future__ import annotations

import math

import numpy as np

from udpfl.accounting._conversion import paper_epsilon_at
from udpfl.accounting.events import Event
from udpfl.accounting.rdp import TOPS, curve, order_grid


def epsilon(event: Event, delta: float) -> float:
    """The smallest epsilon over all whole orders; inf at delta = 0, where log(1/delta) is.

    (a-1) RDP(a) is convex, so epsilon has a single minimum in the order: the grid brackets it, and
    finer looks between its neighbours leave no whole order out. With the lemma on shuffling, which
    is used at some orders and not at others, that holds up to order 32, as all are in the grid.
    """
    if delta == 0:
        return math.inf
    for top in TOPS:
        grid = order_grid(top)
        orders = grid[(grid >= 2) & (grid == np.floor(grid))]
        best, order = paper_epsilon_at(orders, curve(event, orders), delta)
        if order < 0.8 * top:
            break
    while math.isfinite(best):
        place = int(np.searchsorted(orders, order))
        low, high = orders[max(place - 1, 0)], orders[min(place + 1, len(orders) - 1)]
        if high - low <= 2:
            break
        orders = np.unique(np.round(np.linspace(low, high, 9)))
        value, order = paper_epsilon_at(orders, curve(event, orders), delta)
        best = min(best, value)
    return best
