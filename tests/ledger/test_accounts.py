"""A budget belongs to people: accounts, versions, blocks, records that moved, reservations."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing, suppress

import pytest

from udpfl import Budget, Composed, Gaussian, PoissonSampled, PureDP, Release, Repeated, Sensitivity
from udpfl.accounting.filter import Filter
from udpfl.errors import BudgetExceeded, InvalidInput, LedgerError
from udpfl.ledger import decisions as decisions_
from udpfl.ledger import file as ledger_file
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger

STEP = PoissonSampled(0.05, Release(Gaussian(1.2), Sensitivity(1.0)))
OTHER = PoissonSampled(0.1, Release(Gaussian(3.0), Sensitivity(1.0)))
TENTH = PureDP(0.1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger(path) as opened:
        for run in ("first", "second", "third"):
            begin(opened, run)
        yield opened


def begin(ledger, run, folder="", randomness="entropy"):
    description = {"folder": folder} if folder else {}
    ledger.begin_run(run, randomness=randomness, accounting="vector", description=description)


def charge(account, round_, *events, run="first", fingerprint=""):
    message = f"{run} {round_}".encode()
    return Charge(account, run, round_, events, message, fingerprint=fingerprint)


def raw(path):
    return closing(sqlite3.connect(path, isolation_level=None))


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
    with pytest.raises(InvalidInput, match="nobody has said that the records of alice") as refused:
        ledger.account("alice", "bb", block="Q3")
    assert refused.value.parameter == "block"
    assert ledger.versions(alice) == ["aa"]
    ledger.declare_block("alice", "Q3", reason="admitted since July", author="Ada")
    block = ledger.account("alice", "bb", block="Q3")
    assert block != alice
    ledger.commit([charge(alice, 0, TENTH)])
    assert ledger.spent(block) is None
    ledger.commit([charge(block, 0, TENTH)])
    (note,) = [n for n in ledger.statement(block, 0.0).notes if "Q3" in n]
    assert "Ada said on 20" in note
    assert "admitted since July" in note
    assert not any("block" in note for note in ledger.statement(alice, 0.0).notes)
    # One statement is about one block of one client, and about no exact copy of known records.
    with pytest.raises(InvalidInput, match="nobody has said"):
        ledger.account("bob", "cc", block="Q3")
    with pytest.raises(InvalidInput, match="nobody has said"):
        ledger.account("alice", "cc", block="Q4")
    assert ledger.other_names("alice", "aa", "Q3") == ["alice"]
    assert ledger.other_names("alice", "bb") == ["alice (block Q3)"]
    with pytest.raises(InvalidInput, match="on record already"):
        ledger.declare_block("alice", "Q3", reason="again")
    for bad in ({"reason": " "}, {"reason": ""}):
        with pytest.raises(InvalidInput):
            ledger.declare_block("alice", "Q4", **bad)


# Decisions


def test_a_budget_that_rises_needs_a_reason(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.0, 1e-5))
    for higher in (Budget(1.1, 1e-5), Budget(1.0, 1e-4), Budget(0.5, 1e-4)):
        with pytest.raises(InvalidInput, match="is needed where a budget rises: alice has ε = 1"):
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
    with pytest.raises(LedgerError, match="is for one run, first"):
        ledger.commit([charge(alice, 0, TENTH, run="second")])
    with pytest.raises(LedgerError, match="is for one run"):
        ledger.reserve("second", {alice: TENTH})
    with pytest.raises(LedgerError, match="is for one run"):
        ledger.import_charge(alice, TENTH, source="elsewhere")
    assert ledger.spent(alice) == Composed([Repeated(TENTH, 1)])
    with pytest.raises(InvalidInput, match="one or many"):
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
    with pytest.raises(InvalidInput, match="who was charged already"):
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


# Reservations


def test_nobody_spends_what_a_run_has_reserved(path, ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.05, 0.0))
    ledger.reserve("first", {alice: Repeated(TENTH, 7)})
    with Ledger(path) as other:
        assert other.would_exceed(alice, Repeated(TENTH, 4), "second")
        assert not other.would_exceed(alice, Repeated(TENTH, 3), "second")
        with pytest.raises(BudgetExceeded, match="alice: the plan of this run does not fit"):
            other.reserve("second", {alice: Repeated(TENTH, 4)})
        with pytest.raises(BudgetExceeded):
            other.commit([charge(alice, 0, Repeated(TENTH, 4), run="second")])
        other.commit([charge(alice, 0, Repeated(TENTH, 3), run="second")])
        with pytest.raises(BudgetExceeded):
            other.commit([charge(alice, 1, TENTH, run="second")])
        for round_ in range(7):  # all of it is still there
            assert not ledger.would_exceed(alice, TENTH, "first")
            ledger.commit([charge(alice, round_, TENTH)])
        assert other.reserved(alice) == {}
        with pytest.raises(BudgetExceeded):
            ledger.commit([charge(alice, 7, TENTH)])
    assert ledger.statement(alice).epsilon == pytest.approx(1.0)


def test_what_is_given_back_can_be_spent_by_others(path, ledger):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    for account in (alice, bob):
        ledger.set_budget(account, Budget(1.05, 0.0))
    ledger.reserve("first", {alice: Repeated(TENTH, 10), bob: Repeated(TENTH, 10)})
    ledger.commit([charge(alice, 0, Repeated(TENTH, 4))])
    assert ledger.reserved(alice) == {"first": Composed([Repeated(TENTH, 6)])}
    with Ledger(path) as other:
        with pytest.raises(BudgetExceeded):
            other.reserve("second", {alice: Repeated(TENTH, 6)})
        assert ledger.give_back("first", reason="its process died", author="Ada") == 2
        assert ledger.give_back("first") == 0
        other.reserve("second", {alice: Repeated(TENTH, 6)})
    last = [d for d in ledger.decisions(alice) if d.kind == "give back"][-1]
    assert (last.reason, last.author) == ("its process died", "Ada")
    assert ledger.held(alice) == Composed([Repeated(TENTH, 10)])
    # The first run may go on only with what is left now.
    with pytest.raises(BudgetExceeded):
        ledger.reserve("first", {alice: TENTH, bob: TENTH})
    assert ledger.reserved(bob) == {}
    ledger.reserve("first", {bob: Repeated(TENTH, 10)})


def test_a_run_may_reserve_again_what_it_gave_back(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.05, 0.0))
    ledger.reserve("first", {alice: Repeated(TENTH, 10)})
    ledger.give_back("first")
    ledger.reserve("first", {alice: Repeated(TENTH, 8)})
    with pytest.raises(BudgetExceeded):
        ledger.reserve("second", {alice: Repeated(TENTH, 3)})


def test_two_processes_that_reserve_at_once_do_not_both_get_it(path, ledger, monkeypatch):
    """The second one reserves while the first one is between its look and its lock."""
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.05, 0.0))
    looked = Ledger._check_room

    def meanwhile(self, run, wanted):
        looked(self, run, wanted)
        if run == "first":
            monkeypatch.setattr(Ledger, "_check_room", looked)
            with Ledger(path) as other:
                other.reserve("second", {alice: Repeated(TENTH, 6)})

    monkeypatch.setattr(Ledger, "_check_room", meanwhile)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("first", {alice: Repeated(TENTH, 6)})
    assert list(ledger.reserved(alice)) == ["second"]


def test_a_run_reserves_once_however_often_it_is_resumed(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.05, 0.0))
    ledger.reserve("first", {alice: Repeated(TENTH, 10)})
    rows = len(ledger.decisions())
    ledger.commit([charge(alice, 0, Repeated(TENTH, 3))])
    ledger.reserve("first", {alice: Repeated(TENTH, 7)})
    assert len(ledger.decisions()) == rows
    with pytest.raises(BudgetExceeded):
        ledger.reserve("first", {alice: Repeated(TENTH, 8)})


def test_a_budget_that_is_lowered_ends_a_reservation(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.05, 0.0))
    ledger.reserve("first", {alice: Repeated(TENTH, 10)})
    ledger.commit([charge(alice, 0, TENTH)])
    ledger.set_budget(alice, Budget(0.15, 0.0))
    assert ledger.would_exceed(alice, TENTH, "first")
    with pytest.raises(BudgetExceeded):
        ledger.commit([charge(alice, 1, TENTH)])


def test_what_was_released_elsewhere_counts_against_a_reservation(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.05, 0.0))
    ledger.reserve("first", {alice: Repeated(TENTH, 10)})
    ledger.import_charge(alice, PureDP(0.5), source="elsewhere")
    with pytest.raises(BudgetExceeded):
        ledger.commit([charge(alice, 0, TENTH)])


def test_charges_of_two_runs_in_one_commit_add_up(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(0.55, 0.0))
    pair = [
        charge(alice, 0, Repeated(TENTH, 3)),
        charge(alice, 0, Repeated(TENTH, 3), run="second"),
    ]
    with pytest.raises(BudgetExceeded):
        ledger.commit(pair)
    ledger.set_budget(alice, Budget(0.65, 0.0), reason="a vote")
    ledger.commit(pair)


# Records that may have moved


def divided(ledger, parts, **block):
    """Accounts of one data set that is divided among clients."""
    found = {name: ledger.account(name, part, **block) for name, part in parts.items()}
    ledger.divide(parts, **block)
    return found


def test_every_client_takes_over_the_largest_spending_when_records_may_have_moved(ledger):
    first = {"a": "1", "b": "2", "c": "3"}
    accounts = divided(ledger, first)
    ledger.commit([charge(accounts["a"], 0, Repeated(STEP, 5), TENTH)])
    ledger.commit([charge(accounts["b"], 0, Repeated(STEP, 2), Repeated(OTHER, 3))])
    divided(ledger, first)  # the same division: nobody has moved
    assert ledger.spent(accounts["c"]) is None
    accounts = divided(ledger, {"a": "4", "b": "5", "c": "6", "d": "7"})
    most = Counter({STEP: 5, OTHER: 3, TENTH: 1})
    for account in accounts.values():
        spent = ledger.spent(account)
        assert {part.event: part.count for part in spent.events} == most
        assert any(
            "may have been at other clients" in n for n in ledger.statement(account, 1e-5).notes
        )
    ledger.commit([charge(accounts["d"], 0, TENTH, run="second")])
    accounts = divided(ledger, first | {"d": "8"})  # back again, which is another move
    for account in accounts.values():
        assert {p.event: p.count for p in ledger.spent(account).events}[TENTH] == 2
    assert ledger.verify() == []
    with Ledger(ledger._file.path, read_only=True) as again:
        assert [again.spent(own) for own in accounts.values()] == [
            ledger.spent(own) for own in accounts.values()
        ]


def test_records_do_not_move_while_a_run_is_going_to_spend(ledger):
    """Else nobody would know which spending is the largest: part of it may be given back."""
    accounts = divided(ledger, {"a": "1", "b": "2"})
    ledger.reserve("first", {own: Repeated(STEP, 4) for own in accounts.values()})
    ledger.commit([charge(accounts["a"], 0, Repeated(STEP, 3))])
    for _ in range(2):
        with pytest.raises(LedgerError, match="the run first has reserved"):
            divided(ledger, {"a": "3", "b": "4"})
        ledger.commit([charge(accounts["a"], 1, STEP)] if ledger.head()[0] == 1 else [])
    ledger.give_back("first", reason="dead")
    divided(ledger, {"a": "3", "b": "4"})
    assert ledger.spent(accounts["b"]) == Composed([Repeated(STEP, 4)])
    with pytest.raises(BudgetExceeded, match="somebody freed it"):
        ledger.commit([charge(accounts["a"], 2, STEP)])
    assert ledger.refusals("first", {accounts["a"]: STEP}).keys() == {accounts["a"]}


def test_a_client_that_may_have_held_the_records_has_to_be_there(ledger):
    accounts = divided(ledger, {"a": "1", "b": "2"})
    ledger.commit([charge(accounts["b"], 0, TENTH)])
    with pytest.raises(LedgerError, match="b, which may have held them, is not here"):
        divided(ledger, {"a": "3"})


def test_accounts_that_add_up_in_different_ways_take_over_nothing(ledger):
    accounts = {name: ledger.account(name, name) for name in "ab"}
    ledger.set_budget(accounts["a"], Budget(1.0, 1e-5))
    ledger.set_budget(accounts["b"], Budget(8.0, 1e-5))
    ledger.divide({"a": "a", "b": "b"})
    for account in accounts.values():
        ledger.commit([charge(account, 0, TENTH)])
    with pytest.raises(LedgerError, match="add up releases in different ways"):
        ledger.divide({"a": "b", "b": "a"})


def test_a_new_client_adds_up_as_those_do_whose_spending_it_takes_over(ledger):
    a = ledger.account("a", "1")
    ledger.set_budget(a, Budget(1.0, 1e-5))
    ledger.divide({"a": "1"})
    ledger.commit([charge(a, 0, TENTH)])
    b = ledger.account("b", "2")
    ledger.set_budget(b, Budget(8.0, 1e-5))
    ledger.divide({"a": "3", "b": "2"})
    assert ledger.filter(b) == ledger.filter(a) == Filter.planned(1.0, 1e-5)


def test_blocks_are_divided_by_themselves(ledger):
    accounts = divided(ledger, {"a": "1", "b": "2"})
    ledger.commit([charge(accounts["a"], 0, TENTH)])
    for name in "ab":
        ledger.declare_block(name, "Q3", reason="others")
    block = divided(ledger, {"a": "5", "b": "6"}, block="Q3")
    assert ledger.spent(block["a"]) is ledger.spent(block["b"]) is None
    assert ledger.division() == {"a": "1", "b": "2"}


def test_a_statement_about_the_past_leaves_out_what_was_taken_over_later(ledger):
    accounts = divided(ledger, {"a": "1", "b": "2"})
    ledger.commit([charge(accounts["a"], 0, Repeated(TENTH, 4)), charge(accounts["b"], 0, TENTH)])
    head, _ = ledger.head()
    divided(ledger, {"a": "3", "b": "4"})
    assert ledger.statement(accounts["b"], 0.0).epsilon == pytest.approx(0.4)
    assert ledger.statement(accounts["b"], 0.0, up_to=head).epsilon == pytest.approx(0.1)
    ledger.commit([charge(accounts["b"], 0, TENTH, run="second")])
    assert ledger.statement(accounts["b"], 0.0, up_to=ledger.head()[0]).epsilon == pytest.approx(
        0.5
    )


# Several processes on one ledger


class Process:
    """One run, as a process of its own would be: it has its own connection, and may be killed."""

    def __init__(self, path, run, plan, rng):
        self.path, self.run, self.plan, self.rng = path, run, plan, rng
        self.ledger, self.done, self.state = Ledger(path), 0, "new"
        begin(self.ledger, run)

    def step(self, account, released):
        """One move; what is released goes on a list that nobody else writes."""
        event, rounds = self.plan
        if self.state == "new" and self.done == rounds:
            self.state = "training"  # and nothing is left to do
        elif self.state == "new":
            try:
                self.ledger.reserve(self.run, {account: Repeated(event, rounds - self.done)})
                self.state = "training"
            except BudgetExceeded:
                self.state = "refused"
        elif self.state == "training" and self.done < rounds:
            message = charge(account, self.done, event, run=self.run)
            try:
                self.ledger.commit([message])
                released.append(event)
                self.done += 1
            except BudgetExceeded:
                self.state = "refused"
        elif self.state == "training":
            self.ledger.give_back(self.run)
            self.state = "ended"

    def kill(self):
        """Without a word; whoever resumes it looks into the ledger for what it had answered."""
        self.ledger.close()
        self.ledger = Ledger(self.path)

    def resume(self, account):
        self.done = self.ledger.rounds_charged(self.run, account)
        self.state = "new"


def interleaved(path, seed):
    """Random moves of two to four runs on one budget, with kills, restarts and budgets set anew."""
    rng = random.Random(seed)
    events = [Repeated(STEP, 20), Repeated(OTHER, 10), Repeated(STEP, 5)]
    released = []
    with Ledger(path) as clerk:
        alice = clerk.account("alice", "aa")
        budget = Budget(rng.choice([1.5, 2.0, 2.5]), 1e-5)
        clerk.set_budget(alice, budget)
        rule = Filter.planned(budget.epsilon, budget.delta)
        limits = [budget.epsilon]
        runs = [
            Process(path, f"run-{number}", (rng.choice(events), rng.randint(1, 4)), rng)
            for number in range(rng.randint(2, 4))
        ]
        promised, begun = {}, False
        for _ in range(rng.randint(8, 30)):
            run, move = rng.choice(runs), rng.random()
            if move < 0.8:
                before, were = run.done, len(released)
                run.step(alice, released)
                if len(released) > were:
                    assert rule.epsilon(Composed(released), 1e-5) <= limits[-1]
                if run.state == "training":
                    promised[run.run] = begun = True
                # What was reserved is there as long as nobody lowered the budget or freed it.
                assert not (promised.get(run.run) and run.state == "refused"), "a promise broken"
                assert run.done >= before
            elif move < 0.9:
                run.kill()
                run.resume(alice)
            elif move < 0.95:
                clerk.give_back(run.run, reason="freed by hand")
                promised = {}
                if run.state == "training":
                    run.resume(alice)
            else:
                lower = rng.random() < 0.5
                limits.append(limits[-1] * (0.7 if lower else 1.2))
                clerk.set_budget(alice, Budget(limits[-1], 1e-5), reason="a vote")
                if not begun:  # orders are planned anew until something is reserved
                    rule = Filter.planned(limits[-1], 1e-5)
                promised = {}
            total = rule.epsilon(Composed(released), 1e-5) if released else 0.0
            assert total <= max(limits), (seed, total, limits)
        counts = Counter(
            leaf for event in released for leaf in [event.event] for _ in range(event.count)
        )
        spent = clerk.spent(alice)
        held = {part.event: part.count for part in spent.events} if spent else {}
        assert held == counts, "every release was counted, and none twice"
        if released:
            stated = clerk.statement(alice).epsilon
            assert stated == pytest.approx(rule.epsilon(Composed(released), 1e-5), rel=1e-9)
        assert clerk.verify() == []
        for run in runs:
            run.ledger.close()


@pytest.mark.parametrize("part", range(10))
def test_processes_that_share_a_budget_never_exceed_it(tmp_path, part):
    """A thousand interleavings in all."""
    for seed in range(100 * part, 100 * (part + 1)):
        path = tmp_path / f"{seed}.sqlite"
        interleaved(path, seed)
        path.unlink()


def test_json_of_decisions_is_what_was_said(ledger):
    alice = ledger.account("alice", "aa")
    ledger.reserve("first", {alice: Repeated(TENTH, 2)})
    (said,) = [d for d in ledger.decisions() if d.kind == "reserve"]
    (text,) = said.content["totals"]
    assert said.content["run"] == "first"
    assert json.loads(text)["epsilon"] == 0.1
