"""Whose budget it is: one account per client, with every version of its data beneath it.

A budget belongs to people, not to bytes: another scale, another test split, one corrected record,
and the records are still of the same people. Records of a client that are of other people (the
patients of another quarter) get an account of their own, a block, by a statement on record only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, get_args

from udpfl.accounting.budget import Budget
from udpfl.accounting.filter import Filter
from udpfl.errors import InvalidInput
from udpfl.ledger.decisions import Decision, append_decision, decisions, last_decision
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

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
        self._known: dict[int, Account] = {}
        self._fixed: dict[int, Filter] = {}

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
            raise InvalidInput("runs", f"must be one or many, got {runs!r}")
        found = self._find(client, block)
        if found is None or fingerprint not in self.versions(found.id):
            with self._file.writing():
                found = self._find(client, block) or self._open(client, block, runs)
                if fingerprint not in self.versions(found.id):
                    append_decision(self._file, "data", found.id, {"fingerprint": fingerprint})
        return found.id

    def _find(self, client: str, block: str) -> Account | None:
        rows = self._file.rows(
            "SELECT id, client, block, runs FROM accounts WHERE client = ? AND block = ?",
            *(client, block),
        )
        return Account(*rows[0]) if rows else None

    def _open(self, client: str, block: str, runs: Runs) -> Account:
        if block and not self.statement_on(client, block):
            raise InvalidInput(
                "block",
                f"nobody has said that the records of {client} in the block {block!r} are of other "
                f"people than the rest: `udpfl budget block add LEDGER {client} {block} "
                "--disjoint --reason ...` does",
            )
        self._file.write(
            "INSERT INTO accounts (client, block, runs) VALUES (?, ?, ?)", client, block, runs
        )
        found = self._find(client, block)
        assert found is not None
        content = {"client": client, "block": block, "runs": runs}
        append_decision(self._file, "open", found.id, content)
        if runs == "many":
            append_decision(self._file, "orders", found.id, Filter.planned().to_dict())
        return found

    # Blocks

    def declare_block(self, client: str, block: str, reason: str, author: str | None) -> None:
        """Put on record that the records of this block are of nobody who is in another block."""
        for name, value in (("client", client), ("block", block), ("reason", reason)):
            if not isinstance(value, str) or not value.strip():
                raise InvalidInput(name, f"must be a text, got {value!r}")
        with self._file.writing():
            if self.statement_on(client, block):
                raise InvalidInput("block", f"{block!r} of {client} is on record already")
            content = {"client": client, "block": block, "disjoint": True}
            append_decision(self._file, "block", None, content, reason, author)

    def statement_on(self, client: str, block: str) -> Decision | None:
        """What was said about a block of a client."""
        for found in decisions(self._file, kind="block"):
            if (found.content["client"], found.content["block"]) == (client, block):
                return found
        return None

    def note_on(self, account: int) -> str:
        """What a statement about an account has to add; empty where it is not a block."""
        owner = self.owner(account)
        said = owner.block and self.statement_on(owner.client, owner.block)
        if not said:
            return ""
        return (
            f"assumes that nobody whose record is in the block {owner.block} of {owner.client} is in "
            f"another one, as {said.author} said on {said.decided_at[:10]}: {said.reason}"
        )

    # Data

    def versions(self, account: int) -> list[str]:
        """The fingerprints of all data that was ever used under this account, oldest first."""
        found = decisions(self._file, account, "data")
        return [decision.content["fingerprint"] for decision in found]

    def other_names(self, client: str, fingerprint: str, block: str = "") -> list[str]:
        """Under which other accounts exactly this data is known."""
        rows = self._file.rows(
            "SELECT DISTINCT account FROM decisions WHERE kind = 'data' AND content = ?",
            json.dumps({"fingerprint": fingerprint}),
        )
        others = [self.owner(number) for (number,) in rows]
        return [own.name for own in others if (own.client, own.block) != (client, block)]

    # Budgets, and how spending is added up

    def budget(self, account: int) -> Budget | None:
        """The budget set last, by whichever process; None where none was."""
        self.owner(account)
        found = last_decision(self._file, account, "budget")
        return None if found is None else Budget(**found.content)

    def set_budget(self, account: int, budget: Budget, reason: str, author: str | None) -> None:
        """Set what all releases of the account may cost; earlier budgets stay on record.

        As long as nothing was charged the orders of its filter are planned for the new budget.
        """
        owner = self.owner(account)
        epsilon, delta = float(budget.epsilon), float(budget.delta)
        with self._file.writing():
            before = self.budget(account)
            rises = before is not None and (epsilon > before.epsilon or delta > before.delta)
            if rises and not reason.strip():
                raise InvalidInput(
                    "reason",
                    f"is needed where a budget rises: {owner.name} has ε = {before.epsilon:g} at "  # type: ignore[union-attr]
                    f"δ = {before.delta:g}",  # type: ignore[union-attr]
                )
            content = {"epsilon": epsilon, "delta": delta}
            append_decision(self._file, "budget", account, content, reason, author)
            if owner.runs == "many" and not self._is_charged(account):
                planned = Filter.planned(epsilon, delta)
                append_decision(self._file, "orders", account, planned.to_dict(), author=author)

    def _is_charged(self, account: int) -> bool:
        return bool(self._file.rows("SELECT 1 FROM charges WHERE account = ? LIMIT 1", account))

    def filter(self, account: int) -> Filter | None:
        """What adds up the account's releases; None for an account of one run."""
        if account in self._fixed:
            return self._fixed[account]
        if self.owner(account).runs == "one":
            return None
        is_fixed = self._is_charged(account)
        decided = last_decision(self._file, account, "orders")
        assert decided is not None, "every account of many runs has orders"
        found = Filter.from_dict(decided.content)
        if is_fixed:
            self._fixed[account] = found
        return found
