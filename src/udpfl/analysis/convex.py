"""Federated problems whose constants can be computed: ridge and logistic regression.

F_k(w) = mean over client k's records of l(x w, y) + ridge/2 |w|^2, and F = sum p_k F_k. Both are
strongly convex and smooth, so the theory of `convergence.py` applies, and the optima are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.special import expit

from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats

Problem = Literal["quadratic", "logistic"]


@dataclass(frozen=True, eq=False)
class Convex:
    """K clients with n records of d features each; every record has length 1 at most."""

    kind: Problem
    x: Floats
    """[K, n, d]"""
    y: Floats
    """[K, n]: values, or labels 0 and 1."""
    ridge: float
    shares: Floats
    """[K], p_k: they add up to one."""

    @classmethod
    def drawn(
        cls,
        kind: Problem,
        *,
        clients: int = 5,
        records: int = 100,
        dimension: int = 10,
        ridge: float = 0.1,
        seed: int = 0,
    ) -> Convex:
        """Clients that differ: features around a centre and labels by a rule of their own."""
        if kind not in get_args(Problem):
            raise InvalidInput("problem", f"must be {' or '.join(get_args(Problem))}, got {kind!r}")
        counts = {"clients": clients, "records": records, "dimension": dimension}
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(name, f"must be a whole number from 1, got {value!r}")
        rng = np.random.default_rng([*b"convex", seed])
        centres = 0.5 * rng.normal(size=(clients, 1, dimension))
        x = rng.normal(size=(clients, records, dimension)) + centres
        x /= np.linalg.norm(x, axis=2).max()
        rules = rng.normal(size=dimension) + 0.5 * rng.normal(size=(clients, dimension))
        z = np.einsum("knd,kd->kn", x, rules)
        noise = rng.normal(size=z.shape)
        y = z + 0.1 * noise if kind == "quadratic" else (z + 0.3 * noise > 0).astype(float)
        shares = np.full(clients, 1 / clients)
        return cls(kind, x, y, ridge, shares)

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return int(self.x.shape[2])

    def margins(self, w: Floats) -> Floats:
        """x w of every record [..., K, n] at w [..., K, d]."""
        clients, records, dimension = self.x.shape
        rows = np.moveaxis(w, -2, 0).reshape(clients, -1, dimension)
        z = (rows @ self.x.transpose(0, 2, 1)).reshape(clients, *w.shape[:-2], records)
        found: Floats = np.moveaxis(z, 0, -2)
        return found

    def residuals(self, w: Floats) -> Floats:
        """dl/dz of every record [..., K, n] at w [..., K, d]."""
        z = self.margins(w)
        found: Floats = (z if self.kind == "quadratic" else expit(z)) - self.y
        return found

    def gradients(self, w: Floats, residuals: Floats | None = None) -> Floats:
        """grad F_k [..., K, d] at w [..., K, d]; residuals times a sample give a sampled one."""
        r = self.residuals(w) if residuals is None else residuals
        clients, records, _ = self.x.shape
        rows = np.moveaxis(r, -2, 0).reshape(clients, -1, records)
        sums = np.moveaxis((rows @ self.x).reshape(clients, *w.shape[:-2], w.shape[-1]), 0, -2)
        found: Floats = sums / records + self.ridge * w
        return found

    def values(self, w: Floats) -> Floats:
        """F_k [..., K] at w [..., K, d]."""
        z = np.einsum("knd,...kd->...kn", self.x, w)
        loss = (
            (z - self.y) ** 2 / 2 if self.kind == "quadratic" else np.logaddexp(0, z) - self.y * z
        )
        regular: Floats = loss.mean(-1) + self.ridge / 2 * (w**2).sum(-1)
        return regular

    def sampling_variance(self, residuals: Floats, rate: float) -> Floats:
        """E |sampled gradient - grad F_k|^2 [..., K] where each record is drawn at `rate`.

        The sum over a Poisson sample divided by rate * n, as in a release: (1 - q) / (q n^2) times
        the sum of squared record gradients, exactly.
        """
        squares = (residuals**2 * (self.x**2).sum(2)).sum(-1)
        found: Floats = (1 - rate) / (rate * self.x.shape[1] ** 2) * squares
        return found

    @property
    def smoothness(self) -> float:
        """L: no F_k curves more."""
        return max(self._eigenvalues(k)[-1] for k in range(len(self.x)))

    @property
    def convexity(self) -> float:
        """mu: no F_k curves less. Logistic loss is flat far out: the ridge alone."""
        if self.kind == "logistic":
            return self.ridge
        return min(self._eigenvalues(k)[0] for k in range(len(self.x)))

    def _eigenvalues(self, k: int) -> list[float]:
        most = 1.0 if self.kind == "quadratic" else 0.25  # the second derivative of l
        hessian = most * self.x[k].T @ self.x[k] / self.x.shape[1]
        return [float(e) + self.ridge for e in np.linalg.eigvalsh(hessian)]

    def optimum(self, client: int | None = None) -> Floats:
        """argmin of F [d], or of one client's F_k, by Newton's method."""
        shares = self.shares if client is None else np.eye(len(self.x))[client]
        w = np.zeros(self.dimension)
        for _ in range(100):
            everywhere = np.broadcast_to(w, (len(self.x), self.dimension))
            slope = shares @ self.gradients(everywhere)
            if np.linalg.norm(slope) < 1e-12:
                break
            w = w - np.linalg.solve(self._hessian(everywhere, shares), slope)
        return w

    def _hessian(self, w: Floats, shares: Floats) -> Floats:
        curve = np.ones(self.y.shape)
        if self.kind == "logistic":
            s = self.residuals(w) + self.y
            curve = s * (1 - s)
        weights = shares[:, None] * curve / self.x.shape[1]
        mean: Floats = np.einsum("kn,knd,kne->de", weights, self.x, self.x)
        return mean + self.ridge * np.eye(self.dimension)

    def heterogeneity(self) -> float:
        """Gamma = F* - sum p_k F_k*: zero where all clients want the same model."""
        clients = range(len(self.x))
        best = np.broadcast_to(self.optimum(), (len(self.x), self.dimension))
        own = np.stack([self.optimum(k) for k in clients])
        return float(self.shares @ self.values(best) - self.shares @ self.values(own))
