"""What an audit found: one sentence, the counts behind it, and what it could have found."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from scipy import stats

from udpfl.accounting.statement import shown
from udpfl.audit.bounds import epsilon_proved

POWER = 0.99
"""With this probability an audit finds what it says it would have found."""


@dataclass(frozen=True)
class Test:
    """One event that the adversary counted in both worlds, and what that proves."""

    event: str
    hits: int
    """Trials in which it happened in the world where it should be frequent."""
    trials: int
    false_hits: int
    false_trials: int
    delta: float
    error: float
    """Probability that `proved` is too large."""

    @property
    def proved(self) -> float:
        """No mechanism with a smaller epsilon at this delta does that, unless by bad luck."""
        return epsilon_proved(
            self.hits, self.trials, self.false_hits, self.false_trials, self.delta, self.error
        )

    def would_refute(self, claimed: float, rate: float, false_rate: float) -> float:
        """Probability, at least, that true rates like these refute a claim."""
        least = 0.0
        for share in (0.5, 0.1, 0.9):  # of what may go wrong, on the side of the false hits
            slack = share * (1 - POWER)
            worst = int(stats.binom.ppf(1 - slack, self.false_trials, false_rate))
            needed = self._needed(claimed, worst)
            if needed is not None:
                least = max(least, float(stats.binom.sf(needed - 1, self.trials, rate)) - slack)
        return least

    def _needed(self, claimed: float, false_hits: int) -> int | None:
        """The fewest hits that refute the claim beside so many false ones."""

        def refutes(hits: int) -> bool:
            proved = epsilon_proved(
                hits, self.trials, false_hits, self.false_trials, self.delta, self.error
            )
            return proved > claimed

        if not refutes(self.trials):
            return None
        return bisect_left(range(self.trials), True, key=refutes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "proved": self.proved}

    def detectable(self, claimed: float) -> float:
        """An event as rare as this one, so much more probable with the record, would refute.

        The logarithm of that factor, beyond delta; inf where no event could. Noise of such an
        epsilon may spread its leak over many events and go unseen.
        """
        false_rate = max(self.false_hits, 1) / self.false_trials
        low, high = claimed, math.log(max(1 - self.delta, 1e-300) / false_rate)
        if high <= low or not self._found(claimed, high, false_rate):
            return math.inf
        while high - low > 1e-3 * max(1.0, claimed):
            middle = (low + high) / 2
            found = self._found(claimed, middle, false_rate)
            low, high = (low, middle) if found else (middle, high)
        return high

    def _found(self, claimed: float, true: float, false_rate: float) -> bool:
        rate = min(1.0, false_rate * math.exp(true) + self.delta)
        return self.would_refute(claimed, rate, false_rate) >= POWER


class Evidence(Protocol):
    """Something counted, and what it proves."""

    @property
    def proved(self) -> float:
        """The largest epsilon that it excludes."""

    def detectable(self, claimed: float) -> float:
        """How large a violation it would have found, in the terms that it counts; inf if none."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""


@dataclass(frozen=True)
class Verdict:
    """A claim, and whether an adversary could refute it."""

    claim: str
    """What was claimed, in words."""
    epsilon: float
    delta: float
    tests: tuple[Evidence, ...]
    error: float
    """Probability that a true claim is refuted, all tests together."""
    estimate: float | None = None
    """For Gaussian noise only: epsilon of the Gaussian noise that the counts point to."""

    @property
    def proved(self) -> float:
        """The tightest lower bound on epsilon."""
        return max((test.proved for test in self.tests), default=0.0)

    @property
    def refuted(self) -> bool:
        """Whether the bound contradicts the claim."""
        return self.proved > self.epsilon

    @property
    def detectable(self) -> float:
        """The smallest violation of an event that was counted which would have been caught."""
        return min((test.detectable(self.epsilon) for test in self.tests), default=math.inf)

    def __str__(self) -> str:
        confidence = f"{100 * (1 - self.error):g} %"
        at = f" at δ = {self.delta:g}" if self.delta else ""
        if self.refuted:
            found = f"refuted (ε ≥ {self.proved:.3g} at {confidence})"
        else:
            found = f"not refuted (tightest lower bound {self.proved:.3g})"
        return f"claim ε ≤ {shown(self.epsilon)}{at}: {found}"

    @property
    def power(self) -> str:
        """What the audit would have caught, in words."""
        if math.isinf(self.detectable):
            return "too few trials to catch any violation of this claim; take more"
        return (
            "an event as rare as those counted would have refuted the claim if it were "
            f"e^{self.detectable:.3g} times as probable with the record "
            f"({100 * POWER:g} % of the time)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite numbers are the string "inf"."""
        plain = {
            "claim": self.claim,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "refuted": self.refuted,
            "proved": self.proved,
            "error": self.error,
            "detectable": self.detectable,
            "estimate": self.estimate,
            "verdict": str(self),
            "tests": [test.to_dict() for test in self.tests],
        }
        return {key: "inf" if value == math.inf else value for key, value in plain.items()}
