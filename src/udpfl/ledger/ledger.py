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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, get_args

from udpfl.accounting.accountant import Accounting
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Event, leaves
from udpfl.accounting.filter import Filter
from udpfl.accounting.statement import PrivacyStatement, shown
from udpfl.errors import BudgetExceeded, InvalidInput, LedgerError
from udpfl.ledger.accounts import Account, Accounts, Runs
from udpfl.ledger.chain import head_of
from udpfl.ledger.charges import (
    IMPORTED,
    TRUST,
    TRUSTED,
    Charge,
    Entry,
    append_charge,
    chain_problems,
    entries,
    event_problems,
)
from udpfl.ledger.decisions import Decision, decision_problems, decisions, last_decision
from udpfl.ledger.file import LedgerFile, now
from udpfl.ledger.outbox import Outbox
from udpfl.ledger.spending import (
    NO_CLAIM,
    Spending,
    accounted,
    as_event,
    check_one_basis,
    nominal_before,
    resting_on_imports,
    totals_of,
)

_ANY_DELTA = 1e-5
"""To see whether releases can be accounted at all."""


class Ledger:
    """One file of charges, shared by any number of processes."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._file = LedgerFile(Path(path), read_only=read_only)
        self._outbox = Outbox(self._file)
@@0@@

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()

    # Runs, accounts and budgets

    def begin_run(
        self, run: str, *, randomness: str, accounting: str, description: Mapping[str, Any]
    ) -> None:
        """Register a run before its first charge. Resuming registers it again, to no effect."""
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
            self._file.write(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                *(run, now(), randomness, accounting, text),
            )
            kept = self._file.rows("SELECT randomness, accounting FROM runs WHERE id = ?", run)
        if kept != [(randomness, accounting)]:
            raise InvalidInput(
                "run",
                f"{run!r} was begun with {' randomness and '.join(kept[0])} accounting and cannot "
                f"go on with {randomness} and {accounting}; start a new run",
            )

    def account(
        self, client: str, fingerprint: str, *, block: str = "", runs: Runs = "many"
    ) -> int:
        """The account of a client, opened if it is new; the version of its data is noted.

        A `block` of its records has an account of its own once `declare_block` has said that these
        are of other people. `runs` counts when the account is opened.
        """
        return self._accounts.opened(client, fingerprint, block, runs)

    def declare_block(
        self, client: str, block: str, *, reason: str, author: str | None = None
    ) -> None:
        """Put on record that nobody whose record is in this block is in another one."""
        self._accounts.declare_block(client, block, reason, author)

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

@@1@@

    def _owner(self, account: int) -> Account:
        return self._accounts.owner(account)

    # What was spent, and what still fits

    def spent(self, account: int, run: str | None = None, up_to: int | None = None) -> Event | None:
        """Everything charged so far, in one run or in all, as one event; None if nothing was.

        With `up_to`, everything up to the charge of that number.

        Answers without a privacy claim are no event. `statement`, `would_exceed` and `commit` know
        of them and treat them as what they are.
        """
        return as_event(self._caught_up(account, run, up_to).totals)

    def statement(
        self,
        account: int,
        delta: float | None = None,
        nominal_run: str | None = None,
@@2@@
    ) -> PrivacyStatement:
        """What all releases of the account, in all runs, cost together.

        At the delta of the account's budget unless `delta` says otherwise. Where something was
        imported, a note says what that takes on trust. With a `nominal_run` that has released
@@3@@
        """
        spending = self._caught_up(account, up_to=up_to)
        if spending.seeded:
            return PrivacyStatement.none("noise of a seeded run can be computed by anyone")
        if delta is None:
            budget = self.budget(account)
            if budget is None and spending.totals.keys() - {NO_CLAIM}:
                raise InvalidInput(
                    "delta", f"is needed: client {self._owner(account).client} has no budget"
                )
            delta = budget.delta if budget else 0.0
        added_up_by = None if fixed_beforehand else self.filter(account)
        statement = accounted(spending.totals, delta, added_up_by)
        if said := self._accounts.note_on(account):
            statement = replace(statement, notes=(*statement.notes, said))
        if spending.imported:
            statement = resting_on_imports(statement)
        if spending.trusting:
            statement = replace(statement, notes=(*statement.notes, TRUST))
        own = None if nominal_run is None else self.spent(account, nominal_run, up_to)
        return statement if own is None else nominal_before(statement, own, delta)

    def would_exceed(self, account: int, event: Event) -> bool:
        """Whether the event would break the account's budget; never, where none is set."""
        budget, spending = self.budget(account), self._caught_up(account)
        return budget is not None and not spending.fits(
            spending.totals + totals_of([event]), budget, self.filter(account)
        )

    def certify(self, account: int, event: Event) -> bool:
        """Whether a whole plan fits the budget; if so, no part of it has to be accounted again.

        Ask once for all rounds, `Repeated(round_event, rounds)`, and every round's own check costs
        nothing as long as the account spends on nothing else.
        """
        return not self.would_exceed(account, event)

    def _caught_up(
        self, account: int, run: str | None = None, up_to: int | None = None
    ) -> Spending:
        """What any process charged to the account, in one run or in all; reads new rows only."""
        self._owner(account)
@@4@@
        rows = self._file.rows(  # a charge whose run is gone still counts, and proves nothing
            "SELECT c.event, sum(c.count), max(r.randomness IS NOT 'entropy'), "
            f"max(c.run GLOB '{IMPORTED}*'), max(c.note = '{TRUSTED}'), max(c.id) "
            "FROM charges c LEFT JOIN runs r ON r.id = c.run "
            "WHERE c.account = ? AND c.id > ? AND c.run = ifnull(?, c.run) "
            "AND c.id <= ifnull(?, c.id) GROUP BY c.event",
            *(account, spending.last, run, up_to),
        )
        if rows:
            texts, counts, seeded, imported, trusting, last = zip(*rows, strict=True)
            totals = Counter(dict(zip(texts, counts, strict=True)))
            spending.advance(totals, any(seeded), any(imported), any(trusting), max(last))
        return spending

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
        demand: dict[int, Counter[str]] = {}
        for charge, totals in priced:
            demand.setdefault(charge.account, Counter()).update(totals)
        if len({(charge.run, charge.account, charge.round) for charge in charges}) < len(priced):
            raise InvalidInput("charges", "a client answers a round of a run only once")
        # Accounting may take a while. The first check does the work while others may still write;
        # the second, which decides, finds it done unless they did.
        self._check(charges, demand)
        with self._file.writing():
            self._check(charges, demand)
            for run in {charge.run for charge in charges}:
                self._outbox.forget(run, settled)
            self._store(priced)

    def _check(self, charges: Sequence[Charge], demand: Mapping[int, Counter[str]]) -> None:
        for charge in charges:
            if self._outbox.answered(charge.run, charge.account, charge.round):
                raise LedgerError(
                    f"client {self._owner(charge.account).client} has answered round "
                    f"{charge.round} of run {charge.run} already: send the stored message; "
                    "nothing was charged"
                )
            self._require_room(charge.account, charge.run)
        for account, wanted in demand.items():
            spending, budget = self._caught_up(account), self.budget(account)
            total, added_up_by = spending.totals + wanted, self.filter(account)
            if not wanted.keys() <= spending.totals.keys():
                check_one_basis(total)
            if budget is not None and not spending.fits(total, budget, added_up_by):
                epsilon = accounted(total, budget.delta, added_up_by).epsilon
                raise BudgetExceeded(
                    f"client {self._owner(account).name}: its releases would come to "
                    f"ε = {shown(epsilon)}, more than its budget ε = {budget.epsilon:g} at "
                    f"δ = {budget.delta:g}; no update was released"
                )

    def _require_room(self, account: int, run: str) -> None:
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
        for charge, totals in priced:
            owner = self._owner(charge.account)
            append_charge(self._file, charge, owner, randomness[charge.run], totals, charge.note)
            self._outbox.put(charge)

    def import_charge(self, account: int, event: Event, *, source: str, note: str = "") -> str:
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
        self._require_room(account, run)
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
            charge = Charge(account, run, 0, (event,), b"")
            append_charge(self._file, charge, owner, "entropy", totals, said)
        return run

    def _check_accountable(self, account: int, more: Counter[str]) -> None:
        """Raise where the account could no longer be stated: an unreadable total helps nobody."""
        total, budget = self._caught_up(account).totals + more, self.budget(account)
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
        return head_of(self._file, "charges")

    def holds(self, number: int, chain: str) -> bool:
        """Whether this was its last charge once: a copy from before that, or another, does not."""
        if number == 0:
            return chain == ""
        return self._file.rows("SELECT chain FROM charges WHERE id = ?", number) == [(chain,)]

    def verify(self, *, events: bool = True) -> list[str]:
        """Every problem found, one sentence each; an empty list means that the ledger is sound.

        Without `events` nobody tries to read the releases, which may name code of one's own.
        """
        problems: list[str] = []
@@5@@
        for found in checks:
            try:
                with self._file.snapshot():
                    problems += found
            except LedgerError as error:
                problems.append(str(error))
        return problems
