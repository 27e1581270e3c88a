"""The reference Gaussian of a matched noise, and which reference a noise matches.

A Gaussian with noise multiplier m, its standard deviation over the l2 sensitivity, has the
divergence a / (2 m^2) at order a. A noise matches it if its own worst case is not above that at any
order from 1 to 16384, the largest that the Rényi accountant looks at.

References: docs/mathematics.md, section 5.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from udpfl.accounting import rdp
from udpfl.accounting.worst_case import worst_case
from udpfl.mechanisms import Gaussian, Mechanism
from udpfl.mechanisms.arrays import Floats
from udpfl.sensitivity import Sensitivity

_STEP = 0.07
"""Between knots, in units of the root of (a-1) a. The chord of a reference's own divergence lies
by a quarter of the square above it, an eighth of a percent."""
_WHOLE = 16.0
"""From this order on the knots are those of the Rényi accountant."""


@dataclass(frozen=True)
class Reference(Gaussian):
    """A Gaussian that is accounted like any other noise: by its divergences at whole orders.

    The Rényi accountant knows more of a sampled Gaussian than of other noises (its divergences
    between whole orders). What is compared with the reference has to be computed alike.
    """

    name: ClassVar[str] = "reference"
    is_isotropic: ClassVar[bool] = False


def matched_multiplier(mechanism: Mechanism, sensitivity: Sensitivity) -> float:
    """The largest noise multiplier of a Gaussian that this noise matches; 0 where there is none.

    That is 1 / sqrt(2 r), r the largest value of D(a) / a. Between knots (a-1) D(a) is convex, so
    its chord bounds it, and the largest ratio of a line and (a-1) a has a closed form.
    """
    if mechanism.is_isotropic:
        return mechanism.noise_std / sensitivity.largest("l2")
    orders = _knots()
    x = np.append(0.0, orders - 1)
    y = np.append(0.0, x[1:] * worst_case(mechanism, sensitivity, orders))
    if not np.all(np.isfinite(y)):  # not a number counts as too much
        return 0.0
    slope = np.diff(y) / np.diff(x)
    below = slope * x[:-1] - y[:-1]  # minus the height of the line at x = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        top = (below + np.sqrt(np.maximum(below * (below + slope), 0.0))) / slope
    ratios = [_ratio(slope, below, at) for at in (x[:-1], np.clip(top, x[:-1], x[1:]), x[1:])]
    largest = float(np.nanmax(ratios))
    return 1 / math.sqrt(2 * largest) if largest > 0 else math.inf


def _ratio(slope: Floats, below: Floats, x: Floats) -> Floats:
    """The line over x (1 + x); at x = 0, where the first line begins, its slope."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x > 0, (slope * x - below) / (x * (1 + x)), slope)


@lru_cache(maxsize=1)
def _knots() -> Floats:
    """Orders above 1 at which divergences are computed."""
    top = rdp.TOPS[-1]
    steps = np.arange(1, 2 * math.asinh(math.sqrt(_WHOLE - 1)) / _STEP)
    fine = 1 + np.sinh(_STEP * steps / 2) ** 2
    return np.unique(np.concatenate([fine, rdp.whole_knots(top), rdp.TOPS]))
