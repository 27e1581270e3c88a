"""Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from udpfl.mechanisms.arrays import Floats, box_muller_in_place, normal_quantile
from udpfl.mechanisms.base import Mechanism, PlotStyle, positive


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Normal noise with standard deviation `std`.

    D_a(s) = a s^2 / (2 std^2), which depends on a gradient through its l2 norm alone: the only
    mechanism here whose privacy does not depend on the dimension.

    References: Mironov 2017, "Rényi differential privacy", Proposition 7.

    Raises:
        InvalidInput: `std` is not a finite number above 0.

    Example:
        >>> from udpfl import Gaussian
        >>> Gaussian(2.0).variance
        4.0
    """

    std: float
    """Standard deviation of every coordinate, in the unit of the clip."""

    name: ClassVar[str] = "gaussian"
    second_word: ClassVar[float] = 2.0**-20
    is_isotropic: ClassVar[bool] = True
    even_spread_is_worst: ClassVar[bool] = True
    one_coordinate_is_worst: ClassVar[bool] = True
    is_closed_form: ClassVar[bool] = True
    is_log_concave: ClassVar[bool] = True
    draws_pairs: ClassVar[bool] = True
    has_pure_guarantee: ClassVar[bool] = False
    summary: ClassVar[str] = "normal noise; the least for gradients of many coordinates"
    plot_style: ClassVar[PlotStyle] = PlotStyle("#1f77b4", "o", "-")

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("std", self.std)

    @property
    def unimodal(self) -> bool:
        return True

    @property
    def rounding(self) -> float:
        """Two numbers are off together: counted as if each were so by the root of two."""
        return 2.25

    @classmethod
    def explain(cls, norm: str, dimension: int | None) -> str:
        if norm == "linf":
            return "Its cost grows with the l2 norm, the square root of the dimension under linf."
        return "Its cost depends on the l2 norm alone, not on the dimension."

    def log_density(self, x: ArrayLike) -> Floats:
        z = np.asarray(x, dtype=np.float64) / self.std
        return np.asarray(-0.5 * z * z - math.log(self.std * math.sqrt(2 * math.pi)))

    def renyi(self, order: ArrayLike, shift: ArrayLike) -> Floats:
        ratio = np.asarray(shift, dtype=np.float64) / self.std
        with np.errstate(invalid="ignore", over="ignore"):  # inf * 0: no shift, no divergence
            result = np.asarray(order, dtype=np.float64) * ratio**2 / 2
        return np.where(ratio == 0, 0.0, result)

    def hockey_stick(self, epsilon: ArrayLike, shift: float) -> Floats:
        """Closed form of Balle and Wang 2018, Theorem 8."""
        eps, mu = np.asarray(epsilon, dtype=np.float64), abs(shift) / self.std
        if mu == 0:
            return np.maximum(0.0, -np.expm1(eps))
        upper = special.log_ndtr(mu / 2 - eps / mu)
        lower = eps + special.log_ndtr(-mu / 2 - eps / mu)
        return np.asarray(np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0)))

    @property
    def variance(self) -> float:
        return self.std * self.std

    @property
    def mean_abs(self) -> float:
        return self.std * math.sqrt(2 / math.pi)

    def magnitude(self, tail: Any) -> Any:
        return -self.std * normal_quantile(tail / 2)

    def draw(self, signed: Any) -> Any:
        """Box and Muller 1958: two numbers make a radius and an angle, and those two values.

        Pairs are made along the last axis: rows have no number in common.
        """
        half = signed.shape[-1] // 2
        if signed.shape[-1] % 2:
            signed[..., -1:] = self.from_signed(signed[..., -1:])
        box_muller_in_place(signed[..., :half], signed[..., half : 2 * half], self.std)
        return signed

    def scaled(self, factor: float) -> Self:
        return self._rescaled(factor, "std")
