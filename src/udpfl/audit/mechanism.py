"""Audit of noise: does a claim hold for these releases, as an adversary sees them?"""

from __future__ import annotations

from udpfl.audit._bounds import check_error, gaussian_estimate
from udpfl.audit._tally import Tally, judged
from udpfl.audit.power import TooLittleNoise
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

    Args:
        releases: The noise, what one record shifts, and how often.
        epsilon: Of the claim.
        delta: Of the claim.
        claim: The claim in words, for the verdict.
        trials: In each world; at least 100.
        error: In (0, 1).
        stream: Where randomness comes from; the operating system if left out.
        noiser: Adds the noise in place of the engine's own, to see whether a wrong one is caught.

    Returns:
        The verdict: refuted or not, by how much, and what would have been caught.

    Raises:
        InvalidInput: There are too few trials, or `error` is out of range.

    Example:
        >>> import numpy as np
        >>> from udpfl import Gaussian
        >>> from udpfl.audit import Releases, audit_releases
        >>> releases = Releases(Gaussian(0.1), np.ones(1))
        >>> audit_releases(releases, epsilon=1.0, delta=1e-5, trials=1000).refuted
        True
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
