"""Independent ways to the same numbers: nothing here calls a closed form of the package."""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np
from scipy.special import logsumexp


def renyi_by_cells(
    log_density: Callable[[np.ndarray], np.ndarray], edges: np.ndarray, order: float, shift: float
) -> float:
    """Divergence of a piecewise constant density by summing over all its cells, one by one."""
    cuts = np.unique(np.concatenate([edges, edges + shift]))
    middle, width = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
    keep = width > 1e-13
    p, q = log_density(middle[keep]), log_density(middle[keep] - shift)
    if order == 1:
        return float(np.sum(width[keep] * np.exp(p) * (p - q)))
    return float(logsumexp(order * p + (1 - order) * q, b=width[keep]) / (order - 1))


def renyi_by_quadrature(
    log_density: Callable[[mp.mpf], mp.mpf], order: float, shift: float, breaks: list[float]
) -> float:
    """Divergence of a smooth density by adaptive quadrature in 20 digits."""
    with mp.workdps(20):
        s, a = mp.mpf(shift), mp.mpf(order)

        def integrand(x: mp.mpf) -> mp.mpf:
            p, q = log_density(x), log_density(x - s)
            return mp.e**p * (p - q) if a == 1 else mp.e ** (a * p + (1 - a) * q)

        total = mp.quad(integrand, sorted({*breaks, 0.0, shift}))
        return float(total if a == 1 else mp.log(total) / (a - 1))


def sampled_moment_by_quadrature(
    log_density: Callable[[np.ndarray], np.ndarray], order: float, shift: float, rate: float,
    edges: np.ndarray,
) -> float:  # fmt: skip
    """Rényi divergence of ((1-q) Q + q P) against Q in one dimension, by brute force."""
    cuts = np.unique(np.concatenate([edges, edges + shift]))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    x = ((cuts[1:] + cuts[:-1]) / 2)[:, None] + (np.diff(cuts) / 2)[:, None] * nodes
    w = (np.diff(cuts) / 2)[:, None] * weights
    q, p = log_density(x), log_density(x - shift)
    mixed = np.logaddexp(np.log1p(-rate) + q, np.log(rate) + p)
    return float(logsumexp(order * mixed + (1 - order) * q, b=w) / (order - 1))
