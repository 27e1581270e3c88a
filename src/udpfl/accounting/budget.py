"""How much of a budget is left after a history of events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from udpfl.accounting.accountant import Accountant, account, check_choices
from udpfl.accounting.events import Composed, Event, Repeated
from udpfl.accounting.filter import Filter
from udpfl.errors import InvalidInput
from udpfl.mechanisms.base import positive

_MOST_ROUNDS = 1 << 24


@dataclass(frozen=True)
class Budget:
    """The most that all releases of one client together may cost.

    Raises:
        InvalidInput: `epsilon` or `delta` is out of range.

    Example:
        >>> from udpfl import Budget
        >>> Budget(epsilon=8.0, delta=1e-5)
        Budget(epsilon=8.0, delta=1e-05)
    """

    epsilon: float
    """Above 0."""
    delta: float
    """In [0, 1); 0 asks for pure DP."""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        check_choices(self.delta, "best", "vector")


def would_exceed(
    history: Iterable[Event],
    next_event: Event,
    budget: Budget,
    accountant: Accountant | Filter = "best",
) -> bool:
    """Whether releasing `next_event` after `history` would break the budget.

    The whole history is accounted at once: epsilons of separate events are never added up.

    Args:
        history: Everything that was released so far.
        next_event: What would be released next.
        budget: The most that both together may cost.
        accountant: "rdp", "pld", "best" of both, or a `Filter`, which also holds for settings that
            depend on earlier results. Never "paper", which proves nothing.

    Returns:
        True where epsilon at the budget's delta would be larger than the budget's epsilon.

    Raises:
        InvalidInput: `history` is not a list of events, or `accountant` is "paper".
        Unsupported: The accountant has no proved bound for one of the events.

    Example:
        >>> from udpfl import Budget, Gaussian, Release, Sensitivity, would_exceed
        >>> step = Release(Gaussian(5.0), Sensitivity(1.0))
        >>> would_exceed([step] * 10, step, Budget(epsilon=1.0, delta=1e-5))
        True
    """
    total = Composed([*_listed(history), next_event])
    return not account(total, budget.delta, accountant).epsilon <= budget.epsilon


def rounds_left(
    history: Iterable[Event],
    round_event: Event,
    budget: Budget,
    accountant: Accountant | Filter = "best",
) -> int:
    """How many more times `round_event` fits into the budget after `history`.

    Args:
        history: Everything that was released so far.
        round_event: What one more round releases.
        budget: The most that everything together may cost.
        accountant: As for `would_exceed`.

    Returns:
        The number of rounds, 0 where not even one fits. It is searched for up to 2^24.

    Raises:
        InvalidInput: `history` is not a list of events, or `accountant` is "paper".
        Unsupported: The accountant has no proved bound for one of the events.

    Example:
        >>> from udpfl import Budget, Gaussian, Release, Sensitivity, rounds_left
        >>> step = Release(Gaussian(5.0), Sensitivity(1.0))
        >>> rounds_left([step], step, Budget(epsilon=2.0, delta=1e-5))
        5
    """
    past = _listed(history)

    def fits(count: int) -> bool:
        return not would_exceed(past, Repeated(round_event, count), budget, accountant)

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, high * 2
        if high > _MOST_ROUNDS:
            return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _listed(history: Iterable[Event]) -> list[Event]:
    if not isinstance(history, Iterable):
        raise InvalidInput("history", "must be a list of events")
    return list(history)
