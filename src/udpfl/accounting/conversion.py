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
    # Total variation is at most sqrt(1 - e^-KL), and KL is at most the divergence of any order.
    least = float(np.min(rdp))
    if delta**2 + math.expm1(-least) > 0:
        return 0.0, float(orders[int(np.argmin(rdp))])
    values = rdp + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    best = int(np.argmin(values))
    return max(0.0, float(values[best])), float(orders[best])


def delta_at(orders: Floats, rdp: Floats, epsilon: float) -> float:
    """The smallest delta over all orders at which the same curve gives `epsilon`."""
    exponent = (orders - 1) * (rdp - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    least = min(0.0, float(np.min(exponent)))
    return min(math.exp(least), math.sqrt(-math.expm1(-float(np.min(rdp)))))


def paper_epsilon_at(orders: Floats, rdp: Floats, delta: float) -> float:
    """The paper's weaker conversion rdp + log(1/delta)/(a-1), kept for comparison only."""
    return max(0.0, float(np.min(rdp - math.log(delta) / (orders - 1))))
