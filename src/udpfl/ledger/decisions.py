"""What people decided about budgets: a row of the chain each, with its time, author and reason.

Kinds: "open" (an account), "orders" (how its releases are put together), "data" (a version of its
records), "block" (a statement that records are not those of other blocks), "budget", "take over"
(the spending of another account), "upgrade" (of a file that an earlier version wrote).
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from udpfl.ledger.chain import chained, end_problems, head_of, missing_rows
from udpfl.ledger.file import LedgerFile, now


@dataclass(frozen=True)
class Decision:
    """One row."""

    id: int
    kind: str
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


def append_decision(
    file: LedgerFile,
    kind: str,
    account: int | None,
    content: Mapping[str, Any],
    reason: str = "",
    author: str | None = None,
) -> None:
    """Write a row at the end of the chain, inside a transaction."""
    before, charged = head_of(file, "decisions"), head_of(file, "charges")
    number, text = before.number + 1, json.dumps(dict(content), sort_keys=True)
    said = (kind, account, text, reason, author or login_name(), now(), charged.number)
    chain = chained(before.chain, number, *said, charged.chain)
    file.write("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", number, *said, chain)


def decisions(
    file: LedgerFile, account: int | None = None, kind: str | None = None
) -> list[Decision]:
    """All rows, or those of an account, or of a kind; oldest first."""
    rows = file.rows(
        "SELECT id, kind, account, content, reason, author, decided_at, charges FROM decisions "
        "WHERE account IS ifnull(?, account) AND kind = ifnull(?, kind) ORDER BY id",
        *(account, kind),
    )
    return [Decision(*row[:3], json.loads(row[3]), *row[4:]) for row in rows]


def last_decision(file: LedgerFile, account: int, kind: str) -> Decision | None:
    """The one that counts."""
    rows = file.rows(
        "SELECT id, kind, account, content, reason, author, decided_at, charges FROM decisions "
        "WHERE account = ? AND kind = ? ORDER BY id DESC LIMIT 1",
        *(account, kind),
    )
    return Decision(*rows[0][:3], json.loads(rows[0][3]), *rows[0][4:]) if rows else None


def decision_problems(file: LedgerFile) -> Iterator[str]:
    """Decisions that are missing or were edited, and accounts that nobody opened like this."""
    expected, previous, opened = 1, "", {}
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
