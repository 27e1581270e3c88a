"""An upper bound on the cost of one event out of each of several sets of alternatives.

In every run a record may be dealt to another client. It pays what that client pays, so the events
of all clients of a run are alternatives; the bound holds without knowing which client it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from udpfl.accounting import pure, rdp
from udpfl.accounting.accountant import account, check_choices
from udpfl.accounting.conversion import epsilon_at
from udpfl.accounting.events import Composed, Event, Leaf, Repeated, basis, leaves
from udpfl.accounting.statement import PrivacyStatement, largest
from udpfl.errors import InvalidInput, Unsupported

_MOST = 64
"""Combinations that are accounted one by one; above that, divergences are bounded order by order"""


def account_alternatives(sets: Sequence[Sequence[Event]], delta: float) -> PrivacyStatement:
    """The largest cost of any composition with one event out of each set, accounted at once.

    Guarantee: an upper bound for every such composition. Of many, the Rényi divergence at order a
    is at most the sum over the sets of the largest divergence at a within each, which is converted
    once; at delta = 0 the same holds of the largest privacy loss.
    """
    if not sets or not all(sets):
        raise InvalidInput("sets", "each needs an event")
    check_choices(delta, "best", "vector")
    basis(Composed(event for events in sets for event in events))  # raises where these differ
    combined: list[Counter[Leaf]] = [Counter()]
    for events in sets:
        distinct = dict.fromkeys(frozenset(leaves(event).items()) for event in events)
        if len(distinct) * len(combined) > _MOST:
            return _bounded(sets, delta)
        own = [Counter(dict(items)) for items in distinct]
        combined = _maximal(before + more for before in combined for more in own)
    return largest(
        account(Composed(Repeated(leaf, count) for leaf, count in totals.items()), delta)
        for totals in combined
    )


def _maximal(totals: Iterable[Counter[Leaf]]) -> list[Counter[Leaf]]:
    """Those that are contained in no other: fewer releases never cost more."""
    kept: list[Counter[Leaf]] = []
    for each in totals:
        if not any(each <= other for other in kept):
            kept = [other for other in kept if not other <= each] + [each]
    return kept


def _bounded(sets: Sequence[Sequence[Event]], delta: float) -> PrivacyStatement:
    unit, neighbours = basis(sets[0][0])
    answers = [(_renyi(sets, delta), "rdp")] if delta else []
    try:
        answers.append((sum(max(map(pure.epsilon, events)) for events in sets), "pure"))
    except Unsupported:
        if not delta:
            raise
    epsilon, how = min(answers)
    return PrivacyStatement(
        epsilon, delta, "guarantee", how, unit, neighbours, vector_epsilon=epsilon
    )


def _renyi(sets: Sequence[Sequence[Event]], delta: float) -> float:
    best = np.inf
    for top in rdp.TOPS:
        orders = rdp.order_grid(top)
        total = sum(
            np.max([rdp.curve(event, orders) for event in events], axis=0) for events in sets
        )
        value, order = epsilon_at(orders, np.asarray(total), delta)
        best = min(best, value)
        if order < 0.8 * top:
            break
    return float(best)
