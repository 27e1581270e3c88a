"""R2DP: Laplace noise whose scale is itself random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from udpfl.errors import InvalidInput
from udpfl.mechanisms.base import Family, PlotStyle, Rank, ShapeSearch, positive
from udpfl.mechanisms.tabulated import Tabulated

_TRIED = (3.0, 4.0, 6.0, 12.0, 24.0)
_RANGE = 2.1, 100.0
"""Of the concentration: below it tails are so heavy that tables are coarse, above it is Laplace."""


@dataclass(frozen=True)
class R2dp(Tabulated):
    """Laplace noise with an inverse scale that is drawn anew, from a gamma law, for every number.

    With shape k and mean k / scale of that law the density is

        k / (2 scale) (1 + |x| / scale)^{-(k+1)},

    a two-sided Pareto density: a sharp peak and heavy tails. As k grows it turns into Laplace noise
    of scale / k. It is accounted as what it is, a density, and not as Laplace noise of the scale
    that was drawn: who sees the noise does not see the scale.

    References: Mohammady et al. 2020, "R2DP: A universal and automated approach to optimizing the
    randomization mechanisms of differential privacy for utility metrics with no known optimal
    distributions"; docs/mathematics.md, section 2.

    Raises:
        InvalidInput: A parameter is not a finite number above 0, or `concentration` not above 2.

    Example:
        >>> from udpfl import R2dp, Sensitivity, Release, account
        >>> number = Sensitivity(1.0, dimension=1)
        >>> round(account(Release(R2dp(3.0, concentration=4.0), number), delta=0).epsilon, 2)
        1.44
    """

    concentration: float = 6.0
    """Shape k of the gamma law of the inverse scale, above 2: the larger, the less it varies."""

    name: ClassVar[str] = "r2dp"
    is_ranked: ClassVar[bool] = False
    summary: ClassVar[str] = (
        "Laplace noise of a random scale; less of it than Laplace noise for one number at a large "
        "pure epsilon"
    )
    plot_style: ClassVar[PlotStyle] = PlotStyle("#a0701a", "P", ":")

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("concentration", self.concentration)
        if self.concentration <= 2:
            raise InvalidInput(
                "concentration", f"must be above 2 for a variance, got {self.concentration!r}"
            )

    @classmethod
    def tuned_family(cls, search: ShapeSearch) -> Family:
        """For one number those of the concentration with the least error."""
        if search.dimension > 1:
            return cls.family(search.clip)
        if search.is_pure:
            return lambda level: _best_at(math.sqrt(2) / level, search.clip, search.rank)

        def error(family: Family) -> float:
            return family(search.least_level(family)).error(search.rank)

        unit = (cls(1.0, own) for own in _TRIED)
        return min((own.scaled(search.clip / own.noise_std).scaled for own in unit), key=error)

    @classmethod
    def explain(cls, norm: str, dimension: int | None) -> str:
        return "Its heavy tails pay for one number at a large pure epsilon, and nowhere else."

    @property
    def rounding(self) -> float:
        return 4.0

    def shape(self, x: Any) -> Any:
        return -(self.concentration + 1) * np.log1p(x)


def _best_at(epsilon: float, clip: float, rank: Rank) -> R2dp:
    """The noise of least error whose log-density falls by epsilon from 0 to the clip."""
    from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

    def noise(k: float) -> tuple[float, float]:
        scale = clip / math.expm1(epsilon / (k + 1))
        return scale, scale / (k - 1) if rank == "l1" else scale**2 / ((k - 1) * (k - 2))

    least = minimize_scalar(lambda k: math.log(noise(k)[1]), bounds=_RANGE, method="bounded").x
    return R2dp(noise(least)[0], float(least))
