"""The durable budget ledger: what every client released, in every run, and what it may still.

A client's answer is charged and stored in one transaction before anyone sees it. A crash can only
over-count; a repeated request gets the stored answer, byte for byte, and costs nothing. The ledger
stores events and never an epsilon: the cost is computed from all of them at once.

An account belongs to a client, whatever version of its data is charged (`ledger.accounts`). One
that is for many runs adds them up by a filter, because later runs follow the results of earlier
ones; one that is for a single run, which is planned as a whole, by whatever accountant is best.

Here is what writes, and where each transaction begins and ends. What is read is in
`ledger.reader`, what is refused in `ledger.limits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from udpfl.accounting.accountant import Accountant
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Event
from udpfl.errors import InvalidInput
from udpfl.ledger._reader import LedgerReader
from udpfl.ledger.accounts import Runs
from udpfl.ledger.chain import Head
from udpfl.ledger.charges import Chain, Charge, imported_charge
from udpfl.ledger.progress import Progress
from udpfl.ledger.seals import Digests
from udpfl.ledger.spending import totals_of, totals_of_each


class Ledger(LedgerReader):
    """One file of charges, shared by any number of processes.

    Args:
        path: The file; it is made if it is new.
        read_only: Never write to it; the file has to exist.

    Raises:
        InvalidInput: The path cannot hold a ledger, or there is none to read.
        LedgerError: The file cannot be read or written, or is no ledger.

    Example:
        >>> from udpfl import Budget, Ledger
        >>> with Ledger("ledger.sqlite") as ledger:
        ...     clinic = ledger.account("clinic", fingerprint="8f3a")
        ...     ledger.set_budget(clinic, Budget(2.0, 1e-5), reason="as agreed")
        ...     ledger.budget(clinic)
        Budget(epsilon=2.0, delta=1e-05)
    """

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Whatever is written inside is stored together, or not at all; other processes wait."""
        with self._file.writing():
            yield

    def begin_run(
        self,
        run: str,
        *,
        randomness: str,
        accounting: str,
        accountant: Accountant = "best",
        description: Mapping[str, Any],
        files: Digests | None = None,
    ) -> None:
        """Register a run before its first charge. Resuming registers it again, to no effect.

        `files` are digests of what it begins with: they are sealed together with the registration,
        and never later, because files that were there for a while may have been edited. The
        `accountant` that planned a nominal run states it from then on; guarantees are stated by
        whatever is best, or by the account's filter.
        """
        self._runs.begin(run, randomness, accounting, accountant, description, files)

    def end_run(
        self, run: str, *, head: tuple[int, str], files: Digests, outcome: Mapping[str, Any]
    ) -> tuple[int, str]:
        """Seal what a run ends with; returns the decision that has it on record.

        `head` is the last charge that its statements count, `outcome` what its summary says beside
        them. A finished run that is resumed ends again, and its last end counts.
        """
        with self._file.writing():
            self._runs.end(run, Head(*head), files, outcome)
            return self.decided()

    # Accounts and budgets

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

    def divide(self, clients: Mapping[str, str], block: str = "", pool: str = "") -> None:
        """Note which client holds which part of one data set (client: fingerprint), and its own.

        Where records may have moved from one account to another, each counts the largest spending
        among them as its own.
        """
        with self._file.writing():
            self._divisions.note(clients, block, pool)

    # Reservations

    def reserve(self, run: str, plans: Mapping[int, Event]) -> None:
        """Set aside what a run is going to release, for all these accounts or for none.

        `plans` has what is still to come. A run that has reserved already gets no second part: the
        reservation becomes what it was charged so far and the plan.

        Guarantee: no process can spend what is reserved, and charges within it are never refused.
        """
        wanted = {account: totals_of([event]) for account, event in plans.items()}
        with self._file.snapshot():  # accounting may take a while, and others may still write
            self._limits.require_plans(run, wanted)
        with self._file.writing():
            self._limits.require_plans(run, wanted)
            for account, totals in wanted.items():
                charged = self._balances.charged_in(account, run)
                known = [own for own in self._reservations.held(account) if own.run == run]
                if not known or not charged + totals <= known[0].totals:
                    self._reservations.make(account, run, charged + totals)

    def exchange(self, run: str, plans: Mapping[int, Event]) -> list[int]:
        """Reserve other releases in place of what a run has not released yet.

        Returns the accounts that hold them; the others keep what is reserved.

        Guarantee: by the account's filter, what the run was charged and has reserved costs no more
        than what it reserved first, and everything keeps the budget, whatever plans depend on.
        """
        wanted = {account: totals_of([event]) for account, event in plans.items()}
        with self._file.snapshot():  # accounting takes a while, and others may still write
            self._limits.exchangeable(run, wanted)
        with self._file.writing():
            holding = self._limits.exchangeable(run, wanted)
            for account in holding:
                if not self._balances.has_room(account, run, wanted[account]):
                    whole = self._balances.charged_in(account, run) + wanted[account]
                    self._reservations.make(account, run, whole, exchanged=True)
        return holding

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

    # Charging

    def commit(
        self, charges: Sequence[Charge], settled: int = -1, progress: Progress | None = None
    ) -> None:
        """Charge and store all these answers, or none of them.

        Nobody will ask again for a round up to `settled` of the same runs: those messages are
        dropped to make room. Their charges and digests stay, and every client's latest state.
        Where one process holds clients and server, `progress` stands for a round's messages.

        Guarantee: on return every charge is on disk and within its account's budget, together with
        everything that any process charged before. On an exception nothing is stored, and no
        answer may be sent.
        """
        each = totals_of_each(charge.events for charge in charges)
        priced = list(zip(charges, each, strict=True))
        demand: dict[int, dict[str, Counter[str]]] = {}
        for charge, totals in priced:
            own = demand.setdefault(charge.account, {})
            own.setdefault(charge.run, Counter()).update(totals)
        if len({(charge.run, charge.account, charge.round) for charge in charges}) < len(priced):
            raise InvalidInput("charges", "a client answers each round of a run only once")
        # Accounting may take a while. The first check does the work while others may still write;
        # the second, which decides, finds it done unless they did.
        with self._file.snapshot():
            self._limits.require_charges(charges, demand)
        with self._file.writing():
            self._limits.require_charges(charges, demand)
            for run in {charge.run for charge in charges}:
                self._outbox.forget(run, settled)
            self._store(priced)
            if progress is not None:
                self._progress.put(progress, charges)

    def _store(self, priced: Sequence[tuple[Charge, Counter[str]]]) -> None:
        randomness = {run: self._runs.randomness(run) for run in {own.run for own, _ in priced}}
        chain = Chain(self._file)
        for charge, totals in priced:
            owner = self._accounts.owner(charge.account)
            chain.append(charge, owner, randomness[charge.run], totals)
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
        owner = self._accounts.owner(account)
        charge = imported_charge(owner, event, source, note, fingerprint)
        totals = totals_of(charge.events)
        self._limits.require_accountable(account, totals)  # may take a while: others may write
        with self._file.writing():
            charge = self._runs.begin_import(charge, owner.client)
            self._limits.require_only_run(account, charge.run)
            self._limits.require_accountable(account, totals)
            Chain(self._file).append(charge, owner, "entropy", totals)
            self._divisions.forget(owner.block)  # those records may be at another client by now
        return charge.run

    def forget(self, run: str, settled: int) -> None:
        """Drop the messages of a run's rounds up to `settled`; charges and digests stay."""
        with self._file.writing():
            self._outbox.forget(run, settled)
