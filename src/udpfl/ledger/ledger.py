"""The durable budget ledger: what every client released, in every run, and what it may still.

A client's answer is charged and stored in one transaction before anyone sees it. A crash can only
over-count; a repeated request gets the stored answer, byte for byte, and costs nothing. The ledger
stores events and never an epsilon: the cost is computed from all of them at once.

An account belongs to a client, whatever version of its data is charged (`ledger.accounts`). One
that is for many runs adds them up by a filter, because later runs follow the results of earlier
ones; one that is for a single run, which is planned as a whole, by whatever accountant is best.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, get_args

from udpfl.accounting.accountant import Accounting
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Event, leaves
from udpfl.accounting.filter import Filter
from udpfl.accounting.statement import PrivacyStatement, shown
from udpfl.errors import BudgetExceeded, InvalidInput, LedgerError, LedgerUnavailable
from udpfl.ledger.accounts import Account, Accounts, Runs
from udpfl.ledger.balances import Balances, Demand
from udpfl.ledger.chain import Head, head_of
from udpfl.ledger.charges import (
    IMPORTED,
    Chain,
    Charge,
    Entry,
    chain_problems,
    entries,
    event_problems,
)
from udpfl.ledger.decisions import Decision, Decisions, decision_problems
from udpfl.ledger.divisions import Divisions, Takeover
from udpfl.ledger.file import LedgerFile, now
from udpfl.ledger.outbox import Outbox
from udpfl.ledger.reservations import Reservations
from udpfl.ledger.seals import Digests, Sealed, Seals
from udpfl.ledger.spending import (
    accounted,
    as_event,
    check_one_basis,
    totals_of,
)
from udpfl.ledger.upgrade import upgrade

_NOT_PLANNED = (
    "this is not a part of what the run has reserved, or somebody freed it; no update was "
    "released. A run that is resumed reserves again"
)
_ANY_DELTA = 1e-5
"""To see whether releases can be accounted at all."""


class Ledger:
    """One file of charges, shared by any number of processes."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._file = LedgerFile(Path(path), read_only=read_only)
        if self._file.is_former:
            if read_only:
                self._file.copy_into_memory()
            upgrade(self._file)
        self._outbox = Outbox(self._file)
        self._decisions = Decisions(self._file)
        self._accounts = Accounts(self._file, self._decisions)
        self._reservations = Reservations(self._decisions)
        self._seals = Seals(self._decisions)
        self._balances = Balances(self._file, self._accounts, self._decisions, self._reservations)
        self._divisions = Divisions(self._accounts, self._decisions, self._balances)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Whatever is written inside is stored together, or not at all; other processes wait."""
        with self._file.writing():
            yield

    @property
    def is_new(self) -> bool:
        """Whether there was no ledger before this one was opened."""
        return self._file.is_new

    # Runs, accounts and budgets

    def begin_run(
        self,
        run: str,
        *,
        randomness: str,
        accounting: str,
        description: Mapping[str, Any],
        files: Digests | None = None,
    ) -> None:
        """Register a run before its first charge. Resuming registers it again, to no effect.

        `files` are digests of what it begins with: they are sealed together with the registration,
        and never later, because files that were there for a while may have been edited.
        """
        if not run or not isinstance(run, str):
            raise InvalidInput("run", f"must be a name, got {run!r}")
        if randomness not in ("entropy", "seeded"):
            raise InvalidInput("randomness", f"must be entropy or seeded, got {randomness!r}")
        if accounting not in get_args(Accounting):
            raise InvalidInput("accounting", f"must be vector or scalar, got {accounting!r}")
        try:
            text = json.dumps(dict(description), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise InvalidInput("description", f"must be plain data: {error}") from None
        with self._file.writing():
            if not self.knows(run):
                self._file.insert("runs", run, now(), randomness, accounting, text)
                if files is not None:
                    self._seals.begin(run, files)
            kept = self._file.rows("SELECT randomness, accounting FROM runs WHERE id = ?", run)
        if kept != [(randomness, accounting)]:
            raise InvalidInput(
                "run",
                f"{run!r} was begun with {' randomness and '.join(kept[0])} accounting and cannot "
                f"go on with {randomness} and {accounting}; start a new run",
            )

    def end_run(
        self, run: str, *, head: tuple[int, str], files: Digests, outcome: Mapping[str, Any]
    ) -> tuple[int, str]:
        """Seal what a run ends with; returns the decision that has it on record.

        `head` is the last charge that its statements count, `outcome` what its summary says beside
        them. A finished run that is resumed ends again, and its last end counts.
        """
        with self._file.writing():
            if not self.knows(run):
                raise InvalidInput("run", f"{run!r} has not begun: call begin_run first")
            self._seals.end(run, Head(*head), files, outcome)
            return self.decided()

    def knows(self, run: str) -> bool:
        """Whether a run of this id has begun."""
        return bool(self._file.rows("SELECT 1 FROM runs WHERE id = ?", run))

    def sealed(self, run: str) -> Sealed:
        """Which files a run began and ended with, as far as that is on record."""
        return self._seals.of(run)

    def account(
        self, client: str, fingerprint: str, *, block: str = "", runs: Runs = "many"
    ) -> int:
        """The account of a client, opened if it is new; the version of its data is noted.

        A `block` of its records has an account of its own once `declare_block` has said that these
        are of other people. `runs` counts when the account is opened.
        """
        return self._accounts.opened(client, fingerprint, block, runs)

    def open_accounts(
        self, parts: Mapping[str, str], *, block: str = "", runs: Runs = "many"
    ) -> list[int]:
        """The accounts of several clients (client: fingerprint), all or none.

        Refuses records that are known under another name: their budget would begin anew.
        """
        with self._file.writing():
            if runs == "many":
                self.require_own_accounts(parts, block)
            return [self.account(*own, block=block, runs=runs) for own in parts.items()]

    def require_own_accounts(self, parts: Mapping[str, str], block: str = "") -> None:
        """Refuse records that are known under another name, and blocks without a statement."""
        for client, fingerprint in parts.items():
            if known := self.other_names(client, fingerprint, block):
                other = f"{known[0]} (no block)" if known[0] == client else known[0]
                raise InvalidInput(
                    "privacy.ledger",
                    f"the data of {Account(0, client, block).name} is known there as {other}: its "
                    "budget cannot begin anew under another name or block",
                )
            self._accounts.require_statement(client, block)

    def require_known(self, clients: Iterable[str], block: str = "") -> None:
        """Refuse clients that are new where others have spent: their records may be the others'.

        Unless `declare_client` has said that they are of new people.
        """
        if not (unknown := self._accounts.unknown(clients, block)):
            return
        held = [own for own in self.accounts() if own.block == block and self.held(own.id)]
        if held:
            raise InvalidInput(
                "privacy.ledger",
                f"{unknown[0]} is new there, and its records may have been at {held[0].name} in an "
                "earlier run, which was charged for them: `udpfl budget client add LEDGER "
                f"{unknown[0]} --disjoint --reason ...` says that they are of other people",
            )

    def declare_client(
        self, client: str, *, block: str = "", reason: str, author: str | None = None
    ) -> None:
        """Put on record that nobody whose record a new client holds is at a client known here."""
        self._accounts.declare_client(client, block, reason, author)

    def declare_block(
        self, client: str, block: str, *, reason: str, author: str | None = None
    ) -> None:
        """Put on record that nobody whose record is in this block is in another one."""
        self._accounts.declare_block(client, block, reason, author)

    def account_of(self, client: str, block: str = "") -> int | None:
        """The account of a client, or of a block of it; None where nobody opened it."""
        found = self._accounts.find(client, block)
        return None if found is None else found.id

    def accounts(self) -> list[Account]:
        """Every account, oldest first."""
        return self._accounts.all()

    def find(self, client: str) -> list[Account]:
        """The accounts of a client: one, and one for each block of its records."""
        return [account for account in self.accounts() if account.client == client]

    def versions(self, account: int) -> list[str]:
        """The fingerprints of all data that was used under an account, oldest first."""
        self._owner(account)
        return self._accounts.versions(account)

    def other_names(self, client: str, fingerprint: str, block: str = "") -> list[str]:
        """Accounts under which exactly this data is known, other than this one."""
        return self._accounts.other_names(client, fingerprint, block)

    def rounds_charged(self, run: str, account: int) -> int:
        """In how many rounds of a run the account was charged."""
        query = "SELECT count(DISTINCT round) FROM charges WHERE run = ? AND account = ?"
        return int(self._file.rows(query, run, account)[0][0])

    def last_charge(self, run: str) -> int:
        """The number of a run's last charge; 0 before its first."""
        query = "SELECT ifnull(max(id), 0) FROM charges WHERE run = ?"
        return int(self._file.rows(query, run)[0][0])

    def data_of(self, run: str) -> dict[int, str]:
        """The fingerprint of the records that a run charged, for each of its accounts."""
        query = (
            "SELECT DISTINCT account, fingerprint FROM charges WHERE run = ? AND fingerprint != ''"
        )
        return dict(self._file.rows(query, run))

    def folders(self) -> dict[str, str]:
        """The name of the folder of every run that was begun in one."""
        rows = self._file.rows("SELECT id, description FROM runs")
        named = {run: json.loads(text).get("folder") for run, text in rows}
        return {run: str(folder) for run, folder in named.items() if folder}

    def set_budget(
        self, account: int, budget: Budget, *, reason: str = "", author: str | None = None
    ) -> None:
        """Set what all releases of the account may cost. Earlier budgets stay on record.

        A budget that rises needs a reason; the author is whoever is logged in, unless named.
        """
        self.set_budgets([account], budget, reason=reason, author=author)

    def set_budgets(
        self,
        accounts: Sequence[int],
        budget: Budget,
        *,
        reason: str = "",
        author: str | None = None,
    ) -> None:
        """Set the same budget for several accounts, for all of them or for none."""
        with self._file.writing():
            for account in accounts:
                self._accounts.set_budget(account, budget, reason, author)

    def budget(self, account: int) -> Budget | None:
        """The budget set last, by whichever process; None where none was."""
        return self._balances.budget(account)

    def budgets(self, account: int, up_to: int | None = None) -> list[Budget]:
        """Every budget that was ever set; the last one counts.

        With `up_to`, those that were set up to the decision of that number.
        """
        return self._accounts.budgets(account, up_to)

    def filter(self, account: int) -> Filter | None:
        """What adds up the account's releases; None for an account of one run."""
        return self._accounts.filter(account)

    def decisions(self, account: int | None = None) -> list[Decision]:
        """What was decided about accounts, data, blocks and budgets; oldest first."""
        found = self._decisions.all()
        return [own for own in found if account is None or own.account == account]

    def _owner(self, account: int) -> Account:
        return self._accounts.owner(account)

    # What was spent, and what still fits

    def spent(self, account: int, run: str | None = None, up_to: int | None = None) -> Event | None:
        """Everything charged so far, in one run or in all, as one event; None if nothing was.

        With `up_to`, everything up to the charge of that number.

        Answers without a privacy claim are no event. `statement`, `would_exceed` and `commit` know
        of them and treat them as what they are.
        """
        self._owner(account)
        return as_event(self._balances.charged(account, run, up_to).totals)

    def held(self, account: int) -> Event | None:
        """Everything charged, and what runs have reserved beyond that, as one event."""
        self._owner(account)
        return as_event(self._balances.held(account))

    def unfinished(self, account: int) -> list[str]:
        """Runs that have reserved more than they have spent."""
        return self._balances.unfinished(account)

    def statement(
        self,
        account: int,
        delta: float | None = None,
        nominal_run: str | None = None,
        up_to: int | None = None,
        *,
        fixed_beforehand: bool = False,
    ) -> PrivacyStatement:
        """What all releases of the account, in all runs, cost together.

        At the delta of the account's budget unless `delta` says otherwise. Where something was
        imported, a note says what that takes on trust. With a `nominal_run` that has released
        something, its own number in the paper's accounting stands in front of all that. With
        `up_to`, what was charged after the charge of that number is left out.

        An account of one run is stated with the run's whole plan, one of many runs by its filter:
        both hold whenever somebody stops. `fixed_beforehand` is the number for what was charged if
        all of it was settled before the first release.
        """
        return self._balances.statement(account, delta, nominal_run, up_to, fixed_beforehand)

    def would_exceed(self, account: int, event: Event, run: str = "") -> bool:
        """Whether the event would break the account's budget; never, where none is set.

        What other runs have reserved counts as spent. What this `run` has reserved is its own.
        """
        self._owner(account)
        with self._file.snapshot():
            return not self._balances.fits(account, {run: totals_of([event])})

    def refusals(self, run: str, events: Mapping[int, Event]) -> dict[int, str]:
        """Why accounts do not hold what a run would release next; those that do are left out."""
        found = {}
        with self._file.snapshot():
            for account, event in events.items():
                wanted = totals_of([event])
                if not self._balances.is_within_plan(account, run, wanted):
                    found[account] = _NOT_PLANNED
                elif not self._balances.fits(account, {run: wanted}):
                    found[account] = "the budget does not allow another round"
        return found

    # Reservations

    def reserve(self, run: str, plans: Mapping[int, Event]) -> None:
        """Set aside what a run is going to release, for all these accounts or for none.

        `plans` has what is still to come. A run that has reserved already gets no second part: the
        reservation becomes what it was charged so far and the plan.

        Guarantee: no process can spend what is reserved, and charges within it are never refused.
        """
        wanted = {account: totals_of([event]) for account, event in plans.items()}
        with self._file.snapshot():  # accounting may take a while, and others may still write
            self._check_room(run, wanted)
        with self._file.writing():
            self._check_room(run, wanted)
            for account, totals in wanted.items():
                charged = self._balances.charged_in(account, run)
                known = [own for own in self._reservations.held(account) if own.run == run]
                if not known or not charged + totals <= known[0].totals:
                    self._reservations.make(account, run, charged + totals)

    def _check_room(self, run: str, wanted: Mapping[int, Counter[str]]) -> None:
        short = []
        for account, totals in wanted.items():
            self._require_only_run(account, run)
            self._require_plan(account, run, totals)
            self._balances.require_one_basis(account, {run: totals})
            if not self._balances.fits(account, {run: totals}):
                short.append(self._owner(account).name)
        if short:
            raise BudgetExceeded(
                f"{', '.join(short)}: the plan of this run does not fit into what the budget has "
                "left; nothing was reserved"
            )

    def give_back(self, run: str, *, reason: str = "", author: str | None = None) -> int:
        """Free what a run has reserved and not spent; returns of how many accounts.

        Accounts for one run keep their plan: that is what they are stated with.
        """
        with self._file.writing():
            holding = [
                account.id
                for account in self.accounts()
                if account.runs == "many"
                and any(own.run == run for own in self._reservations.held(account.id))
            ]
            for account in holding:
                self._reservations.end(account, run, reason, author)
        return len(holding)

    def reserved(self, account: int) -> dict[str, Event]:
        """What runs have reserved and not spent yet."""
        self._owner(account)
        rests = {
            own.run: as_event(own.totals - self._balances.charged_in(account, own.run))
            for own in self._reservations.held(account)
        }
        return {run: event for run, event in rests.items() if event is not None}

    # Data that is divided among clients

    def require_one_block(self, pool: str, block: str = "") -> None:
        """Refuse a data set that was divided under another block: it is of the same people."""
        known = self._divisions.block_of(pool)
        if known not in (None, block):
            raise InvalidInput(
                "data.block",
                f"exactly this data set was charged as {known or 'the clients themselves'}: a "
                "block is for records of other people",
            )

    def division(self, block: str = "") -> Mapping[str, str] | None:
        """Which client held which part of one data set, in the last run that divided it."""
        return self._divisions.last(block)

    def taken_over(self, clients: Mapping[str, str], block: str = "") -> Takeover | None:
        """What these clients take over if they hold these parts of one data set from now on."""
        return self._divisions.taken_over(clients, block)

    def divide(self, clients: Mapping[str, str], block: str = "", pool: str = "") -> None:
        """Note which client holds which part of one data set (client: fingerprint), and its own.

        Where records may have moved from one account to another, each counts the largest spending
        among them as its own.
        """
        with self._file.writing():
            self._divisions.note(clients, block, pool)

    # Charging

    def commit(self, charges: Sequence[Charge], settled: int = -1) -> None:
        """Charge and store all these answers, or none of them.

        Nobody will ask again for a round up to `settled` of the same runs: those messages are
        dropped to make room. Their charges and digests stay, and every client's latest state.

        Guarantee: on return every charge is on disk and within its account's budget, together with
        everything that any process charged before. On an exception nothing is stored, and no
        answer may be sent.
        """
        priced = [(charge, totals_of(charge.events)) for charge in charges]
        demand: dict[int, dict[str, Counter[str]]] = {}
        for charge, totals in priced:
            own = demand.setdefault(charge.account, {})
            own.setdefault(charge.run, Counter()).update(totals)
        if len({(charge.run, charge.account, charge.round) for charge in charges}) < len(priced):
            raise InvalidInput("charges", "a client answers a round of a run only once")
        # Accounting may take a while. The first check does the work while others may still write;
        # the second, which decides, finds it done unless they did.
        with self._file.snapshot():
            self._check(charges, demand)
        with self._file.writing():
            self._check(charges, demand)
            for run in {charge.run for charge in charges}:
                self._outbox.forget(run, settled)
            self._store(priced)

    def _check(self, charges: Sequence[Charge], demand: Mapping[int, Demand]) -> None:
        rounds = {(charge.run, charge.round) for charge in charges}
        accounts = [charge.account for charge in charges]
        answered = {known: self._outbox.answered(*known, accounts) for known in rounds}
        for charge in charges:
            if charge.account in answered[charge.run, charge.round]:
                raise LedgerError(
                    f"client {self._owner(charge.account).client} has answered round "
                    f"{charge.round} of run {charge.run} already: send the stored message; "
                    "nothing was charged"
                )
            self._require_only_run(charge.account, charge.run)
        for account, wanted in demand.items():
            self._balances.require_one_basis(account, wanted)
            for run, totals in wanted.items():
                if not self._balances.is_within_plan(account, run, totals):
                    raise BudgetExceeded(f"client {self._owner(account).name}: {_NOT_PLANNED}")
            if not self._balances.fits(account, wanted):
                budget, rule = self._balances.budget(account), self.filter(account)
                assert budget is not None, "without a budget everything fits"
                total = self._balances.held(account, wanted)
                raise BudgetExceeded(
                    f"client {self._owner(account).name}: its releases would come to "
                    f"ε = {shown(accounted(total, budget.delta, rule).epsilon)}, more than its "
                    f"budget ε = {budget.epsilon:g} at δ = {budget.delta:g}; no update was released"
                )

    def _require_plan(self, account: int, run: str, more: Counter[str]) -> None:
        """Refuse another plan on an account that is for one run: it was accounted as a whole."""
        if self._owner(account).runs == "many":
            return
        whole = self._balances.charged_in(account, run) + more
        for own in self._reservations.of(account):
            if not whole <= own.totals:
                raise LedgerError(
                    f"{self._owner(account).name}: this run was planned as a whole before it "
                    "began, and what it is going to release now is not that plan: begin a new run"
                )

    def _require_only_run(self, account: int, run: str) -> None:
        """Refuse a second run on an account that is for one: its total would not hold."""
        owner = self._owner(account)
        if owner.runs == "many":
            return
        query = "SELECT run FROM charges WHERE account = ? AND run != ? LIMIT 1"
        if others := self._file.rows(query, account, run):
            raise LedgerError(
                f"the account of {owner.name} is for one run, {others[0][0]}, whose plan was "
                "accounted as a whole; a ledger that runs share is for many"
            )

    def _store(self, priced: Sequence[tuple[Charge, Counter[str]]]) -> None:
        randomness: dict[str, str] = {}
        for run in {charge.run for charge, _ in priced}:
            found = self._file.rows("SELECT randomness FROM runs WHERE id = ?", run)
            if not found:
                raise InvalidInput("run", f"{run!r} has not begun: call begin_run first")
            randomness[run] = found[0][0]
        chain = Chain(self._file)
        for charge, totals in priced:
            owner = self._owner(charge.account)
            chain.append(charge, owner, randomness[charge.run], totals, charge.note)
            self._outbox.put(charge)

    def import_charge(
        self, account: int, event: Event, *, source: str, note: str = "", fingerprint: str = ""
    ) -> str:
        """Charge what was released outside of this package; returns the run it is booked under.

        It has happened, so no budget can refuse it: whatever it costs counts from now on, and is
        infinite at delta = 0 where its noise has no pure-DP guarantee. The same event with the same
        source and note is charged once. A history that has grown since it was imported counts in
        full again, which is too much and never too little.
        """
        for name, value in (("source", source), ("note", note)):
            if not isinstance(value, str) or (name == "source" and not value.strip()):
                raise InvalidInput(name, f"must be a text, got {value!r}")
        owner = self._owner(account)
        if not leaves(event):
            raise InvalidInput("event", "releases nothing: there is nothing to import")
        totals = totals_of([event])
        said = f"imported from {source.strip()}" + (f": {note.strip()}" if note.strip() else "")
        content = json.dumps([owner.client, owner.block, said, sorted(totals.items())])
        run = IMPORTED + sha256(content.encode()).hexdigest()[:16]
        self._require_only_run(account, run)
        self._check_accountable(account, totals)
        self.begin_run(run, randomness="entropy", accounting="vector", description={"note": said})
        with self._file.writing():
            if self.rounds_charged(run, account):
                raise InvalidInput(
                    "note",
                    f"{owner.client} was charged exactly this already ({said}); if it happened "
                    "twice, a note that differs says so",
                )
            self._check_accountable(account, totals)
            charge = Charge(account, run, 0, (event,), b"", fingerprint=fingerprint)
            Chain(self._file).append(charge, owner, "entropy", totals, said)
            self._divisions.forget(owner.block)  # those records may be at another client by now
        return run

    def _check_accountable(self, account: int, more: Counter[str]) -> None:
        """Raise where the account could no longer be stated: an unreadable total helps nobody."""
        total, budget = self._balances.charged(account).totals + more, self.budget(account)
        check_one_basis(total)
        # At delta = 0 one Gaussian release makes the total infinite, whatever stands beside it.
        added_up_by = self.filter(account)
        if budget is None or math.isinf(accounted(total, budget.delta, added_up_by).epsilon):
            accounted(total, _ANY_DELTA, added_up_by)

    # Answers already given

    def forget(self, run: str, settled: int) -> None:
        """Drop the messages of a run's rounds up to `settled`; charges and digests stay."""
        with self._file.writing():
            self._outbox.forget(run, settled)

    def message(self, run: str, account: int, round: int) -> bytes | None:
        """The stored answer to a repeated request; None if there is none, or it was dropped."""
        return self._outbox.message(run, account, round)

    def state(self, run: str, account: int) -> bytes | None:
        """What the client keeps from its latest answered round; None before the first."""
        return self._outbox.state(run, account)

    # For auditors

    def history(self, account: int | None = None) -> Iterator[Entry]:
        """Every charge in the order it was made, of one account or of all."""
        return iter(entries(self._file, account))

    def head(self) -> tuple[int, str]:
        """The number and the hash of the last charge; 0 and nothing before the first."""
        number, chain = head_of(self._file, "charges")
        return number, chain

    def holds(self, number: int, chain: str) -> bool:
        """Whether this was its last charge once: a copy from before that, or another, does not."""
        if number == 0:
            return chain == ""
        return self._file.rows("SELECT chain FROM charges WHERE id = ?", number) == [(chain,)]

    def decided(self) -> tuple[int, str]:
        """The number and the hash of the last decision; 0 and nothing before the first."""
        number, chain = head_of(self._file, "decisions")
        return number, chain

    def holds_decision(self, number: int, chain: str) -> bool:
        """Whether this was its last decision once."""
        if number == 0:
            return chain == ""
        return self._file.rows("SELECT chain FROM decisions WHERE id = ?", number) == [(chain,)]

    def verify(self, *, events: bool = True) -> list[str]:
        """Every problem found, one sentence each; an empty list means that the ledger is sound.

        Without `events` nobody tries to read the releases, which may name code of one's own.
        """
        problems: list[str] = []
        checks = [
            self._file.problems(),
            chain_problems(self._file),
            decision_problems(self._file),
            self._outbox.problems(),
        ]
        if events:
            checks.append(event_problems(self._file))
        for found in checks:
            try:
                with self._file.snapshot():
                    problems += found
            except LedgerUnavailable:  # tells nothing about its content
                raise
            except LedgerError as error:
                problems.append(str(error))
        return problems
