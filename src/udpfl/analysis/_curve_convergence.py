"""How fast clients converge that walk along curves: the theory's recursion beside the measurement.

In a round every client goes from w to v_k by E noisy local steps, and on to the point of its curve.
Where the learning rate is the 1/L, control point and point of the curve lie on the line through w
and v_k (`algorithms/closed_form.py`):

    theta_k = w + tau (v_k - w),
    w_k+ = w + rho_k (v_k - w),        rho = (1 - r)^2 + 2 r (1 - r) tau.

So the noise of a step enters theta_k tau-fold and w_k+ rho_k-fold. rho has the mean
m = (1 + tau) / 3 and the second moment 1/5 + tau/5 + 2 tau^2 / 15, and each client draws its own.
With D = E |mean w - w*|^2 before a round, V the bound of federated averaging on E |mean v - w*|^2
(`_convergence.py`), and U_k = E sum eta_t^2 (G^2 + d Var) >= E |v_k - w|^2,

    D+ <= (1 - m) D + m V + Var[rho] sum p_k^2 U_k                              for m <= 1.

Given v_k, the mean over all rho_k is (1 - m) w + m mean v, and |.|^2 is convex; what is left is
Var[rho] sum p_k^2 |v_k - w|^2. For the mean of the theta_k, by the triangle inequality,

    sqrt(E |mean theta - w*|^2) <= sqrt(V) + |tau - 1| sqrt(E |mean v - w|^2).

With steps of 1/L in every round ("fixed"), and one local step, the mean over noise and r is a
gradient step of size m/L, and a training ends at a distance that is linear in the variance:

    D+ <= (1 - m mu / L)^2 D + 1/L^2 sum p_k^2 ((m^2 + Var[rho]) (sigma_k^2 + d Var) + Var[rho] G^2)

The paper has (E|X|)^2 of one coordinate where d Var stands ("printed"), and its own recursion adds
that without eta^2, so that it would not converge at all; the former is what is compared here.

References: the UDP-FL paper, Theorem "mode2dp" and its proof; Li et al. 2020, "On the convergence
of FedAvg on non-IID data", Lemmas 1 to 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from udpfl.algorithms.closed_form import ClosedForm
from udpfl.algorithms.closed_form import Constants as Named
from udpfl.analysis._convergence import Constants, constants_of, kept_from, step_offset, step_size
from udpfl.analysis._descent import Descent, require_sizes
from udpfl.analysis.convex import Convex
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Mechanism
from udpfl.mechanisms.arrays import Floats

Steps = Literal["decreasing", "fixed"]
MOST = 200_000
"""Rounds after which a bound that is not at its target counts as never there."""


@dataclass(frozen=True)
class Walk:
    """How a client goes on from what its local steps moved, where the learning rate is the 1/L."""

    reach: float
    """tau: theta - w in units of v - w."""

    @classmethod
    def of(cls, constants: Named) -> Walk:
        """That of a set of constants."""
        return cls(ClosedForm(constants).reach)

    def share(self, r: Floats) -> Floats:
        """rho: how far w+ is from w, in units of v - w."""
        return (1 - r) ** 2 + 2 * r * (1 - r) * self.reach

    @property
    def mean(self) -> float:
        """m = E[rho]."""
        return (1 + self.reach) / 3

    @property
    def variance(self) -> float:
        """Var[rho]."""
        return 1 / 5 + self.reach / 5 + 2 * self.reach**2 / 15 - self.mean**2


@dataclass(frozen=True)
class CurveBound:
    """The recursion from round to round."""

    walk: Walk
    constants: Constants
    steps: Steps = "decreasing"

    def printed(self, noise: float) -> CurveBound:
        """The same with another number for d Var."""
        return replace(self, constants=replace(self.constants, noise=noise))

    def rate(self, step: int) -> float:
        """eta_t."""
        c = self.constants
        return 1 / c.smoothness if self.steps == "fixed" else c.rate(step)

    def round(self, number: int) -> tuple[float, float]:
        """(a, b) of D+ <= a D + b in round 0, 1, ..."""
        if self.steps == "fixed":
            return self._fixed_round(self.walk.mean, self.walk.variance)
        c, m = self.constants, self.walk.mean
        kept, added = self._trained(number)
        squares = sum(rate**2 for rate in self._rates(number))
        apart = c.local_steps * squares * (c.gradient + c.noise)
        spread = self.walk.variance * sum(p**2 for p in c.shares) * apart
        return (1 - m) + m * kept, m * added + spread

    def theta(self, distance: float, number: int) -> float:
        """The bound on E |mean theta - w*|^2 of a round, from D before it."""
        c, tau = self.constants, self.walk.reach
        if self.steps == "fixed":
            kept, added = self._fixed_round(tau, 0.0)
            return kept * distance + added
        kept, added = self._trained(number)
        squares = sum(rate**2 for rate in self._rates(number))
        moved = c.local_steps * squares * (c.gradient + self._own())
        bound = math.sqrt(kept * distance + added) + abs(tau - 1) * math.sqrt(moved)
        return bound**2

    def _rates(self, number: int) -> list[float]:
        first = number * self.constants.local_steps
        return [self.rate(first + step) for step in range(self.constants.local_steps)]

    def _trained(self, number: int) -> tuple[float, float]:
        """(a, b) of V <= a D + b: federated averaging, step by step."""
        kept, added = 1.0, 0.0
        for rate in self._rates(number):
            left = 1 - rate * self.constants.convexity
            kept, added = left * kept, left * added + rate**2 * self.constants.drift
        return kept, added

    def _own(self) -> float:
        """sum p_k^2 (sigma_k^2 + d Var): of the mean gradient of all clients."""
        c = self.constants
        return sum(p**2 * (s + c.noise) for p, s in zip(c.shares, c.sampling, strict=True))

    def _fixed_round(self, mean: float, variance: float) -> tuple[float, float]:
        """One step of 1/L, times a factor of this mean and variance."""
        c, rate = self.constants, self.rate(0)
        kept = max(abs(1 - mean * rate * c.convexity), abs(1 - mean * rate * c.smoothness))
        squares = sum(p**2 for p in c.shares)
        added = (mean**2 + variance) * self._own() + variance * squares * c.gradient
        return kept**2, rate**2 * added

    def recursion(self, start: float, rounds: int) -> Floats:
        """The bound on D after 0, ..., rounds of them."""
        bound = [start]
        for number in range(rounds):
            kept, added = self.round(number)
            bound.append(kept * bound[-1] + added)
        return np.array(bound)

    def thetas(self, start: float, rounds: int) -> Floats:
        """The bound on E |mean theta - w*|^2 in each of the rounds."""
        before = self.recursion(start, rounds)[:-1]
        return np.array([self.theta(float(d), number) for number, d in enumerate(before)])

    def rounds_to(self, target: float, start: float) -> float:
        """The round from which on the recursion stays at or below the target; infinite where it
        never does, or not within `MOST`.

        It may rise at first. Once it falls it goes on falling: b / (1 - a), to which a round leads,
        never grows from round to round.
        """
        if self.steps == "fixed":
            kept, added = self.round(0)
            if added / (1 - kept) > target:
                return math.inf
        bound, first = start, 0
        for number in range(MOST):
            kept, added = self.round(number)
            following = kept * bound + added
            if bound > target:
                first = number + 1
            elif following <= bound or self.steps == "fixed":
                return float(first)
            bound = following
        return math.inf


@dataclass(frozen=True, eq=False)
class CurveMeasured:
    """Many repetitions of one training along curves, by round."""

    bound: CurveBound
    printed: CurveBound
    """The same with (E|X|)^2 of one coordinate for d Var."""
    distances: Floats
    """E |mean w - w*|^2 [rounds + 1]."""
    spreads: Floats
    """Their standard errors."""
    thetas: Floats
    """E |mean theta - w*|^2 [rounds]."""
    theta_spreads: Floats
    steepest: float
    """The largest gradient of a single record on the way."""

    def above(self, bound: CurveBound, deviations: float = 4.0) -> int:
        """Rounds after which the distance exceeds a bound by that many standard errors."""
        allowed = bound.recursion(float(self.distances[0]), len(self.thetas))
        return int((self.distances > allowed + deviations * self.spreads).sum())

    def thetas_above(self, bound: CurveBound, deviations: float = 4.0) -> int:
        """The same for theta."""
        allowed = bound.thetas(float(self.distances[0]), len(self.thetas))
        return int((self.thetas > allowed + deviations * self.theta_spreads).sum())

    def rounds_to(self, target: float) -> int | None:
        """The round from which on the measured distance stays at or below the target."""
        return kept_from(self.distances, target)


def measure_curve(
    problem: Convex,
    *,
    constants: Named = "corrected",
    steps: Steps = "decreasing",
    noise: Mechanism | None = None,
    scale: float = 1.0,
    local_steps: int = 1,
    rate: float = 0.5,
    rounds: int = 1000,
    repetitions: int = 100,
    seed: int = 0,
) -> CurveMeasured:
    """Train from w = 0 along curves, `repetitions` times with fresh samples, noise and r.

    Args:
        problem: Clients and their records.
        constants: Of the control points.
        steps: "decreasing", as the theory wants them, or "fixed" at 1/L.
        noise: On every client's gradient; none if left out.
        scale: Times a draw of `noise` is added to every coordinate.
        local_steps: Steps of a round; 1 with fixed steps.
        rate: Probability in (0, 1] with which a record takes part in a step.
        rounds: In all.
        repetitions: Over which the squared distance is averaged.
        seed: Of samples, noise and r.

    Returns:
        The distances of w and theta to the optimum by round, and both bounds.

    Raises:
        InvalidInput: A number is out of range.

    Example:
        >>> from udpfl import Gaussian
        >>> from udpfl.analysis._curve_convergence import measure_curve
        >>> from udpfl.analysis.convex import Convex
        >>> problem = Convex.drawn("quadratic", clients=2, records=10, dimension=3)
        >>> found = measure_curve(problem, noise=Gaussian(0.1), rounds=20, repetitions=5)
        >>> found.above(found.bound)
        0
    """
    require_sizes(local_steps, rounds, repetitions, rate)
    _require_steps(steps, local_steps)
    walk, descent = Walk.of(constants), Descent(problem, noise, scale, rate, repetitions, seed)
    away, bends = _walked(
        walk, descent, _step_sizes(problem, steps, local_steps), rounds, local_steps
    )
    bound = CurveBound(walk, constants_of(descent, local_steps), steps)
    distances, spreads = np.array(away).T
    thetas, theta_spreads = np.array(bends).T
    return CurveMeasured(
        bound, bound.printed(descent.mean_abs**2), distances, spreads, thetas, theta_spreads,
        descent.largest.record,
    )  # fmt: skip


def _walked(
    walk: Walk, descent: Descent, size: Callable[[int], float], rounds: int, local_steps: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Distances of w and of theta to the optimum, with their spreads, round by round."""
    w = descent.start()
    away, bends = [descent.distance(w)], []
    for first in range(0, rounds * local_steps, local_steps):
        start = w
        for step in range(first, first + local_steps):
            w = descent.step(w, size(step))
        moved = w - start
        bends.append(descent.distance(start + walk.reach * moved))
        places = descent.rng.random((*w.shape[:2], 1))
        w = descent.averaged(start + walk.share(places) * moved)
        away.append(descent.distance(w))
    return away, bends


def _require_steps(steps: Steps, local_steps: int) -> None:
    if steps not in get_args(Steps):
        raise InvalidInput("steps", f"must be {' or '.join(get_args(Steps))}, got {steps!r}")
    if steps == "fixed" and local_steps > 1:
        raise InvalidInput("local_steps", "must be 1 with fixed steps: no bound is known otherwise")


def _step_sizes(problem: Convex, steps: Steps, local_steps: int) -> Callable[[int], float]:
    """The size of a step by its number, the first is 0."""
    if steps == "fixed":
        return lambda _: 1 / problem.smoothness
    offset = step_offset(problem.smoothness, problem.convexity, local_steps)
    return lambda step: step_size(problem.convexity, offset, step)
