"""What noise costs in rounds: the same training with more and more of it.

On the problems of `convex.py` the bound says that the steps to a given distance are a straight line
in the variance of the noise; here that line stands beside what was measured. For a network there is
no bound, and curves of real runs are all that is shown.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udpfl.accounting import Release
from udpfl.analysis._convergence import Measured, line_fit, measure
from udpfl.analysis.convex import Convex
from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms import Mechanism

if TYPE_CHECKING:
    from udpfl.config import Config

FACTORS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Multiples of the variance at which a problem is trained."""


@dataclass(frozen=True, eq=False)
class Study:
    """One problem, trained at several multiples of the noise variance."""

    factors: tuple[float, ...]
    levels: tuple[Measured, ...]
    target: float
    """The squared distance that is waited for: where the noisiest training ended."""

    @property
    def measured(self) -> list[int]:
        """Steps to the target, by level."""
        found = [level.steps_to(self.target) for level in self.levels]
        return [len(self.levels[0].distances) - 1 if steps is None else steps for steps in found]

    @property
    def bounds(self) -> list[float]:
        """Steps after which the closed form is at the target, by level."""
        return [c.constants.steps_to(self.target, float(c.distances[0])) for c in self.levels]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        variances = [level.constants.noise for level in self.levels]
        rows = zip(self.factors, variances, self.measured, self.bounds, self.levels, strict=True)
        names = ("slope", "intercept", "r_squared")
        return {
            "target": self.target,
            "levels": [
                {"factor": f, "noise": v, "steps": s, "bound": b, **level.to_dict()}
                for f, v, s, b, level in rows
            ],
            "measured_line": dict(zip(names, line_fit(variances, self.measured), strict=True)),
            "bound_line": dict(zip(names, line_fit(variances, self.bounds), strict=True)),
        }


def study(
    problem: Convex,
    noise: Mechanism,
    scale: float,
    *,
    factors: Sequence[float] = FACTORS,
    **options: Any,
) -> Study:
    """Train at each multiple of the variance.

    Args:
        problem: A convex problem with its clients and their records.
        noise: Its variance is multiplied.
        scale: As for `measure`.
        factors: Multiples of the variance; 0 for a training without noise.
        **options: Those of `measure`.

    Returns:
        One measurement for each multiple, and the steps that each takes to the same distance.

    Raises:
        InvalidInput: A number is out of range.

    Example:
        >>> from udpfl import Gaussian
        >>> from udpfl.analysis.convex import Convex
        >>> from udpfl.analysis.extra_rounds import study
        >>> problem = Convex.drawn("quadratic", clients=2, records=10, dimension=3)
        >>> found = study(problem, Gaussian(0.1), 1.0, factors=(0, 1), steps=20, repetitions=5)
        >>> len(found.levels)
        2
    """
    levels = [
        measure(problem, noise=noise if f else None, scale=scale * math.sqrt(f), **options)
        for f in factors
    ]
    target = max(float(level.distances[-1]) for level in levels)
    return Study(tuple(factors), tuple(levels), target)


@dataclass(frozen=True)
class NetworkCurve:
    """One real run: loss and accuracy by round."""

    name: str
    noise_std: float
    """Of one client's mean gradient, per coordinate; the largest of any client."""
    dimension: int
    """Number of parameters."""
    rounds: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float | None, ...]

    @property
    def variance(self) -> float:
        """d Var: the variance of the noise, all coordinates together."""
        return self.dimension * self.noise_std**2

    def rounds_to(self, loss: float) -> int | None:
        """The first evaluated round with a test loss at or below this."""
        rows = zip(self.rounds, self.losses, strict=True)
        return next((round_ for round_, value in rows if value <= loss), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "noise_std": self.noise_std,
            "variance": self.variance,
            "rounds": list(self.rounds),
            "losses": list(self.losses),
            "accuracies": list(self.accuracies),
        }


def network_curves(
    config: Config, epsilons: Sequence[float], mechanisms: Sequence[str] = ()
) -> list[NetworkCurve]:
    """Train the configuration clipped without noise, then with each noise within each epsilon.

    The runs are thrown away; a shared ledger is not charged. The first is not private, and the
    test records have seen all of them.

    Args:
        config: With privacy, and without a shared ledger.
        epsilons: Budgets to train within; that of the configuration if there are none.
        mechanisms: Noises to train with; that of the configuration if there are none.

    Returns:
        Loss and accuracy by round, of the run without noise and of each of the others.

    Raises:
        InvalidInput: The configuration names a ledger.
        Unsupported: Its privacy is turned off.

    Example:
        >>> from pathlib import Path
        >>> from udpfl.analysis.extra_rounds import network_curves
        >>> from udpfl.config import load
        >>> _ = Path("ages.csv").write_text("age,ill\\n" + "20,0\\n70,1\\n" * 20)
        >>> options = {"path": "ages.csv", "target": "ill", "scale": {"age": [0, 110]}}
        >>> data = {"name": "table", "options": options}
        >>> base = {"data": data, "model": {"name": "logistic"}, "training": {"rounds": 1}}
        >>> [curve.name for curve in network_curves(load(base), [8])]
        ['clipped, without noise', 'ε = 8']
    """
    from udpfl.config import load

    privacy = config.privacy
    if not privacy.enabled:
        raise Unsupported("privacy is turned off in this configuration: there is no noise to vary")
    if privacy.ledger is not None:
        raise InvalidInput(
            "privacy.ledger", "these runs are not charged to a ledger: remove this key"
        )
    budgets: list[Any] = [float(e) for e in epsilons] or [privacy.epsilon]
    wanted = [(name, budget) for name in mechanisms or [""] for budget in budgets]
    curves = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, budget) in enumerate([("", None), *wanted]):
            changed: dict[str, Any] = {"out": str(Path(folder) / str(number))}
            if budget is not None:
                changed["privacy"] = {"epsilon": budget} | ({"mechanism": name} if name else {})
            words = f"{name}, " if name else ""
            title = "clipped, without noise" if budget is None else f"{words}ε = {budget:g}"
            curves.append(_curve(load(config, changed), title, budget is not None))
    return curves


def _curve(settings: Config, name: str, noisy: bool) -> NetworkCurve:
    from udpfl.engine import Noiseless
    from udpfl.federation import ReleasePlan, run
    from udpfl.federation.protection import planned_protection
    from udpfl.runs.folder import RunFolder

    def quiet(plans: Sequence[ReleasePlan]) -> Any:
        return planned_protection(plans)[0], Noiseless()

    result = run(settings, protection=None if noisy else quiet)
    rows = [row for row in result.metrics if isinstance(row.get("loss"), float)]
    plans = [ReleasePlan.from_row(row) for row in RunFolder.open(result.folder).clients]
    stds = [
        plan.release.mechanism.noise_std / (plan.rate * plan.declared_size)
        for plan in plans
        if isinstance(plan.release, Release) and noisy
    ]
    return NetworkCurve(
        name,
        max(stds, default=0.0),
        sum(own.numel() for own in result.model.parameters() if own.requires_grad),
        tuple(int(row["round"]) for row in rows),
        tuple(float(row["loss"]) for row in rows),
        tuple(row["accuracy"] for row in rows),
    )
