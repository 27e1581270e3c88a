"""What an audit would have caught: the same audit, calculated, of noise that is too small.

The distribution of an adversary's score is added up coordinate by coordinate and step by step on a
grid. From it counts are drawn, as many as the audit had trials, and judged by the audit's own
tests. The adversary keeps the score that fits the noise it was told of.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import optimize

from udpfl.audit.tally import Counts, Tally, judged
from udpfl.audit.verdict import POWER, finite
from udpfl.audit.worlds import by_chance
from udpfl.mechanisms import Mechanism
from udpfl.mechanisms.arrays import Floats

SIMULATED = 300
"""Audits that all have to refute: then the power is 99 %, with 95 % confidence (0.99^300 < 5 %)."""
_CELLS = 1 << 15
_LEVELS = 256
"""Different sizes of a canary's coordinates that are told apart."""
_FARTHEST = 700.0
_FACTORS = np.arange(1, 101) / 100


@dataclass(frozen=True)
class Spread:
    """The distribution of a score: values, ascending, and their probabilities."""

    values: Floats
    masses: Floats

    def mirrored(self) -> Spread:
        """Of the score with the other sign."""
        return Spread(-self.values[::-1], self.masses[::-1])

    def mixed(self, other: Spread, share: float) -> Spread:
        """This one, or by chance the other."""
        values = np.concatenate([self.values, other.values])
        masses = np.concatenate([(1 - share) * self.masses, share * other.masses])
        order = np.argsort(values, kind="stable")
        return Spread(values[order], masses[order])

    def quantiles(self, levels: Floats) -> Floats:
        """The values where these probabilities are reached, counted from below."""
        reached = np.cumsum(self.masses)
        at = np.searchsorted(reached, levels * reached[-1])
        found: Floats = self.values[np.minimum(at, len(self.values) - 1)]
        return found

    def counted(self, edges: Floats) -> Floats:
        """Probabilities of the cells that begin at these edges; the first reaches down for ever."""
        cells = np.maximum(np.searchsorted(edges, self.values, side="right") - 1, 0)
        found: Floats = np.bincount(cells, self.masses, minlength=len(edges)).astype(float)
        found /= found.sum()
        return found


def added(parts: Sequence[tuple[Spread, int]]) -> Spread:
    """The sum of independent scores, each kind as many times as said, by Fourier transform."""
    mean = variance = 0.0
    for spread, times in parts:
        own = float(spread.masses @ spread.values)
        mean += times * own
        variance += times * float(spread.masses @ (spread.values - own) ** 2)
    widest = max(float(np.ptp(spread.values)) for spread, _ in parts)
    width = max(24 * math.sqrt(variance) + 2 * widest, 1e-9) / _CELLS
    product = np.ones(_CELLS // 2 + 1, dtype=complex)
    for spread, times in parts:
        # A value between two cells is shared between them, so that the mean stays.
        below = np.floor(spread.values / width)
        upper = spread.values / width - below
        masses = np.zeros(_CELLS)
        for cells, share in ((below, 1 - upper), (below + 1, upper)):
            np.add.at(masses, cells.astype(np.int64) % _CELLS, share * spread.masses)
        product *= np.fft.rfft(masses) ** times
    masses = np.asarray(np.fft.irfft(product, _CELLS), dtype=np.float64)
    masses[masses < 1e-15] = 0.0  # what the transform leaves behind
    first = round(mean / width) - _CELLS // 2
    cells = first + np.arange(_CELLS)
    values = (cells * width).astype(np.float64)
    return Spread(values, masses[cells % _CELLS])


@dataclass(frozen=True)
class LessNoise:
    """The most noise that is still caught, as a part of the claimed one, and what it is worth."""

    scale: float | None
    """None where not even a hundredth of the noise would have been caught."""
    epsilon: float | None
    """What the record's presence costs with that noise."""

    def __str__(self) -> str:
        if self.scale is None or self.epsilon is None:
            return "too few trials to catch any violation of this claim; take more"
        often = f"at least {100 * POWER:g} % of the time"
        if self.scale == 1:
            return f"the claimed noise itself is refuted {often}"
        return (
            f"{self.scale:g} times the claimed noise (ε = {self.epsilon:.3g}) or less would have "
            f"been refuted {often}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return finite(asdict(self))


@dataclass(frozen=True)
class TooLittleNoise:
    """The alternative that an audit of two worlds is held against: part of the claimed noise."""

    mechanism: Mechanism
    shift: Floats
    """What the record adds."""
    rate: float
    steps: int
    trials: int
    error: float
    """What the tests of this score may go wrong."""

    def caught(self, epsilon: float, delta: float) -> LessNoise:
        """The most noise, as a part of the claimed one, that would have been refuted."""

        def escapes(factor: float) -> bool:
            return not self.always_refuted(factor, epsilon, delta)

        if not escapes(1.0):
            return LessNoise(1.0, self.epsilon(1.0, delta))
        factors = _FACTORS
        while found := bisect_left(factors, True, key=escapes):  # the first that escapes
            # Less noise is caught more surely, unless its steps lie where nobody looks for them.
            lower = [found * part // 4 for part in (1, 2, 3)]
            missed = next((at for at in lower if escapes(factors[at])), None)
            if missed is None:
                factor = float(factors[found - 1])
                return LessNoise(factor, self.epsilon(factor, delta))
            factors = factors[:missed]
        return LessNoise(None, None)

    def always_refuted(self, factor: float, epsilon: float, delta: float) -> bool:
        """Whether every one of the simulated audits refutes the claim."""
        there, away = self.scores(factor)
        return refuted_always(
            there, away, self.trials, epsilon, delta, self.error, both=self.rate < 1
        )

    def scores(self, factor: float, *, knowing: bool = False) -> tuple[Spread, Spread]:
        """The score with the record and without it, where only part of the noise is added.

        `knowing` scores by the noise that is really there.
        """
        real = self.mechanism.scaled(factor)
        scored = real if knowing else self.mechanism
        noise, masses = _quantiles(real)
        parts = []
        for size, times in self._sizes:
            ratio = scored.log_density(noise - size) - scored.log_density(noise)
            ratio = np.clip(np.nan_to_num(ratio), -_FARTHEST, _FARTHEST)
            order = np.argsort(ratio, kind="stable")
            parts.append((Spread(ratio[order], masses[order]), times))
        away = added(parts)
        there = away.mirrored()  # the noise is symmetric
        if self.rate < 1:
            there = away.mixed(there, self.rate)
            away, there = (Spread(by_chance(s.values, self.rate), s.masses) for s in (away, there))
        if self.steps > 1:
            away, there = (added([(spread, self.steps)]) for spread in (away, there))
        return there, away

    def epsilon(self, factor: float, delta: float) -> float:
        """What this record's presence costs at `delta`, with part of the noise."""
        if delta == 0:
            sizes = np.abs(self.shift[self.shift != 0])
            real = self.mechanism.scaled(factor)
            one = float(np.minimum(real.renyi(np.inf, sizes), 1e300).sum())
            if math.isinf(one) or one >= 1e300:
                return math.inf
            return self.steps * float(np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + one)
                                      if self.rate < 1 else one)  # fmt: skip
        there, away = self.scores(factor, knowing=True)

        def excess(spread: Spread, sign: int, epsilon: float) -> float:
            left = -np.expm1(np.minimum(0.0, epsilon - sign * spread.values))
            return float(spread.masses @ left) - delta

        def worst(epsilon: float) -> float:
            return max(excess(there, 1, epsilon), excess(away, -1, epsilon))

        if worst(0.0) <= 0:
            return 0.0
        high = 1.0
        while worst(high) > 0:
            high *= 2
        return float(optimize.brentq(worst, 0.0, high, xtol=1e-4))

    @cached_property
    def _sizes(self) -> list[tuple[float, int]]:
        """How large the canary's coordinates are, and how many of each size there are."""
        sizes, times = np.unique(np.abs(self.shift[self.shift != 0]), return_counts=True)
        if len(sizes) <= _LEVELS:
            return list(zip(sizes.tolist(), times.tolist(), strict=True))
        squares = np.cumsum(times * sizes**2)
        level = np.minimum((squares / squares[-1] * _LEVELS).astype(int), _LEVELS - 1)
        counts = np.bincount(level, times)
        totals = np.bincount(level, times * sizes**2)
        return [
            (math.sqrt(total / count), int(count))
            for total, count in zip(totals, counts, strict=True)
            if count
        ]


def refuted_always(
    there: Spread,
    away: Spread,
    trials: int,
    epsilon: float,
    delta: float,
    error: float,
    *,
    both: bool = False,
) -> bool:
    """Whether each of `SIMULATED` audits of such scores refutes the claim."""
    levels = 1 / (1 + np.exp(-np.linspace(-25, 25, 301)))
    marks = [spread.quantiles(levels) for spread in (there, away)]
    fixed = [np.nextafter(s * (epsilon + 1e-6), s * np.inf) for s in (1, -1)]
    edges = np.unique(np.concatenate([*marks, fixed]))
    worlds = [spread.counted(edges) for spread in (there, away)]
    rng = np.random.default_rng(0)
    half = trials // 2

    def drawn(masses: Floats) -> Counts:
        return np.stack([rng.multinomial(count, masses) for count in (half, trials - half)])

    for _ in range(SIMULATED):
        tests = judged(Tally(edges, *map(drawn, worlds)), epsilon, delta, error, both=both)
        if max(test.proved for test in tests) <= epsilon:
            return False
    return True


def _quantiles(mechanism: Mechanism) -> tuple[Floats, Floats]:
    """Values of the noise, both signs, and their probabilities, far into the tails."""
    tails = np.concatenate([np.linspace(1, 2**-12, 1 << 12), np.geomspace(2**-12, 1e-18, 500)[1:]])
    middle = np.sqrt(tails[:-1] * tails[1:])
    size, mass = np.asarray(mechanism.magnitude(middle)), (tails[:-1] - tails[1:]) / 2
    return np.concatenate([-size, size]), np.concatenate([mass, mass]) / (2 * mass.sum())
