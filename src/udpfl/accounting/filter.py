"""What releases cost together when later settings depend on the results of earlier releases.

A loss distribution, and the best of many Rényi orders, account for releases whose privacy
parameters were fixed beforehand. For parameters that are chosen after a look at earlier results
this is what holds: Rényi divergences of orders that were fixed before the first release, each with
a share of delta that was fixed as well. docs/mathematics.md, section 10, has the proof.

References: Feldman and Zrnic 2021, "Individual privacy accounting via a Rényi filter"; Rogers,
Roth, Ullman and Vadhan 2016, "Privacy odometers and filters".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from udpfl.accounting.events import Event
from udpfl.accounting.rdp import curve, order_grid
from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats

_MAIN_SHARE = 0.5
_AROUND = (1 / 16, 1 / 8, 1 / 4, 1 / 2, math.sqrt(0.5), math.sqrt(2), 2.0, 4.0, 8.0, 16.0)
"""Where the other orders lie: so many times as far from 1 as the planned one."""
_LARGEST = 1024.0
_EPSILON, _DELTA = 4.0, 1e-5
"""What orders are planned for where nobody said what may be spent."""


@dataclass(frozen=True)
class Filter:
    """Rényi orders and their shares of delta, fixed before anything is released."""

    orders: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("orders", "shares"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if not self.orders or len(self.orders) != len(self.shares):
            raise InvalidInput("shares", "there must be one for each order")
        if not all(1 < order <= _LARGEST for order in self.orders):
            raise InvalidInput("orders", f"must lie above 1, up to {_LARGEST:g}: {self.orders}")
        if not all(share > 0 for share in self.shares) or math.fsum(self.shares) > 1:
            raise InvalidInput("shares", f"must be above 0 and 1 at most in all: {self.shares}")

    @classmethod
    def planned(cls, epsilon: float = _EPSILON, delta: float = _DELTA) -> Filter:
        """Half of delta for the order at which such a budget is used up, the rest around it.

        That order is best for as much Gaussian noise as the budget pays for.
        """
        delta = delta or _DELTA  # pure epsilons are added up; a later budget may have a delta
        for top in (64, 1024):
            orders = order_grid(top)
            fixed = _converted(orders, np.zeros(len(orders)), _MAIN_SHARE * delta)
            # Gaussian noise has the divergence of the order times a constant: the largest that fits
            largest = max(0.0, float(np.max((epsilon - fixed) / orders)))
            best = _rounded(orders[int(np.argmin(fixed + largest * orders))])
            if largest > 0 and best < 0.8 * top:
                break
        others = sorted({_rounded(1 + factor * (best - 1)) for factor in _AROUND} - {best})
        share = math.floor(1e6 * (1 - _MAIN_SHARE) / len(others)) / 1e6
        return cls((best, *others), (_MAIN_SHARE, *[share] * len(others)))

    def epsilon(self, event: Event, delta: float) -> float:
        """What holds for all of the event at `delta`, whenever it ends and however it was chosen.

        The smallest over the orders a, with w the share of the order, of
        RDP(a) + log((a-1)/a) - (log(w delta) + log a) / (a-1)

        Guarantee: `epsilon` never falls when releases are added.
        """
        return self.converted(curve(event, np.array(self.orders)), delta)

    def converted(self, divergences: Floats, delta: float) -> float:
        """The same from the Rényi divergence of everything at each of the orders."""
        values = _converted(np.array(self.orders), divergences, np.array(self.shares) * delta)
        return max(0.0, float(np.min(values)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"orders": list(self.orders), "shares": list(self.shares)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Filter:
        """The inverse of `to_dict`; anything else raises."""
        if not isinstance(plain, Mapping) or plain.keys() != {"orders", "shares"}:
            raise InvalidInput("filter", f"must have orders and shares, got {plain!r}")
        try:
            return cls(tuple(plain["orders"]), tuple(plain["shares"]))
        except (TypeError, ValueError):
            raise InvalidInput("filter", f"must have numbers, got {plain!r}") from None


def _converted(orders: Floats, divergences: Floats, delta: float | Floats) -> Floats:
    """Epsilon at each order by itself; what is negative or not a number certifies nothing."""
    trusted = np.where(divergences >= 0, divergences, np.inf)
    values = trusted + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return np.asarray(values)


def _rounded(order: float) -> float:
    """An order that a person can read: three digits, and never 1."""
    return min(_LARGEST, max(1.01, float(f"{order:.3g}")))
