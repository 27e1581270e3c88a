"""The file of a ledger: edited, damaged, locked, read-only or full, it is not believed."""

from __future__ import annotations

import os
import sqlite3

import pytest

from tests.accounting.samples import STEP, TENTH
from tests.ledger.samples import ROUND, begin, charge, counted, raw
from udpfl import Budget, InvalidInput, Repeated, account
from udpfl.errors import LedgerError
from udpfl.ledger import file as ledger_file
from udpfl.ledger.ledger import Ledger

# Tampering


@pytest.mark.parametrize("table", ["meta", "runs", "accounts", "decisions", "charges"])
@pytest.mark.parametrize("edit", ["DELETE FROM {}", "UPDATE {} SET rowid = rowid"])
def test_the_record_is_append_only(used, table, edit):
    with raw(used) as db, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(edit.format(table))


def test_the_past_cannot_be_replaced(used):
    with raw(used) as db, pytest.raises(sqlite3.IntegrityError, match="in order"):
        db.execute("INSERT OR REPLACE INTO charges SELECT * FROM charges WHERE id = 2")


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ("UPDATE charges SET count = 1 WHERE id = 1", "charge 1 was edited"),
        ("UPDATE charges SET count = 1 WHERE id = 5", "charge 5 was edited"),
        ("UPDATE charges SET round = 7 WHERE id = 3", "charge 3 was edited"),
        ("UPDATE charges SET account = 2 WHERE id = 3", "charge 3 was edited"),
        ("UPDATE charges SET charged_at = '' WHERE id = 3", "charge 3 was edited"),
        ("UPDATE charges SET event = x'00' WHERE id = 6", "charge 6 was edited"),
        ("UPDATE charges SET event = '{}' WHERE id = 6", "charge 6 cannot be read"),
        ("UPDATE charges SET run = 'run' WHERE run = 'test'", "charge 2 was edited"),
        ("UPDATE runs SET randomness = 'entropy'", "charge 2 was edited"),
        ("UPDATE accounts SET client = 'carol' WHERE id = 1", "charge 1 was edited"),
        ("DELETE FROM charges WHERE id = 2", "charge 2 is missing"),
        ("DELETE FROM charges WHERE id >= 5", "charges 5-6 are missing"),
        ("DELETE FROM charges", "charges 1-6 are missing"),
        ("DELETE FROM charges WHERE id = 6", "account 2, round 2 was not charged"),
        ("DELETE FROM accounts WHERE id = 2", "refers to something that is not there"),
        ("UPDATE outbox SET message = 'else' WHERE round = 1", "account 1, round 1 is damaged"),
        ("INSERT INTO outbox SELECT run, account, 9, message, state, digest FROM outbox LIMIT 1",
         "round 9 was not charged"),
        ("DROP TRIGGER charges_never_update", "trigger charges_never_update is missing"),
    ],
)  # fmt: skip
def test_verify_sees_what_was_done_behind_its_back(used, edit, problem):
    with raw(used) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        triggers = triggers.fetchall()
        if not edit.startswith("DROP"):  # an intruder who tidies up
            for name, _ in triggers:
                db.execute(f"DROP TRIGGER {name}")
        db.execute(edit)
        for _, sql in triggers:
            if not edit.startswith("DROP"):
                db.execute(sql)
    with Ledger(used, read_only=True) as ledger:
        assert any(problem in found for found in ledger.verify()), ledger.verify()


def test_a_damaged_message_is_not_sent(used):
    with raw(used) as db:
        db.execute("UPDATE outbox SET message = x'00' WHERE run = 'run' AND round = 1")
    with Ledger(used) as ledger, pytest.raises(LedgerError, match="damaged"):
        ledger.message("run", 1, 1)


# Files that cannot be written or read


def test_a_full_disk_stores_nothing(ledger, path):
    alice = ledger.account("alice", "aa")
    ledger.commit([charge(alice, 0, TENTH)])
    db = ledger._file._db
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: disk is full; no update was released"):
        ledger.commit([charge(alice, 1, TENTH), charge(alice, 2, TENTH, message=bytes(10**6))])
    assert counted(path) == (1, 1)
    assert ledger.statement(alice, 0.0).epsilon == pytest.approx(0.1)
    db.execute("PRAGMA max_page_count = 100000")
    ledger.commit([charge(alice, 1, TENTH)])
    assert ledger.verify() == []


def test_a_read_only_ledger_answers_and_never_charges(used):
    before = used.read_bytes()
    with Ledger(used, read_only=True) as ledger:
        assert ledger.account("alice", "aa11") == 1
        assert ledger.statement(1).epsilon == pytest.approx(
            account(Repeated(STEP, 15), 1e-5).epsilon
        )
        for write in (
            lambda: ledger.commit([charge(1, 3, ROUND)]),
            lambda: ledger.account("carol", "cc"),
            lambda: ledger.account("alice", "ab"),
            lambda: ledger.reserve("run", {1: ROUND}),
            lambda: ledger.set_budget(1, Budget(9.0, 1e-5), reason="a vote"),
            lambda: ledger.commit([charge(1, 3, ROUND)], settled=2),
            lambda: begin(ledger, "third"),
        ):
            with pytest.raises(LedgerError, match=r"cannot write .*: it is read-only; no update"):
                write()
    assert used.read_bytes() == before
    assert counted(used) == (6, 6)


def test_reading_never_makes_a_ledger(tmp_path):
    with pytest.raises(InvalidInput, match="there is no ledger"):
        Ledger(tmp_path / "none.sqlite", read_only=True)
    with pytest.raises(InvalidInput, match="there is no folder"):
        Ledger(tmp_path / "nowhere" / "ledger.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_locked_ledger_is_waited_for_and_then_refused(path, monkeypatch):
    monkeypatch.setattr(ledger_file, "_WAIT", 0.1)
    with Ledger(path) as ledger, raw(path) as other:
        begin(ledger)
        alice = ledger.account("alice", "aa")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="another process kept it locked"):
            ledger.commit([charge(alice, 0, TENTH)])
        other.execute("ROLLBACK")
        ledger.commit([charge(alice, 0, TENTH)])
    assert counted(path) == (1, 1)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_ledger_is_left_alone(tmp_path, read_only):
    text, other = tmp_path / "notes.txt", tmp_path / "other.sqlite"
    text.write_bytes(b"not a database at all" * 100)
    with raw(other) as db:
        db.execute("CREATE TABLE customers (name TEXT)")
    for file in (text, other):
        before = file.read_bytes()
        with pytest.raises(LedgerError, match="not a ledger"):
            Ledger(file, read_only=read_only)
        assert file.read_bytes() == before


def test_a_ledger_of_a_later_format_is_refused(used):
    with raw(used) as db:
        db.execute("DROP TRIGGER meta_never_update")
        db.execute("UPDATE meta SET schema = 3")
    with pytest.raises(LedgerError, match="format"):
        Ledger(used)


def test_a_damaged_page_is_reported(path):
    with Ledger(path) as ledger:
        begin(ledger)
        alice = ledger.account("alice", "aa")
        ledger.commit([charge(alice, round_, ROUND, message=bytes(3000)) for round_ in range(40)])
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40_000] = os.urandom(40_000)
    path.write_bytes(content)
    with Ledger(path, read_only=True) as ledger:
        assert ledger.verify()


def test_a_forked_process_has_to_open_the_ledger_itself(ledger, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(LedgerError, match="fork"):
        ledger.accounts()


def test_safety_settings(ledger):
    def setting(name):
        return ledger._file._db.execute(f"PRAGMA {name}").fetchone()[0]

    assert setting("journal_mode") == "wal"
    assert (setting("synchronous"), setting("foreign_keys")) == (2, 1)
    assert setting("busy_timeout") == 30_000
