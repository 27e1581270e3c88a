"""A second look at a ledger: what is sound passes, what was changed or understated is found."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.accounting.samples import TENTH
from tests.audit.samples import GAUSSIAN, LAPLACE, ONE, STAIRCASE
from tests.conftest import Logistic
from tests.ledger.samples import raw
from udpfl import (
    Budget,
    Composed,
    Gaussian,
    InvalidInput,
    Laplace,
    Release,
    Repeated,
    SecretlySelected,
    Sensitivity,
    Shuffled,
    Staircase,
    account,
)
from udpfl.audit.ledger import audit_ledger
from udpfl.cli.audit import audit as audit_app
from udpfl.errors import LedgerError
from udpfl.ledger._balances import Balances
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.progress import Progress


def begin(ledger, run="run", randomness="entropy"):
    ledger.begin_run(run, randomness=randomness, accounting="vector", description={})


def charge(account, turn, *events, run="run", state=b""):
    return Charge(account, run, turn, events, f"answer {account} {turn}".encode(), state)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def used(path):
    """Three clients, two runs, an import, messages kept and forgotten."""
    with Ledger(path) as ledger:
        begin(ledger)
        begin(ledger, "second")
        alice, bob = (ledger.account(name, 32 * name[0]) for name in ("ann", "bob"))
        carol = ledger.account("cy", 32 * "c", runs="one")
        ledger.set_budget(alice, Budget(9.0, 1e-6))
        ledger.set_budget(alice, Budget(8.0, 1e-5), reason="a vote")
        for turn in range(4):
            ledger.commit(
                [
                    charge(alice, turn, Repeated(GAUSSIAN, 5), state=b"s"),
                    charge(bob, turn, LAPLACE, TENTH),
                    charge(carol, turn, STAIRCASE),
                ],
                settled=turn - 2,
            )
        ledger.commit([charge(alice, 0, GAUSSIAN, LAPLACE, run="second")])
        ledger.import_charge(bob, Repeated(GAUSSIAN, 7), source="elsewhere")
        assert ledger.verify() == []
    return path


# What is sound


def test_a_sound_ledger_agrees(used):
    before = used.read_bytes()
    found = audit_ledger(used)
    assert found.sound, str(found)
    assert found.remarks == ()
    assert str(found) == "ledger: 19 charges of 3 clients agree with a second computation"
    assert [one.releases for one in found.accounts] == [22, 15, 4]
    assert [one.delta for one in found.accounts] == [1e-5] * 3
    for one in found.accounts:
        assert 0 < one.least <= one.stated <= one.most
    ann, _, cy = found.accounts
    assert cy.stated <= cy.most
    assert cy.least == pytest.approx(cy.stated, rel=1e-2)  # one dimension: both are nearly exact
    assert json.loads(json.dumps(found.to_dict()))["accounts"][0] == ann.to_dict()
    assert used.read_bytes() == before


@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-3])
def test_any_delta(path, delta):
    with Ledger(path) as ledger:
        begin(ledger)
        for number, event in enumerate((GAUSSIAN, LAPLACE, STAIRCASE, TENTH)):
            own = ledger.account(f"client {number}", "aa", runs="one")
            ledger.commit([charge(own, 0, event)])
        ledger.account("idle", "bb")
    found = audit_ledger(path, delta)
    assert found.sound, str(found)
    assert found.accounts[-1].stated == 0
    assert found.accounts[-1].most == 0
    assert math.isinf(found.accounts[0].most) == (delta == 0)


def test_nothing_is_claimed_for_seeded_runs_and_bare_answers(path):
    with Ledger(path) as ledger:
        begin(ledger, "test", randomness="seeded")
        begin(ledger)
        ledger.commit([charge(ledger.account("ann", "aa"), 0, GAUSSIAN, run="test")])
        ledger.commit([charge(ledger.account("bob", "bb"), 0)])
    found = audit_ledger(path)
    assert found.sound, str(found)
    for one in found.accounts:
        assert one.stated == one.least == one.most == math.inf
        assert "no privacy claimed" in str(one)


def test_what_has_no_second_bound_is_only_remarked(path):
    with Ledger(path) as ledger:
        begin(ledger)
        ann = ledger.account("ann", "aa")
        ledger.commit([charge(ann, 0, SecretlySelected(0.5, Composed([GAUSSIAN, TENTH])))])
        ledger.commit([charge(ann, 1, Shuffled(TENTH, 10))])
        ledger.commit([charge(ann, 3, Repeated(Shuffled(TENTH, 10, releases=4), 4))])
        ledger.commit([charge(ann, 2, Release(Logistic(3.0), ONE))])
        wide = Release(Staircase(0.01, 0.001), Sensitivity(1.0, "l2", 30))
        ledger.commit([charge(ledger.account("bob", "bb"), 0, wide)])
    found = audit_ledger(path)
    assert found.sound, str(found)
    for words in ("a secret selection", "a shuffle", "Logistic"):
        assert any(words in remark for remark in found.remarks)
    assert found.accounts[0].least == 0
    assert "no second upper bound" in str(found.accounts[1])


def test_charging_anew_without_an_answer_and_odd_clocks_are_remarks(used):
    with raw(used) as db:
        db.execute("DELETE FROM outbox WHERE account = 3 AND round = 3")
    found = audit_ledger(used)
    assert found.sound
    assert found.remarks == ("1 round was charged without an answer: counted too much",)
    rewrite(used, lambda rows: rows[4].__setitem__(8, "2001-01-01T00:00:00.000+00:00"))
    found = audit_ledger(used)
    assert found.sound, str(found)
    assert any("charge 5 is" in remark and "older" in remark for remark in found.remarks)


def test_a_budget_exceeded_by_imports_is_a_remark(used):
    with Ledger(used) as ledger:
        ledger.import_charge(1, Repeated(GAUSSIAN, 20_000), source="elsewhere")
    found = audit_ledger(used)
    assert found.sound, str(found)
    assert any("more than its budget ε = 8" in remark for remark in found.remarks)


commits = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["run", "second", "seeded"]),
        st.lists(
            st.builds(
                Repeated,
                st.sampled_from([GAUSSIAN, LAPLACE, STAIRCASE, TENTH, Release(Laplace(30.0), ONE)]),
                st.integers(1, 50),
            ),
            min_size=0,
            max_size=3,
        ),
        st.integers(-1, 5),
    ),
    max_size=6,
)


@settings(max_examples=12)
@given(commits, st.sampled_from([0.0, 1e-6, 1e-4]))
def test_whatever_was_committed_is_sound(tmp_path_factory, made, delta):
    path = tmp_path_factory.mktemp("any") / "ledger.sqlite"
    with Ledger(path) as ledger:
        for run in ("run", "second", "seeded"):
            begin(ledger, run, randomness="seeded" if run == "seeded" else "entropy")
        for turn, (client, run, events, settled) in enumerate(made):
            one = charge(ledger.account(client, client), turn, *events, run=run)
            ledger.commit([one], settled=settled)
        assert ledger.verify() == []
    found = audit_ledger(path, delta)
    assert found.sound, str(found)


# What was changed


def edited(path, *statements, tidy=True):
    """Change the file as an intruder would, who puts the triggers back."""
    with raw(path) as db:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = db.execute(query).fetchall() if tidy else []
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for statement, *values in statements:
            db.execute(statement, values)
        for _, sql in triggers:
            db.execute(sql)


def rewrite(path, change):
    """Change charges and make every hash anew; the sequence keeps what it had."""
    with raw(path) as db:
        rows = [list(row) for row in db.execute("SELECT * FROM charges ORDER BY id")]
        owners = {i: (c, b) for i, c, b in db.execute("SELECT id, client, block FROM accounts")}
        decided = dict(db.execute("SELECT id, chain FROM decisions"))
        runs = dict(db.execute("SELECT id, randomness FROM runs"))
        (last,) = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'charges'").fetchone()
    change(rows)
    before = ""
    for number, row in enumerate(rows, 1):
        row[0] = number
        _, owner, run, *rest, _ = row
        line = [before, number, owner, *owners[owner], run, runs[run], *rest, decided[rest[-1]]]
        row[-1] = before = hashlib.sha256(json.dumps(line).encode()).hexdigest()
    edited(
        path,
        ("DELETE FROM charges",),
        *(("INSERT INTO charges VALUES (?,?,?,?,?,?,?,?,?,?,?)", *row) for row in rows),
        ("UPDATE sqlite_sequence SET seq = ? WHERE name = 'charges'", last),
    )


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (None, None),
        ("UPDATE progress SET state = x'00'", "after round 2 is not the one that was stored"),
        ("UPDATE progress SET round = 3", "state of run run after round 3 was not charged"),
        ("UPDATE outbox SET message = x'00' WHERE run = 'run'", "is not the one that was stored"),
        ("UPDATE outbox SET digest = 'x' WHERE run = 'run'", "has no digest"),
        ("UPDATE outbox SET digest = '' WHERE run = 'second' AND round = 1", "has no digest"),
    ],
)
def test_states_that_are_stored_in_place_of_messages_are_looked_at(path, edit, problem):
    with Ledger(path) as ledger:
        begin(ledger)
        begin(ledger, "second")
        alice = ledger.account("ann", "a")
        for turn in (1, 2):
            unsent = Charge(alice, "run", turn, (GAUSSIAN,), None)
            ledger.commit([unsent], progress=Progress(turn, b"state"))
        ledger.commit([charge(alice, 1, GAUSSIAN, run="second")])
        ledger.commit([charge(alice, 2, GAUSSIAN, run="second")], settled=1)
    if edit is not None:
        edited(path, (edit,))
    found = audit_ledger(path)
    assert found.sound == (edit is None)
    assert all(problem in sentence for sentence in found.problems), found.problems


def test_a_stored_state_that_is_gone_is_a_problem(path):
    with Ledger(path) as ledger:
        begin(ledger)
        alice = ledger.account("ann", "a")
        unsent = Charge(alice, "run", 1, (GAUSSIAN,), None)
        ledger.commit([unsent], progress=Progress(1, b"state"))
    with raw(path) as db:
        db.execute("CREATE TABLE other AS SELECT run, round, NULL AS state, digest FROM progress")
        db.execute("DROP TABLE progress")
        db.execute("ALTER TABLE other RENAME TO progress")
    with Ledger(path, read_only=True) as ledger:
        assert any("is damaged" in problem for problem in ledger.verify())
        with pytest.raises(LedgerError, match="damaged"):
            ledger.progress("run")
    assert any("not the one that was stored" in own for own in audit_ledger(path).problems)


COPY = (
    "INSERT INTO charges SELECT {}, account, run, round, count, event, note, fingerprint, "
    "charged_at, decisions, chain"
)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (["DELETE FROM charges WHERE id = 2"], "between charge 1 and charge 3, 1 are missing"),
        (["DELETE FROM charges WHERE id >= 18"], "the last 2 charges are missing"),
        (["DELETE FROM charges"], "the last 19 charges are missing"),
        (["UPDATE charges SET count = 1 WHERE id = 1"], "the hash of charge 1 does not"),
        (["UPDATE charges SET count = 99 WHERE id = 19"], "the hash of charge 19 does not"),
        (["UPDATE charges SET event = replace(event, '1.1', '2.2') WHERE id = 1"],
         "the hash of charge 1 does not"),
        (["UPDATE charges SET event = '{}' WHERE id = 6"], "the event of charge 6 cannot be read"),
        (["UPDATE charges SET event = x'00' WHERE id = 6"], "the event of charge 6 cannot be read"),
        (["UPDATE charges SET id = 100 WHERE id = 3", "UPDATE charges SET id = 3 WHERE id = 4",
          "UPDATE charges SET id = 4 WHERE id = 100"], "the hash of charge 3 does not"),
        ([COPY.format(20) + " FROM charges WHERE id = 19"], "the hash of charge 20 does not"),
        (["DELETE FROM charges WHERE id = 19",
          "UPDATE sqlite_sequence SET seq = 17 WHERE name = 'charges'"], "not added by the ledger"),
        (["UPDATE outbox SET message = x'00' WHERE round = 3 AND account = 1"],
         "run run, account 1, round 3 is not the one that was stored"),
        (["UPDATE outbox SET digest = '' WHERE round = 0"], "has no digest"),
        (["INSERT INTO outbox SELECT run, account, 9, message, state, digest FROM outbox LIMIT 1"],
         "round 9 was not charged"),
        (["UPDATE runs SET randomness = 'seeded' WHERE id = 'second'"], "the hash of charge"),
        (["UPDATE accounts SET client = 'dora' WHERE id = 2"], "the hash of charge"),
        (["DELETE FROM accounts WHERE id = 1"], "a budget is of account 1, which does not exist"),
        (["DELETE FROM accounts WHERE id = 3"], "of account 3, which does not exist"),
        (["DELETE FROM runs WHERE id = 'second'"], "of run second, which does not exist"),
        (["DELETE FROM meta"], "the ledger cannot be opened"),
    ],
)  # fmt: skip
def test_every_change_is_found(used, edit, problem):
    edited(used, *((statement,) for statement in edit))
    found = audit_ledger(used)
    assert not found.sound
    assert any(problem in sentence for sentence in found.problems), found.problems
    assert str(found).startswith(f"ledger: {len(found.problems)} problem")


@pytest.mark.parametrize(
    "change", [lambda rows: rows.pop(), lambda rows: rows.pop(0), lambda rows: rows.clear()]
)
def test_a_chain_made_anew_is_betrayed_by_the_sequence(used, change):
    rewrite(used, change)
    (first, *_) = audit_ledger(used).problems
    assert first.endswith("charges are missing: 19 were written")


def test_a_chain_made_anew_with_a_charge_twice(used):
    rewrite(used, lambda rows: rows.__setitem__(3, list(rows[0])))
    problems = audit_ledger(used).problems
    assert "round 0 of run run was charged to account 1 twice, answered once" in problems


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP TRIGGER charges_never_update", "nothing keeps charges from update"),
        ("DROP TRIGGER decisions_never_delete", "nothing keeps decisions from delete"),
        ("DROP TRIGGER charges_in_order", "nothing keeps charges from insert"),
        ("DROP TRIGGER decisions_in_order", "nothing keeps decisions from insert"),
        ("CREATE TRIGGER extra AFTER INSERT ON decisions BEGIN DELETE FROM outbox; END",
         "there is a trigger on decisions that the ledger did not make"),
    ],
)  # fmt: skip
def test_a_trigger_dropped_or_added_is_found(used, statement, problem):
    edited(used, (statement,), tidy=False)
    assert any(problem in found for found in audit_ledger(used).problems)


def test_a_trigger_that_does_nothing_is_found(used):
    edited(
        used,
        ("DROP TRIGGER charges_never_update",),
        ("CREATE TRIGGER charges_never_update BEFORE UPDATE ON charges BEGIN SELECT 1; END",),
        tidy=False,
    )
    assert len(audit_ledger(used).problems) == 2


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9])
def test_a_truncated_file_is_found(used, share):
    whole = used.read_bytes()
    used.write_bytes(whole[: int(share * len(whole))])
    assert not audit_ledger(used).sound


def test_what_is_no_ledger(tmp_path):
    with pytest.raises(InvalidInput, match="there is no ledger"):
        audit_ledger(tmp_path)
    other = tmp_path / "other.sqlite"
    edited(other, ("CREATE TABLE cats (name)",))
    assert "it is not a ledger" in audit_ledger(other).problems[0]
    other.write_bytes(b"nonsense" * 1000)
    assert "cannot be read" in audit_ledger(other).problems[0]
    with pytest.raises(InvalidInput, match="delta"):
        audit_ledger(other, 1.0)


# What is stated


def test_a_statement_that_understates_is_found(used, monkeypatch):
    honest = Ledger.statement

    def half(self, *arguments):
        stated = honest(self, *arguments)
        return replace(stated, epsilon=stated.epsilon / 2)

    monkeypatch.setattr(Ledger, "statement", half)
    problems = audit_ledger(used).problems
    assert len(problems) == 3
    assert all("which understates it" in problem for problem in problems)


def test_a_claim_where_none_is_possible_is_found(used, monkeypatch):
    edited(used, ("UPDATE runs SET randomness = 'seeded' WHERE id = 'run'",))
    stated = account(GAUSSIAN, 1e-5)
    monkeypatch.setattr(Ledger, "statement", lambda *_: stated)
    assert any("can be computed by anyone" in problem for problem in audit_ledger(used).problems)


def test_totals_that_forget_something_are_found(used, monkeypatch):
    monkeypatch.setattr(Ledger, "spent", lambda *_: Repeated(GAUSSIAN, 20))
    problems = audit_ledger(used).problems
    assert len(problems) == 3
    assert all("not the sum of its charges" in problem for problem in problems)


def test_a_statement_that_is_too_large_is_a_remark(used, monkeypatch):
    stated = replace(account(GAUSSIAN, 1e-5), epsilon=50.0)
    monkeypatch.setattr(Ledger, "statement", lambda *_: stated)
    found = audit_ledger(used)
    assert found.sound
    # A filter states more than what is fixed beforehand costs, and is meant to.
    assert [remark[:9] for remark in found.remarks if "larger than" in remark] == ["client cy"]


def test_charges_beyond_what_a_run_had_reserved_are_found(path, monkeypatch):
    """By a ledger that does not look: neither an exchange nor what was given back is forgotten."""
    with Ledger(path) as ledger:
        begin(ledger)
        ann = ledger.account("ann", 32 * "a")
        ledger.set_budget(ann, Budget(50.0, 1e-5))
        ledger.reserve("run", {ann: Repeated(GAUSSIAN, 4)})
        ledger.commit([charge(ann, 0, GAUSSIAN)])
        quieter = Release(Gaussian(40.0), Sensitivity(1.0))
        assert ledger.exchange("run", {ann: Repeated(quieter, 2)}) == [ann]
        ledger.commit([charge(ann, 1, quieter)])
        assert audit_ledger(path).sound
        monkeypatch.setattr(Balances, "is_within_plan", lambda *_: True)
        ledger.commit([charge(ann, 2, GAUSSIAN)])  # it was exchanged
        ledger.give_back("run")
        ledger.commit([charge(ann, 3, quieter)])  # and this was given back
        assert ledger.verify() == []
    problems = audit_ledger(path).problems
    wrong = [number for number in (3, 4) if any(f"charge {number} is" in p for p in problems)]
    assert wrong == [3, 4]
    assert len(problems) == 2
    assert all("had reserved" in problem for problem in problems)


# The command, and how long it takes


def test_the_command(used):
    answer = CliRunner().invoke(audit_app, ["ledger", str(used)])
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.endswith("agree with a second computation\n")
    assert answer.stdout.startswith("ann: 22 releases, ε = ")
    (used.parent / "elsewhere").mkdir()
    begun = {"id": "0", "ledger": str(used)}
    (used.parent / "elsewhere" / "run.json").write_text(json.dumps(begun))
    assert audit_ledger(used.parent / "elsewhere").sound
    folder = CliRunner().invoke(audit_app, ["ledger", str(used.parent), "--json"])
    assert json.loads(folder.stdout)["sound"] is True
    edited(used, ("UPDATE charges SET count = 1 WHERE id = 1",))
    answer = CliRunner().invoke(audit_app, ["ledger", str(used), "--json"])
    assert answer.exit_code == 1
    assert json.loads(answer.stdout)["problems"][0].startswith("the hash of charge 1")


def test_a_long_ledger_takes_seconds(path):
    with Ledger(path) as ledger:
        begin(ledger)
        clients = [ledger.account(f"client {k}", f"{k:032x}") for k in range(10)]
        for turn in range(800):
            ledger._file._db.execute("PRAGMA synchronous = OFF")
            ledger.commit([charge(one, turn, Repeated(GAUSSIAN, 5)) for one in clients])
    start = time.process_time()
    found = audit_ledger(path)
    assert found.sound, str(found)
    assert found.charges == 8000
    assert time.process_time() - start < 10
