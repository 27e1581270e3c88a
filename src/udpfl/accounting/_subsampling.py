"""Rényi divergence of Poisson-sampled releases.

References: Zhu and Wang 2019, "Poisson subsampled Rényi differential privacy"; Mironov, Talwar and
Zhang 2019, "Rényi differential privacy of the sampled Gaussian mechanism", Theorems 4 and 5.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from udpfl.mechanisms.arrays import Floats


def poisson(orders: Floats, moments: Floats, rate: float) -> Floats:
    """Divergence at integer orders, from the log-moments of the unsampled release.

    `moments[k]` is (k-1) g(k), g(k) the divergence at order k = 0, 1, 2, ...; the first two vanish.
    The noise must be symmetric: reflecting it swaps the two distributions, so the divergence of
    the plain noise from the mixture never exceeds that of the mixture from the plain noise, which
    is the binomial sum

        1 + sum_{k>=2} C(a,k) (1-q)^{a-k} q^k (e^{(k-1) g(k)} - 1)

    Written as an excess over 1 it stays accurate at tiny rates.
    """
    a = np.asarray(orders, dtype=np.int64)
    k = np.arange(0.0, int(a.max()) + 1)
    log_factorial = _log_factorials(int(a.max()))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_growth = moments[: k.size] + np.log(-np.expm1(-moments[: k.size]))
    # C(a,k) = a! / k! (a-k)!: every term is a part that k decides over one that a-k decides, so
    # large orders, one table of which would take seconds, cost a subtraction and a power.
    taken = log_growth + k * np.log(rate) - log_factorial
    left = log_factorial - k * np.log1p(-rate)
    sums = [_log_sum(taken[2 : order + 1] - left[order - 2 :: -1]) for order in a]
    return np.asarray(np.logaddexp(0.0, log_factorial[a] + np.array(sums)) / (a - 1))


def _log_sum(terms: Floats) -> float:
    """log sum e^terms, without overflow."""
    most = float(terms.max())
    if not math.isfinite(most):  # nothing at all, one without bound, or not a number
        return most
    return most + math.log(np.exp(terms - most).sum())


@lru_cache(maxsize=8)
def _log_factorials(top: int) -> Floats:
    """log n! for n = 0 ... top."""
    table: Floats = gammaln(np.arange(0.0, top + 1) + 1)
    table.setflags(write=False)
    return table


def gaussian_fractional(orders: Floats, ratio: float, rate: float) -> Floats:
    """Divergence of the sampled Gaussian at any orders above 1, `ratio` = sensitivity / std.

    The moment is E[(1 + w)^a], w = q (e^{ratio z - ratio^2/2} - 1) with z standard normal. The
    integrand is analytic in a strip of half-width pi / ratio, so the trapezoidal rule below
    converges geometrically: with these steps its error is far under 1e-12.
    """
    a = np.asarray(orders, dtype=np.float64)[:, None]
    step = 0.25 / max(1.0, ratio)
    reach = 12.0 + float(a.max()) * ratio
    z = np.arange(-12.0 - ratio, reach, step)
    x = ratio * z - ratio**2 / 2
    w = rate * np.expm1(np.minimum(x, 700.0))
    log_weight = -z * z / 2 - 0.5 * np.log(2 * np.pi) + np.log(step)
    grown = a * np.logaddexp(np.log1p(-rate), np.log(rate) + x)
    # E[w] = 0, so the first-order part may be taken off exactly; what is left is second order.
    small = np.abs(a * w) < 1e-3
    tiny = np.where(small, w, 0.0)
    series = a * (a - 1) / 2 * tiny**2 * (1 + (a - 2) / 3 * tiny * (1 + (a - 3) / 4 * tiny))
    with np.errstate(over="ignore", invalid="ignore"):
        rest = np.where(small, series, np.expm1(np.minimum(grown, 600.0)) - a * w)
        excess = (rest * np.exp(log_weight)).sum(axis=1)
    large = logsumexp(log_weight + grown, axis=1)
    value = np.where(large < 1, np.log1p(np.where(large < 1, excess, 0.0)), large)
    return np.asarray(value / (a[:, 0] - 1))


def secret_selection(orders: Floats, rdp: Floats, probability: float) -> Floats:
    """Divergence of a round that happens with `probability`, unseen: joint convexity of moments."""
    factor = orders - 1
    x = factor * rdp
    with np.errstate(divide="ignore"):
        growth = np.log(probability) + x + np.log(-np.expm1(-x))
    return np.asarray(np.logaddexp(0.0, growth) / factor)
