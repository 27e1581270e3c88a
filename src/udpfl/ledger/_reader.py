"""What a ledger says: who has which account and budget, what was spent, decided and answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Event
from udpfl.accounting.filter import Filter
from udpfl.accounting.statement import PrivacyStatement
from udpfl.ledger._balances import Balances
from udpfl.ledger._limits import Limits
from udpfl.ledger._outbox import Outbox
from udpfl.ledger._reservations import Reservations
from udpfl.ledger._runs import RunRegister
from udpfl.ledger._upgrade import upgrade
from udpfl.ledger._verification import problems_of
from udpfl.ledger.accounts import Account, Accounts
from udpfl.ledger.chain import Table, chain_at, head_of, is_on_record
from udpfl.ledger.charges import Entry, entries
from udpfl.ledger.decisions import Decision, Decisions
from udpfl.ledger.divisions import Divisions, Takeover
from udpfl.ledger.file import LedgerFile
from udpfl.ledger.progress import Progress, ProgressTable
from udpfl.ledger.seals import Sealed, Seals
from udpfl.ledger.spending import as_event, totals_of


class LedgerReader:
    """The half of a ledger that answers questions. None of its methods writes."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._file = LedgerFile(self.path, read_only=read_only)
        if self._file.is_former:
            if read_only:
                self._file.copy_into_memory()
            upgrade(self._file)
        self._outbox, self._progress = Outbox(self._file), ProgressTable(self._file)
        self._decisions = Decisions(self._file)
        self._accounts = Accounts(self._file, self._decisions)
        self._reservations = Reservations(self._decisions)
        self._seals = Seals(self._decisions)
        self._runs = RunRegister(self._file, self._seals)
        known = self._file, self._accounts
        self._balances = Balances(*known, self._decisions, self._reservations, self._seals)
        self._limits = Limits(*known, self._reservations, self._balances, self._outbox)
        self._divisions = Divisions(self._accounts, self._decisions, self._balances)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()

    def snapshot(self) -> AbstractContextManager[None]:
        """Whatever is read inside is of one moment; other processes may write meanwhile."""
        return self._file.snapshot()

    @property
    def is_new(self) -> bool:
        """Whether there was no ledger before this one was opened."""
        return self._file.is_new

    # Runs

    def knows(self, run: str) -> bool:
        """Whether a run of this id has begun."""
        return self._runs.knows(run)

    def sealed(self, run: str) -> Sealed:
        """Which files a run began and ended with, as far as that is on record."""
        return self._seals.of(run)

    def folders(self) -> dict[str, str]:
        """The name of the folder of every run that was begun in one."""
        return self._runs.folders()

    def persons(self) -> set[str]:
        """The columns from which runs took whose a row is."""
        return self._runs.persons()

    def rounds_charged(self, run: str, account: int, only: int | None = None) -> int:
        """In how many rounds of a run the account was charged, of all or of this one alone."""
        return self._runs.rounds_charged(run, account, only)

    def last_charge(self, run: str) -> int:
        """The number of a run's last charge; 0 before its first."""
        return self._runs.last_charge(run)

    def data_of(self, run: str) -> dict[int, str]:
        """The fingerprint of the records that a run charged, for each of its accounts."""
        return self._runs.data_of(run)

    # Accounts and budgets

    def accounts(self) -> list[Account]:
        """Every account, oldest first."""
        return self._accounts.all()

    def find(self, client: str) -> list[Account]:
        """The accounts of a client: one, and one for each block of its records."""
        return [account for account in self.accounts() if account.client == client]

    def account_of(self, client: str, block: str = "") -> int | None:
        """The account of a client, or of a block of it; None where nobody opened it."""
        account = self._accounts.find(client, block)
        return None if account is None else account.id

    def versions(self, account: int) -> list[str]:
        """The fingerprints of all data that was used under an account, oldest first."""
        self._accounts.owner(account)
        return self._accounts.versions(account)

    def other_names(self, client: str, fingerprint: str, block: str = "") -> list[str]:
        """Accounts under which exactly this data is known, other than this one."""
        return self._accounts.other_names(client, fingerprint, block)

    def budget(self, account: int) -> Budget | None:
        """The budget set last, by whichever process; None where none was."""
        return self._accounts.budget(account)

    def budgets(self, account: int, up_to: int | None = None) -> list[Budget]:
        """Every budget that was ever set; the last one counts.

        With `up_to`, those that were set up to the decision of that number.
        """
        return self._accounts.budgets(account, up_to)

    def filter(self, account: int) -> Filter | None:
        """What adds up the account's releases; None for an account of one run."""
        return self._accounts.filter(account)

    def require_own_accounts(self, parts: Mapping[str, str], block: str = "") -> None:
        """Refuse records that are known under another name, and blocks without a statement."""
        self._accounts.require_own(parts, block)

    def require_known(self, clients: Iterable[str], block: str = "") -> None:
        """Refuse clients that are new where others have spent: their records may be the others'.

        Unless `declare_client` has said that they are of new people.
        """
        self._limits.require_known(clients, block)

    # What was spent, and what still fits

    def spent(self, account: int, run: str | None = None, up_to: int | None = None) -> Event | None:
        """Everything charged so far, in one run or in all, as one event; None if nothing was.

        With `up_to`, everything up to the charge of that number. Answers without a privacy claim
        are no event; `statement`, `would_exceed` and `commit` treat them as what they are.
        """
        self._accounts.owner(account)
        return as_event(self._balances.charged(account, run, up_to).totals)

    def held(self, account: int) -> Event | None:
        """Everything charged, and what runs have reserved beyond that, as one event."""
        self._accounts.owner(account)
        return as_event(self._balances.held(account))

    def reserved(self, account: int) -> dict[str, Event]:
        """What runs have reserved and not spent yet."""
        self._accounts.owner(account)
        return self._balances.reserved(account)

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
        something, its own number in scalar accounting, by the accountant that planned it, stands in
        front of all that. With `up_to`, later charges than that are left out.

        An account of one run is stated with the run's whole plan, one of many runs by its filter:
        both hold whenever somebody stops. `fixed_beforehand` is the number for what was charged if
        all of it was settled before the first release.
        """
        return self._balances.statement(account, delta, nominal_run, up_to, fixed_beforehand)

    def would_exceed(self, account: int, event: Event, run: str = "") -> bool:
        """Whether the event would break the account's budget; never, where none is set. What other
        runs have reserved counts as spent."""
        self._accounts.owner(account)
        with self._file.snapshot():
            return not self._balances.fits(account, {run: totals_of([event])})

    def refusals(self, run: str, events: Mapping[int, Event]) -> dict[int, str]:
        """Why accounts do not hold what a run would release next; those that do are left out."""
        with self._file.snapshot():
            return self._limits.refusals(run, events)

    def within_reservation(self, run: str, events: Mapping[int, Event]) -> list[int]:
        """The accounts in which a run holds a reservation that contains this."""
        with self._file.snapshot():
            return [
                account
                for account, event in events.items()
                if self._balances.has_room(account, run, totals_of([event]))
            ]

    # Data that is divided among clients

    def require_one_block(self, pool: str, block: str = "") -> None:
        """Refuse a data set that was divided under another block: it is of the same people."""
        self._divisions.require_one_block(pool, block)

    def division(self, block: str = "") -> Mapping[str, str] | None:
        """Which client held which part of one data set, in the last run that divided it."""
        return self._divisions.last(block)

    def taken_over(self, clients: Mapping[str, str], block: str = "") -> Takeover | None:
        """What these clients take over if they hold these parts of one data set from now on."""
        return self._divisions.taken_over(clients, block)

    def message(self, run: str, account: int, round: int) -> bytes | None:
        """The stored answer to a repeated request; None if there is none, or it was dropped."""
        return self._outbox.message(run, account, round)

    def messages(self, run: str, round: int) -> dict[int, bytes]:
        """All answers of a round that are stored, by account."""
        return self._outbox.messages(run, round)

    def state(self, run: str, account: int) -> bytes | None:
        """What the client keeps from its latest answered round; None before the first."""
        return self._outbox.state(run, account)

    def progress(self, run: str) -> Progress | None:
        """What a simulation goes on with that stored no messages; None where nothing is stored."""
        return self._progress.of(run)

    def history(self, account: int | None = None) -> Iterator[Entry]:
        """Every charge in the order it was made, of one account or of all."""
        return iter(entries(self._file, account))

    def decisions(self, account: int | None = None) -> list[Decision]:
        """What was decided about accounts, data, blocks and budgets; oldest first."""
        decided = self._decisions.all()
        return [own for own in decided if account is None or own.account == account]

    def head(self) -> tuple[int, str]:
        """The number and the hash of the last charge; 0 and nothing before the first."""
        return head_of(self._file, "charges")

    def holds(self, number: int, chain: str, table: Table = "charges") -> bool:
        """Whether this was its last row once: a copy from before that, or another, does not."""
        return is_on_record(self._file, table, number, chain)

    def chain_at(self, number: int) -> str | None:
        """The hash of the charge with this number; None where there is none."""
        return chain_at(self._file, "charges", number)

    def decided(self) -> tuple[int, str]:
        """The number and the hash of the last decision; 0 and nothing before the first."""
        return head_of(self._file, "decisions")

    def verify(self, *, events: bool = True) -> list[str]:
        """Every problem found, one sentence each; an empty list means that the ledger is sound.

        Without `events` nobody tries to read the releases, which may name code of one's own.
        """
        return problems_of(self._file, self._outbox, self._progress, events=events)
