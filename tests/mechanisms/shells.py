"""Staircase noise of whole vectors, shell by shell, without a formula of the package."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp


def profile(noise, radius):
    """The paper's density at an l1 norm, up to a constant: e^(-lambda k), k the steps below."""
    periods = np.asarray(radius) / noise.period
    return np.exp(-noise.decay * np.where(periods % 1 < noise.split, 0, 1)) * np.exp(
        -noise.decay * np.floor(periods)
    )


def shells(noise):
    """Radii where steps begin, and the logarithm of the probability of every shell between."""
    decay, split, d = noise.decay, noise.split, noise.dimension
    first = max(0, int((d - 14 * math.sqrt(d)) / decay) - 3)
    last = int((d + 14 * math.sqrt(d) + 60) / decay) + 4
    starts = np.arange(first, last)
    edges = np.unique(np.concatenate([[0.0] if first == 0 else [], starts, starts + split]))
    low, high = edges[:-1], edges[1:]
    with np.errstate(divide="ignore"):
        volume = d * np.log(high) + np.log(-np.expm1(d * (np.log(low) - np.log(high))))
    middle = (low + high) / 2
    steps = np.floor(middle) + (middle % 1 >= split)
    mass = volume - decay * steps
    return edges * noise.period, mass - logsumexp(mass)


def radius_law(noise):
    """The distribution function of the radius: shell by shell, and r^d within each."""
    edges, mass = shells(noise)
    below = np.append(0.0, np.cumsum(np.exp(mass)))
    d = noise.dimension

    def cdf(r):
        i = np.clip(np.searchsorted(edges, r, side="right") - 1, 0, len(mass) - 1)
        low, high = edges[i], edges[i + 1]
        with np.errstate(divide="ignore"):
            inner = np.exp(d * (np.log(low) - np.log(high)))
        share = (np.exp(d * (np.log(r) - np.log(high))) - inner) / (1 - inner)
        return np.clip(below[i] + np.exp(mass[i]) * np.clip(share, 0, 1), 0, 1)

    return cdf
