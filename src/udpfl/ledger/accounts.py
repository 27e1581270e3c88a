"""Whose budget it is: one account per client, with every version of its data beneath it.

A budget belongs to people, not to bytes: another scale, another test split, one corrected record,
and the records are still of the same people. Records of a client that are of other people (the
patients of another quarter) get an account of their own, a block, by a statement on record only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from udpfl.accounting.budget import Budget
from udpfl.accounting.filter import Filter
from udpfl.errors import InvalidInput
from udpfl.ledger.decisions import Decision, Decisions
from udpfl.ledger.file import LedgerFile

Runs = Literal["one", "many"]
"""How many runs an account is for. One run is planned as a whole, so all of it is accounted at once
by whatever is best. Many runs follow each other's results: a filter accounts for them."""


@dataclass(frozen=True)
class Account:
    """A client, or one block of its records."""

    id: int
    client: str
    block: str = ""
    runs: Runs = "many"

    @property
    def name(self) -> str:
        """The client, and the block where there is one."""
        return f"{self.client} (block {self.block})" if self.block else self.client


class Accounts:
    """The accounts of a ledger's file, their data, budgets and filters."""

    def __init__(self, file: LedgerFile, decisions: Decisions) -> None:
        self._file, self._decisions = file, decisions
        self._known: dict[int, Account] = {}
        self._charged: set[int] = set()

    def all(self) -> list[Account]:
        """Every account, oldest first."""
        rows = self._file.each("SELECT id, client, block, runs FROM accounts ORDER BY id")
        return [Account(*row) for row in rows]

    def owner(self, account: int) -> Account:
        """The account of that number, which has to exist."""
        if account not in self._known:
            self._known = {found.id: found for found in self.all()}
        if account not in self._known:
            raise InvalidInput("account", f"{self._file.path} has no account {account!r}")
        return self._known[account]

    def opened(self, client: str, fingerprint: str, block: str, runs: Runs) -> int:
        """The account of a client or of a block of it, opened if the client is new.

        A version of the data that was not seen before is noted beneath it.
        """
        for name, value in (("client", client), ("fingerprint", fingerprint)):
            if not value or not isinstance(value, str):
                raise InvalidInput(name, f"must be a text, got {value!r}")
        if runs not in get_args(Runs):
            raise InvalidInput("runs", f"must be 'one' or 'many', got {runs!r}")
        found = self.find(client, block)
        if found is None or fingerprint not in self.versions(found.id):
            with self._file.writing():
                found = self.find(client, block) or self._open(client, block, runs)
                if fingerprint not in self.versions(found.id):
                    self._decisions.append("data", found.id, {"fingerprint": fingerprint})
        return found.id

    def find(self, client: str, block: str) -> Account | None:
        """The account of a client, or of a block of it; None where nobody opened it."""
        rows = self._file.rows(
            "SELECT id, client, block, runs FROM accounts WHERE client = ? AND block = ?",
            *(client, block),
        )
        return Account(*rows[0]) if rows else None

    def _open(self, client: str, block: str, runs: Runs) -> Account:
        self.require_statement(client, block)
        self._file.write(
            "INSERT INTO accounts (client, block, runs) VALUES (?, ?, ?)", client, block, runs
        )
        found = self.find(client, block)
        assert found is not None
        content = {"client": client, "block": block, "runs": runs}
        self._decisions.append("open", found.id, content)
        if runs == "many":
            self._decisions.append("orders", found.id, Filter.planned().to_dict())
        return found

    # Blocks

    def declare_block(self, client: str, block: str, reason: str, author: str | None) -> None:
        """Put on record that the records of this block are of nobody who is in another block."""
        _require_texts(client=client, block=block, reason=reason)
        with self._file.writing():
            if self._said_about(client, block):
                raise InvalidInput("block", f"{block!r} of {client} is already in the ledger")
            content = {"client": client, "block": block, "disjoint": True}
            self._decisions.append("block", None, content, reason, author)

    def require_statement(self, client: str, block: str) -> None:
        """Refuse a block of which nobody said that its records are of other people."""
        if block and not self._said_about(client, block):
            raise InvalidInput(
                "block",
                f"the ledger has no block {block!r} of {client}: if its records belong to other "
                f"people than the rest, add it with `udpfl budget block add LEDGER {client} "
                f"{block} --disjoint --reason ...`",
            )

    # Clients that come later

    def declare_client(self, client: str, block: str, reason: str, author: str | None) -> None:
        """Put on record that the records of a new client are of nobody who is at another one."""
        _require_texts(client=client, reason=reason)
        with self._file.writing():
            if self.find(client, block) or self._said_about(client, block, "client"):
                raise InvalidInput("client", f"{client} is already in the ledger")
            content = {"client": client, "block": block, "disjoint": True}
            self._decisions.append("client", None, content, reason, author)

    def unknown(self, clients: Iterable[str], block: str) -> list[str]:
        """Clients without an account, of whom nobody said that their records are of new people."""
        known = {own.client for own in self.all() if own.block == block}
        return [
            client
            for client in clients
            if client not in known and not self._said_about(client, block, "client")
        ]

    def _said_about(
        self, client: str, block: str, kind: Literal["block", "client"] = "block"
    ) -> Decision | None:
        for found in self._decisions.of(kind, None):
            if (found.content["client"], found.content["block"]) == (client, block):
                return found
        return None

    def assumptions_about(self, account: int) -> list[str]:
        """What a statement about an account takes from the words of people."""
        client, block = self.owner(account).client, self.owner(account).block
        assumed = []
        if block and (said := self._said_about(client, block)):
            of_block = f"is in the block {block} of {client}"
            assumed.append(f"{of_block} is in another one, {_quoted(said)}")
        if said := self._said_about(client, block, "client"):
            assumed.append(f"is at {client} is at another client of this ledger, {_quoted(said)}")
        return [f"assumes that nobody whose record {own}" for own in assumed]

    # Data

    def versions(self, account: int) -> list[str]:
        """The fingerprints of all data that was ever used under this account, oldest first."""
        return [found.content["fingerprint"] for found in self._decisions.of("data", account)]

    def other_names(self, client: str, fingerprint: str, block: str) -> list[str]:
        """Under which other accounts exactly this data is known."""
        others = [own for own in self.all() if (own.client, own.block) != (client, block)]
        return [own.name for own in others if fingerprint in self.versions(own.id)]

    def require_own(self, parts: Mapping[str, str], block: str) -> None:
        """Refuse records that are known under another name, and blocks without a statement."""
        for client, fingerprint in parts.items():
            if known := self.other_names(client, fingerprint, block):
                other = f"{known[0]} (no block)" if known[0] == client else known[0]
                raise InvalidInput(
                    "privacy.ledger",
                    f"the data of {Account(0, client, block).name} is known there as {other}: it "
                    "gets no new budget under another name or block",
                )
            self.require_statement(client, block)

    # Budgets, and how spending is added up

    def budgets(self, account: int, up_to: int | None = None) -> list[Budget]:
        """Every budget that was ever set, or set up to a decision; the last one counts."""
        self.owner(account)
        return [
            Budget(**found.content)
            for found in self._decisions.of("budget", account)
            if up_to is None or found.id <= up_to
        ]

    def budget(self, account: int) -> Budget | None:
        """The budget that was set last; None before the first."""
        self.owner(account)
        found = self._decisions.last("budget", account)
        return _budget(**found.content) if found else None

    def set_budget(self, account: int, budget: Budget, reason: str, author: str | None) -> None:
        """Set what all releases of the account may cost, inside a transaction.

        As long as nothing was charged the orders of its filter are planned for the new budget.
        """
        owner = self.owner(account)
        epsilon, delta = float(budget.epsilon), float(budget.delta)
        known = self.budgets(account)
        if known and not reason.strip():
            before = known[-1]
            if epsilon > before.epsilon or delta > before.delta:
                raise InvalidInput(
                    "reason",
                    f"is needed to raise a budget: {owner.name} has ε = {before.epsilon:g} "
                    f"at δ = {before.delta:g}",
                )
        is_fixed = owner.runs == "many" and self._is_charged(account)
        if is_fixed and known and delta != known[-1].delta:
            raise InvalidInput(
                "delta",
                f"is {known[-1].delta:g} for {owner.name}, who is already charged: a total over "
                f"runs holds at one delta, so it cannot change any more",
            )
        content = {"epsilon": epsilon, "delta": delta}
        self._decisions.append("budget", account, content, reason, author)
        if owner.runs == "many" and not is_fixed:
            planned = Filter.planned(epsilon, delta)
            self._decisions.append("orders", account, planned.to_dict(), author=author)

    def _is_charged(self, account: int) -> bool:
        """Whether something was spent: charged, or taken over from others."""
        if account not in self._charged:
            query = "SELECT 1 FROM charges WHERE account = ? LIMIT 1"
            taken_over = self._decisions.of("take over", account)
            if taken_over or self._decisions.of("reserve", account):
                return True
            if self._file.rows(query, account):
                self._charged.add(account)
        return account in self._charged

    def filter(self, account: int) -> Filter | None:
        """What adds up the account's releases; None for an account of one run."""
        if self.owner(account).runs == "one":
            return None
        decided = self._decisions.last("orders", account)
        assert decided is not None, "every account of many runs has orders"
        return _filter(tuple(decided.content["orders"]), tuple(decided.content["shares"]))


def _quoted(said: Decision) -> str:
    return f"as {said.author} said on {said.decided_at[:10]}: {said.reason}"


def _require_texts(**values: str) -> None:
    for name, value in values.items():
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(name, f"must be a text, got {value!r}")


@lru_cache(maxsize=1024)
def _budget(epsilon: float, delta: float) -> Budget:
    return Budget(epsilon, delta)


@lru_cache(maxsize=1024)
def _filter(orders: tuple[float, ...], shares: tuple[float, ...]) -> Filter:
    return Filter(orders, shares)
