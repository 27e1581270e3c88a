"""Searches for a gradient that is worse than the vector accountant admits."""

from __future__ import annotations

import numpy as np

from udpfl import Mechanism, Staircase

ORDERS = np.asarray([1.0, 1.5, 2.0, 5.0, 16.0, 64.0])


def interesting_shifts(noise: Mechanism, bound: float) -> np.ndarray:
    """A fine grid, and points around every kink, where the divergence may almost jump."""
    grid = np.concatenate([np.linspace(0, bound, 301), bound * 10.0 ** -np.arange(1, 5.0)])
    if isinstance(noise, Staircase):
        kinks = noise.kinks(bound)[:60]
        around = kinks[:, None] + bound * np.outer([-1, 1], 10.0 ** -np.arange(2, 13.0)).ravel()
        grid = np.concatenate([grid, kinks, around.ravel()])
    return np.unique(grid[(grid >= 0) & (grid <= bound)])


def best_found(noise: Mechanism, norm: str, bound: float, dimension: int, rng) -> np.ndarray:
    """The largest divergence over structured and random gradients inside the bound, per order."""
    if norm == "linf":
        values = noise.renyi(ORDERS[:, None], interesting_shifts(noise, bound))
        return dimension * values.max(axis=1)
    power = 2 if norm == "l2" else 1
    budget = bound**power
    s = interesting_shifts(noise, bound)
    d_at = noise.renyi(ORDERS[:, None], s)
    best = np.zeros(len(ORDERS))
    for k in range(1, dimension + 1):
        # k coordinates at s, the rest of the budget spread over j others
        fits = k * s**power <= budget * (1 + 1e-12)
        rest = np.maximum(budget - k * s[fits] ** power, 0.0)
        for j in sorted({0, 1, 2, dimension - k}):
            if j > dimension - k:
                continue
            total = k * d_at[:, fits]
            if j:
                total = total + j * noise.renyi(ORDERS[:, None], (rest / j) ** (1 / power))
            best = np.maximum(best, total.max(axis=1))
    for _ in range(40):
        v = rng.dirichlet(np.full(dimension, rng.choice([0.05, 0.5, 5.0]))) * budget
        total = noise.renyi(ORDERS[:, None], v ** (1 / power)).sum(axis=1)
        best = np.maximum(best, total)
    return best
