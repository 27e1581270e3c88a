"""One data set that chance divides among clients: another seed moves records between accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from udpfl.accounting.events import Event
from udpfl.accounting.filter import Filter
from udpfl.errors import LedgerError
from udpfl.ledger.accounts import Accounts
from udpfl.ledger.balances import Balances
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
        return {
            "totals": dict(self.totals),
            "seeded": any(own.seeded for own in self.among),
            "imported": any(own.imported for own in self.among),
            "trusting": any(own.trusting for own in self.among),
        }


class Divisions:
    """Which client held which part of a data set, run after run."""

    def __init__(self, accounts: Accounts, decisions: Decisions, balances: Balances) -> None:
        self._accounts, self._decisions, self._balances = accounts, decisions, balances

    def last(self, block: str) -> Mapping[str, str] | None:
        """The fingerprint of every client's part in the last run that divided this block."""
        said = [d for d in self._decisions.of("division", None) if d.content["block"] == block]
        return said[-1].content["clients"] if said else None

    def taken_over(self, clients: Mapping[str, str], block: str) -> Takeover | None:
        """What these clients take over if they hold these parts from now on.

        None where that is how it was divided before. Otherwise records may have moved from any
        account to any other, so each has to count the largest spending among them as its own,
        reservations included.
        """
        known = self.last(block)
        if known == dict(clients):
            return None
        among = [own for own in self._accounts.all() if own.block == block]
        if known is not None:
            among = [own for own in among if own.client in known or own.client in clients]
        held = {own: totals for own in among if (totals := self._balances.held(own.id))}
        if not held:
            return None
        if absent := [own.name for own in held if own.client not in clients]:
            raise LedgerError(f"{_MOVED}, and {absent[0]}, which may have held them, is not here")
        rules = {self._accounts.filter(own.id) for own in held}
        if len(rules) > 1:
            raise LedgerError(f"{_MOVED}, and their accounts add up releases in different ways")
        most: Counter[str] = Counter()
        for totals in held.values():
            most |= totals
        return Takeover(most, rules.pop(), [self._balances.charged(own.id) for own in held])

    def note(self, clients: Mapping[str, str], block: str) -> None:
        """Put a division on record, inside a transaction, and let its clients take over.

        Guarantee: afterwards an account's total contains all that was ever charged for any record
        in it, wherever that record was.
        """
        if taken := self.taken_over(clients, block):
            for own in self._accounts.all():
                if own.block == block and own.client in clients:
                    self._take_over(own.id, taken)
        if self.last(block) != dict(clients):
            content = {"block": block, "clients": dict(clients)}
            self._decisions.append("division", None, content)

    def _take_over(self, account: int, taken: Takeover) -> None:
        if taken.rule and taken.rule != self._accounts.filter(account):
            self._decisions.append("orders", account, taken.rule.to_dict())
        if taken.totals != self._balances.held(account):
            self._decisions.append("take over", account, taken.to_dict())
