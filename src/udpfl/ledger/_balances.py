"""What accounts have spent and hold reserved, whether more fits, and what all of it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from udpfl.accounting.events import Event
from udpfl.accounting.statement import PrivacyStatement
from udpfl.errors import InvalidInput
from udpfl.ledger._reservations import Reservations
from udpfl.ledger.accounts import Accounts
from udpfl.ledger.charges import IMPORTED, TRUST, TRUSTED
from udpfl.ledger.decisions import Decisions
from udpfl.ledger.file import LedgerFile
from udpfl.ledger.seals import Seals
from udpfl.ledger.spending import (
    NO_CLAIM,
    Charged,
    Spending,
    accounted,
    as_event,
    bare_totals,
    check_one_basis,
    nominal_before,
    resting_on_imports,
)

Demand = Mapping[str, Counter[str]]
"""Run by run, what is going to be released."""
NOTHING_MORE: Demand = {}
_NOTHING: Counter[str] = Counter()

_WHOLE_PLAN = (
    "stated with everything that the run was planned to release, whether or not it got there: "
    "whoever stops a run has seen its results"
)
_NO_PLAN = (
    "an earlier version wrote the ledger and did not record what the run was planned to release: "
    "holds if nobody stopped the run because of its results"
)
_NOMINAL_ALONE = (
    "the nominal ε is of this run alone; the guaranteed ε counts everything that was charged to "
    "the account"
)
_TAKEN_OVER = (
    "its records may have been at other clients before, so the largest spending among those is "
    "counted as its own"
)


class Balances:
    """Of the accounts of a ledger's file."""

    def __init__(
        self,
        file: LedgerFile,
        accounts: Accounts,
        decisions: Decisions,
        reservations: Reservations,
        seals: Seals,
    ) -> None:
        self._file, self._accounts, self._decisions = file, accounts, decisions
        self._reservations, self._seals = reservations, seals
        self._read: dict[tuple[int, str | None, int | None], Spending] = {}
        self._rollbacks = file.rollbacks
        self._newest: tuple[object, int] = (None, 0)

    def charged(self, account: int, run: str | None = None, up_to: int | None = None) -> Spending:
        """What any process charged, in one run or in all; reads new rows only."""
        key, moment = (account, run, up_to), self._file.moment
        if self._rollbacks != self._file.rollbacks:  # what was read may never have been stored
            self._rollbacks, self._read = self._file.rollbacks, {}
        spending = self._read.get(key)
        if spending is None:
            spending = self._read[key] = Spending()
        elif spending.moment is moment:
            return spending
        # What was taken over before a run's last charge was taken over before the run ended.
        taken = [
            found
            for found in ([] if run else self._decisions.of("take over", account))
            if up_to is None or found.charges < up_to
        ]
        if taken and taken[-1].id != spending.taken_over:
            before = self._rows(account, 0, run, taken[-1].charges)
            spending = self._read[key] = Spending.taking_over(taken[-1], before)
        spending.moment = moment
        if spending.read_up_to != (newest := self._newest_charge(moment)):
            if rows := self._rows(account, spending.last, run, up_to):
                spending.advance(rows)
            spending.read_up_to = newest
        return spending

    def _newest_charge(self, moment: object) -> int:
        """The number of the last charge of any account: one query where many are asked about."""
        if self._newest[0] is not moment:
            ((newest,),) = self._file.rows("SELECT ifnull(max(id), 0) FROM charges")
            self._newest = (moment, newest)
        return self._newest[1]

    def _rows(self, account: int, after: int, run: str | None, up_to: int | None) -> list[Charged]:
        found = self._file.rows(  # a charge whose run is gone still counts, and proves nothing
            "SELECT c.run, c.event, sum(c.count), max(r.randomness IS NOT 'entropy'), "
            f"max(c.run GLOB '{IMPORTED}*'), max(c.note = '{TRUSTED}'), max(c.id) "
            "FROM charges c LEFT JOIN runs r ON r.id = c.run "
            "WHERE c.account = ? AND c.id > ? AND c.run = ifnull(?, c.run) "
            "AND c.id <= ifnull(?, c.id) GROUP BY c.run, c.event",
            *(account, after, run, up_to),
        )
        return [Charged(*row) for row in found]

    def charged_in(self, account: int, run: str) -> Counter[str]:
        """What was charged in one run."""
        return self.charged(account).by_run.get(run, _NOTHING)

    def held(
        self, account: int, more: Demand = NOTHING_MORE, *, without: str | None = None
    ) -> Counter[str]:
        """Everything charged, and what is still reserved, once runs have charged so much more.

        The reservation of the run `without` is left out.
        """
        total = dict(self.charged(account).totals)
        for totals in more.values():
            for release, times in totals.items():
                total[release] = total.get(release, 0) + times
        for own in self._reservations.held(account):
            if own.run == without:
                continue
            spent = self.charged_in(account, own.run)
            coming = more.get(own.run, _NOTHING)
            for release, planned in own.totals.items():
                if (rest := planned - spent[release] - coming[release]) > 0:
                    total[release] = total.get(release, 0) + rest
        return Counter(total)

    def _is_without_plan(self, account: int) -> bool:
        """Whether releases were charged before plans were recorded."""
        was_upgraded = self._decisions.of("upgrade", None)
        return bool(was_upgraded) and not self._reservations.of(account)

    def unfinished(self, account: int) -> list[str]:
        """Runs that have reserved more than they have spent."""
        return [
            own.run
            for own in self._reservations.held(account)
            if own.totals - self.charged_in(account, own.run)
        ]

    def reserved(self, account: int) -> dict[str, Event]:
        """What runs have reserved and not spent yet."""
        rests = {
            own.run: as_event(own.totals - self.charged_in(account, own.run))
            for own in self._reservations.held(account)
        }
        return {run: event for run, event in rests.items() if event is not None}

    def is_within_plan(self, account: int, run: str, more: Counter[str]) -> bool:
        """Whether a run that has reserved its plan keeps to it, and still holds the reservation.

        A run that never reserved anything has no plan to keep to.
        """
        if (made := self._reservations.of_run(account, run)) is None:
            return True
        wanted = self.charged_in(account, run) + more
        if not self._reservations.is_held(account, made):
            return False
        # Who is mixed with fewer messages than planned pays for that, and releases the same.
        return wanted <= made.totals or bare_totals(wanted) <= bare_totals(made.totals)

    def has_room(self, account: int, run: str, more: Counter[str]) -> bool:
        """Whether a run holds a reservation that contains this."""
        is_reserved = self._reservations.of_run(account, run) is not None
        return is_reserved and self.is_within_plan(account, run, more)

    def fits(self, account: int, more: Demand) -> bool:
        """Whether runs may charge so much more: whatever is reserved by others stays theirs.

        Guarantee: if all that is charged was allowed by this, all that is charged and reserved
        together stays within the budget, by the account's own way of adding it up.
        """
        budget = self._accounts.budget(account)
        return budget is None or self.charged(account).fits(
            self.held(account, more), budget, self._accounts.filter(account)
        )

    def may_exchange(self, account: int, run: str, more: Counter[str]) -> bool:
        """Whether a run may release this in place of the rest of what it has reserved.

        Guarantee: by the account's filter, what the run was charged and this cost no more than what
        it reserved first, and all that is charged and reserved keeps the budget. It holds however
        `more` was chosen: a filter asks only that it was chosen by what was released.
        """
        rule, budget = self._accounts.filter(account), self._accounts.budget(account)
        first = self._reservations.first_of_run(account, run)
        is_held = run in [own.run for own in self._reservations.held(account)]
        if rule is None or budget is None or first is None or not is_held:
            return False
        whole = accounted(self.charged_in(account, run) + more, budget.delta, rule)
        allowed = accounted(first.totals, budget.delta, rule)
        if whole.kind != "guarantee" or not whole.epsilon <= allowed.epsilon:
            return False
        total = self.held(account, {run: more}, without=run)
        return self.charged(account).fits(total, budget, rule)

    def require_one_basis(self, account: int, more: Demand) -> None:
        """Raise `Unsupported` where units or neighbours differ from those charged before."""
        known = self.charged(account).totals
        if any(not totals.keys() <= known.keys() for totals in more.values()):
            check_one_basis(sum(more.values(), known))

    def statement(
        self,
        account: int,
        delta: float | None,
        nominal_run: str | None,
        up_to: int | None,
        fixed_beforehand: bool,
    ) -> PrivacyStatement:
        """See `Ledger.statement`."""
        spending, owner = self.charged(account, up_to=up_to), self._accounts.owner(account)
        if spending.seeded:
            return PrivacyStatement.none("noise of a seeded run can be computed by anyone")
        if delta is None:
            budget = self._accounts.budget(account)
            if budget is None and spending.totals.keys() - {NO_CLAIM}:
                raise InvalidInput("delta", f"is needed: client {owner.client} has no budget")
            delta = budget.delta if budget else 0.0
        rule = None if fixed_beforehand else self._accounts.filter(account)
        plan: Counter[str] = Counter()
        if owner.runs == "one" and not fixed_beforehand and spending.totals:
            for own in self._reservations.of(account):
                plan |= own.totals
        totals = spending.totals | plan
        statement = accounted(totals, delta, rule)
        notes = [_WHOLE_PLAN] if totals != spending.totals else []
        notes += [_TAKEN_OVER] if spending.taken_over else []
        notes += [_NO_PLAN] if owner.runs == "one" and self._is_without_plan(account) else []
        assumed = self._accounts.assumptions_about(account)
        statement = statement.adding(assumptions=assumed, notes=notes)
        if spending.imported:
            statement = resting_on_imports(statement)
        if spending.trusting:
            statement = replace(statement.adding(assumptions=[TRUST]), trusts_server=True)
        if nominal_run is None:
            return statement
        nominal = as_event(self.charged(account, nominal_run, up_to).totals | plan)
        if nominal is None:
            return statement
        # Earlier versions recorded no accountant and stated what is best.
        planned_by = self._seals.of(nominal_run).accountant or "best"
        stated = nominal_before(statement, nominal, delta, planned_by)
        return stated.adding(notes=[_NOMINAL_ALONE]) if owner.runs == "many" else stated
