"""How fast noisy federated averaging converges: the theory's recursion beside the measurement.

Every client takes local steps w_k <- w_k - eta_t (g_k + noise), g_k a Poisson-sampled gradient;
every E steps the weighted mean goes back to all. With Delta_t = E |mean w - w*|^2 and

    B = sum p_k^2 (sigma_k^2 + d Var) + 6 L Gamma + 8 (E - 1)^2 (G^2 + d Var)

    Delta_{t+1} <= (1 - eta_t mu) Delta_t + eta_t^2 B                          (the recursion)
    Delta_t <= max(4 B / mu^2, gamma Delta_0) / (gamma + t)                    (its solution)

for eta_t = 2 / (mu (gamma + t)), gamma = max(8 L / mu, E). Noise of variance Var per coordinate
adds d Var to both second moments, so the number of steps to a given distance is linear in Var. The
paper puts (E|X|)^2 of one coordinate there, which is smaller than the variance, and drops d. All of
this needs strong convexity: nothing is claimed for networks.

sigma_k and G are bounds along the way of the algorithm; here they are the largest values on the
measured way, averaged over repetitions. Clipping is not part of the theory: gradients here are not
clipped, and the largest record gradient is reported so that one can see what a clip would do.

References: Li et al. 2020, "On the convergence of FedAvg on non-IID data", Lemmas 1 to 3 and
Theorem 1 (all clients take part); the UDP-FL paper, Theorem "mode2dp" and its proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from udpfl.analysis._descent import Descent, require_sizes
from udpfl.analysis.convex import Convex
from udpfl.mechanisms import Mechanism
from udpfl.mechanisms.arrays import Floats


@dataclass(frozen=True)
class Constants:
    """What the bound is made of."""

    smoothness: float
    convexity: float
    heterogeneity: float
    sampling: tuple[float, ...]
    """sigma_k^2 of every client, without the noise."""
    gradient: float
    """G^2, without the noise."""
    noise: float
    """d Var of one client's gradient."""
    shares: tuple[float, ...]
    local_steps: int

    @property
    def drift(self) -> float:
        """B: what each step adds, times eta_t^2."""
        own = sum(p**2 * (s + self.noise) for p, s in zip(self.shares, self.sampling, strict=True))
        apart = 8 * (self.local_steps - 1) ** 2 * (self.gradient + self.noise)
        return own + 6 * self.smoothness * self.heterogeneity + apart

    @property
    def offset(self) -> float:
        """gamma of the step sizes."""
        return step_offset(self.smoothness, self.convexity, self.local_steps)

    def rate(self, step: int) -> float:
        """eta_t."""
        return step_size(self.convexity, self.offset, step)

    def recursion(self, start: float, steps: int) -> Floats:
        """The bound on Delta_0, ..., Delta_steps, step by step from Delta_0."""
        bound = [start]
        for t in range(steps):
            eta = self.rate(t)
            bound.append((1 - eta * self.convexity) * bound[-1] + eta**2 * self.drift)
        return np.array(bound)

    def solution(self, start: float, steps: int) -> Floats:
        """The closed form of the same bound."""
        most = max(4 * self.drift / self.convexity**2, self.offset * start)
        return most / (self.offset + np.arange(steps + 1, dtype=np.float64))

    def steps_to(self, target: float, start: float) -> float:
        """After so many steps the closed form, its maximum relaxed to a sum, is at the target.

        4 B / (mu^2 target) + gamma (start / target - 1): a straight line in the noise variance.
        """
        most = 4 * self.drift / self.convexity**2 + self.offset * start
        return max(0.0, most / target - self.offset)


def step_offset(smoothness: float, convexity: float, local_steps: int) -> float:
    """gamma = max(8 L / mu, E)."""
    return max(8 * smoothness / convexity, float(local_steps))


def step_size(convexity: float, offset: float, step: int) -> float:
    """eta_t = 2 / (mu (gamma + t))."""
    return 2 / (convexity * (offset + step))


@dataclass(frozen=True, eq=False)
class Measured:
    """Many repetitions of one training: E |mean w - w*|^2 by step, and what it took."""

    constants: Constants
    distances: Floats
    """[steps + 1]"""
    spreads: Floats
    """Their standard errors."""
    steepest: float
    """The largest gradient of a single record on the way."""

    @property
    def bound(self) -> Floats:
        """The recursion from the measured start."""
        return self.constants.recursion(float(self.distances[0]), len(self.distances) - 1)

    def violations(self, deviations: float = 4.0) -> int:
        """Steps after which the distance exceeds the recursion by that many standard errors.

        Every step is checked by itself, from the measured distance before it.
        """
        c, d = self.constants, self.distances
        eta = np.array([c.rate(t) for t in range(len(d) - 1)])
        allowed = (1 - eta * c.convexity) * d[:-1] + eta**2 * c.drift
        slack = deviations * np.hypot(self.spreads[1:], self.spreads[:-1])
        return int((d[1:] > allowed + slack).sum())

    def steps_to(self, target: float) -> int | None:
        """The step from which on the measured distance stays at or below the target."""
        return kept_from(self.distances, target)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a hundred steps at most."""
        last = len(self.distances) - 1
        shown = sorted({round(i * last / 99) for i in range(100)})
        solution = self.constants.solution(float(self.distances[0]), last)
        return {
            "constants": asdict(self.constants) | {"B": self.constants.drift},
            "largest_record_gradient": self.steepest,
            "violations": self.violations(),
            "steps": shown,
            "measured": [float(self.distances[t]) for t in shown],
            "recursion": [float(self.bound[t]) for t in shown],
            "solution": [float(solution[t]) for t in shown],
        }


def measure(
    problem: Convex,
    *,
    noise: Mechanism | None = None,
    scale: float = 1.0,
    local_steps: int = 1,
    rate: float = 0.5,
    steps: int = 1000,
    repetitions: int = 100,
    seed: int = 0,
) -> Measured:
    """Train from w = 0, `repetitions` times with fresh samples and noise.

    Args:
        problem: A convex problem with its clients and their records.
        noise: On every client's gradient; none if left out.
        scale: Times a draw of `noise` is added to every coordinate.
        local_steps: Steps between two averages.
        rate: Probability in (0, 1] with which a record takes part in a step.
        steps: In all.
        repetitions: Over which the squared distance is averaged.
        seed: Of samples and noise.

    Returns:
        The distance to the optimum by step, and what its bound is made of.

    Raises:
        InvalidInput: A number is out of range.

    Example:
        >>> from udpfl import Gaussian
        >>> from udpfl.analysis._convergence import measure
        >>> from udpfl.analysis.convex import Convex
        >>> problem = Convex.drawn("quadratic", clients=2, records=10, dimension=3)
        >>> found = measure(problem, noise=Gaussian(0.1), steps=20, repetitions=5)
        >>> len(found.distances)
        21
    """
    require_sizes(local_steps, steps, repetitions, rate)
    descent = Descent(problem, noise, scale, rate, repetitions, seed)
    mu = problem.convexity
    offset = step_offset(problem.smoothness, mu, local_steps)
    w = descent.start()
    distances, spreads = np.empty(steps + 1), np.empty(steps + 1)
    distances[0], spreads[0] = descent.distance(w)
    for t in range(steps):
        w = descent.step(w, step_size(mu, offset, t))
        if (t + 1) % local_steps == 0:
            w = descent.averaged(w)
        distances[t + 1], spreads[t + 1] = descent.distance(w)
    constants = constants_of(descent, local_steps)
    return Measured(constants, distances, spreads, descent.largest.record)


def constants_of(descent: Descent, local_steps: int) -> Constants:
    """What a bound is made of, as far as the steps so far have shown."""
    problem, largest = descent.problem, descent.largest
    return Constants(
        smoothness=problem.smoothness,
        convexity=problem.convexity,
        heterogeneity=problem.heterogeneity(),
        sampling=tuple(float(s) for s in largest.sampling),
        gradient=largest.gradient,
        noise=problem.dimension * descent.variance,
        shares=tuple(float(p) for p in problem.shares),
        local_steps=local_steps,
    )


def kept_from(values: Floats, target: float) -> int | None:
    """The first place from which on no value is above the target; None if the last one is."""
    last = int(np.flatnonzero(np.append(True, values > target))[-1])
    return last if last < len(values) else None


def line_fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Slope, intercept and R^2 of the least-squares line."""
    slope, intercept = np.polyfit(x, y, 1)
    left = np.asarray(y) - (slope * np.asarray(x) + intercept)
    spread = float(((np.asarray(y) - np.mean(y)) ** 2).sum())
    return float(slope), float(intercept), 1 - float((left**2).sum()) / spread if spread else 1.0
