"""Audit of noise: does a claim hold for these releases, as an adversary sees them?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from udpfl.audit.bounds import check_error, epsilon_proved, gaussian_estimate
from udpfl.audit.verdict import Test, Verdict
from udpfl.audit.worlds import Releases
from udpfl.engine.noise import Noiser
from udpfl.engine.randomness import PrivateStream
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Gaussian
from udpfl.mechanisms.arrays import Floats

Truths = NDArray[np.bool_]
Side = tuple[str, Floats, Floats]
"""A name, the scores of the world where high ones are frequent, and of the other."""
_FEWEST = 100


def check_trials(trials: int) -> None:
    """Refuse so few trials that no threshold could be chosen."""
    if trials < _FEWEST:
        raise InvalidInput("trials", f"must be at least {_FEWEST}, got {trials}")


def audit_releases(
    releases: Releases,
    epsilon: float,
    delta: float,
    *,
    claim: str = "",
    trials: int = 20_000,
    error: float = 0.05,
    stream: PrivateStream | None = None,
    noiser: Noiser | None = None,
) -> Verdict:
    """Try to refute that the releases are (epsilon, delta)-DP, with `trials` in each world.

    Guarantee: a claim that is true is refuted with probability `error` at most.
    """
    check_error(error)
    check_trials(trials)
    there, away = (
        releases.scores(trials, present=present, stream=stream, noiser=noiser)
        for present in (True, False)
    )
    tests, estimate = judged(there, away, epsilon, delta, error, both=releases.rate < 1)
    gaussian = isinstance(releases.mechanism, Gaussian) and releases.rate == 1
    return Verdict(claim, epsilon, delta, tests, error, estimate if gaussian else None)


def judged(
    with_record: Floats,
    without: Floats,
    epsilon: float,
    delta: float,
    error: float,
    *,
    both: bool = False,
) -> tuple[tuple[Test, ...], float]:
    """The tests of two worlds' scores, and what they say if the noise is Gaussian.

    Thresholds that nobody chose after the fact: the claim's own epsilon, where the divergence of a
    false claim shows most directly, on all trials; and two that did best on the first half of the
    trials, on the second. The error is shared among them.
    """
    half = len(with_record) // 2
    sides: list[Side] = [
        ("with the record", with_record, without),
        ("without it", -without, -with_record),
    ]
    fixed = sides if both else sides[:1]
    share = error / (len(fixed) + 2)
    tests = []
    for name, frequent, rare in fixed:
        edge = epsilon + 1e-6  # scores of Staircase noise lie on a lattice, often right here
        tests.append(_test(f"{name}, score above ε", frequent > edge, rare > edge, delta, share))
    for name, frequent, rare, edge in _chosen(sides, half, epsilon, delta, share):
        event = f"{name}, score at least {edge:.4g} (chosen on other trials)"
        tests.append(_test(event, frequent[half:] >= edge, rare[half:] >= edge, delta, share))
    even = [int((scores >= 0).sum()) for scores in (with_record, without)]
    estimate = gaussian_estimate(even[0], len(with_record), even[1], len(without), delta, error)
    return tuple(tests), estimate


def _test(event: str, hits: Truths, false: Truths, delta: float, error: float) -> Test:
    return Test(event, int(hits.sum()), len(hits), int(false.sum()), len(false), delta, error)


def _chosen(
    sides: Sequence[Side], half: int, epsilon: float, delta: float, error: float
) -> list[tuple[str, Floats, Floats, float]]:
    """On the first half: what refutes most clearly, and what has the largest bound."""
    candidates = [
        (name, frequent, rare, edge)
        for name, frequent, rare in sides
        for edge in _edges(rare[:half])
    ]
    counts = [
        (int((frequent[:half] >= edge).sum()), int((rare[:half] >= edge).sum()))
        for _, frequent, rare, edge in candidates
    ]
    excess = [_excess(hits, false, half, epsilon, delta) for hits, false in counts]
    bounds = [epsilon_proved(hits, half, false, half, delta, error) for hits, false in counts]
    return [candidates[int(np.argmax(excess))], candidates[int(np.argmax(bounds))]]


def _excess(hits: int, false: int, trials: int, epsilon: float, delta: float) -> float:
    """By how many standard deviations the claim is broken."""
    rate, wrong = (hits + 1) / (trials + 2), (false + 1) / (trials + 2)
    weight = np.exp(min(epsilon, 50.0))
    spread = rate * (1 - rate) + weight**2 * wrong * (1 - wrong)
    return float((rate - delta - weight * wrong) / np.sqrt(spread / trials))


def _edges(rare: Floats) -> Iterator[float]:
    """Thresholds that few of the rare side's scores reach, from one in two to none."""
    ordered = np.sort(rare)[::-1]
    count = len(ordered) // 2
    while count >= 1:
        yield float(ordered[count])
        count = count * 2 // 3
    yield float(ordered[0])
    yield float(np.nextafter(ordered[0], np.inf))
