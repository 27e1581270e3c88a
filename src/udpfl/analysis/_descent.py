"""Noisy gradient steps of many clients on a convex problem, and the largest values on their way."""

from __future__ import annotations

import numpy as np

from udpfl.analysis.convex import Convex
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Mechanism
from udpfl.mechanisms.arrays import Floats


class Descent:
    """Noisy steps of all clients, in many repetitions at once: w is [repetitions, clients, d].

    Args:
        problem: A convex problem with its clients and their records.
        noise: On every client's gradient; None for none.
        scale: Times a draw of `noise` is added to every coordinate.
        rate: Probability with which a record takes part in a step.
        repetitions: Trainings side by side.
        seed: Of samples and noise.
    """

    def __init__(
        self,
        problem: Convex,
        noise: Mechanism | None,
        scale: float,
        rate: float,
        repetitions: int,
        seed: int,
    ) -> None:
        self.problem, self.rate, self.repetitions = problem, rate, repetitions
        self.noise, self.scale = noise, scale
        self.rng = np.random.default_rng([*b"measure", seed])
        self.largest = _Largest(problem, rate)
        self._best = problem.optimum()

    @property
    def variance(self) -> float:
        """Of the noise in one coordinate of one client's gradient."""
        return 0.0 if self.noise is None else self.scale**2 * self.noise.variance

    @property
    def mean_abs(self) -> float:
        """E|X| of the same noise."""
        return 0.0 if self.noise is None else self.scale * self.noise.mean_abs

    def start(self) -> Floats:
        """w = 0."""
        return np.zeros((self.repetitions, *self.problem.x.shape[::2]))

    def step(self, w: Floats, rate: float) -> Floats:
        """One step of every client along its noisy gradient."""
        r = self.problem.residuals(w)
        self.largest.update(w, r)
        drawn = self.rng.random(r.shape, np.float32) < self.rate
        g = self.problem.gradients(w, r * drawn / self.rate)
        if self.noise is not None:
            g += self.scale * self.noise.sample(w.shape, self.rng)
        return w - rate * g

    def averaged(self, w: Floats) -> Floats:
        """The weighted mean, given back to all clients."""
        return np.broadcast_to(self._mean(w)[:, None], w.shape)

    def _mean(self, w: Floats) -> Floats:
        found: Floats = np.einsum("k,rkd->rd", self.problem.shares, w)
        return found

    def distance(self, w: Floats) -> tuple[float, float]:
        """The mean squared distance of the average model to w*, and its standard error."""
        away = ((self._mean(w) - self._best) ** 2).sum(1)
        return float(away.mean()), float(away.std(ddof=1) / np.sqrt(len(w)))


class _Largest:
    """The largest values on the way of a training."""

    def __init__(self, problem: Convex, rate: float) -> None:
        self._problem, self._rate = problem, rate
        self._lengths = np.sqrt((problem.x**2).sum(2))
        self.sampling: Floats = np.zeros(len(problem.x))
        """sigma_k^2 of every client, the mean over repetitions."""
        self.gradient = 0.0
        """G^2, the mean over repetitions."""
        self.record = 0.0
        """The gradient of a single record."""

    def update(self, w: Floats, residuals: Floats) -> None:
        """Take in the values before a step, at parameters w [repetitions, clients, d]."""
        variance = self._problem.sampling_variance(residuals, self._rate).mean(0)
        self.sampling = np.maximum(self.sampling, variance)
        squares = (self._problem.gradients(w, residuals) ** 2).sum(2).mean(0) + variance
        self.gradient = max(self.gradient, float(squares.max()))
        self.record = max(self.record, float((np.abs(residuals) * self._lengths).max()))


def require_sizes(local_steps: int, steps: int, repetitions: int, rate: float) -> None:
    """Raise where a number of a measurement is out of range."""
    for name, value in (("local_steps", local_steps), ("steps", steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInput(name, f"must be a whole number from 1, got {value!r}")
    if repetitions < 2:
        raise InvalidInput("repetitions", f"must be at least 2, got {repetitions!r}")
    if not 0 < rate <= 1:
        raise InvalidInput("sampling_rate", f"must be in (0, 1], got {rate!r}")
