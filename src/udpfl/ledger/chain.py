"""Two hash chains, of charges and of decisions, that are tied into each other.

Every row carries a hash of its content, of the row before it in its own table, and of the row that
the other table ended with when it was written. An edit made behind the triggers' back breaks the
chain from there on, and a row that is taken away from the end of one table is missed by the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Literal, NamedTuple

from udpfl.ledger.file import LedgerFile

Table = Literal["charges", "decisions"]


class Head(NamedTuple):
    """The last row of a table: its number and its hash."""

    number: int
    chain: str


def head_of(file: LedgerFile, table: Table) -> Head:
    """The last row; number 0 where there is none."""
    found = file.rows(f"SELECT id, chain FROM {table} ORDER BY id DESC LIMIT 1")
    return Head(*found[0]) if found else Head(0, "")


def is_on_record(file: LedgerFile, table: Table, number: int, chain: str) -> bool:
    """Whether a row of that number and hash is in the table; number 0 stands for none at all."""
    if number == 0:
        return chain == ""
    return chain_at(file, table, number) == chain


def chain_at(file: LedgerFile, table: Table, number: int) -> str | None:
    """The hash of the row with this number; None where there is none."""
    found: list[tuple[str]] = file.rows(f"SELECT chain FROM {table} WHERE id = ?", number)
    return found[0][0] if found else None


def chained(previous: str, *content: object) -> str:
    """The hash of a row that follows another."""
    return sha256(json.dumps([previous, *content], default=repr).encode()).hexdigest()


def missing_rows(word: str, first: int, last: int) -> str:
    """A sentence about rows that should be there."""
    return f"{word} {first} is missing" if last <= first else f"{word}s {first}-{last} are missing"


def end_problems(file: LedgerFile, table: Table, last: int) -> Iterator[str]:
    """SQLite remembers the last number it gave out, so the end cannot just be cut off."""
    for (given,) in file.each("SELECT seq FROM sqlite_sequence WHERE name = ?", table):
        if given != last:
            yield missing_rows(table.removesuffix("s"), last + 1, given)
