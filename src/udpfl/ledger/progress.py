"""What a simulation goes on with after a crash: the server's state after its last charged round.

Where one process holds clients and server, nobody asks for a message again. So in place of all
messages of a round this is stored, once, together with their charges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

from udpfl.errors import InvalidInput, LedgerError
from udpfl.ledger.charges import Charge
from udpfl.ledger.file import LedgerFile

_TABLE = (
    "CREATE TABLE IF NOT EXISTS progress ("
    "run TEXT PRIMARY KEY NOT NULL REFERENCES runs (id), "
    "round INTEGER NOT NULL, state BLOB NOT NULL, digest TEXT NOT NULL)"
)


class Progress(NamedTuple):
    """How far a run has come."""

    round: int
    """The last round that was charged."""
    state: bytes
    """What the server goes on with after it."""


class ProgressTable:
    """The latest progress of every run in a ledger's file."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def put(self, progress: Progress, charges: Iterable[Charge]) -> None:
        """Store it in place of the one before, inside the transaction of these charges: all of
        them are of that round, and of one run."""
        ((run, round_),) = {(charge.run, charge.round) for charge in charges}
        if round_ != progress.round:
            raise InvalidInput("progress", f"is of round {progress.round}, not {round_}")
        # Made when it is first needed: most ledgers, and all of sites, never have it.
        self._file.write(_TABLE)
        self._file.write("DELETE FROM progress WHERE run = ?", run)
        self._file.insert("progress", run, *progress, sha256(progress.state).hexdigest())

    def of(self, run: str) -> Progress | None:
        """What was stored last; None where nothing was."""
        if not self._is_there():
            return None
        query = "SELECT round, CAST(state AS BLOB), digest FROM progress WHERE run = ?"
        rows = self._file.rows(query, run)
        if not rows:
            return None
        round_, state, digest = rows[0]
        if state is None or sha256(state).hexdigest() != digest:
            raise LedgerError(f"{_named(run, round_)} is damaged")
        return Progress(int(round_), state)

    def problems(self) -> Iterator[str]:
        """Progress that nobody paid for, or that is not what was stored."""
        if not self._is_there():
            return
        for run, round_ in self._file.each(
            "SELECT run, round FROM progress EXCEPT SELECT run, round FROM charges"
        ):
            yield f"{_named(run, round_)} was not charged"
        for run, round_, state, digest in self._file.each(
            "SELECT run, round, CAST(state AS BLOB), digest FROM progress"
        ):
            if state is None or sha256(state).hexdigest() != digest:
                yield f"{_named(run, round_)} is damaged"

    def _is_there(self) -> bool:
        found = self._file.rows("SELECT 1 FROM sqlite_master WHERE name = 'progress'")
        return bool(found)


def _named(run: str, round_: int) -> str:
    return f"the stored state of run {run} after round {round_}"
