"""The durable budget ledger: what every client released, in every run, and what it may still.

A client's answer is charged and stored in one transaction before anyone sees it. A crash can only
over-count; a repeated request gets the stored answer, byte for byte, and costs nothing. The ledger
stores events and never an epsilon: the cost is computed from all of them at once.

A client is its name and the fingerprint of its data: the same name with other data is another
account.
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
from udpfl.accounting.statement import PrivacyStatement, shown
from udpfl.errors import BudgetExceeded, InvalidInput, LedgerError
from udpfl.ledger.charges import (
    IMPORTED,
    TRUST,
    TRUSTED,
    Account,
    Charge,
    Entry,
    append_charge,
    chain_problems,
    entries,
    event_problems,
)
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
        self._spending: dict[tuple[int, str | None, int | None], Spending] = {}
        self._known: dict[int, Account] = {}

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

    def account(self, client: str, fingerprint: str) -> int:
        """The account of a client with this data, opened if it is new."""
        for name, value in (("client", client), ("fingerprint", fingerprint)):
            if not value or not isinstance(value, str):
                raise InvalidInput(name, f"must be a text, got {value!r}")
        query = "SELECT id FROM accounts WHERE client = ? AND fingerprint = ?"
        found = self._file.rows(query, client, fingerprint)
        if not found:
            with self._file.writing():
                self._file.write(
                    "INSERT INTO accounts (client, fingerprint) VALUES (?, ?) "
                    "ON CONFLICT (client, fingerprint) DO NOTHING",
                    *(client, fingerprint),
                )
                found = self._file.rows(query, client, fingerprint)
        return int(found[0][0])

    def accounts(self) -> list[Account]:
        """Every account, oldest first."""
        rows = self._file.each("SELECT id, client, fingerprint FROM accounts ORDER BY id")
        return [Account(*row) for row in rows]

    def find(self, client: str) -> list[Account]:
        """The accounts of a client: one for each data set it ever used."""
        return [account for account in self.accounts() if account.client == client]

    def other_data(self, client: str, fingerprint: str) -> list[int]:
        """Accounts of the same client with other data, whose spending does not count here."""
        return [found.id for found in self.find(client) if found.fingerprint != fingerprint]

    def other_names(self, client: str, fingerprint: str) -> list[str]:
        """Names under which exactly this data is known, other than this one."""
        return [
            a.client
            for a in self.accounts()
            if a.fingerprint == fingerprint != "" and a.client != client
        ]

    def rounds_charged(self, run: str, account: int) -> int:
        """In how many rounds of a run the account was charged."""
        query = "SELECT count(DISTINCT round) FROM charges WHERE run = ? AND account = ?"
        return int(self._file.rows(query, run, account)[0][0])

    def last_charge(self, run: str) -> int:
        """The number of a run's last charge; 0 before its first."""
        query = "SELECT ifnull(max(id), 0) FROM charges WHERE run = ?"
        return int(self._file.rows(query, run)[0][0])

    def set_budget(self, account: int, budget: Budget) -> None:
        """Set what all releases of the account may cost. Earlier budgets stay on record."""
        self._owner(account)
        with self._file.writing():
            self._file.write(
                "INSERT INTO budgets (account, epsilon, delta, set_at) VALUES (?, ?, ?, ?)",
                *(account, float(budget.epsilon), float(budget.delta), now()),
            )

    def budget(self, account: int) -> Budget | None:
        """The budget set last, by whichever process; None where none was."""
        found = self.budgets(account)
        return found[-1] if found else None

    def budgets(self, account: int) -> list[Budget]:
        """Every budget that was ever set, the last one counts."""
        self._owner(account)
        query = "SELECT epsilon, delta FROM budgets WHERE account = ? ORDER BY id"
        return [Budget(*row) for row in self._file.rows(query, account)]

    def _owner(self, account: int) -> Account:
        if account not in self._known:
            self._known = {found.id: found for found in self.accounts()}
        if account not in self._known:
            raise InvalidInput("account", f"{self._file.path} has no account {account!r}")
        return self._known[account]

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
        up_to: int | None = None,
    ) -> PrivacyStatement:
        """What all releases of the account, in all runs, cost together.

        At the delta of the account's budget unless `delta` says otherwise. Where something was
        imported, a note says what that takes on trust. With a `nominal_run` that has released
        something, its own number in the paper's accounting stands in front of all that. With
        `up_to`, what was charged after the charge of that number is left out.
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
        statement = accounted(spending.totals, delta)
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
            spending.totals + totals_of([event]), budget
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
        spending = self._spending.setdefault((account, run, up_to), Spending())
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
        for account, wanted in demand.items():
            spending, budget = self._caught_up(account), self.budget(account)
            total = spending.totals + wanted
            if not wanted.keys() <= spending.totals.keys():
                check_one_basis(total)
            if budget is not None and not spending.fits(total, budget):
                raise BudgetExceeded(
                    f"client {self._owner(account).client}: its releases would come to "
                    f"ε = {shown(accounted(total, budget.delta).epsilon)}, more than its budget "
                    f"ε = {budget.epsilon:g} at δ = {budget.delta:g}; no update was released"
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
        content = json.dumps([owner.client, owner.fingerprint, said, sorted(totals.items())])
        run = IMPORTED + sha256(content.encode()).hexdigest()[:16]
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
        if budget is None or math.isinf(accounted(total, budget.delta).epsilon):
            accounted(total, _ANY_DELTA)

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
        found = self._file.rows("SELECT id, chain FROM charges ORDER BY id DESC LIMIT 1")
        return (int(found[0][0]), str(found[0][1])) if found else (0, "")

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
        checks = [self._file.problems(), chain_problems(self._file), self._outbox.problems()]
        if events:
            checks.append(event_problems(self._file))
        for found in checks:
            try:
                with self._file.snapshot():
                    problems += found
            except LedgerError as error:
                problems.append(str(error))
        return problems
