"""An upper bound on the cost of one event out of each of several sets of alternatives.

In every run a record may be dealt to another client. It pays what that client pays, so the events
of all clients of a run are alternatives; the bound holds without knowing which client it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from udpfl.accounting import pure, rdp
from udpfl.accounting._conversion import epsilon_at
from udpfl.accounting.accountant import account, check_choices
from udpfl.accounting.events import Composed, Event, Leaf, Repeated, basis, leaves
from udpfl.accounting.filter import Filter
from udpfl.accounting.statement import PrivacyStatement, largest
from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms.arrays import Floats

_MOST = 64
"""Combinations that are accounted one by one; above that, divergences are bounded order by order"""


def account_alternatives(
    sets: Sequence[Sequence[Event]], delta: float, rule: Filter | None = None
) -> PrivacyStatement:
    """The largest cost of any composition with one event out of each set, accounted at once.

    Guarantee: an upper bound for every such composition. Of many, the Rényi divergence at order a
    is at most the sum over the sets of the largest divergence at a within each, which is converted
    once; at delta = 0 the same holds of the largest privacy loss. With a filter as `rule` it holds
    for releases as well whose settings depended on earlier ones.
    """
    if not sets or not all(sets):
        raise InvalidInput("sets", "each needs an event")
    check_choices(delta, "best", "vector")
    basis(Composed(event for events in sets for event in events))  # raises where these differ
    combined: list[Counter[Leaf]] = [Counter()]
    for events in sets:
        distinct = dict.fromkeys(frozenset(leaves(event).items()) for event in events)
        if len(distinct) * len(combined) > _MOST:
            return _bounded(sets, delta, rule)
        own = [Counter(dict(items)) for items in distinct]
        combined = _maximal(before + more for before in combined for more in own)
    return largest(
        account(
            Composed(Repeated(leaf, count) for leaf, count in totals.items()), delta, rule or "best"
        )
        for totals in combined
    )


def _maximal(totals: Iterable[Counter[Leaf]]) -> list[Counter[Leaf]]:
    """Those that are contained in no other: fewer releases never cost more."""
    kept: list[Counter[Leaf]] = []
    for each in totals:
        if not any(each <= other for other in kept):
            kept = [other for other in kept if not other <= each] + [each]
    return kept


def _bounded(
    sets: Sequence[Sequence[Event]], delta: float, rule: Filter | None
) -> PrivacyStatement:
    unit, neighbours = basis(sets[0][0])
    if rule is not None and delta:  # never the smaller of this and another at all of delta
        epsilon = rule.converted(_largest(sets, np.array(rule.orders)), delta)
        return PrivacyStatement(
            epsilon, delta, "guarantee", "filter", unit, neighbours, vector_epsilon=epsilon,
            composition="filter",
        )  # fmt: skip
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
        value, order = epsilon_at(orders, _largest(sets, orders), delta)
        best = min(best, value)
        if order < 0.8 * top:
            break
    return float(best)


def _largest(sets: Sequence[Sequence[Event]], orders: Floats) -> Floats:
    """At each order the sum of the largest divergences."""
    each = [np.max([rdp.curve(event, orders) for event in events], axis=0) for events in sets]
    return np.asarray(np.sum(each, axis=0))
