"""Scores of two worlds, counted, and the tests that are made of the counts.

The same tests judge an audit and, on drawn counts, say what such an audit would have caught.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from udpfl.audit.verdict import Test
from udpfl.mechanisms.arrays import Floats

Counts = NDArray[np.int64]
"""How often each value came up [2, values]: in the trials to choose on, in those to judge."""


@dataclass(frozen=True)
class Tally:
    """How often each score came up, with the record and without it."""

    values: Floats
    """Ascending."""
    there: Counts
    away: Counts

    @classmethod
    def of(cls, there: Floats, away: Floats) -> Self:
        """Count scores, the first half of the trials apart from the second.

        To six places: what was released is rounded, and scores that are one number should stay one.
        """
        scores = np.round(np.concatenate([there, away]), 6)
        values, which = np.unique(scores, return_inverse=True)
        worlds = np.split(which.ravel(), [len(there)])
        counted = [
            np.stack([np.bincount(half, minlength=len(values)) for half in _halves(world)])
            for world in worlds
        ]
        return cls(values, *counted)

    def at_least(self, edge: float) -> tuple[int, int]:
        """Trials of either world whose score is so high."""
        first = int(np.searchsorted(self.values, edge))
        return int(self.there[:, first:].sum()), int(self.away[:, first:].sum())


@dataclass(frozen=True)
class _Side:
    """One direction: counts of scores from each value on, where frequent and where rare."""

    name: str
    values: Floats
    frequent: Counts
    """[2, values + 1]: nothing lies beyond the last one."""
    rare: Counts

    @classmethod
    def of(cls, name: str, values: Floats, frequent: Counts, rare: Counts) -> Self:
        def from_each_on(counts: Counts) -> Counts:
            ends = np.zeros((2, 1), dtype=np.int64)
            return np.concatenate([counts[:, ::-1].cumsum(1)[:, ::-1], ends], axis=1)

        return cls(name, values, from_each_on(frequent), from_each_on(rare))

    def edges(self) -> Iterator[int]:
        """Thresholds that few of the rare side's scores reach, from one in two to none, or that
        most of the frequent side's do: from the trials to choose on."""
        reached = self.rare[0][::-1]  # ascending
        last = len(reached) - 1
        ranks = []
        count = int(reached[-1]) // 2
        while count >= 1:
            ranks.append(count)
            count = count * 2 // 3
        for rank in [*ranks, 0]:  # the last value that more than so many reach
            yield last - int(np.searchsorted(reached, rank + 1))
        yield min(last, last - int(np.searchsorted(reached, 1)) + 1)
        frequent = self.frequent[0][::-1]
        for share in (0.5, 0.9, 0.99, 0.999):  # where the two lie far apart: somewhere between
            yield last - int(np.searchsorted(frequent, math.ceil(share * frequent[-1])))

    def shown(self, edge: int) -> str:
        """The threshold in words."""
        if edge == len(self.values):
            return "beyond every score"
        return f"score at least {self.values[edge]:.4g} (chosen on other trials)"


def judged(
    tally: Tally, epsilon: float, delta: float, error: float, *, both: bool = False
) -> tuple[Test, ...]:
    """The tests of two worlds' scores.

    Thresholds that nobody chose after the fact: the claim's own epsilon, where the divergence of a
    false claim shows most directly, on all trials; and two that did best on the first half of the
    trials, on the second. The error is shared among them.
    """
    sides = [
        _Side.of("with the record", tally.values, tally.there, tally.away),
        _Side.of("without it", -tally.values[::-1], tally.away[:, ::-1], tally.there[:, ::-1]),
    ]
    fixed = sides if both else sides[:1]
    share = error / (len(fixed) + 2)
    tests = []
    for side in fixed:
        # Scores of Staircase noise lie on a lattice, often right at the claim.
        edge = int(np.searchsorted(side.values, epsilon + 1e-6, side="right"))
        tests.append(_test(f"{side.name}, score above ε", side, edge, slice(None), delta, share))
    for side, edge in _chosen(sides, epsilon, delta, share):
        event = f"{side.name}, {side.shown(edge)}"
        tests.append(_test(event, side, edge, slice(1, 2), delta, share))
    return tuple(tests)


def _halves(scores: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    return np.split(scores, [len(scores) // 2])


def _test(event: str, side: _Side, edge: int, part: slice, delta: float, error: float) -> Test:
    hits, trials, false, away = (
        int(counts[part, at].sum())
        for counts in (side.frequent, side.rare)
        for at in (edge, 0)
    )  # fmt: skip
    return Test(event, hits, trials, false, away, delta, error)


def _chosen(
    sides: list[_Side], epsilon: float, delta: float, error: float
) -> list[tuple[_Side, int]]:
    """On the trials to choose on: what refutes most clearly, and what has the largest bound."""
    candidates = [(side, edge) for side in sides for edge in side.edges()]
    tests = [_test("", side, edge, slice(0, 1), delta, error) for side, edge in candidates]
    excess = [_excess(test, epsilon) for test in tests]
    bounds = [test.proved for test in tests]
    return [candidates[int(np.argmax(excess))], candidates[int(np.argmax(bounds))]]


def _excess(test: Test, epsilon: float) -> float:
    """By how many standard deviations the claim is broken."""
    rate = (test.hits + 1) / (test.trials + 2)
    wrong = (test.false_hits + 1) / (test.false_trials + 2)
    weight = np.exp(min(epsilon, 50.0))
    spread = rate * (1 - rate) / test.trials + weight**2 * wrong * (1 - wrong) / test.false_trials
    return float((rate - test.delta - weight * wrong) / np.sqrt(spread))
