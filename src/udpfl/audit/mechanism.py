"""Audit of noise: does a claim hold for these releases, as an adversary sees them?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from udpfl.audit.bounds import check_error, epsilon_proved, gaussian_estimate
from udpfl.audit.canaries import Floats
from udpfl.audit.verdict import Test, Verdict
from udpfl.audit.worlds import Releases
from udpfl.engine.noise import Noiser
from udpfl.engine.randomness import PrivateStream
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Gaussian

Truths = NDArray[np.bool_]
_FEWEST = 100


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
    if trials < _FEWEST:
        raise InvalidInput("trials", f"must be at least {_FEWEST}, got {trials}")
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

    Two thresholds that nobody chose after the fact: the claim's own epsilon, where the divergence
    of a false claim shows most directly, on all trials; and the one that did best on the first half
    of the trials, on the second. The error is shared among them.
    """
    half = len(with_record) // 2
    sides = [("with the record", with_record, without), ("without it", -without, -with_record)]
    fixed = sides if both else sides[:1]
    share = error / (len(fixed) + 1)
    tests = []
    for name, frequent, rare in fixed:
        edge = epsilon + 1e-6  # scores of Staircase noise lie on a lattice, often right here
        tests.append(_test(f"{name}, score above ε", frequent > edge, rare > edge, delta, share))
    name, frequent, rare, edge = max(
        (
            (name, frequent, rare, edge)
            for name, frequent, rare in sides
            for edge in _edges(rare[:half])
        ),
        key=lambda t: _bound(t[1][:half], t[2][:half], t[3], delta, share),
    )
    event = f"{name}, score at least {edge:.4g} (chosen on other trials)"
    tests.append(_test(event, frequent[half:] >= edge, rare[half:] >= edge, delta, share))
    even = [int((scores >= 0).sum()) for scores in (with_record, without)]
    estimate = gaussian_estimate(even[0], len(with_record), even[1], len(without), delta, error)
    return tuple(tests), estimate


def _test(event: str, hits: Truths, false: Truths, delta: float, error: float) -> Test:
    return Test(event, int(hits.sum()), len(hits), int(false.sum()), len(false), delta, error)


def _edges(rare: Floats) -> Iterator[float]:
    """Thresholds that few of the rare side's scores reach, from one in two to none."""
    ordered = np.sort(rare)[::-1]
    count = len(ordered) // 2
    while count >= 1:
        yield float(ordered[count])
        count = count * 2 // 3
    yield float(ordered[0])
    yield float(np.nextafter(ordered[0], np.inf))


def _bound(frequent: Floats, rare: Floats, edge: float, delta: float, error: float) -> float:
    hits, false = int((frequent >= edge).sum()), int((rare >= edge).sum())
    return epsilon_proved(hits, len(frequent), false, len(rare), delta, error)
