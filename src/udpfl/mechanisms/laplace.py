"""Laplace noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from udpfl.mechanisms.arrays import Floats, namespace
from udpfl.mechanisms.base import Family, Mechanism, PlotStyle, positive


def _expm1_minus(z: Floats) -> Floats:
    """e^z - 1 - z without cancellation near zero."""
    z = np.asarray(z)
    near = np.where(np.abs(z) < 0.02, z, 0.0)
    series = near * near / 2 * (1 + z / 3 * (1 + z / 4 * (1 + z / 5 * (1 + z / 6 * (1 + z / 7)))))
    with np.errstate(over="ignore"):
        return np.where(np.abs(z) < 0.02, series, np.expm1(z) - z)


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Double exponential noise with density exp(-|x| / scale) / (2 scale).

    With t = s / scale,
    D_a(s) = log[ a/(2a-1) e^{(a-1)t} + (a-1)/(2a-1) e^{-at} ] / (a-1).

    References: Mironov 2017, "Rényi differential privacy", Proposition 6.

    Raises:
        InvalidInput: `scale` is not a finite number above 0.

    Example:
        >>> from udpfl import Laplace
        >>> Laplace(2.0).mean_abs
        2.0
    """

    scale: float
    """Mean absolute value of every coordinate, in the unit of the clip."""

    name: ClassVar[str] = "laplace"
    second_word: ClassVar[float] = 2.0**-20
    even_spread_is_worst: ClassVar[bool] = True
    one_coordinate_is_worst: ClassVar[bool] = True
    falls_with_l1: ClassVar[bool] = True
    is_closed_form: ClassVar[bool] = True
    is_log_concave: ClassVar[bool] = True
    summary: ClassVar[str] = "double exponential noise; pure DP in any dimension"
    # Staircase noise often coincides with it: the wider line shows behind the other.
    plot_style: ClassVar[PlotStyle] = PlotStyle("#d95f02", "s", "--", width=5.0, alpha=0.45)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("scale", self.scale)

    @property
    def unimodal(self) -> bool:
        return True

    @property
    def rounding(self) -> float:
        return 1.0

    @classmethod
    def family(cls, clip: float) -> Family:
        return lambda level: cls(level * clip / math.sqrt(2))

    @classmethod
    def explain(cls, norm: str, dimension: int | None) -> str:
        if dimension == 1:
            return "In one dimension its bounded privacy loss helps from a moderate epsilon on."
        if norm == "linf":
            return "Under linf every coordinate may move by the whole clip at once."
        if norm == "l1":
            return "Under l1 the worst gradient is one coordinate: the dimension does not matter."
        return (
            "Against a gradient spread over many coordinates it needs up to 1.41 x the standard "
            "deviation of Gaussian noise under the same accountant."
        )

    def log_density(self, x: ArrayLike) -> Floats:
        return -np.abs(np.asarray(x, dtype=np.float64)) / self.scale - math.log(2 * self.scale)

    def renyi(self, order: ArrayLike, shift: ArrayLike) -> Floats:
        a, t = np.broadcast_arrays(
            np.asarray(order, dtype=np.float64),
            np.abs(np.asarray(shift, dtype=np.float64)) / self.scale,
        )
        finite = np.where(np.isinf(a) | (a == 1), 2.0, a)  # those two orders are set at the end
        up, down = (finite - 1) * t, -finite * t
        with np.errstate(over="ignore"):
            excess = (finite * _expm1_minus(up) + (finite - 1) * _expm1_minus(down)) / (
                2 * finite - 1
            )
        # Far out the sum is dominated by its first term, whose logarithm cannot overflow.
        log_first = up + np.log(finite / (2 * finite - 1))
        log_ratio = down + np.log((finite - 1) / finite) - up
        large = log_first + np.log1p(np.exp(log_ratio))
        value = np.where(up < 30, np.log1p(np.where(up < 30, excess, 0.0)), large) / (finite - 1)
        value = np.where(a == 1, _expm1_minus(-t), value)
        return np.where(np.isinf(a), t, value)

    def hockey_stick(self, epsilon: ArrayLike, shift: float) -> Floats:
        """1 - e^{(epsilon - t) / 2} inside |epsilon| < t, the trivial value outside."""
        eps, t = np.asarray(epsilon, dtype=np.float64), abs(shift) / self.scale
        inside = -np.expm1((np.clip(eps, -t, t) - t) / 2)
        return np.where(eps <= -t, -np.expm1(np.minimum(eps, 0.0)), inside)

    @property
    def variance(self) -> float:
        return 2 * self.scale * self.scale

    @property
    def mean_abs(self) -> float:
        return self.scale

    def magnitude(self, tail: Any) -> Any:
        return -self.scale * namespace(tail).log(tail)

    def scaled(self, factor: float) -> Self:
        return self._rescaled(factor, "scale")
