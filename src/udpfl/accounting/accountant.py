"""One question, one answer: what does this event cost?"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from udpfl.accounting import loss_distribution, paper, pure, rdp, shuffling
from udpfl.accounting.events import (
    Composed,
    Event,
    NominallyShuffled,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    SecretlySelected,
    Shuffled,
    basis,
    leaves,
)
from udpfl.accounting.filter import Filter
from udpfl.accounting.statement import Composition, PrivacyStatement
from udpfl.errors import InvalidInput, Unsupported

Accountant = Literal["rdp", "pld", "best", "paper"]
Accounting = Literal["vector", "scalar"]
PAPER_IS_NOMINAL = (
    "paper is for scalar accounting, which is nominal, and never gives a guarantee: set accounting "
    "to scalar, or choose rdp, pld or best"
)

log = logging.getLogger(__name__)


def account(
    event: Event,
    delta: float,
    accountant: Accountant | Filter = "best",
    accounting: Accounting = "vector",
) -> PrivacyStatement:
    """The smallest epsilon that can be certified for the whole event at `delta`.

    All of this is for releases whose settings were fixed before the first of them. A `Filter` as
    accountant, and pure DP, hold for settings as well that depend on earlier results.

    Args:
        event: Everything that was or will be released.
        delta: In [0, 1); 0 asks for pure DP.
        accountant: "rdp", "pld", a `Filter`, or "best": every accountant that supports all of the
            event is asked, and the smallest answer kept. Each is an upper bound, so that is one
            too. "paper" is the paper's own, for scalar accounting alone.
        accounting: "vector" for what holds for the whole gradient. With "scalar" the statement is
            nominal and carries the vector-accounted epsilon beside it.

    Returns:
        The statement: epsilon, delta, for whom it holds, and by which accountant.

    Raises:
        InvalidInput: `delta`, `accountant` or `accounting` is none of the above, or they do not
            go together.
        Unsupported: The accountant has no proved bound for a part of the event.

    Example:
        >>> from udpfl import Gaussian, PoissonSampled, Release, Repeated, Sensitivity, account
        >>> step = PoissonSampled(0.01, Release(Gaussian(1.0), Sensitivity(1.0)))
        >>> print(account(Repeated(step, 1000), delta=1e-5))
        (ε = 1.829, δ = 1e-05)-DP for one record added or removed, by the pld accountant
    """
    check_choices(delta, accountant, accounting)
    unit, neighbours = basis(event)
    if any(isinstance(leaf, NominallyShuffled) for leaf in leaves(event)):
        raise Unsupported("a nominal shuffle is not an event that happened; account Shuffled")
    is_nominal = accounting == "scalar"
    value, how = _smallest(as_scalar(event) if is_nominal else event, delta, accountant)
    proved, why_not = _proved(event, delta, accountant) if is_nominal else (value, ())
    return PrivacyStatement(
        epsilon=value,
        delta=delta,
        kind="nominal" if is_nominal else "guarantee",
        accountant=how,
        unit=unit,
        neighbours=neighbours,
        vector_epsilon=proved,
        notes=(*_notes(event), *why_not),
        composition=_composition(how),
    )


def _proved(
    event: Event, delta: float, accountant: Accountant | Filter
) -> tuple[float, tuple[str, ...]]:
    """What is proved for the gradient beside a nominal number; where nothing is, a note why."""
    proved, reason = math.inf, ""
    first: Accountant | Filter = "best" if accountant == "paper" else accountant
    choices: tuple[Accountant | Filter, ...] = (first, "best")
    for choice in choices:  # pld may know one coordinate and not the gradient
        try:
            proved = _smallest(event, delta, choice)[0]
            break
        except Unsupported as error:
            reason = str(error)
    return proved, (f"no guarantee: {reason}",) if math.isinf(proved) and reason else ()


def _composition(how: str) -> Composition:
    return {"filter": "filter", "pure": "sum"}.get(how, "fixed")  # type: ignore[return-value]


def check_choices(delta: float, accountant: str | Filter, accounting: str) -> None:
    """Refuse what no accountant could answer."""
    number = isinstance(delta, (int, float, np.floating)) and not isinstance(delta, bool)
    if not number or not 0 <= delta < 1:
        raise InvalidInput("delta", f"must lie in [0, 1), got {delta!r}")
    if not isinstance(accountant, Filter) and accountant not in get_args(Accountant):
        raise InvalidInput("accountant", f"must be rdp, pld, best or paper, got {accountant!r}")
    if accounting not in get_args(Accounting):
        raise InvalidInput("accounting", f"must be vector or scalar, got {accounting!r}")
    if accountant == "paper" and accounting != "scalar":
        raise InvalidInput("accountant", PAPER_IS_NOMINAL)


def _smallest(event: Event, delta: float, accountant: Accountant | Filter) -> tuple[float, str]:
    if accountant == "paper":
        return paper.epsilon(event, delta), "paper"
    if delta == 0:
        return pure.epsilon(event), "pure"
    if isinstance(accountant, Filter):  # never the smaller of this and another at all of delta
        return accountant.epsilon(event, delta), "filter"
    if accountant == "rdp":
        return rdp.epsilon(event, delta), "rdp"
    if accountant == "pld":
        return loss_distribution.epsilon(event, delta), "pld"
    answers = [(rdp.epsilon(event, delta), "rdp")]
    try:
        answers.append((loss_distribution.epsilon(event, delta), "pld"))
    except Unsupported as reason:
        log.debug("pld accountant: %s", reason)
    try:
        answers.append((pure.epsilon(event), "pure"))
    except Unsupported as reason:
        log.debug("pure accountant: %s", reason)
    return min(answers)


def as_scalar(event: Event) -> Event:
    """The same event as the paper reads it: one coordinate, and shuffling without conditions."""
    match event:
        case Release(mechanism, sensitivity):
            one = mechanism.in_dimension(1)
            return replace(event, mechanism=one, sensitivity=sensitivity.scalar())
        case PureDP():
            return event
        case PoissonSampled() | SecretlySelected() | Repeated() | NominallyShuffled():
            return replace(event, event=as_scalar(event.event))  # type: ignore[arg-type]
        case Shuffled(inner, clients, _, releases):
            return NominallyShuffled(as_scalar(inner), clients, releases)  # type: ignore[arg-type]
        case Composed(events):
            return Composed(as_scalar(inner) for inner in events)


def _notes(event: Event) -> Iterator[str]:
    for leaf in leaves(event):
        if isinstance(leaf, Shuffled):
            for reason in shuffling.conditions_missing(leaf):
                yield f"no amplification by shuffling: {reason}"
