"""A budget belongs to people: accounts, versions, blocks, decisions, one run or many."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.accounting.samples import TENTH
from tests.ledger.accounts.samples import OTHER, STEP, charge
from tests.ledger.samples import raw
from udpfl import Budget, Composed, PureDP, Repeated
from udpfl.accounting.filter import Filter
from udpfl.errors import BudgetExceeded, InvalidInput, LedgerError
from udpfl.ledger import decisions as decisions_
from udpfl.ledger import file as ledger_file
from udpfl.ledger.ledger import Ledger

# Versions and blocks


def test_every_version_of_the_data_charges_the_same_account(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(0.55, 0.0))
    for round_, version in enumerate(("aa", "bb", "cc", "aa", "dd")):
        account = ledger.account("alice", version)
        ledger.commit([charge(account, round_, TENTH, fingerprint=version)])
    with pytest.raises(BudgetExceeded):
        ledger.commit([charge(ledger.account("alice", "ee"), 9, TENTH)])
    assert ledger.versions(alice) == ["aa", "bb", "cc", "dd", "ee"]
    assert [entry.fingerprint for entry in ledger.history()] == ["aa", "bb", "cc", "aa", "dd"]
    assert ledger.data_of("first")[alice] in {"aa", "bb", "cc", "dd"}
    assert ledger.verify() == []


def test_a_block_needs_a_statement_and_every_number_about_it_carries_that(ledger):
    alice = ledger.account("alice", "aa")
    with pytest.raises(InvalidInput, match=r"has no block .Q3. of alice") as refused:
        ledger.account("alice", "bb", block="Q3")
    assert refused.value.parameter == "block"
    assert ledger.versions(alice) == ["aa"]
    ledger.declare_block("alice", "Q3", reason="admitted since July", author="Ada")
    block = ledger.account("alice", "bb", block="Q3")
    assert block != alice
    ledger.commit([charge(alice, 0, TENTH)])
    assert ledger.spent(block) is None
    ledger.commit([charge(block, 0, TENTH)])
    (note,) = [n for n in ledger.statement(block, 0.0).assumptions if "Q3" in n]
    assert "Ada said on 20" in note
    assert "admitted since July" in note
    assert not any("block" in note for note in ledger.statement(alice, 0.0).remarks)
    # One statement is about one block of one client, and about no exact copy of known records.
    with pytest.raises(InvalidInput, match="the ledger has no block"):
        ledger.account("bob", "cc", block="Q3")
    with pytest.raises(InvalidInput, match="the ledger has no block"):
        ledger.account("alice", "cc", block="Q4")
    assert ledger.other_names("alice", "aa", "Q3") == ["alice"]
    assert ledger.other_names("alice", "bb") == ["alice (block Q3)"]
    with pytest.raises(InvalidInput, match="is already in the ledger"):
        ledger.declare_block("alice", "Q3", reason="again")
    for bad in ({"reason": " "}, {"reason": ""}):
        with pytest.raises(InvalidInput):
            ledger.declare_block("alice", "Q4", **bad)


# Decisions


def test_a_budget_that_rises_needs_a_reason(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.0, 1e-5))
    for higher in (Budget(1.1, 1e-5), Budget(1.0, 1e-4), Budget(0.5, 1e-4)):
        with pytest.raises(InvalidInput, match="is needed to raise a budget: alice has ε = 1"):
            ledger.set_budget(alice, higher, reason="  ")
    assert ledger.budgets(alice) == [Budget(1.0, 1e-5)]
    ledger.set_budget(alice, Budget(0.5, 1e-5))
    ledger.set_budget(alice, Budget(2.0, 1e-5), reason="a vote", author="Ada")
    said = [d for d in ledger.decisions(alice) if d.kind == "budget"]
    assert [(d.content["epsilon"], d.reason) for d in said] == [(1, ""), (0.5, ""), (2, "a vote")]
    assert said[-1].author == "Ada"
    assert said[0].author == decisions_.login_name() != ""


def test_several_budgets_are_set_for_all_or_for_none(ledger):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    ledger.set_budget(bob, Budget(1.0, 1e-5))
    with pytest.raises(InvalidInput, match="bob"):
        ledger.set_budgets([alice, bob], Budget(2.0, 1e-5))
    assert ledger.budget(alice) is None
    assert ledger.budget(bob) == Budget(1.0, 1e-5)
    assert ledger.verify() == []


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ("UPDATE decisions SET content = replace(content, '1.0', '9.0') WHERE kind = 'budget'",
         "decision 4 was edited"),
        ("UPDATE decisions SET author = 'Eve' WHERE id = 1", "decision 1 was edited"),
        ("UPDATE decisions SET reason = 'a vote' WHERE id = 2", "decision 2 was edited"),
        ("DELETE FROM decisions WHERE kind = 'budget'", "decision 4 is missing"),
        ("DELETE FROM decisions WHERE id = 2", "decision 2 is missing"),
        ("UPDATE accounts SET runs = 'one'", "account 1 (alice) is not the one that was opened"),
        ("DELETE FROM charges", "charge 1 is missing"),
        ("UPDATE charges SET decisions = 1", "charge 1 was edited"),
        ("UPDATE charges SET fingerprint = 'bb'", "charge 1 was edited"),
    ],
)  # fmt: skip
def test_what_was_decided_cannot_be_edited(ledger, path, edit, problem):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.0, 1e-5))
    ledger.commit([charge(alice, 0, TENTH, fingerprint="aa")])
    ledger.set_budget(alice, Budget(0.9, 1e-5))
    assert ledger.verify() == []
    with raw(path) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        for name, _ in (kept := triggers.fetchall()):
            db.execute(f"DROP TRIGGER {name}")
        db.execute(edit)
        for _, sql in kept:
            db.execute(sql)
    assert any(problem in found for found in ledger.verify()), ledger.verify()


def test_a_decision_taken_off_the_end_is_missed_by_the_charge_after_it(ledger, path):
    """Also where the sequence was put back: the two chains are tied into each other."""
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.0, 1e-5))
    last = ledger.decisions()[-1].id
    ledger.commit([charge(alice, 0, TENTH)])
    with raw(path) as db:
        db.execute("DROP TRIGGER decisions_never_delete")
        db.execute("DELETE FROM decisions WHERE id = ?", (last,))
        db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'decisions'", (last - 1,))
    assert any("charge 1 was edited" in found for found in ledger.verify())


def test_what_was_undone_is_not_remembered(ledger):
    """Rows that were read inside a transaction that failed are not there afterwards."""
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    ledger.set_budget(bob, Budget(1.0, 1e-5))
    before = ledger.decisions()
    with pytest.raises(InvalidInput):
        ledger.set_budgets([alice, bob], Budget(2.0, 1e-5))
    assert ledger.decisions() == before
    ledger.set_budget(alice, Budget(0.2, 1e-5))
    assert ledger.budget(alice) == Budget(0.2, 1e-5)


def test_charges_that_were_undone_are_not_counted_and_hide_no_later_ones(ledger):
    """Their numbers are given to the next charges, which are other ones."""
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.0, 1e-5))
    with suppress(RuntimeError), ledger.transaction():
        ledger.import_charge(alice, TENTH, source="elsewhere")
        assert ledger.spent(alice) == Composed([Repeated(TENTH, 1)])
        raise RuntimeError
    ledger.commit([charge(alice, 0, PureDP(0.2))])
    assert ledger.spent(alice) == Composed([Repeated(PureDP(0.2), 1)])


def test_what_a_transaction_has_written_it_reads(ledger):
    alice = ledger.account("alice", "aa")
    with ledger._file.writing():
        for epsilon in (2.0, 1.0):
            ledger._accounts.set_budget(alice, Budget(epsilon, 1e-5), "", None)
            assert ledger.budget(alice) == Budget(epsilon, 1e-5)


# One run or many


def test_an_account_of_one_run_refuses_a_second(ledger):
    alice = ledger.account("alice", "aa", runs="one")
    ledger.commit([charge(alice, 0, TENTH)])
    with pytest.raises(LedgerError, match="is for the run first only"):
        ledger.commit([charge(alice, 0, TENTH, run="second")])
    with pytest.raises(LedgerError, match=r"is for the run .* only"):
        ledger.reserve("second", {alice: TENTH})
    with pytest.raises(LedgerError, match=r"is for the run .* only"):
        ledger.import_charge(alice, TENTH, source="elsewhere")
    assert ledger.spent(alice) == Composed([Repeated(TENTH, 1)])
    with pytest.raises(InvalidInput, match="'one' or 'many'"):
        ledger.account("bob", "bb", runs="two")


def test_a_run_that_is_stopped_is_stated_with_its_whole_plan(ledger):
    from udpfl import account

    alice = ledger.account("alice", "aa", runs="one")
    ledger.reserve("first", {alice: Repeated(STEP, 300)})
    assert ledger.statement(alice, 1e-5).epsilon == 0  # nothing was released
    for round_ in range(10):
        ledger.commit([charge(alice, round_, STEP)])
    stated = ledger.statement(alice, 1e-5)
    assert stated.epsilon == account(Repeated(STEP, 300), 1e-5).epsilon
    assert any("everything that the run was planned to release" in note for note in stated.notes)
    assert stated.composition == "fixed"
    so_far = ledger.statement(alice, 1e-5, fixed_beforehand=True)
    assert so_far.epsilon == account(Repeated(STEP, 10), 1e-5).epsilon
    for round_ in range(10, 300):
        ledger.commit([charge(alice, round_, STEP)])
    done = ledger.statement(alice, 1e-5)
    assert done.epsilon == stated.epsilon
    assert not any("planned to release" in note for note in done.notes)


def test_many_runs_are_added_up_by_orders_fixed_before_the_first_charge(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(3.0, 1e-5))
    planned = Filter.planned(3.0, 1e-5)
    assert ledger.filter(alice) == planned
    ledger.set_budget(alice, Budget(2.0, 1e-6))
    assert ledger.filter(alice) == (planned := Filter.planned(2.0, 1e-6))
    ledger.commit([charge(alice, 0, Repeated(OTHER, 20))])
    with pytest.raises(InvalidInput, match="who is already charged"):
        ledger.set_budget(alice, Budget(8.0, 1e-5), reason="a vote")
    ledger.set_budget(alice, Budget(8.0, 1e-6), reason="a vote")
    assert ledger.filter(alice) == planned != Filter.planned(8.0, 1e-6)
    ledger.commit([charge(alice, 0, Repeated(STEP, 5), run="second")])
    stated = ledger.statement(alice, 1e-5)
    both = Composed([Repeated(OTHER, 20), Repeated(STEP, 5)])
    assert stated.epsilon == pytest.approx(planned.epsilon(both, 1e-5), rel=1e-12)
    assert stated.composition == "filter"


def test_orders_are_fixed_by_a_reservation_as_well(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(3.0, 1e-5))
    ledger.reserve("first", {alice: Repeated(STEP, 20)})
    ledger.set_budget(alice, Budget(8.0, 1e-5), reason="a vote")
    assert ledger.filter(alice) == Filter.planned(3.0, 1e-5)


def test_two_processes_cannot_open_the_same_records_under_two_names(path, ledger, monkeypatch):
    """The check and the opening are one transaction."""
    looked = Ledger.require_own_accounts
    monkeypatch.setattr(ledger_file, "_WAIT", 0.1)
    with Ledger(path) as other:

        def meanwhile(self, parts, block=""):
            looked(self, parts, block)
            if self is ledger:
                with pytest.raises(LedgerError, match="locked"):
                    other.open_accounts({"east": parts["north"]})

        monkeypatch.setattr(Ledger, "require_own_accounts", meanwhile)
        ledger.open_accounts({"north": "aa"})
    monkeypatch.undo()
    with pytest.raises(InvalidInput, match="is known there as north"):
        ledger.open_accounts({"south": "bb", "east": "aa"})
    assert [own.client for own in ledger.accounts()] == ["north"]


@pytest.mark.parametrize(
    ("table", "write"),
    [
        ("charges", lambda ledger, own: ledger.commit([charge(own, 0, TENTH)])),
        ("outbox", lambda ledger, own: ledger.commit([charge(own, 0, TENTH)])),
        ("decisions", lambda ledger, own: ledger.set_budget(own, Budget(1.0, 1e-5))),
    ],
)
def test_a_trigger_that_swallows_rows_is_found_and_stops_everything(path, ledger, table, write):
    alice = ledger.account("alice", "aa")
    with raw(path) as db:
        body = "BEGIN SELECT RAISE(IGNORE); END"
        db.execute(f"CREATE TRIGGER quiet BEFORE INSERT ON {table} {body}")
    assert any("a trigger quiet that the ledger did not make" in p for p in ledger.verify())
    with pytest.raises(LedgerError, match="did not store a row"):
        write(ledger, alice)
    assert ledger.spent(alice) is None
    assert ledger.message("first", alice, 0) is None
    with raw(path) as db:
        db.execute("DROP TRIGGER quiet")
        db.execute("DROP TRIGGER charges_never_update")
        db.execute(f"CREATE TRIGGER charges_never_update BEFORE UPDATE ON charges {body}")
    assert any("charges_never_update is another one" in problem for problem in ledger.verify())
