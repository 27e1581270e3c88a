"""What an audit found: one sentence, the counts behind it, and what it could have found."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

from udpfl.accounting.statement import shown
from udpfl.audit._bounds import delta_proved, epsilon_proved

POWER = 0.99
"""With this probability an audit finds what it says it would have found."""


@dataclass(frozen=True)
class Test:
    """One event that the adversary counted in both worlds, and what that proves.

    Example:
        >>> from udpfl.audit import Test
        >>> test = Test("score > 3", 900, 1000, 10, 1000, delta=1e-5, error=0.05)
        >>> round(test.proved, 1)
        3.9
    """

    event: str
    """What was counted, in words."""
    hits: int
    """Trials in which it happened in the world where it should be frequent."""
    trials: int
    """In that world."""
    false_hits: int
    """Trials in which it happened in the other world."""
    false_trials: int
    """In the other world."""
    delta: float
    """At which epsilon is bounded."""
    error: float
    """Probability that `proved` is too large."""

    @property
    def proved(self) -> float:
        """No mechanism with a smaller epsilon at this delta does that, unless by bad luck."""
        return epsilon_proved(
            self.hits, self.trials, self.false_hits, self.false_trials, self.delta, self.error
        )

    def to_dict(self, claimed: float) -> dict[str, Any]:
        """Plain data for JSON: what is proved about epsilon, and about delta at the claimed one."""
        counts = (self.hits, self.trials, self.false_hits, self.false_trials)
        divergence = delta_proved(*counts, claimed, self.error)
        return {**asdict(self), "proved": self.proved, "delta_proved": divergence}


class Evidence(Protocol):
    """Something counted, and what it proves."""

    @property
    def proved(self) -> float:
        """The largest epsilon that it excludes."""

    def to_dict(self, claimed: float) -> dict[str, Any]:
        """Plain data for JSON, beside the claimed epsilon."""


class Caught(Protocol):
    """The mildest violation that an audit refutes nearly always; in words by `str`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""


class Alternative(Protocol):
    """A family of violations, from mild to gross."""

    def caught(self, epsilon: float, delta: float) -> Caught:
        """The mildest that would have refuted this claim."""


@dataclass(frozen=True)
class Verdict:
    """A claim, and whether an adversary could refute it."""

    claim: str
    """What was claimed, in words."""
    epsilon: float
    """That is claimed."""
    delta: float
    """That is claimed."""
    tests: tuple[Evidence, ...]
    """What was counted."""
    error: float
    """Probability that a true claim is refuted or the estimate too large, all tests together."""
    estimate: float | None = None
    """For Gaussian noise only: epsilon of the Gaussian noise that the counts point to."""
    alternative: Alternative | None = None
    """What the power is stated for."""

    @property
    def proved(self) -> float:
        """The tightest lower bound on epsilon."""
        return max((test.proved for test in self.tests), default=0.0)

    @property
    def refuted(self) -> bool:
        """Whether the bound contradicts the claim."""
        return self.proved > self.epsilon

    @cached_property
    def caught(self) -> Caught | None:
        """The mildest violation that this audit would have caught; calculated when asked for."""
        if self.alternative is None:
            return None
        return self.alternative.caught(self.epsilon, self.delta)

    def __str__(self) -> str:
        confidence = f"{100 * (1 - self.error):g} %"
        at = f" at δ = {self.delta:.3g}" if self.delta else ""
        if self.refuted:
            found = f"refuted (ε ≥ {self.proved:.3g} at {confidence})"
        else:
            found = f"not refuted (tightest lower bound {self.proved:.3g})"
        return f"claim ε ≤ {shown(self.epsilon)}{at}: {found}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite numbers are the string "inf"."""
        plain = {
            "claim": self.claim,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "refuted": self.refuted,
            "proved": self.proved,
            "error": self.error,
            "power": self.caught and {"words": str(self.caught), **self.caught.to_dict()},
            "estimate": self.estimate,
            "verdict": str(self),
            "tests": [test.to_dict(self.epsilon) for test in self.tests],
        }
        return finite(plain)


def finite(plain: dict[str, Any]) -> dict[str, Any]:
    """The same with the string "inf" for infinite numbers, which JSON does not have."""
    return {key: "inf" if value == math.inf else value for key, value in plain.items()}
