"""Ledgers of format 1, in which every data set of a client had its own account, are read."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256

import pytest

from udpfl import Budget, Composed, PureDP, Repeated, account
from udpfl.accounting.filter import Filter
from udpfl.accounting.serial import event_to_json
from udpfl.audit.ledger import audit_ledger
from udpfl.errors import BudgetExceeded, LedgerError
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger

TENTH = PureDP(0.1)
TEXT = event_to_json(TENTH)
WHEN = "2026-01-01T00:00:00.000+00:00"
FORMER = """
CREATE TABLE meta (schema INTEGER NOT NULL, created TEXT NOT NULL);
CREATE TABLE runs (
    id TEXT PRIMARY KEY NOT NULL, started TEXT NOT NULL,
    randomness TEXT NOT NULL CHECK (randomness IN ('entropy', 'seeded')),
    accounting TEXT NOT NULL, description TEXT NOT NULL);
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY, client TEXT NOT NULL, fingerprint TEXT NOT NULL,
    UNIQUE (client, fingerprint));
CREATE TABLE budgets (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id),
    epsilon REAL NOT NULL, delta REAL NOT NULL, set_at TEXT NOT NULL);
CREATE INDEX budgets_of_account ON budgets (account);
CREATE TABLE charges (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    account INTEGER NOT NULL REFERENCES accounts (id),
    run TEXT NOT NULL REFERENCES runs (id), round INTEGER NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 1), event TEXT NOT NULL,
    note TEXT NOT NULL, charged_at TEXT NOT NULL, chain TEXT NOT NULL);
CREATE INDEX charges_of_account ON charges (account);
CREATE TABLE outbox (
    run TEXT NOT NULL REFERENCES runs (id),
    account INTEGER NOT NULL REFERENCES accounts (id),
    round INTEGER NOT NULL, message BLOB, state BLOB, digest TEXT NOT NULL,
    PRIMARY KEY (run, account, round));
CREATE INDEX outbox_messages ON outbox (run, round) WHERE message IS NOT NULL;
CREATE TRIGGER charges_never_update BEFORE UPDATE ON charges
    BEGIN SELECT RAISE(ABORT, 'charges is append-only'); END;
CREATE TRIGGER meta_never_update BEFORE UPDATE ON meta
    BEGIN SELECT RAISE(ABORT, 'meta is append-only'); END;
"""
ACCOUNTS = [(1, "alice", "aa"), (2, "bob", "bb"), (3, "alice", "cc")]
CHARGES = [(1, "first", 0, 2), (2, "first", 0, 2), (1, "first", 1, 2), (3, "second", 0, 5)]


def written(path, *, spoil="", charges=CHARGES):
    """A file as the former version left it, made with plain SQL."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(FORMER)
        db.execute("INSERT INTO meta VALUES (1, ?)", (WHEN,))
        for run in ("first", "second"):
            db.execute("INSERT INTO runs VALUES (?, ?, 'entropy', 'vector', '{}')", (run, WHEN))
        db.executemany("INSERT INTO accounts VALUES (?, ?, ?)", ACCOUNTS)
        for account, epsilon in ((1, 3.0), (2, 1.0), (3, 2.0)):
            row = (account, epsilon, 1e-5, WHEN)
            db.execute(
                "INSERT INTO budgets (account, epsilon, delta, set_at) VALUES (?,?,?,?)", row
            )
        chain, owners = "", {number: own for number, *own in ACCOUNTS}
        for number, (account, run, round_, count) in enumerate(charges, 1):
            cost = [round_, count, TEXT, "", WHEN]
            line = [chain, number, account, *owners[account], run, "entropy", *cost]
            chain = sha256(json.dumps(line).encode()).hexdigest()
            row = (number, account, run, *cost, chain)
            db.execute("INSERT INTO charges VALUES (?,?,?,?,?,?,?,?,?)", row)
            message = f"{run} {round_} {account}".encode()
            digest = sha256(message).hexdigest()
            answer = (run, account, round_, message, b"kept", digest)
            db.execute("INSERT INTO outbox VALUES (?,?,?,?,?,?)", answer)
        if spoil:
            db.execute("DROP TRIGGER charges_never_update")
            db.execute(spoil)
    return path, chain


def contents(ledger):
    return (
        [(own.client, own.runs, ledger.versions(own.id)) for own in ledger.accounts()],
        [ledger.spent(own.id) for own in ledger.accounts()],
        [ledger.budget(own.id) for own in ledger.accounts()],
    )


def test_accounts_merge_by_client_and_nothing_is_forgotten(tmp_path):
    path, last = written(tmp_path / "site.sqlite")
    before = path.read_bytes()
    with Ledger(path, read_only=True) as ledger:
        seen = contents(ledger)
        assert ledger.verify() == []
    assert path.read_bytes() == before  # who only reads changes nothing
    with Ledger(path) as ledger:
        assert contents(ledger) == seen
        assert seen[0] == [("alice", "many", ["aa", "cc"]), ("bob", "many", ["bb"])]
        assert seen[1] == [Composed([Repeated(TENTH, 9)]), Composed([Repeated(TENTH, 2)])]
        assert seen[2] == [Budget(2.0, 1e-5), Budget(1.0, 1e-5)]
        assert ledger.verify() == []
        assert ledger.head() == (4, last)
        assert ledger.holds(4, last)  # what run folders remember
        assert [entry.fingerprint for entry in ledger.history(1)] == ["aa", "aa", "cc"]
        assert ledger.message("first", 1, 1) == b"first 1 1"
        assert ledger.state("second", 1) == b"kept"
        merged = [d.reason for d in ledger.decisions(1) if d.kind == "open"]
        assert merged == ["2 accounts of alice, one for each data set, are one now"]
        assert ledger.sealed("first").accountant is None  # so a nominal number is the best one
        nominal = ledger.statement(1, 1e-5, nominal_run="first").epsilon
        assert nominal == account(Repeated(TENTH, 4), 1e-5, "best", "scalar").epsilon
        ledger.begin_run("third", randomness="entropy", accounting="vector", description={})
        alice = ledger.account("alice", "dd")
        assert alice == 1
        with pytest.raises(BudgetExceeded):
            ledger.commit([Charge(alice, "third", 0, (Repeated(TENTH, 40),), b"m")])
        ledger.commit([Charge(alice, "third", 0, (TENTH,), b"m", fingerprint="dd")])
        assert ledger.verify() == []
    found = audit_ledger(path)
    assert found.sound, str(found)
    with Ledger(path) as ledger:  # once is enough
        assert sum(d.kind == "upgrade" for d in ledger.decisions()) == 1


@pytest.mark.parametrize(("charges", "runs"), [(CHARGES[:3], "one"), (CHARGES, "many")])
def test_the_own_ledger_of_a_run_stays_that_of_one_run(tmp_path, charges, runs):
    """Unless others were charged to it as well."""
    path, _ = written(tmp_path / "ledger.sqlite", charges=charges)
    (tmp_path / "run.json").write_text("{}")
    with Ledger(path) as ledger:
        assert {own.runs for own in ledger.accounts()} == {runs}
        assert (ledger.filter(2) is None) == (runs == "one")
        notes = ledger.statement(1, 1e-5).notes
        is_said = any("did not record what the run was planned to release" in n for n in notes)
        assert is_said == (runs == "one")


def test_a_record_may_have_been_at_another_client_in_every_former_run(tmp_path):
    """Nobody noted how a data set was divided: the largest spending of each run counts."""
    charges = [(1, "first", 0, 9), (2, "first", 0, 1), (1, "second", 0, 1), (2, "second", 0, 9)]
    path, _ = written(tmp_path / "site.sqlite", charges=charges)
    with Ledger(path) as ledger:
        assert ledger.spent(1) == ledger.spent(2) == Composed([Repeated(TENTH, 10)])
        ledger.divide({"alice": "1", "bob": "2"})
        assert ledger.spent(1) == ledger.spent(2) == Composed([Repeated(TENTH, 18)])
        ledger.begin_run("third", randomness="entropy", accounting="vector", description={})
        ledger.set_budget(2, Budget(9.0, 1e-5), reason="a vote")
        ledger.commit([Charge(2, "third", 0, (TENTH,), b"m")])
        ledger.divide({"alice": "3", "bob": "4"})
        assert ledger.spent(1) == Composed([Repeated(TENTH, 19)])
        assert ledger.verify() == []


def test_orders_of_upgraded_accounts_do_not_depend_on_what_was_set_after_a_charge(tmp_path):
    path, _ = written(tmp_path / "site.sqlite")
    with Ledger(path) as ledger:
        assert ledger.filter(1) == Filter.planned()
    path, _ = written(tmp_path / "other.sqlite", charges=())
    with Ledger(path) as ledger:
        assert ledger.filter(1) == Filter.planned(2.0, 1e-5)


def test_of_several_budgets_of_an_account_the_last_one_counts(tmp_path):
    later = "INSERT INTO budgets (account, epsilon, delta, set_at) VALUES (2, 10.0, 1e-5, 'later')"
    path, _ = written(tmp_path / "site.sqlite", spoil=later)
    with Ledger(path) as ledger:
        assert ledger.budget(2) == Budget(10.0, 1e-5)


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE charges SET count = 1 WHERE id = 3",
        "DELETE FROM charges WHERE id = 2",
        "DELETE FROM charges WHERE id = 4",
        "UPDATE accounts SET fingerprint = 'dd' WHERE id = 3",
    ],
)
def test_a_file_that_is_not_sound_is_left_as_it_is(tmp_path, spoil):
    path, _ = written(tmp_path / "site.sqlite", spoil=spoil)
    copy = shutil.copy(path, tmp_path / "copy.sqlite")
    for read_only in (True, False):
        with pytest.raises(LedgerError, match="is not sound, so it was not changed: charge"):
            Ledger(path, read_only=read_only)
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(copy)) as other:
        assert list(db.iterdump()) == list(other.iterdump())


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE charges SET count = 1 WHERE id = 3",
        "UPDATE charges SET fingerprint = 'cc' WHERE id = 1",
        "UPDATE former_accounts SET id = 9 WHERE id = 3",
        "UPDATE charges SET account = 2 WHERE id = 1",
        "UPDATE charges SET account = 3 WHERE id = 1",
    ],
)
def test_what_was_upgraded_is_still_chained(tmp_path, edit):
    path, _ = written(tmp_path / "site.sqlite")
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        ledger.declare_block("alice", "Q3", reason="others")
        assert ledger.account("alice", "ff", block="Q3") == 3
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TRIGGER charges_never_update")
        db.execute(edit)
    with Ledger(path) as ledger:
        assert any("was edited" in problem for problem in ledger.verify())
    assert any("the hash of charge" in problem for problem in audit_ledger(path).problems)


def test_the_audit_says_that_it_does_not_read_the_former_format(tmp_path):
    path, _ = written(tmp_path / "site.sqlite")
    assert "an earlier version wrote it" in audit_ledger(path).problems[0]
