"""From Rényi divergences to (epsilon, delta) and back.

References: Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy",
Proposition 12; Asoodeh, Liao, Calmon, Kosut and Sankar 2021; for the first case of
`epsilon_at`, Bretagnolle and Huber 1979.
"""

from __future__ import annotations

import math

import numpy as np

from udpfl.mechanisms.arrays import Floats


def epsilon_at(orders: Floats, rdp: Floats, delta: float) -> tuple[float, float]:
    """The smallest epsilon over all orders, clamped at 0, and the order that gave it.

    epsilon = rdp + log((a-1)/a) - (log delta + log a) / (a-1)
    """
    rdp = _trusted(rdp)
    if delta > _total_variation(orders, rdp):
        return 0.0, float(orders[int(np.argmin(rdp))])
    values = rdp + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    best = int(np.argmin(values))
    return max(0.0, float(values[best])), float(orders[best])


def delta_at(orders: Floats, rdp: Floats, epsilon: float) -> float:
    """The smallest delta over all orders at which the same curve gives `epsilon`."""
    rdp = _trusted(rdp)
    exponent = (orders - 1) * (rdp - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    least = min(0.0, float(np.min(exponent)))
    return min(math.exp(least), _total_variation(orders, rdp))


def _trusted(rdp: Floats) -> Floats:
    """A value that is negative or not a number certifies nothing: count it as infinite."""
    return np.where(rdp >= 0, rdp, np.inf)


def _total_variation(orders: Floats, rdp: Floats) -> float:
    """Total variation is at most sqrt(1 - e^-KL), and KL at most the divergence of any order.

    Orders close to 1 divide rounding errors by almost nothing, so only those from 2 on count, and
    those with a small allowance.
    """
    least = float(np.min(rdp[orders >= 2], initial=math.inf))
    return math.sqrt(-math.expm1(-(least + 1e-14)))


def paper_epsilon_at(orders: Floats, rdp: Floats, delta: float) -> tuple[float, float]:
    """The same by the paper's conversion rdp + log(1/delta) / (a-1), which is never smaller."""
    values = _trusted(rdp) - math.log(delta) / (orders - 1)
    best = int(np.argmin(values))
    return float(values[best]), float(orders[best])
