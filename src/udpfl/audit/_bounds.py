"""What counts of an adversary's right and wrong guesses prove about epsilon.

Every bound holds with probability 1 - error, whatever the mechanism: an event that happens with
probability P1 where a record is there and P0 where it is not excludes every (epsilon, delta) with
P1 > e^epsilon P0 + delta. Only `gaussian_estimate` takes for granted what the noise is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special, stats

from udpfl.errors import InvalidInput
from udpfl.mechanisms import Gaussian

_LARGEST = 100.0
"""Beyond any epsilon that guesses can prove: 1e40 of them would be needed."""


def check_error(error: float) -> None:
    """Refuse a probability of a wrong verdict that is none."""
    if not 0 < error < 1:
        raise InvalidInput("error", f"must lie between 0 and 1, got {error!r}")


def least_rate(hits: int, trials: int, error: float) -> float:
    """Lower end of the one-sided interval of Clopper and Pearson 1934."""
    _check_counts(hits, trials)
    check_error(error)
    return 0.0 if hits == 0 else float(special.betaincinv(hits, trials - hits + 1, error))


def most_rate(hits: int, trials: int, error: float) -> float:
    """Upper end of the one-sided interval of Clopper and Pearson 1934."""
    return 1.0 - least_rate(trials - hits, trials, error)


def epsilon_proved(
    hits: int, trials: int, false_hits: int, false_trials: int, delta: float, error: float
) -> float:
    """The largest epsilon that the two rates exclude at this delta; 0 where they exclude none.

    One threshold, chosen before the trials were seen. Half of the error is for either rate.
    """
    rate = least_rate(hits, trials, error / 2)
    false = most_rate(false_hits, false_trials, error / 2)
    return max(0.0, math.log((rate - delta) / false)) if rate > delta else 0.0


def delta_proved(
    hits: int, trials: int, false_hits: int, false_trials: int, epsilon: float, error: float
) -> float:
    """The largest delta that the two rates exclude at this epsilon: a hockey-stick divergence."""
    rate = least_rate(hits, trials, error / 2)
    false = most_rate(false_hits, false_trials, error / 2)
    return max(0.0, rate - math.exp(min(epsilon, _LARGEST)) * false)


def gaussian_estimate(
    hits: int, trials: int, false_hits: int, false_trials: int, delta: float, error: float
) -> float:
    """Epsilon of the Gaussian noise that would just allow these rates; for Gaussian noise only.

    Nasr et al. 2023, "Tight auditing of differentially private machine learning", Section 4. On
    other noise it would prove what is not true.
    """
    rate = least_rate(hits, trials, error / 2)
    false = most_rate(false_hits, false_trials, error / 2)
    shift = special.ndtri(rate) - special.ndtri(false)
    return gaussian_epsilon(shift, delta) if shift > 0 else 0.0


def gaussian_epsilon(shift: float, delta: float) -> float:
    """Epsilon at `delta` between two unit normals that lie `shift` apart."""
    if not math.isfinite(shift) or delta <= 0:
        return math.inf

    def excess(epsilon: float) -> float:
        return float(Gaussian(1.0).hockey_stick(epsilon, shift)) - delta

    return least_epsilon(excess)


def least_epsilon(
    excess: Callable[[float], float], most: float = math.inf, digits: float = 2e-12
) -> float:
    """Where a decreasing excess reaches 0; inf where it is above 0 until beyond `most`."""
    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > most:
            return math.inf
    return float(optimize.brentq(excess, 0.0, high, xtol=digits))


def one_run_probability(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """How probable so many right guesses are, at most, where the claim holds.

    Each of `canaries` records was put in with probability 1/2; `guesses` of them were guessed, the
    others passed over. Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training
    run", Theorem 5.2.
    """
    if not 0 <= right <= guesses <= canaries:
        raise InvalidInput("right", f"{right} of {guesses} guesses on {canaries} canaries")
    chance = stats.binom(guesses, special.expit(epsilon))
    tail = float(chance.sf(right - 1))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    steps = np.arange(1, right + 1)
    # P[right > B >= right - i], for every i at once
    between = chance.sf(right - steps - 1) - tail
    return min(1.0, tail + 2 * canaries * delta * float((between / steps).max()))


def one_run_proved(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """The largest epsilon that one run excludes; 0 where it excludes none."""
    check_error(error)

    def excess(epsilon: float) -> float:
        return one_run_probability(canaries, guesses, right, epsilon, delta) - error

    if excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, _LARGEST))


def _check_counts(hits: int, trials: int) -> None:
    if not 0 <= hits <= trials or trials < 1:
        raise InvalidInput("trials", f"cannot be {trials} with {hits} hits")
