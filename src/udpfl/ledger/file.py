"""The SQLite file under a ledger: tables, transactions, and errors in plain words.

Charges, decisions, runs and accounts are append-only by trigger. What has to be on disk when a
transaction ends is on disk: write-ahead log, full synchronisation.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from udpfl.errors import InvalidInput, LedgerError, LedgerUnavailable

FORMER, SCHEMA = 1, 2
_WAIT = 30.0  # seconds that another process may hold the file

_KEPT_TABLES = (  # as they were in the former format
    "CREATE TABLE meta (schema INTEGER NOT NULL, created TEXT NOT NULL)",
    """CREATE TABLE runs (
        id TEXT PRIMARY KEY NOT NULL, started TEXT NOT NULL,
        randomness TEXT NOT NULL CHECK (randomness IN ('entropy', 'seeded')),
        accounting TEXT NOT NULL, description TEXT NOT NULL)""",
)
_TABLES = (
    """CREATE TABLE accounts (
        id INTEGER PRIMARY KEY, client TEXT NOT NULL, block TEXT NOT NULL,
        runs TEXT NOT NULL CHECK (runs IN ('one', 'many')), UNIQUE (client, block))""",
    """CREATE TABLE decisions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,
        account INTEGER REFERENCES accounts (id), content TEXT NOT NULL, reason TEXT NOT NULL,
        author TEXT NOT NULL, decided_at TEXT NOT NULL, charges INTEGER NOT NULL,
        chain TEXT NOT NULL)""",
    "CREATE INDEX decisions_of_account ON decisions (account, kind)",
    """CREATE TABLE charges (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        account INTEGER NOT NULL REFERENCES accounts (id),
        run TEXT NOT NULL REFERENCES runs (id), round INTEGER NOT NULL,
        count INTEGER NOT NULL CHECK (count >= 1), event TEXT NOT NULL,
        note TEXT NOT NULL, fingerprint TEXT NOT NULL, charged_at TEXT NOT NULL,
        decisions INTEGER NOT NULL, chain TEXT NOT NULL)""",
    "CREATE INDEX charges_of_account ON charges (account)",
    """CREATE TABLE outbox (
        run TEXT NOT NULL REFERENCES runs (id),
        account INTEGER NOT NULL REFERENCES accounts (id),
        round INTEGER NOT NULL, message BLOB, state BLOB, digest TEXT NOT NULL,
        PRIMARY KEY (run, account, round))""",
    # Finding what to forget must not take longer the more was forgotten before.
    "CREATE INDEX outbox_messages ON outbox (run, round) WHERE message IS NOT NULL",
    "CREATE INDEX outbox_states ON outbox (run, round) WHERE state IS NOT NULL",
)
_TRIGGERS = {
    f"{table}_never_{verb.lower()}": f"BEFORE {verb} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    for table in ("meta", "runs", "accounts", "decisions", "charges")
    for verb in ("UPDATE", "DELETE")
} | {
    # Also keeps INSERT OR REPLACE, which asks no other trigger, from rewriting the past.
    f"{table}_in_order": f"BEFORE INSERT ON {table} "
    f"WHEN NEW.id IS NOT 1 + (SELECT ifnull(max(id), 0) FROM {table}) "
    f"BEGIN SELECT RAISE(ABORT, '{table} are appended in order'); END"
    for table in ("decisions", "charges")
}

_REASONS = {
    sqlite3.SQLITE_FULL: "disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_BUSY: f"another process kept it locked for {_WAIT:g} seconds",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; its folder has to exist and to be writable",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_NOTADB: "it is damaged or not a ledger",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_out_of_reach(error: BaseException) -> bool:
    """Whether the file could not be read or written, whatever may be in it."""
    return _code(error) in _REASONS.keys() - set(_DAMAGED)


def require_place(path: Path, parameter: str = "ledger") -> None:
    """Refuse a place where no ledger can be kept; one that is there need not be a ledger yet."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InvalidInput(parameter, f"there is no folder {str(path.parent)!r}")
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise InvalidInput(parameter, f"{str(path)!r} is {kind}: give the name of a file")


def require_writable(path: Path, parameter: str = "ledger") -> None:
    """Refuse a place where no charge could be stored, before there is anything to charge."""
    require_place(path, parameter)
    folder = path.absolute().parent  # SQLite has files of its own beside the ledger
    for place in (folder, path) if path.exists() else (folder,):
        if not os.access(place, os.W_OK):
            raise InvalidInput(parameter, f"cannot write ledger {path}: {place} is read-only")


def reading_uri(path: Path) -> str:
    """How SQLite opens a ledger to read it.

    Where nobody can write beside it, as on a read-only medium, SQLite may not make the file in
    which it coordinates readers and writers, and need not: nothing changes there. Charges that
    still lie in the file `-wal` are not left out, so a ledger that has one is opened as usual.
    """
    wal, shm = (Path(f"{path}{end}") for end in ("-wal", "-shm"))
    is_fixed = (
        not os.access(path.absolute().parent, os.W_OK)
        and not shm.exists()
        and not (wal.exists() and wal.stat().st_size)
    )
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_fixed else ''}"


def now() -> str:
    """The time, as stored: UTC to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class LedgerFile:
    """A connection to a ledger's file, which is created if it is not there and may be written."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = Path(path)
        if read_only and not self.path.is_file():
            raise InvalidInput("ledger", f"there is no ledger {str(self.path)!r}")
        require_place(self.path)
        self._require_one_name()
        self.is_new = False
        """Whether there was no ledger before this one was opened."""
        self._process = os.getpid()
        self.rollbacks = 0
        """Transactions that were undone: what was read in one of them may not be there."""
        self._moment: object | None = None
        self._is_writing = False
        writing = f"{self.path.absolute().as_uri()}?mode=rwc"
        uri = reading_uri(self.path) if read_only else writing
        with self._explained("open"):
            self._db = sqlite3.connect(uri, uri=True, timeout=_WAIT, isolation_level=None)
        try:
            with self._explained("open"):
                self._prepare(read_only)
        except BaseException:
            self._db.close()
            raise

    def _require_one_name(self) -> None:
        """Refuse a file with several names: its latest charges lie beside one of them only."""
        if self.path.is_file() and (names := self.path.stat().st_nlink) > 1:
            raise LedgerUnavailable(
                f"{self.path} is one of {names} hard links to one file. Charges that are made "
                f"under one name are not seen under the others: keep one name, or make a copy "
                f"with `sqlite3 {self.path} '.backup COPY'`"
            )

    def _prepare(self, read_only: bool) -> None:
        # Look before touching anything: a file that is not ours stays as it is.
        found = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        if ("meta",) not in found and (found or read_only):
            raise LedgerError(f"{self.path} is not a ledger")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA secure_delete = ON")  # what is forgotten is overwritten
        if not read_only:
            # For a new file only: a message is many pages long, and each of them costs.
            self._db.execute("PRAGMA page_size = 65536")
            self._write_ahead()
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA fullfsync = ON")  # macOS: FULL alone stops at the disk's cache
            with self.writing():
                if not self.rows("SELECT 1 FROM sqlite_master"):
                    self._create()
                    self.is_new = True
        schema = self.rows("SELECT schema FROM meta")
        if schema not in ([(SCHEMA,)], [(FORMER,)]):
            raise LedgerError(
                f"{self.path} has ledger format {[version for (version,) in schema]}, "
                f"but this version reads formats {FORMER} and {SCHEMA}"
            )

    @property
    def is_former(self) -> bool:
        """Whether an earlier version wrote it, so that it has to be upgraded before it is used."""
        return self.rows("SELECT schema FROM meta") == [(FORMER,)]

    def copy_into_memory(self) -> None:
        """Go on with a copy that may be changed without changing the file."""
        copy = sqlite3.connect(":memory:", isolation_level=None)
        with self._explained("read"):
            self._db.backup(copy)
        self._db.close()
        self._db = copy

    def _write_ahead(self) -> None:
        """Switch to WAL. SQLite's own waiting does not cover two processes switching at once."""
        give_up = time.monotonic() + _WAIT
        while self._db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return  # a file system that cannot do it keeps its rollback journal, as safe
            except sqlite3.OperationalError as error:
                busy = _code(error) == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > give_up:
                    raise
                time.sleep(0.01)

    def _create(self) -> None:
        for statement in (*_KEPT_TABLES, *_TABLES):
            self._db.execute(statement)
        for name, body in _TRIGGERS.items():
            self._db.execute(f"CREATE TRIGGER {name} {body}")
        self._db.execute("INSERT INTO meta VALUES (?, ?)", (SCHEMA, now()))

    def put_former_tables_aside(self) -> None:
        """Make room for the tables of this format: inside a transaction."""
        for name, kind in self.rows(
            "SELECT name, type FROM sqlite_master WHERE type IN ('trigger', 'index') "
            "AND name NOT LIKE 'sqlite_%'"
        ):
            self._db.execute(f"DROP {kind} {name}")
        for table in ("accounts", "budgets", "charges", "outbox"):
            self._db.execute(f"ALTER TABLE {table} RENAME TO former_{table}")
        for statement in _TABLES:
            self._db.execute(statement)

    def finish_upgrade(self) -> None:
        """Drop what was copied, and guard the rest; `former_accounts` is what charges tell of."""
        for table in ("outbox", "charges", "budgets"):
            self._db.execute(f"DROP TABLE former_{table}")
        self._db.execute("UPDATE meta SET schema = ?", (SCHEMA,))
        for name, body in _TRIGGERS.items():
            self._db.execute(f"CREATE TRIGGER {name} {body}")

    def close(self) -> None:
        """Close the connection; closing twice is fine."""
        self._db.close()

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path} was opened before a fork; open it again here")
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:
            reason = _REASONS.get(_code(error), str(error))
            outcome = "; no update was released" if verb == "write" else ""
            kind = LedgerUnavailable if is_out_of_reach(error) else LedgerError
            raise kind(f"cannot {verb} ledger {self.path}: {reason}{outcome}") from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction that no other process writes beside: all of it is stored, or nothing.

        One within another is a part of it.
        """
        if self._is_writing:
            yield
            return
        with self._explained("write"), self._transaction("IMMEDIATE"):
            self._is_writing = True
            try:
                yield
            finally:
                self._is_writing = False

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads inside see one moment, whatever other processes write meanwhile.

        One within another, or within `writing`, is a part of it.
        """
        if self._db.in_transaction:
            yield
            return
        with self._explained("read"), self._transaction("DEFERRED"):
            yield

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        try:
            self._db.execute(f"BEGIN {kind}")
            self._moment = object()
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self.rollbacks += 1
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        finally:
            self._moment = None

    @property
    def moment(self) -> object:
        """The same as long as nothing can have changed: within a transaction, until it writes."""
        return self._moment or object()

    def each(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, one at a time."""
        with self._explained("read"):
            yield from self._db.execute(query, values)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return list(self.each(query, *values))

    def write(self, statement: str, *values: Any) -> None:
        """Run one statement; only inside `writing`."""
        self._moment = object()
        self._db.execute(statement, values)

    def insert(self, table: str, *values: Any) -> None:
        """Add one row; only inside `writing`. A trigger of somebody else's might drop it."""
        self._moment = object()
        places = ", ".join("?" * len(values))
        if self._db.execute(f"INSERT INTO {table} VALUES ({places})", values).rowcount != 1:
            raise LedgerError(
                f"{self.path} did not store a row of {table}: the file was tampered with"
            )

    def problems(self) -> Iterator[str]:
        """What is wrong with the file itself."""
        for (found,) in self.each("PRAGMA integrity_check"):
            if found != "ok":
                yield f"damaged file: {found}"
        for table, row, *_ in self.each("PRAGMA foreign_key_check"):
            yield f"{table} row {row} refers to something that is not there"
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = dict(self.each(query))
        for name, body in _TRIGGERS.items():
            if name not in triggers:
                yield f"the trigger {name} is missing: the ledger may have been edited"
            elif triggers[name] != f"CREATE TRIGGER {name} {body}":
                yield f"the trigger {name} is another one: the ledger may have been edited"
        for name in triggers.keys() - _TRIGGERS.keys():
            yield f"there is a trigger {name} that the ledger did not make"


def _code(error: BaseException) -> int:
    """SQLite's primary error code; -1 for errors that did not come from SQLite."""
    return int(getattr(error, "sqlite_errorcode", -1)) & 0xFF
