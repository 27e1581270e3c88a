"""What noise costs clients that walk along curves: extra rounds, by its variance and mechanism.

The paper bounds the extra rounds of a noisy training by the squared mean |X| of one coordinate.
What the recursion of `_curve_convergence.py` says stands beside that, and what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from udpfl.analysis._convergence import line_fit
from udpfl.analysis._curve_convergence import MOST, CurveBound, CurveMeasured, measure_curve
from udpfl.analysis.convex import Convex
from udpfl.analysis.extra_rounds import FACTORS
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Mechanism

__all__ = ["MOST", "CurveStudy", "Level", "study_curves"]


@dataclass(frozen=True, eq=False)
class Level:
    """One training: with which noise, and how it went."""

    mechanism: str
    """Empty for the training without noise."""
    factor: float
    """Multiple of the variance that was planned."""
    measured: CurveMeasured

    @property
    def noise(self) -> float:
        """d Var of one client's gradient."""
        return self.measured.bound.constants.noise

    def to_dict(self, target: float) -> dict[str, Any]:
        """Plain data."""
        found = self.measured
        start, rounds = float(found.distances[0]), len(found.thetas)

        def about(bound: CurveBound) -> dict[str, Any]:
            return {
                "noise": bound.constants.noise,
                "distance": float(bound.recursion(start, rounds)[-1]),
                "theta": float(bound.thetas(start, rounds)[-1]),
                "rounds": _finite(bound.rounds_to(target, start)),
                "above": found.above(bound),
                "thetas_above": found.thetas_above(bound),
            }

        return {
            "mechanism": self.mechanism,
            "factor": self.factor,
            "distance": float(found.distances[-1]),
            "theta": float(found.thetas[-1]),
            "rounds": found.rounds_to(target),
            "bound": about(found.bound),
            "printed": about(found.printed),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, eq=False)
class CurveStudy:
    """One problem, trained along curves with several mechanisms at several variances."""

    levels: tuple[Level, ...]
    """The first is without noise."""
    target: float
    """The squared distance of w that is waited for."""

    @property
    def rounds(self) -> int:
        """Of every training."""
        return len(self.levels[0].measured.thetas)

    @property
    def grows(self) -> Literal["rounds", "distance"]:
        """What grows with the variance: rounds to the target, or with fixed steps the distance at
        which a training ends, however long it goes on."""
        fixed = self.levels[0].measured.bound.steps == "fixed"
        return "distance" if fixed else "rounds"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with straight lines through what grows where every level has it."""
        rows = [level.to_dict(self.target) for level in self.levels]
        variances = [level.noise for level in self.levels]
        lines: dict[str, Any] = {}
        for name in ("measured", "bound", "printed"):
            own = [row if name == "measured" else row[name] for row in rows]
            values = [each[self.grows] for each in own]
            found = None if None in values else line_fit(variances, values)
            names = ("slope", "intercept", "r_squared")
            lines[f"{name}_line"] = found and dict(zip(names, found, strict=True))
        return {"target": self.target, "grows": self.grows, "levels": rows, **lines}


def study_curves(
    problem: Convex,
    noises: Mapping[str, Mechanism],
    scale: float,
    *,
    factors: Sequence[float] = FACTORS[1:],
    target: float | None = None,
    **options: Any,
) -> CurveStudy:
    """Train along curves without noise, and with each noise at each multiple of its variance.

    Args:
        problem: A convex problem with its clients and their records.
        noises: By name; their variances are multiplied.
        scale: As for `measure_curve`.
        factors: Multiples of the variance, all above 0.
        target: The squared distance that is waited for; where the worst training ended if left out.
        **options: Those of `measure_curve`.

    Returns:
        One measurement without noise and one for each noise and multiple.

    Raises:
        InvalidInput: A number is out of range.

    Example:
        >>> from udpfl import Gaussian
        >>> from udpfl.analysis.convex import Convex
        >>> from udpfl.analysis.curve_rounds import study_curves
        >>> problem = Convex.drawn("quadratic", clients=2, records=10, dimension=3)
        >>> noises = {"gaussian": Gaussian(0.1)}
        >>> found = study_curves(problem, noises, 1.0, factors=[1], rounds=20, repetitions=5)
        >>> len(found.levels)
        2
    """
    if not all(factor > 0 for factor in factors):
        raise InvalidInput("factors", f"must all be above 0, got {list(factors)}")
    if target is not None and not target > 0:
        raise InvalidInput("target", f"must be above 0, got {target!r}")
    levels = [Level("", 0.0, measure_curve(problem, **options))]
    for name, noise in noises.items():
        for factor in factors:
            size = scale * math.sqrt(factor)
            found = measure_curve(problem, noise=noise, scale=size, **options)
            levels.append(Level(name, factor, found))
    if target is None:
        target = max(float(level.measured.distances[-1]) for level in levels)
    return CurveStudy(tuple(levels), target)
