"""Records that may have moved: every client takes over the largest spending."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.accounting.samples import TENTH
from tests.ledger.accounts.samples import OTHER, STEP, charge
from udpfl import Budget, Composed, Repeated
from udpfl.accounting.filter import Filter
from udpfl.errors import BudgetExceeded, LedgerError
from udpfl.ledger.ledger import Ledger


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
        with pytest.raises(LedgerError, match="the run first still has reservations"):
            divided(ledger, {"a": "3", "b": "4"})
        ledger.commit([charge(accounts["a"], 1, STEP)] if ledger.head()[0] == 1 else [])
    ledger.give_back("first", reason="dead")
    divided(ledger, {"a": "3", "b": "4"})
    assert ledger.spent(accounts["b"]) == Composed([Repeated(STEP, 4)])
    with pytest.raises(BudgetExceeded, match="its reservation was freed"):
        ledger.commit([charge(accounts["a"], 2, STEP)])
    assert ledger.refusals("first", {accounts["a"]: STEP}).keys() == {accounts["a"]}


def test_a_client_that_may_have_held_the_records_has_to_be_there(ledger):
    accounts = divided(ledger, {"a": "1", "b": "2"})
    ledger.commit([charge(accounts["b"], 0, TENTH)])
    with pytest.raises(LedgerError, match="b, which may have held them, is not in this run"):
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
