"""What a whole audit came to: all of its verdicts, and one sentence about the claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from udpfl.accounting.statement import shown
from udpfl.audit.power import LEAST_FACTOR, LessNoise
from udpfl.audit.verdict import POWER, Verdict, finite

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class AuditResult(Sequence[Verdict]):
    """The verdicts of one audit, in their order, and the claim that they are about.

    Args:
        verdicts: In the order in which they were found.
        epsilon: That is claimed of all releases together.
        delta: That is claimed with it.
        about: Whose claim it is, where that is not clear.

    Example:
        >>> import numpy as np
        >>> from udpfl import Gaussian
        >>> from udpfl.audit import AuditResult, Releases, audit_releases
        >>> releases = Releases(Gaussian(1e-3), np.ones(1))
        >>> verdict = audit_releases(releases, 1.0, 0.0, claim="tiny noise", trials=1000)
        >>> print(AuditResult((verdict,), 1.0, 0.0))  # doctest: +ELLIPSIS
        The claim ε ≤ 1 was refuted: tiny noise, ε ≥ ... with 95 % confidence, where ε ≤ 1 ...
    """

    verdicts: tuple[Verdict, ...]
    epsilon: float
    """That is claimed of all releases together."""
    delta: float
    """That is claimed with it."""
    about: str = ""
    """Whose claim it is, where that is not clear."""

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Verdict, ...]: ...
    def __getitem__(self, index: int | slice) -> Verdict | tuple[Verdict, ...]:
        return self.verdicts[index]

    def __len__(self) -> int:
        return len(self.verdicts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    @property
    def refuted(self) -> bool:
        """Whether any part of the claim was refuted."""
        return any(verdict.refuted for verdict in self)

    @property
    def power(self) -> LessNoise | None:
        """The most noise that would have been caught, by the verdict that catches most.

        A fault that one verdict finds refutes the claim, so the whole audit finds at least as much.
        None where no verdict is about the amount of noise.
        """
        known = [own.caught for own in self if isinstance(own.caught, LessNoise)]
        return max(known, key=lambda own: own.scale or 0.0, default=None)

    def calculate_power(self, progress: Progress) -> None:
        """Calculate the power of every verdict now, and say how far that has got."""
        for number, verdict in enumerate(self):
            progress("calculating what would have been caught", number, len(self))
            _ = verdict.caught
        progress("calculating what would have been caught", len(self), len(self))

    def __str__(self) -> str:
        at = f" at δ = {self.delta:.3g}" if self.delta else ""
        whose = f" of {self.about}" if self.about else ""
        claim = f"The claim ε ≤ {shown(self.epsilon)}{at}{whose}"
        if self.refuted:
            worst = max((own for own in self if own.refuted), key=lambda v: v.proved - v.epsilon)
            return (
                f"{claim} was refuted: {worst.claim}, ε ≥ {worst.proved:.3g} with "
                f"{100 * (1 - worst.error):g} % confidence, where ε ≤ {shown(worst.epsilon)} "
                "follows from the claim."
            )
        return f"{claim} was not refuted; {_would_have_caught(self.power)}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite numbers are the string "inf"."""
        plain = {
            "conclusion": str(self),
            "refuted": self.refuted,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "about": self.about,
            "power": self.power and {"probability": POWER, **self.power.to_dict()},
            "verdicts": [verdict.to_dict() for verdict in self],
        }
        return finite(plain)


def _would_have_caught(power: LessNoise | None) -> str:
    often = f"with {100 * POWER:g} % probability"
    if power is None:
        return "how much too little noise an audit of this size would have caught is not known"
    if power.scale is None or power.lowest is None:
        return f"an audit of this size would have caught no fraction of the claimed noise {often}"
    if power.scale >= 1:
        return f"but an audit of this size refutes even the claimed noise {often}: repeat it"
    between = (
        f"below {power.scale:g}"
        if power.lowest <= LEAST_FACTOR
        else f"between {power.lowest:g} and {power.scale:g}"
    )
    return f"an audit of this size would have caught noise {between} of the claimed {often}"
