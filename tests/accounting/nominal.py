"""Scalar accounting by hand: densities, divergences by quadrature, and two conversions."""

from __future__ import annotations

import math

import numpy as np

from tests.oracles import sampled_moment_by_quadrature
from udpfl import Gaussian, Laplace, Staircase


def log_gaussian(std):
    return lambda x: -((x / std) ** 2) / 2 - math.log(std * math.sqrt(2 * math.pi))


def log_laplace(scale):
    return lambda x: -np.abs(x) / scale - math.log(2 * scale)


def log_staircase(decay):
    """Period 1 and the split 1 / (1 + e^(decay/2)), as the paper has it."""
    split = 1 / (1 + math.exp(decay / 2))
    height = -math.expm1(-decay) / (2 * (split + math.exp(-decay) * (1 - split)))

    def log_density(x):
        whole, part = np.divmod(np.abs(x), 1.0)
        return math.log(height) - decay * (whole + (part >= split))

    return log_density


def density_of(noise):
    """The log-density of a noise, and cuts between which it is smooth."""
    if isinstance(noise, Gaussian):
        reach = 12 * noise.std + 70
        return log_gaussian(noise.std), np.arange(-reach, reach, noise.std / 2)
    if isinstance(noise, Laplace):
        fine = noise.scale * np.arange(0.0, 60.0, 0.5)
        return log_laplace(noise.scale), np.concatenate([-fine, fine])
    split = 1 / (1 + math.exp(noise.decay / 2))
    steps = np.arange(0.0, math.ceil(60 / noise.decay))
    edges = np.concatenate([steps, steps + split])
    return log_staircase(noise.decay), np.concatenate([-edges, edges])


def divergences(noise, rate, orders):
    log_density, edges = density_of(noise)
    return np.array(
        [sampled_moment_by_quadrature(log_density, order, 1.0, rate, edges) for order in orders]
    )


def printed(orders, totals, delta):
    """gamma + log(1/delta) / (alpha - 1), the smallest over the orders."""
    return min(g + math.log(1 / delta) / (a - 1) for a, g in zip(orders, totals, strict=True))


def better(orders, totals, delta):
    """Canonne, Kamath and Steinke 2020, Proposition 12."""
    return min(
        g + math.log((a - 1) / a) - math.log(delta * a) / (a - 1)
        for a, g in zip(orders, totals, strict=True)
    )


def less(noise, part):
    """So much of the noise, with the period of a Staircase kept."""
    if not isinstance(noise, Staircase):
        return noise.scaled(part)
    return Staircase(noise.decay / part, noise.period)
