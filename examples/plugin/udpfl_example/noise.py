"""Noise: a symmetric log-density, from which sampler and accountant are made alike.

A ledger stores the name of the class and a digest of its density. Whoever reads the ledger later
needs this module, as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from udpfl import Tabulated


@dataclass(frozen=True)
class Logistic(Tabulated):
    """Smooth like Gaussian noise in the middle, with tails like Laplace noise."""

    name = "logistic"

    def shape(self, x: Any) -> Any:
        return -x - 2 * np.log1p(np.exp(-x))


@dataclass(frozen=True)
class Power(Tabulated):
    """Density like e^{-|x|^power}: 1 is Laplace noise, 2 Gaussian. A field is a parameter."""

    power: float = 1.5

    name = "power"

    def shape(self, x: Any) -> Any:
        return -(x**self.power)


POWER = Power(1.0, power=1.8)
"""An instance fixes the shape; its scale is found by calibration, as for a class."""
