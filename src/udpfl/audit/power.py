"""What an audit would have caught: the same audit, calculated, of noise that is too small.

The distribution of an adversary's score is added up coordinate by coordinate and step by step on a
grid. From it counts are drawn, as many as the audit had trials, and judged by the audit's own
tests. The adversary keeps the score that fits the noise it was told of. Coordinates of noise that
belongs to a whole vector cannot be added up one by one: some thousand vectors are drawn instead.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from udpfl.audit._bounds import least_epsilon
from udpfl.audit._tally import Counts, Tally, judged
from udpfl.audit.verdict import POWER, finite
from udpfl.audit.worlds import by_chance, likelihood_ratio
from udpfl.mechanisms import Mechanism, Radial
from udpfl.mechanisms.arrays import Floats

SIMULATED = 300
"""Audits that all have to refute: then the power is 99 %, with 95 % confidence (0.99^300 < 5 %)."""
_CELLS = 1 << 15
_FEW_CELLS = 1 << 10
"""Where two distributions have to be multiplied out."""
_LEVELS = 100
"""Different sizes of a canary's coordinates that are told apart, over a range of a million."""
_FARTHEST = 700.0
"""Scores beyond this are not told apart."""
LEAST_FACTOR = 0.001
"""The smallest part of the claimed noise that is tried."""
_FACTORS = (LEAST_FACTOR, 0.01, 0.03, 0.06, *(k / 20 for k in range(2, 21)))
"""Parts of the claimed noise that are tried, before the largest that is caught is narrowed down."""
_DRAWN = 1 << 22
"""Numbers of a sample of vectors, or so."""
_MOST_JUMPS = 5_000
"""Jumps of a density between which the score is looked at one by one."""


@dataclass(frozen=True)
class Spread:
    """The distribution of a score: values and their probabilities."""

    values: Floats
    masses: Floats

    def mirrored(self) -> Spread:
        """Of the score with the other sign."""
        return Spread(-self.values[::-1], self.masses[::-1])

    def trimmed(self) -> Spread:
        """Without values that never come up."""
        kept = self.masses > 1e-16
        return Spread(self.values[kept], self.masses[kept])

    def on_cells(self) -> Spread:
        """On a few cells; a value between two of them is shared, so that the mean stays."""
        kept = self.trimmed()
        cells = np.linspace(kept.values.min(), kept.values.max() + 1e-9, _FEW_CELLS)
        place = (kept.values - cells[0]) / (cells[1] - cells[0])
        below = np.minimum(place.astype(np.int64), _FEW_CELLS - 2)
        upper = kept.masses * (place - below)
        masses: Floats = np.bincount(below, kept.masses - upper, _FEW_CELLS).astype(float)
        masses += np.bincount(below + 1, upper, _FEW_CELLS)
        return Spread(cells, masses)

    def held_back(self, claim: float) -> Spread:
        """With values that are a few cells beyond the claim, on either side, moved to it."""
        near = claim + 3 * float(np.median(np.diff(self.values)))
        size = np.abs(self.values)
        moved = np.where((size > claim) & (size < near), np.sign(self.values) * claim, self.values)
        return Spread(moved, self.masses)

    def mixed(self, other: Spread, share: float) -> Spread:
        """This one, or by chance the other."""
        values = np.concatenate([self.values, other.values])
        masses = np.concatenate([(1 - share) * self.masses, share * other.masses])
        order = np.argsort(values, kind="stable")
        return Spread(values[order], masses[order])

    def quantiles(self, levels: Floats) -> Floats:
        """The values, if ascending, where these probabilities are reached, counted from below."""
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
    parts = [(spread.trimmed(), times) for spread, times in parts]
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
            masses += np.bincount(
                cells.astype(np.int64) % _CELLS, share * spread.masses, minlength=_CELLS
            )
        product *= np.fft.rfft(masses) ** times
    masses = np.asarray(np.fft.irfft(product, _CELLS), dtype=np.float64)
    masses[masses < 1e-15] = 0.0  # what the transform leaves behind
    first = round(mean / width) - _CELLS // 2
    cells = first + np.arange(_CELLS)
    values = (cells * width).astype(np.float64)
    return Spread(values, masses[cells % _CELLS])


def log_mean(parts: Sequence[Spread]) -> Spread:
    """The score of one of these, nobody knows which: the logarithm of the mean of e^score."""
    total = parts[0].on_cells()
    for part in parts[1:]:
        own = part.on_cells()
        values = np.logaddexp.outer(total.values, own.values).ravel()
        total = Spread(values, np.outer(total.masses, own.masses).ravel()).on_cells()
    return Spread(total.values - math.log(len(parts)), total.masses)


@dataclass(frozen=True)
class LessNoise:
    """The most noise that is still caught, as a part of the claimed one, and what it is worth."""

    scale: float | None
    """None where no part of the noise would have been caught."""
    lowest: float | None
    """Less than this is caught no more: where noise has steps, nobody looks for them there."""
    epsilon: float | None
    """What this record's presence costs with that noise."""

    def __str__(self) -> str:
        often = f"{100 * POWER:g} % of the time"
        if self.scale is None or self.lowest is None or self.epsilon is None:
            return (
                "with this number of trials and this canary no fraction of the claimed noise would "
                f"have been refuted {often}"
            )
        if self.scale == 1:
            return f"the claimed noise itself is refuted at least {often}"
        worth = f"(ε = {self.epsilon:.3g} for this record)"
        if self.lowest > LEAST_FACTOR:
            return (
                f"{self.lowest:g} to {self.scale:g} times the claimed noise {worth} would have "
                f"been refuted at least {often}; less than that might not"
            )
        return (
            f"{self.scale:g} times the claimed noise {worth} or less would have been refuted at "
            f"least {often}"
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
    samples: int
    """How many are drawn in one trial, each at the rate."""
    trials: int
    error: float
    """What the tests of this score may go wrong."""
    batches: int = 1
    """Of a sample; the record is in one of them, and nobody knows in which."""
    epochs: int = 1
    """Releases of a batch."""
    _known: dict[tuple[float, bool], tuple[Spread, Spread]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def caught(self, epsilon: float, delta: float) -> LessNoise:
        """The most noise, as a part of the claimed one, that would have been refuted."""
        nothing = LessNoise(None, None, None)
        if not self.shift.any():
            return nothing
        last = len(_FACTORS) - 1
        top = last
        while not self.always_refuted(_FACTORS[top], epsilon, delta):
            top -= 1
            if top < 0:
                return nothing
        scale = _FACTORS[top]
        if top < last:  # narrow it down, and ask once more with other luck
            finer = [k / 100 for k in range(int(100 * scale) + 1, round(100 * _FACTORS[top + 1]))]
            found = bisect_left(
                finer, True, key=lambda f: not self.always_refuted(f, epsilon, delta)
            )
            finer = [scale, *finer[:found]]
            scale = next(
                (f for f in finer[::-1] if self.always_refuted(f, epsilon, delta, again=True)),
                scale,
            )
        lowest = top
        while lowest > 0 and self._still_caught(lowest - 1, epsilon, delta):
            lowest -= 1
        return LessNoise(scale, _FACTORS[lowest], self.epsilon(scale, delta))

    def _still_caught(self, number: int, epsilon: float, delta: float) -> bool:
        # A score that grows along the shift tells less noise apart the better.
        if self.mechanism.is_log_concave:
            return True
        return self.always_refuted(_FACTORS[number], epsilon, delta)

    def always_refuted(
        self, factor: float, epsilon: float, delta: float, *, again: bool = False
    ) -> bool:
        """Whether every one of the simulated audits refutes the claim."""
        there, away = self.scores(factor)
        return refuted_always(
            there, away, self.trials, epsilon, delta, self.error, both=self.rate < 1, seed=again
        )

    def scores(self, factor: float, *, knowing: bool = False) -> tuple[Spread, Spread]:
        """The score with the record and without it, where only part of the noise is added.

        `knowing` scores by the noise that is really there.
        """
        if (known := self._known.get((factor, knowing))) is not None:
            return known
        real = self.mechanism.scaled(factor)
        scored = real if knowing else self.mechanism
        away = self._away(real, scored)
        if self.epochs > 1:
            away = added([(away, self.epochs)])
        there = away.mirrored()  # the noise is symmetric
        if self.batches > 1:
            others = [away] * (self.batches - 1)
            there, away = log_mean([there, *others]), log_mean([away, *others])
        if self.rate < 1:
            there = away.mixed(there, self.rate)
            away, there = (Spread(by_chance(s.values, self.rate), s.masses) for s in (away, there))
        if self.samples > 1:
            away, there = (added([(spread, self.samples)]) for spread in (away, there))
        self._known[factor, knowing] = there, away
        return there, away

    def _away(self, real: Mechanism, scored: Mechanism) -> Spread:
        """The score of one release without the record."""
        if isinstance(real, Radial):
            return added([(_drawn(real, scored, self.shift), 1)])
        parts = []
        for size, times in self._sizes:
            noise, masses = _pieces(real, scored, size)
            ratio = scored.log_density(noise - size) - scored.log_density(noise)
            ratio = np.clip(np.nan_to_num(ratio), -_FARTHEST, _FARTHEST)
            parts.append((Spread(ratio, masses), times))
        return added(parts)

    def epsilon(self, factor: float, delta: float) -> float:
        """What this record's presence costs at `delta`, with part of the noise."""
        if delta == 0:
            sizes = np.abs(self.shift[self.shift != 0])
            if isinstance(self.mechanism, Radial):  # all that it moves counts together
                sizes = sizes.sum(keepdims=True)
            one = self.epochs * self.mechanism.scaled(factor).renyi(np.inf, sizes).sum()
            return self.samples * float(by_chance(one, self.rate))
        there, away = self.scores(factor, knowing=True)

        def excess(spread: Spread, sign: int, epsilon: float) -> float:
            left = -np.expm1(np.minimum(0.0, epsilon - sign * spread.values))
            return float(spread.masses @ left) - delta

        def worst(epsilon: float) -> float:
            return max(excess(there, 1, epsilon), excess(away, -1, epsilon))

        # Beyond half of what scores reach, nobody would ask for the digits.
        return least_epsilon(worst, most=_FARTHEST / 2, digits=1e-4)

    @cached_property
    def _sizes(self) -> list[tuple[float, int]]:
        """How large the canary's coordinates are, and how many of each size there are."""
        if self.mechanism.is_isotropic:  # looks the same in all directions
            return [(float(np.linalg.norm(self.shift)), 1)]
        sizes, times = np.unique(np.abs(self.shift[self.shift != 0]), return_counts=True)
        if len(sizes) <= _LEVELS:
            return list(zip(sizes.tolist(), times.tolist(), strict=True))
        step = math.log(1e6) / (_LEVELS - 1)
        level = np.minimum(np.log(sizes[-1] / sizes) / step, _LEVELS - 1).astype(int)
        counts = np.bincount(level, times)
        totals = np.bincount(level, times * sizes)
        return [
            (float(total / count), int(count))
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
    seed: int = 0,
) -> bool:
    """Whether each of `SIMULATED` audits of such scores refutes the claim."""
    levels = 1 / (1 + np.exp(-np.linspace(-25, 25, 301)))
    claim = epsilon + 1e-6
    # A score that is exactly the claim lies beside it on the grid, and must not pass it.
    there, away = (spread.held_back(claim) for spread in (there, away))
    marks = [spread.quantiles(levels) for spread in (there, away)]
    fixed = [np.nextafter(claim, np.inf), np.nextafter(-claim, -np.inf), -claim]
    edges = np.unique(np.concatenate([*marks, fixed]))
    worlds = [spread.counted(edges) for spread in (there, away)]
    rng = np.random.default_rng(seed)
    half = trials // 2

    def drawn(masses: Floats) -> Counts:
        return np.stack([rng.multinomial(count, masses) for count in (half, trials - half)])

    for _ in range(SIMULATED):
        tests = judged(Tally(edges, *map(drawn, worlds)), epsilon, delta, error, both=both)
        if max(test.proved for test in tests) <= epsilon:
            return False
    return True


def _drawn(real: Radial, scored: Mechanism, shift: Floats) -> Spread:
    """The score of whole vectors, from a sample that is the same every time."""
    count = int(np.clip(_DRAWN // shift.size, 400, 40_000))
    vectors = real.sample((count, shift.size), np.random.default_rng(0))
    ratio = np.clip(likelihood_ratio(scored, vectors, shift), -_FARTHEST, _FARTHEST)
    values, times = np.unique(np.round(ratio, 9), return_counts=True)
    return Spread(values, times / count)


def _pieces(real: Mechanism, scored: Mechanism, shift: float) -> tuple[Floats, Floats]:
    """Values of the noise, one from every piece on which the score hardly changes, and their
    probabilities, far into the tails."""
    far = float(real.magnitude(np.array([1e-18]))[0]) + shift
    own, told = (noise.jumps(far, _MOST_JUMPS) for noise in (real, scored))
    if own is not None and told is not None:
        # Between jumps of either density the score is one number: nothing is lost.
        edges = np.unique(np.concatenate([own, told, told + shift]))
        middle = (edges[1:] + edges[:-1]) / 2
        mass = np.exp(real.log_density(middle)) * np.diff(edges)
        return middle, mass / mass.sum()
    tails = np.concatenate([np.linspace(1, 2**-12, 1 << 12), np.geomspace(2**-12, 1e-18, 500)[1:]])
    middle = np.sqrt(tails[:-1] * tails[1:])
    size, mass = np.asarray(real.magnitude(middle)), (tails[:-1] - tails[1:]) / 2
    return np.concatenate([-size, size]), np.concatenate([mass, mass]) / (2 * mass.sum())
