"""What a client has spent: how often each distinct release happened, and whether more fits.

Releases are counted by their canonical text, so a history of a million rounds is a handful of
numbers, and a mechanism is loaded only when an epsilon is asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from udpfl.accounting.accountant import Accountant, account, check_choices
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Composed, Event, Repeated, basis, leaves
from udpfl.accounting.filter import Filter
from udpfl.accounting.serial import event_from_json, event_to_json
from udpfl.accounting.shuffling import unshuffled
from udpfl.accounting.statement import Kind, PrivacyStatement
from udpfl.errors import Unsupported
from udpfl.ledger.decisions import Decision
from udpfl.sensitivity import whole

NO_CLAIM = "null"
"""The text of an answer that was released without any privacy: it costs more than any budget."""
_MOST_CERTIFICATES = 16


def totals_of(events: Iterable[Event]) -> Counter[str]:
    """How often each distinct release happens; no event at all is a release without a claim."""
    counts = leaves(Composed(events)).items()
    totals = Counter({event_to_json(leaf): whole("count", count) for leaf, count in counts})
    return totals or Counter({NO_CLAIM: 1})


def totals_of_each(several: Iterable[tuple[Event, ...]]) -> list[Counter[str]]:
    """The totals of several clients, to be read: clients with the same events share theirs.

    The same are the very same objects: to compare releases takes as long as to count them. Nothing
    is remembered from one call to the next.
    """
    several = list(several)  # as long as all of them are alive their identities differ
    known: dict[tuple[int, ...], Counter[str]] = {}
    for events in several:
        key = tuple(map(id, events))
        if key not in known:
            known[key] = totals_of(events)
    return [known[tuple(map(id, events))] for events in several]


def bare_totals(totals: Mapping[str, int]) -> Counter[str]:
    """The same releases without regard to who else's messages they are mixed with."""
    bare: Counter[str] = Counter()
    for text, count in totals.items():
        bare[_bare(text)] += count
    return bare


@lru_cache(maxsize=1024)
def _bare(text: str) -> str:
    return text if text == NO_CLAIM else event_to_json(unshuffled(event_from_json(text)))


def as_event(totals: Mapping[str, int]) -> Event | None:
    """The releases as one event, in an order that depends on nothing but the totals."""
    claimed = [(text, count) for text, count in sorted(totals.items()) if text != NO_CLAIM]
    if not claimed:
        return None
    return Composed(Repeated(event_from_json(text), count) for text, count in claimed)


def accounted(
    totals: Mapping[str, int], delta: float, filter_: Filter | None = None
) -> PrivacyStatement:
    """What all releases together cost, accounted at once; cached, because clients share totals.

    By a filter where there is one; else as releases that were fixed beforehand.
    """
    if NO_CLAIM in totals:
        return PrivacyStatement.none("an update was released without noise")
    return _accounted(frozenset(totals.items()), float(delta), filter_)


def nominal_before(
    statement: PrivacyStatement, own: Event, delta: float, accountant: Accountant
) -> PrivacyStatement:
    """A run's number in scalar accounting, by this accountant, with what is guaranteed beside it.

    Guarantee: what is guaranteed is that of `statement`, whichever accountant this is.
    """
    if statement.kind == "none":
        return statement
    nominal = _nominal(own, delta, accountant)
    nominal = nominal.adding(assumptions=statement.assumptions, notes=statement.notes)
    return replace(nominal, vector_epsilon=statement.epsilon)


@lru_cache(maxsize=1024)
def _nominal(event: Event, delta: float, accountant: Accountant) -> PrivacyStatement:
    try:
        return account(event, delta, accountant, accounting="scalar")
    except Unsupported as reason:  # at this delta, which need not be the one it planned for
        return _unbounded(event, delta, "nominal", accountant, str(reason))


@lru_cache(maxsize=1024)
def _accounted(
    totals: frozenset[tuple[str, int]], delta: float, filter_: Filter | None
) -> PrivacyStatement:
    event = as_event(dict(totals))
    if event is not None:
        try:
            return account(event, delta, accountant=filter_ or "best", accounting="vector")
        except Unsupported as reason:
            if delta > 0:
                raise
            return _unbounded(event, delta, "guarantee", "pure", str(reason))
    check_choices(delta, "best", "vector")
    return PrivacyStatement(
        0.0, delta, "guarantee", "pure", vector_epsilon=0.0, notes=("nothing was released",)
    )


def _unbounded(
    event: Event, delta: float, kind: Kind, accountant: str, reason: str
) -> PrivacyStatement:
    """What an event costs that an accountant cannot bound at this delta: more than any epsilon.

    Such is noise without a largest privacy loss at delta = 0.
    """
    unit, neighbours = basis(event)
    return PrivacyStatement(math.inf, delta, kind, accountant, unit, neighbours, notes=(reason,))


def resting_on_imports(statement: PrivacyStatement) -> PrivacyStatement:
    """The same claim with what it takes on trust, where a part of it was released elsewhere."""
    if statement.kind == "none":  # rests on nothing
        return statement
    assumed = (
        "assumes that the imported releases were clipped, noised and Poisson-sampled as recorded, "
        f"for the same neighbours ({statement.neighbours}), which was not checked here"
    )
    return statement.adding(assumptions=[assumed])


def check_one_basis(totals: Mapping[str, int]) -> None:
    """Raise `Unsupported` where units or neighbours differ: such totals mean nothing."""
    event = as_event(totals)
    if event is not None:
        basis(event)


class Charged(NamedTuple):
    """One kind of release that a run was charged for."""

    run: str
    event: str
    times: int
    seeded: bool
    imported: bool
    trusting: bool
    last: int
    """The number of the last such charge."""


class Spending:
    """One account's totals up to the charge read last, and totals known to fit a budget."""

    def __init__(self) -> None:
        self.last = 0
        self.moment: object = None
        """When it was read."""
        self.read_up_to = 0
        """The ledger's last charge, of whichever account, when it was read."""
        self.totals: Counter[str] = Counter()
        self.by_run: dict[str, Counter[str]] = {}
        self.seeded = False
        self.imported = False
        self.trusting = False
        """Whether some of it rests on a server that adds the noise."""
        self.taken_over = 0
        """The decision by which it took over the spending of another account; 0 without one."""
        self._safe: list[tuple[tuple[Budget, Filter | None], Counter[str]]] = []

    @classmethod
    def taking_over(cls, decision: Decision, before: Sequence[Charged]) -> Spending:
        """What an account goes on with that took over others' spending."""
        spending, content = cls(), decision.content
        spending.advance(before)  # what each run was charged stays its own
        spending.totals = Counter(content["totals"])
        spending.seeded, spending.imported = content["seeded"], content["imported"]
        spending.trusting = content["trusting"]
        spending.last, spending.taken_over = decision.charges, decision.id
        return spending

    def advance(self, rows: Sequence[Charged]) -> None:
        """Add later charges. Interrupted halfway, it counts twice, never not at all."""
        for row in rows:
            more = Counter({row.event: row.times})
            self.totals = self.totals + more
            self.by_run[row.run] = self.by_run[row.run] + more if row.run in self.by_run else more
            self.seeded = self.seeded or bool(row.seeded)
            self.imported = self.imported or bool(row.imported)
            self.trusting = self.trusting or bool(row.trusting)
        self.last = max((row.last for row in rows), default=self.last)

    def fits(self, totals: Counter[str], budget: Budget, filter_: Filter | None) -> bool:
        """Whether these totals keep the budget; remembered, so that the next rounds cost nothing.

        Guarantee: fewer releases never cost more, so whatever is contained in totals that were
        accounted within the budget is within it too.
        """
        rule = (budget, filter_)
        if any(rule == known and totals <= safe for known, safe in self._safe):
            return True
        statement = accounted(totals, budget.delta, filter_)
        epsilon = statement.epsilon if statement.kind == "guarantee" else math.inf
        if not epsilon <= budget.epsilon:  # not a number counts as too much
            return False
        others = [pair for pair in self._safe if pair[0] != rule or not pair[1] <= totals]
        self._safe = [*others, (rule, Counter(totals))][-_MOST_CERTIFICATES:]
        return True
