"""The answers that were charged: a repeated request gets the same bytes again, at no cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from udpfl.errors import LedgerError
from udpfl.ledger.charges import Charge
from udpfl.ledger.file import LedgerFile

_ANSWER = "run = ? AND account = ? AND round = ?"


def _digest(message: bytes) -> str:
    return sha256(message).hexdigest()


class Outbox:
    """The stored messages and client states of a ledger's file."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def put(self, charge: Charge) -> None:
        """Store an answer, inside the transaction that charges it."""
        answer = (charge.run, charge.account, charge.round)
        digest = "" if charge.message is None else _digest(charge.message)
        self._file.insert("outbox", *answer, charge.message, charge.state or None, digest)

    def answered(self, run: str, round: int, accounts: Sequence[int]) -> set[int]:
        """Those accounts that answered the round, even if their messages were dropped since."""
        query = (  # one value, however many accounts: SQLite takes a limited number of them
            "SELECT account FROM outbox WHERE run = ? AND round = ? "
            "AND account IN (SELECT value FROM json_each(?))"
        )
        rows = self._file.rows(query, run, round, json.dumps(list(accounts)))
        return {account for (account,) in rows}

    def message(self, run: str, account: int, round: int) -> bytes | None:
        """The stored answer; None if there is none, or it was dropped."""
        query = f"SELECT account, CAST(message AS BLOB), digest FROM outbox WHERE {_ANSWER}"
        return self._sendable(run, round, self._file.rows(query, run, account, round)).get(account)

    def messages(self, run: str, round: int) -> dict[int, bytes]:
        """The answers of a round that are stored, by account."""
        query = (
            "SELECT account, CAST(message AS BLOB), digest FROM outbox "
            "WHERE run = ? AND round = ? AND message IS NOT NULL"
        )
        return self._sendable(run, round, self._file.rows(query, run, round))

    def _sendable(self, run: str, round: int, rows: list[tuple[Any, ...]]) -> dict[int, bytes]:
        """The messages among these rows, as they were stored."""
        found = {account: message for account, message, _ in rows if message is not None}
        for account, _, digest in rows:
            if account in found and _digest(found[account]) != digest:
                raise LedgerError(f"{_named(run, account, round)} is damaged: it must not be sent")
        return found

    def state(self, run: str, account: int) -> bytes | None:
        """What the client keeps from its latest answered round; None before the first."""
        rows = self._file.rows(
            "SELECT state FROM outbox WHERE run = ? AND account = ? ORDER BY round DESC LIMIT 1",
            *(run, account),
        )
        return None if not rows or rows[0][0] is None else bytes(rows[0][0])

    def forget(self, run: str, settled: int) -> None:
        """Drop the payloads of rounds up to `settled`, inside a transaction; digests and last
        states stay."""
        # Rows are written anew: SQLite joins the pages of deleted rows, not of rows that shrank.
        self._file.write(
            "INSERT OR REPLACE INTO outbox SELECT run, account, round, NULL, state, digest "
            "FROM outbox WHERE run = ? AND round <= ? AND message IS NOT NULL",
            *(run, settled),
        )
        self._file.write(
            "INSERT OR REPLACE INTO outbox SELECT run, account, round, message, NULL, digest "
            "FROM outbox WHERE run = ? AND round <= ? AND state IS NOT NULL "
            "AND round < (SELECT max(round) FROM outbox AS later "
            "WHERE later.run = outbox.run AND later.account = outbox.account)",
            *(run, settled),
        )

    def problems(self) -> Iterator[str]:
        """Messages that nobody paid for, and messages that are not what was stored."""
        answer = "run, account, round"
        for unpaid in self._file.each(
            f"SELECT {answer} FROM outbox EXCEPT SELECT {answer} FROM charges"
        ):
            yield f"{_named(*unpaid)} was not charged"
        for *stored, message, digest in self._file.each(
            f"SELECT {answer}, CAST(message AS BLOB), digest FROM outbox WHERE message IS NOT NULL"
        ):
            if _digest(message) != digest:
                yield f"{_named(*stored)} is damaged"


def _named(run: str, account: int, round: int) -> str:
    return f"the stored message of run {run}, account {account}, round {round}"
