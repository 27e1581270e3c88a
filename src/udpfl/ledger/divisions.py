"""One data set that chance divides among clients: another seed moves records between accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from udpfl.accounting.events import Event
from udpfl.accounting.filter import Filter
from udpfl.errors import InvalidInput, LedgerError
from udpfl.ledger._balances import Balances
from udpfl.ledger.accounts import Accounts
from udpfl.ledger.decisions import Decisions
from udpfl.ledger.spending import Spending, as_event

_MOVED = (
    "records of this data set may be at other clients than in earlier runs on this ledger (another "
    "seed or partition)"
)


@dataclass(frozen=True)
class Takeover:
    """The largest spending among accounts between which records may have moved."""

    totals: Counter[str]
    rule: Filter | None
    """How all of them add it up."""
    among: list[Spending]

    @property
    def event(self) -> Event | None:
        """All of it as one event."""
        return as_event(self.totals)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a decision."""
        return {"totals": dict(self.totals), **self._flags(self.among)}

    def changes(self, own: Spending) -> bool:
        """Whether an account that has spent so much has to take anything over."""
        return self.totals != own.totals or self._flags(self.among) != self._flags([own])

    @staticmethod
    def _flags(among: Sequence[Spending]) -> dict[str, bool]:
        return {
            name: any(getattr(own, name) for own in among)
            for name in ("seeded", "imported", "trusting")
        }


class Divisions:
    """Which client held which part of a data set, run after run."""

    def __init__(self, accounts: Accounts, decisions: Decisions, balances: Balances) -> None:
        self._accounts, self._decisions, self._balances = accounts, decisions, balances

    def last(self, block: str) -> Mapping[str, str] | None:
        """The fingerprint of every client's part in the last run that divided this block."""
        said = [d for d in self._decisions.of("division", None) if d.content["block"] == block]
        return said[-1].content["clients"] if said else None

    def require_one_block(self, pool: str, block: str) -> None:
        """Refuse a data set that was divided under another block: it is of the same people."""
        known = self._block_of(pool)
        if known not in (None, block):
            raise InvalidInput(
                "data.block",
                f"exactly this data set was charged before as "
                f"{known or 'records without a block'}: a block is for records of other people",
            )

    def _block_of(self, pool: str) -> str | None:
        """The block under which exactly this data set was divided before."""
        for said in self._decisions.of("division", None):
            if pool and said.content.get("pool") == pool:
                return str(said.content["block"])
        return None

    def taken_over(self, clients: Mapping[str, str], block: str) -> Takeover | None:
        """What these clients take over if they hold these parts from now on.

        None where that is how it was divided before. Otherwise records may have moved from any
        account to any other, so each has to count the largest spending among them as its own. As
        long as a run is going to spend more nobody knows which that will be: then it is refused.
        """
        known = self.last(block)
        if known == dict(clients):
            return None
        among = [own for own in self._accounts.all() if own.block == block]
        if known is not None:
            among = [own for own in among if own.client in known or own.client in clients]
        if unfinished := [run for own in among for run in self._balances.unfinished(own.id)]:
            raise LedgerError(
                f"{_MOVED}, and the run {unfinished[0]} still has reservations for them: wait "
                "until it ends, or free its reservations (`udpfl budget free`)"
            )
        spent = [own for own in among if self._balances.charged(own.id).totals]
        if not spent:
            return None
        if absent := [own.name for own in spent if own.client not in clients]:
            raise LedgerError(
                f"{_MOVED}, and {absent[0]}, which may have held them, is not in this run: "
                "train with all clients that have trained on this data set before"
            )
        rules = {self._accounts.filter(own.id) for own in spent}
        if len(rules) > 1:
            raise LedgerError(f"{_MOVED}, and their accounts add up releases in different ways")
        among_spendings = [self._balances.charged(own.id) for own in spent]
        return Takeover(self._largest(known, among_spendings), rules.pop(), among_spendings)

    def _largest(
        self, known: Mapping[str, str] | None, spendings: Sequence[Spending]
    ) -> Counter[str]:
        """The most that any record can have cost which was at one of these clients."""
        if known is None and self._decisions.of("upgrade", None):
            # Earlier versions noted no divisions: it may have been at another client in every run.
            runs = {run for own in spendings for run in own.by_run}
            each = [_largest_of([own.by_run.get(run) for own in spendings]) for run in runs]
            return sum(each, Counter())
        return _largest_of([own.totals for own in spendings])

    def note(self, clients: Mapping[str, str], block: str, pool: str) -> None:
        """Put a division on record, inside a transaction, and let its clients take over.

        Guarantee: afterwards an account's total contains all that was ever charged for any record
        in it, wherever that record was.
        """
        if taken := self.taken_over(clients, block):
            for own in self._accounts.all():
                if own.block == block and own.client in clients:
                    self._take_over(own.id, taken)
        if self.last(block) != dict(clients):
            content = {"block": block, "clients": dict(clients), "pool": pool}
            self._decisions.append("division", None, content)

    def forget(self, block: str) -> None:
        """Put on record, inside a transaction, that nobody knows any more who held which part.

        The next run that divides the data set lets all its clients take over.
        """
        if known := self.last(block):
            content = {"block": block, "clients": dict.fromkeys(known, ""), "pool": ""}
            self._decisions.append("division", None, content)

    def _take_over(self, account: int, taken: Takeover) -> None:
        if taken.rule and taken.rule != self._accounts.filter(account):
            self._decisions.append("orders", account, taken.rule.to_dict())
        if taken.changes(self._balances.charged(account)):
            self._decisions.append("take over", account, taken.to_dict())


def _largest_of(several: Sequence[Counter[str] | None]) -> Counter[str]:
    most: Counter[str] = Counter()
    for totals in several:
        most |= totals or Counter()
    return most
