"""Audit of the lattice that noise lies on: does a noisy number tell which sum it was added to?

Noise on a computer takes finitely many values. An adversary who guesses the sum subtracts it from a
noisy number and looks whether any noise could have led there. If the true sum always passes that
look and another one does not, the two are told apart, whatever epsilon says. That shows where the
values of the noise are furthest from the real line: at the centre, where float32 is finer than they
are, and far out in the tail, where they have gaps. Nobody can wait for noise so rare, so the random
words are chosen there and the result is weighed by how probable they are.

References: Mironov 2012, "On significance of the least significant bits for differential privacy".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from udpfl.audit._bounds import check_error, delta_proved
from udpfl.audit.mechanism import check_trials
from udpfl.audit.verdict import Verdict
from udpfl.engine.noise import MechanismNoiser, Noiser
from udpfl.engine.randomness import Key, PrivateStream, Words
from udpfl.errors import Unsupported
from udpfl.mechanisms import Mechanism, Radial
from udpfl.mechanisms.arrays import Floats, to_unit
from udpfl.mechanisms.grid import rounding_of

ROUNDING = "rounding of the noise"
"""What such an audit is about, in words."""
_AT_ONCE = 1 << 14
_NEAREST = 2
"""Values of the noise that are tried on either side of the one that would fit."""


@dataclass(frozen=True)
class Window:
    """Noise whose tail probability lies between these two."""

    name: str
    low: float
    high: float
    spread: float
    """How far apart, as a part of them, the numbers lie that such noise leads to."""

    @property
    def probability(self) -> float:
        """That one number has such noise."""
        return self.high - self.low


CENTRE = Window("at the centre", 1 - 2.0**-44, 1.0, 0.5)
TAIL = Window("in the tail", 2.0**-64, 2.0**-60, 0.02)
"""Where 63 random bits have a few values left."""


@dataclass(frozen=True)
class LatticeTest:
    """How often a noisy number passes for one of this sum: around this sum, and around another."""

    event: str
    hits: int
    """Noisy numbers around this sum that pass."""
    false_hits: int
    """Noisy numbers around the other sum that pass."""
    trials: int
    """Of either."""
    numbers: int
    """Noisy numbers that a run releases."""
    probability: float
    """That one of them has such noise."""
    epsilon: float
    delta: float
    error: float

    @property
    def told(self) -> float:
        """The delta that is proved, over all numbers of a run."""
        seen = delta_proved(
            self.hits, self.trials, self.false_hits, self.trials, self.epsilon, self.error
        )
        return min(1.0, self.numbers * self.probability) * seen

    @property
    def proved(self) -> float:
        """Infinite where numbers tell their sum more often than rounding is said to, else 0."""
        return math.inf if self.told > self.delta else 0.0

    def to_dict(self, claimed: float) -> dict[str, Any]:
        """Plain data for JSON, beside the claimed epsilon."""
        proved = "inf" if self.proved else 0.0
        return {**asdict(self), "proved": proved, "delta_proved": self.told}


@dataclass(frozen=True)
class Told:
    """How often a run tells a sum where no noise on another one passes for noise on it."""

    deltas: dict[str, float]
    stated: float

    def __str__(self) -> str:
        said = ", ".join(f"{value:.1g} ({event})" for event, value in self.deltas.items())
        return (
            f"noise off the grid would betray its sum with probability {said} in a run; anything "
            f"above {self.stated:.1g} would have been refuted"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class OffTheGrid:
    """Noise whose values show: what the power of such an audit is stated for."""

    tests: tuple[LatticeTest, ...]

    def caught(self, epsilon: float, delta: float) -> Told:
        """What would be told if the adversary were always right."""
        right = (replace(test, hits=test.trials, false_hits=0) for test in self.tests)
        return Told({test.event: test.told for test in right}, delta)


def audit_lattice(
    mechanism: Mechanism,
    numbers: int,
    epsilon: float,
    *,
    claim: str = "",
    noiser: Noiser | None = None,
    trials: int = 100_000,
    error: float = 0.05,
) -> Verdict:
    """Try to refute what is said of rounding, for so many noisy numbers in a run.

    Guarantee: a true statement is refuted with probability `error` at most, as far as numbers of
    the other sum are spread evenly over the few that are looked at.

    Args:
        mechanism: The noise.
        numbers: Noisy numbers that the run releases.
        epsilon: What the run claims, before rounding is counted.
        claim: The claim in words, for the verdict.
        noiser: Adds noise to one lane in place of the engine's own.
        trials: At least 100.
        error: In (0, 1).

    Returns:
        The verdict on epsilon and delta with rounding counted.

    Raises:
        InvalidInput: There are too few trials, or `error` is out of range.
        Unsupported: The noise is of whole vectors.

    Example:
        >>> from udpfl import Laplace
        >>> from udpfl.audit import audit_lattice
        >>> audit_lattice(Laplace(1.0), numbers=100, epsilon=1.0, trials=100, error=1e-6).refuted
        False
    """
    check_error(error)
    check_trials(trials)
    _require_own_words(mechanism)
    said = rounding_of([(mechanism, numbers)], epsilon)
    lattice = _Lattice(mechanism, noiser or MechanismNoiser([mechanism]))
    rng = np.random.default_rng()
    windows = (CENTRE, TAIL)
    tests = tuple(
        LatticeTest(
            window.name,
            *lattice.passing(window, trials, rng),
            trials,
            numbers,
            window.probability,
            epsilon + said.epsilon,
            said.delta,
            error / len(windows),
        )
        for window in windows
    )
    return Verdict(
        claim, epsilon + said.epsilon, said.delta, tests, error, alternative=OffTheGrid(tests)
    )


def _require_own_words(mechanism: Mechanism) -> None:
    if isinstance(mechanism, Radial):
        raise Unsupported(
            f"this adversary tells the random word of a number from the number, but numbers of "
            f"{mechanism.name} noise are made of the words of a whole vector"
        )


class _Lattice:
    """Noise from words that the adversary chooses, and the words that lead to a number."""

    def __init__(self, mechanism: Mechanism, noiser: Noiser) -> None:
        self._mechanism, self._noiser = mechanism, noiser
        self._paired = mechanism.draws_pairs

    def passing(self, window: Window, trials: int, rng: np.random.Generator) -> tuple[int, int]:
        """How many noisy numbers pass for those of a first sum: around it, and around a second.

        The first is zero, as of an empty batch: around it float32 is finest. Numbers around the
        second one lie where noise in this window leads to around the first.
        """
        shape, std = (2 if self._paired else 1, trials), self._mechanism.noise_std
        first, second = np.zeros(shape), rng.uniform(0.1, 1, shape) * std
        uniform = rng.uniform(-1, 1, shape)
        tails = window.low + (window.high - window.low) * np.abs(uniform[0])
        uniform[0] = np.copysign(tails, uniform[0])
        own = self._released(first, uniform)
        there = own * rng.uniform(1 - window.spread, 1, shape)
        other = self._released(second, self._leading_to(there - second))
        return int(self._possible(first, own).sum()), int(self._possible(first, other).sum())

    def _possible(self, sums: Floats, seen: Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether any noise on these sums gives the very numbers that were seen."""
        uniform = self._leading_to(seen - sums)
        found = np.zeros(seen.shape[1], dtype=bool)
        for nearby in _neighbours(uniform):
            left = np.flatnonzero(~found)
            if not left.size:
                break
            again = self._released(sums[:, left], nearby[:, left])
            found[left] = (again == seen[:, left]).all(0)
        return found

    def _released(self, sums: Floats, uniform: Floats) -> Floats:
        """What leaves the noiser, where words have these values in [-1, 1]."""
        parts, key = [], Key("audit", "lattice", 0, 0)
        for start in range(0, sums.shape[1], _AT_ONCE):  # in blocks that it does not cut up
            own, chosen = (t[:, start : start + _AT_ONCE].ravel() for t in (sums, uniform))
            noisy = self._noiser.add(
                torch.from_numpy(own)[None], _Chosen(chosen, self._mechanism.second_word), [key]
            )
            parts.append(noisy.double().numpy().reshape(len(sums), -1))
        return np.concatenate(parts, axis=1)

    def _leading_to(self, noise: Floats) -> Floats:
        """Numbers in [-1, 1] whose noise comes nearest to this."""
        if not self._paired:
            return np.copysign(self._tail(np.abs(noise)), noise)
        radius, angle = np.hypot(*noise), np.arctan2(noise[1], noise[0])
        tail = np.exp(-0.5 * (radius / self._mechanism.noise_std) ** 2)
        return np.stack([tail.clip(2.0**-120, 1.0), angle / np.pi])

    def _tail(self, size: Floats) -> Floats:
        """The tail probability of noise of this size, by bisection: the one falls as the other
        grows."""
        low, high = np.full(size.shape, -120.0), np.zeros(size.shape)
        for _ in range(64):
            middle = (low + high) / 2
            further = np.asarray(self._mechanism.magnitude(2.0**middle)) > size
            low, high = np.where(further, middle, low), np.where(further, high, middle)
        return np.asarray(2.0 ** ((low + high) / 2))


def _neighbours(uniform: Floats) -> Iterator[Floats]:
    """The same numbers and those beside them: in double, and as multiples of 2^-63."""
    for step in sorted(range(-_NEAREST, _NEAREST + 1), key=abs):
        relative = uniform.copy()
        relative[0] += step * np.spacing(uniform[0])
        whole = uniform.copy()
        counted = np.floor(np.abs(uniform[0]) * 2.0**63) + step + 0.5
        whole[0] = np.copysign(np.maximum(counted, 0.5) * 2.0**-63, uniform[0])
        for other in (relative, whole):
            other[0] = np.clip(other[0], -1.0, 1.0)
            yield other
            if len(uniform) > 1:
                for turn in (-1, 1):
                    turned = other.copy()
                    turned[1] += turn * np.spacing(uniform[1])
                    yield turned


@dataclass(frozen=True, eq=False)
class _Chosen(PrivateStream):
    """Words that stand for given numbers in [-1, 1]: a first one each, and a second one for those
    that a noiser asks it for."""

    private: ClassVar[bool] = False
    uniform: Floats
    below: float
    """Numbers below it get a second word: the noiser's own rule."""

    def _bits(self, key: Key) -> bytes:
        raise AssertionError("words are chosen, not drawn")

    def words(self, key: Key, device: torch.device) -> Words:
        scaled = np.abs(self.uniform) * 2.0**63
        whole = np.minimum(np.floor(scaled), 2.0**63 - 2**10)
        first = whole.astype(np.int64)
        first = np.where(self.uniform < 0, -1 - first, first)
        second = ((scaled - whole) * 2.0**64 - 2.0**63).clip(-(2.0**63), 2.0**63 - 2**10)
        small = np.abs(to_unit(first.astype(np.float64))) < self.below
        prepared = iter((first, second.astype(np.int64)[small]))

        def fill(row: torch.Tensor) -> None:
            row.copy_(torch.from_numpy(next(prepared)).to(device))

        return fill
