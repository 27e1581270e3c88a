"""What a ledger refuses before it stores anything: plans, charges and clients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from udpfl.accounting.events import Event
from udpfl.accounting.statement import shown
from udpfl.errors import BudgetExceeded, InvalidInput, LedgerError
from udpfl.ledger._balances import Balances, Demand
from udpfl.ledger._outbox import Outbox
from udpfl.ledger._reservations import Reservations
from udpfl.ledger.accounts import Accounts
from udpfl.ledger.charges import Charge
from udpfl.ledger.file import LedgerFile
from udpfl.ledger.spending import accounted, as_event, check_one_basis, totals_of_each

_NOT_PLANNED = (
    "the run has not reserved this release, or its reservation was freed; no update was "
    "released. Resume the run to reserve again"
)
_ANY_DELTA = 1e-5
"""To see whether releases can be accounted at all."""


class Limits:
    """What the accounts of a ledger's file hold. Nothing here writes."""

    def __init__(
        self,
        file: LedgerFile,
        accounts: Accounts,
        reservations: Reservations,
        balances: Balances,
        outbox: Outbox,
    ) -> None:
        self._file, self._outbox = file, outbox
        self._accounts, self._reservations, self._balances = accounts, reservations, balances

    def require_charges(self, charges: Sequence[Charge], demand: Mapping[int, Demand]) -> None:
        """Refuse answers given before, and charges that accounts do not hold together.

        `demand` has what these charges come to, account by account.
        """
        rounds = {(charge.run, charge.round) for charge in charges}
        accounts = [charge.account for charge in charges]
        answered = {known: self._outbox.answered(*known, accounts) for known in rounds}
        for charge in charges:
            if charge.account in answered[charge.run, charge.round]:
                raise LedgerError(
                    f"client {self._accounts.owner(charge.account).client} has already answered "
                    f"round {charge.round} of run {charge.run}: send the stored message; nothing "
                    f"was charged"
                )
            self.require_only_run(charge.account, charge.run)
        for account, wanted in demand.items():
            self._balances.require_one_basis(account, wanted)
            for run, totals in wanted.items():
                if not self._balances.is_within_plan(account, run, totals):
                    name = self._accounts.owner(account).name
                    raise BudgetExceeded(f"client {name}: {_NOT_PLANNED}")
            if not self._balances.fits(account, wanted):
                raise self._too_much(account, wanted)

    def _too_much(self, account: int, wanted: Demand) -> BudgetExceeded:
        budget, rule = self._accounts.budget(account), self._accounts.filter(account)
        assert budget is not None, "without a budget everything fits"
        total = self._balances.held(account, wanted)
        return BudgetExceeded(
            f"client {self._accounts.owner(account).name}: its releases would come to "
            f"ε = {shown(accounted(total, budget.delta, rule).epsilon)}, more than its "
            f"budget ε = {budget.epsilon:g} at δ = {budget.delta:g}; no update was released"
        )

    def require_plans(self, run: str, plans: Mapping[int, Counter[str]]) -> None:
        """Refuse what a run is going to release where accounts do not hold it."""
        short = []
        for account, totals in plans.items():
            self.require_only_run(account, run)
            self._require_first_plan(account, run, totals)
            self._balances.require_one_basis(account, {run: totals})
            if not self._balances.fits(account, {run: totals}):
                short.append(self._accounts.owner(account).name)
        if short:
            raise BudgetExceeded(
                f"{', '.join(short)}: the plan of this run does not fit into the rest of the "
                "budget; nothing was reserved"
            )

    def refusals(self, run: str, events: Mapping[int, Event]) -> dict[int, str]:
        """Why accounts do not hold what a run would release next; those that do are left out."""
        refused = {}
        each = totals_of_each((event,) for event in events.values())
        for account, wanted in zip(events, each, strict=True):
            if not self._balances.is_within_plan(account, run, wanted):
                refused[account] = _NOT_PLANNED
            elif not self._balances.fits(account, {run: wanted}):
                refused[account] = (
                    "the budget does not hold another round beside what runs have reserved"
                    if self._balances.unfinished(account)
                    else "the budget does not allow another round"
                )
        return refused

    def exchangeable(self, run: str, plans: Mapping[int, Counter[str]]) -> list[int]:
        """The accounts that hold this in place of the rest of what a run has reserved."""
        return [
            account
            for account, totals in plans.items()
            if self._balances.has_room(account, run, totals)
            or self._balances.may_exchange(account, run, totals)
        ]

    def require_only_run(self, account: int, run: str) -> None:
        """Refuse a second run on an account that is for one: its total would not hold."""
        owner = self._accounts.owner(account)
        if owner.runs == "many":
            return
        if others := self._balances.charged(account).by_run.keys() - {run}:
            raise LedgerError(
                f"the account of {owner.name} is for the run {min(others)} only, whose plan was "
                "accounted as a whole; use a shared ledger for several runs"
            )

    def _require_first_plan(self, account: int, run: str, more: Counter[str]) -> None:
        """Refuse another plan on an account that is for one run: it was accounted as a whole."""
        if self._accounts.owner(account).runs == "many":
            return
        whole = self._balances.charged_in(account, run) + more
        for own in self._reservations.of(account):
            if not whole <= own.totals:
                raise LedgerError(
                    f"{self._accounts.owner(account).name}: this run was planned as a whole before "
                    "it began, and its plan has changed since: begin a new run"
                )

    def require_accountable(self, account: int, more: Counter[str]) -> None:
        """Refuse releases with which the account could no longer be stated."""
        total = self._balances.charged(account).totals + more
        budget = self._accounts.budget(account)
        check_one_basis(total)
        # At delta = 0 one Gaussian release makes the total infinite, whatever stands beside it.
        added_up_by = self._accounts.filter(account)
        if budget is None or math.isinf(accounted(total, budget.delta, added_up_by).epsilon):
            accounted(total, _ANY_DELTA, added_up_by)

    def require_known(self, clients: Iterable[str], block: str) -> None:
        """See `Ledger.require_known`."""
        if not (unknown := self._accounts.unknown(clients, block)):
            return
        accounts = [own for own in self._accounts.all() if own.block == block]
        spent = [own for own in accounts if as_event(self._balances.held(own.id))]
        if spent:
            raise InvalidInput(
                "privacy.ledger",
                f"{unknown[0]} is new in this ledger, and its records may have been charged to "
                f"{spent[0].name} in an earlier run. If they belong to other people, add it with "
                f"`udpfl budget client add LEDGER {unknown[0]} --disjoint --reason ...`",
            )
