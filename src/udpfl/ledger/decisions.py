"""What was decided about budgets: a row of a hash chain each, with its time, author and reason.

Kinds of rows: "open" (an account), "orders" (how its releases are added up), "data" (a version of a
client's records), "block" (a statement that some records are of nobody who is in another block),
"client" (one that a new client's records are of nobody who is at another client), "budget",
"division" (which client holds which part of one data set), "take over" (the spending of other
accounts), "reserve" and "give back" (what a run is going to spend), "begin" and "end" (the files of
a run, and who planned a nominal one, see `ledger.seals`), "upgrade" (of a file that an earlier
version wrote).
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from udpfl.ledger.chain import chained, end_problems, head_of, missing_rows
from udpfl.ledger.file import LedgerFile, now

Kind = Literal[
    "open", "orders", "data", "block", "client", "budget", "division", "take over", "reserve",
    "give back", "begin", "end", "upgrade",
]  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """One row."""

    id: int
    kind: Kind
    account: int | None
    content: Mapping[str, Any]
    reason: str
    author: str
    decided_at: str
    charges: int
    """How many charges there were before it."""


def login_name() -> str:
    """Who is at the keyboard, as far as the system knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


class Decisions:
    """The rows of a ledger's file. Each is read once: none is ever changed."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
        self._rollbacks = file.rollbacks
        self._moment: object = None
        self._all: list[Decision] = []
        self._of: dict[tuple[Kind, int | None], list[Decision]] = {}

    def append(
        self,
        kind: Kind,
        account: int | None,
        content: Mapping[str, Any],
        reason: str = "",
        author: str | None = None,
    ) -> None:
        """Write a row at the end of the chain, inside a transaction."""
        before, charged = head_of(self._file, "decisions"), head_of(self._file, "charges")
        number, text = before.number + 1, json.dumps(dict(content), sort_keys=True)
        said = (kind, account, text, reason, author or login_name(), now(), charged.number)
        chain = chained(before.chain, number, *said, charged.chain)
        self._file.insert("decisions", number, *said, chain)

    def all(self) -> list[Decision]:
        """Every row, oldest first."""
        self._catch_up()
        return self._all

    def of(self, kind: Kind, account: int | None) -> list[Decision]:
        """The rows of one kind about one account, or about none; oldest first."""
        self._catch_up()
        return self._of.get((kind, account), [])

    def last(self, kind: Kind, account: int | None) -> Decision | None:
        """The row that counts."""
        found = self.of(kind, account)
        return found[-1] if found else None

    def _catch_up(self) -> None:
        if self._moment is (moment := self._file.moment):
            return
        self._moment = moment
        if self._rollbacks != self._file.rollbacks:  # what was read may never have been stored
            self._rollbacks, self._all, self._of = self._file.rollbacks, [], {}
        for number, kind, account, content, *said in self._file.rows(
            "SELECT id, kind, account, content, reason, author, decided_at, charges FROM decisions "
            "WHERE id > ? ORDER BY id",
            self._all[-1].id if self._all else 0,
        ):
            found = Decision(number, kind, account, json.loads(content), *said)
            self._all.append(found)
            self._of.setdefault((found.kind, found.account), []).append(found)


def decision_problems(file: LedgerFile) -> Iterator[str]:
    """Decisions that are missing or were edited, and accounts that nobody opened like this."""
    expected, previous = 1, ""
    opened: dict[int, str] = {}
    for number, *content, charged, chain in file.each(
        "SELECT d.id, d.kind, d.account, d.content, d.reason, d.author, d.decided_at, d.charges, "
        "ifnull(c.chain, ''), d.chain FROM decisions d LEFT JOIN charges c ON c.id = d.charges "
        "ORDER BY d.id"
    ):
        if number != expected:
            yield missing_rows("decision", expected, number - 1)
        if chained(previous, number, *content, charged) != chain:
            yield f"decision {number} was edited, or is not the one that followed the one before"
        if content[0] == "open":
            opened[content[1]] = content[2]
        expected, previous = number + 1, chain
    yield from end_problems(file, "decisions", expected - 1)
    for account, client, block, runs in file.each("SELECT id, client, block, runs FROM accounts"):
        said = json.dumps({"client": client, "block": block, "runs": runs}, sort_keys=True)
        if opened.get(account) != said:
            yield f"account {account} ({client}) is not the one that was opened"
