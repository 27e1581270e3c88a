"""Audit of noise: does a claim hold for these releases, as an adversary sees them?"""

from __future__ import annotations

from udpfl.audit.bounds import check_error, gaussian_estimate
from udpfl.audit.power import TooLittleNoise
from udpfl.audit.tally import Tally, judged
from udpfl.audit.verdict import Verdict
from udpfl.audit.worlds import Releases
from udpfl.engine.noise import Noiser
from udpfl.engine.randomness import PrivateStream
from udpfl.errors import InvalidInput

_FEWEST = 100
_FOR_THE_ESTIMATE = 0.2
"""Part of the error that goes to the Gaussian estimate, where there is one."""


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

    Guarantee: a claim that is true is refuted with probability `error` at most, and a Gaussian
    estimate, where there is one, is too large within the same error.
    """
    check_error(error)
    check_trials(trials)
    there, away = (
        releases.scores(trials, present=present, stream=stream, noiser=noiser)
        for present in (True, False)
    )
    tally, estimate, left = Tally.of(there, away), None, error
    if releases.mechanism.is_isotropic and releases.rate == 1:
        own = _FOR_THE_ESTIMATE * error
        hits, false = tally.at_least(0.0)
        estimate, left = gaussian_estimate(hits, trials, false, trials, delta, own), error - own
    tests = judged(tally, epsilon, delta, left, both=releases.rate < 1)
    alternative = TooLittleNoise(
        releases.mechanism, releases.shift, releases.rate, releases.steps, trials, left
    )
    return Verdict(claim, epsilon, delta, tests, error, estimate, alternative)
