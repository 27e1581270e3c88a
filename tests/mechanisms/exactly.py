"""Noise in 50 digits, from the uniform numbers that it is made of."""

from __future__ import annotations

from dataclasses import dataclass

import mpmath as mp

from udpfl import Tabulated


@dataclass(frozen=True)
class Flat(Tabulated):
    """A density with next to no slope near zero."""

    def shape(self, x):
        return -(x**8)


def exact_laplace(noise, signed):
    return [mp.sign(s) * -mp.mpf(noise.scale) * mp.log(abs(s)) for s in signed]


def exact_staircase(noise, signed):
    """By the position within a period, from the share of the period's mass that is passed."""
    decay, period, split = map(mp.mpf, (noise.decay, noise.period, noise.split))
    b = mp.e**-decay
    found = []
    for s in signed:
        periods = mp.floor(-mp.log(abs(s)) / decay)
        passed = (1 - abs(s) * mp.e ** (decay * periods)) / (1 - b)
        mass = passed * (split + b * (1 - split))
        place = mass if mass <= split else split + (mass - split) / b
        found.append(mp.sign(s) * period * (periods + place))
    return found


def exact_gaussian(noise, signed):
    half = len(signed) // 2
    radius = [mp.mpf(noise.std) * mp.sqrt(-2 * mp.log(abs(s))) for s in signed[:half]]
    angle = [mp.pi * s for s in signed[half:]]
    turned = [(r * mp.cos(a), r * mp.sin(a)) for r, a in zip(radius, angle, strict=True)]
    return [x for x, _ in turned] + [y for _, y in turned]


def exact_table(noise, signed):
    """The table is the mechanism: its mass, piece by piece, and the inverse of that."""
    table, scale = noise._table, mp.mpf(noise.scale)
    knots, heights = ([*map(mp.mpf, own.tolist())] for own in (table.knots, table.log_density))
    pieces = list(zip(knots, knots[1:], heights, heights[1:], strict=False))
    rate, masses = mp.mpf(table.tail_rate), []
    for left, right, a, b in pieces:
        rise = mp.expm1(b - a) / (b - a) if a != b else 1
        masses.append(mp.e**a * (right - left) * rise)
    beyond = [mp.e ** heights[-1] / rate]
    for mass in reversed(masses):
        beyond.insert(0, beyond[0] + mass)
    found = []
    for s in signed:
        mass = abs(s) * beyond[0]  # of what lies further out
        if mass < beyond[-1]:
            size = knots[-1] - mp.log(mass / beyond[-1]) / rate
        else:
            cell = max(i for i in range(len(pieces)) if beyond[i] >= mass)
            left, right, a, b = pieces[cell]
            passed = (beyond[cell] - mass) / (mp.e**a * (right - left))
            share = mp.log1p((b - a) * passed) / (b - a) if a != b else passed
            size = left + (right - left) * share
        found.append(mp.sign(s) * scale * size)
    return found
