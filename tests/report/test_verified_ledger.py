"""No report vouches for a run whose ledger was edited, replaced, rolled back or lost."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import udpfl
from tests.report.verifying import (
    contradicted,
    is_green,
    older,
    outcome,
    restamp,
    shared_with_backup,
    summary_of,
    train,
    verify,
)
from tests.repository import EXAMPLES
from udpfl.accounting import PrivacyStatement
from udpfl.algorithms.message import tensors_from_bytes
from udpfl.cli._ledgers import contradictions
from udpfl.ledger.ledger import Ledger
from udpfl.report import read_run, run_page
from udpfl.report._differences import differences

LEDGER = ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm")


def replace_ledger(folder, other):
    for name in LEDGER:
        (folder / name).unlink(missing_ok=True)
    shutil.copy(other, folder / "ledger.sqlite")


def tamper(path, statement, *values):
    """Change a ledger behind its triggers' back, and leave no other trace."""
    with sqlite3.connect(path) as db:
        triggers = db.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'charges'"
        ).fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement, values)
        for _, sql in triggers:
            db.execute(sql)
    db.close()


# The ledger


def test_an_edited_charge_is_found(capsys, run):
    tamper(run / "ledger.sqlite", "UPDATE charges SET count = count + 1 WHERE id = 2")
    contradicted(capsys, run, "the ledger is not sound: charge 2 was edited")


def test_without_its_ledger_a_run_is_not_verified(capsys, run):
    for name in LEDGER:
        (run / name).unlink(missing_ok=True)
    state, reasons, said, page = outcome(capsys, run)
    assert state == "not verified"
    assert "there is no ledger" in reasons
    assert "Guarantee Not verified" in said
    assert "holds for every client" not in said
    assert not is_green(page)


def test_a_file_that_is_no_ledger_is_not_verified(capsys, run):
    for name in LEDGER:
        (run / name).unlink(missing_ok=True)
    (run / "ledger.sqlite").write_bytes(b"no ledger at all" * 500)
    state, reasons, _, page = outcome(capsys, run)
    assert state == "not verified"
    assert "damaged or not a ledger" in reasons
    assert not is_green(page)


def test_the_ledger_of_another_run_is_found(capsys, run, tmp_path):
    other = train(tmp_path / "other", epsilon=[1.0, 2.0, 4.0])
    replace_ledger(run, other / "ledger.sqlite")
    contradicted(capsys, run, "this is another one: its charge 6 has another hash")


def test_a_ledger_that_was_rolled_back_is_found(capsys, tmp_path):
    shared, backup, first = shared_with_backup(tmp_path)
    second = train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    assert outcome(capsys, second)[0] == "verified"
    for end in ("", "-wal", "-shm"):
        Path(f"{shared}{end}").unlink(missing_ok=True)
    shutil.copy(backup, shared)
    assert outcome(capsys, first)[0] == "verified"
    contradicted(capsys, second, "an older copy, or another one: it ends with charge 3")


def test_what_other_runs_charge_later_is_no_contradiction(capsys, tmp_path):
    shared, _, first = shared_with_backup(tmp_path)
    before = read_run(first).statement
    second = train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    with Ledger(shared) as ledger:
        for own in ledger.accounts():
            ledger.set_budget(
                own.id, udpfl.Budget(ledger.budget(own.id).epsilon + 1, 1e-3), reason="more"
            )
    for folder in (first, second):
        state, reasons, _, page = outcome(capsys, folder)
        assert (state, reasons) == ("verified", "")
        assert is_green(page)
    assert read_run(first).statement.epsilon == before.epsilon < read_run(second).statement.epsilon
    assert "the ledger was charged with more since this run ended" in run_page(read_run(first))


def test_an_unfinished_run_is_not_verified(capsys, run):
    (run / "summary.json").unlink()
    state, reasons, _, page = outcome(capsys, run)
    assert (state, reasons) == ("not verified", "the run is not finished")
    assert not is_green(page)
    tamper(run / "ledger.sqlite", "UPDATE charges SET count = count + 1 WHERE id = 2")
    contradicted(capsys, run, "charge 2 was edited")


@pytest.mark.slow
def test_a_mechanism_that_is_not_trusted_is_not_verified(tmp_path, monkeypatch):
    """In a process that has not imported it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    folder = train(tmp_path / "run", rounds=1, mechanism="own_mechanism:Secant", accountant="rdp")
    command = [sys.executable, "-c", "from udpfl.cli import main; main()", "report", str(folder)]
    environment = {"PYTHONPATH": f"{Path(udpfl.__file__).parents[1]}:{EXAMPLES}", "PATH": ""}
    for trust, state in (((), "not verified"), (("--trust", "own_mechanism:Secant"), "verified")):
        done = subprocess.run(
            [*command, "--json", *trust], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["state"] == state
        assert bool(trust) or "own_mechanism:Secant" in found["reasons"][0]


# The head, and `budget verify --against`


def test_the_head_is_kept_beside_the_ledger(run):
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        number, chain = ledger.head()
    assert summary_of(run)["head"] == [number, chain]
    assert tensors_from_bytes((run / "model.safetensors").read_bytes())[1]["head"] == [
        number,
        chain,
    ]
    assert f"{number}: {chain}" in run_page(read_run(run))


def test_against_tells_a_ledger_that_was_rolled_back(capsys, tmp_path):
    shared, backup, first = shared_with_backup(tmp_path)
    second = train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    code, said = verify(capsys, shared, first, second)
    assert (code, said.strip()) == (
        0,
        "sound: 6 charges of 3 clients; holds the last charges of 2 runs",
    )
    assert verify(capsys, backup)[0] == 0
    assert verify(capsys, backup, first)[0] == 0
    code, said = verify(capsys, backup, first, second)
    assert code == 1
    assert f"{second}: the ledger does not hold charge 6, the last of this run" in said
    assert str(first) not in said


def test_against_wants_runs_that_say_how_they_ended(capsys, run, unsealed):
    assert verify(capsys, unsealed, unsealed)[0] == 0
    for folder in (run, unsealed):
        restamp(folder, lambda stamp: stamp.update(head=[6, "0" * 64]))
        code, said = verify(capsys, folder, folder)
        assert code == 1  # the model was made with another ledger
        assert "and the header of the model name different last charges" in said
    older(unsealed)
    code, said = verify(capsys, unsealed, unsealed)
    assert (code, "does not name its last charge" in said) == (1, True)
    (run / "summary.json").unlink()
    code, said = verify(capsys, run, run)
    assert (code, "is not finished" in said) == (1, True)


def test_a_statement_up_to_a_charge_leaves_out_what_came_later(run):
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        own = ledger.accounts()[0].id
        costs = [
            ledger.statement(own, up_to=number, fixed_beforehand=True).epsilon
            for number in (0, 3, 6)
        ]
        assert costs[0] == 0 < costs[1] < costs[2] == ledger.statement(own).epsilon
        # Whoever stops a run has seen its results: from the first charge on the plan counts.
        planned = [ledger.statement(own, up_to=number).epsilon for number in (0, 3, 6)]
        assert planned == [0, costs[2], costs[2]]


def test_on_a_shared_ledger_a_statement_up_to_a_charge_grows(tmp_path):
    shared, _, _ = shared_with_backup(tmp_path)
    train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    with Ledger(shared, read_only=True) as ledger:
        own = ledger.accounts()[0].id
        costs = [ledger.statement(own, up_to=number).epsilon for number in (0, 3, 6)]
        assert costs[0] == 0 < costs[1] < costs[2] == ledger.statement(own).epsilon


def test_a_trusted_server_cannot_be_left_out():
    from udpfl.ledger.charges import TRUST

    said = PrivacyStatement(1.0, 0.0, "guarantee", "pure", vector_epsilon=1.0)
    found = PrivacyStatement(1.0, 0.0, "guarantee", "pure", vector_epsilon=1.0, notes=(TRUST,))
    (difference,) = differences("it", said, found)
    assert "leaves out the note “assumes a server that adds the noise" in difference.said
    assert not list(differences("it", found, said, all_notes=False))
    assert list(differences("it", found, said))
    trusting = replace(said, trusts_server=True)
    (difference,) = differences("it", said, trusting)
    assert "says trusts_server “False”, but recomputed it is “True”" in difference.said


def test_a_decision_that_was_taken_back_is_found(capsys, tmp_path):
    """The last one before a run ended: no charge came after it, and the sequence was put back."""
    shared = tmp_path / "site.sqlite"
    folder = train(tmp_path / "run", epsilon=2.0, ledger=str(shared), rounds=1)
    assert outcome(capsys, folder)[0] == "verified"
    with closing(sqlite3.connect(shared, isolation_level=None)) as db:
        (sql,) = db.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'decisions_never_delete'"
        ).fetchone()
        db.execute("DROP TRIGGER decisions_never_delete")
        db.execute("DELETE FROM decisions WHERE id = (SELECT max(id) FROM decisions)")
        db.execute("UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'decisions'")
        db.execute(sql)
    with Ledger(shared) as ledger:
        assert ledger.verify() == []
        assert any("decision" in said for said in contradictions(ledger, folder))
    contradicted(capsys, folder, "the last before this run ended")
