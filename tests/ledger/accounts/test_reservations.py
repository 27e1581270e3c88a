"""Reservations: what a run is going to spend is spent by no other, whatever the order."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from tests.accounting.samples import TENTH
from tests.ledger.accounts.samples import OTHER, STEP, begin, charge
from udpfl import Budget, Composed, PureDP, Repeated
from udpfl.accounting.filter import Filter
from udpfl.errors import BudgetExceeded
from udpfl.ledger._limits import Limits
from udpfl.ledger.ledger import Ledger

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
    looked = Limits.require_plans

    def meanwhile(self, run, wanted):
        looked(self, run, wanted)
        if run == "first":
            monkeypatch.setattr(Limits, "require_plans", looked)
            with Ledger(path) as other:
                other.reserve("second", {alice: Repeated(TENTH, 6)})

    monkeypatch.setattr(Limits, "require_plans", meanwhile)
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


def reserved_rows(ledger, account):
    return [own for own in ledger.decisions(account) if own.kind == "reserve"]


FIFTH = PureDP(0.2)


def test_a_run_exchanges_what_it_has_not_released(path, ledger):
    """By cost, not by number; what it was charged counts, and so does what others hold."""
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(3.0, 0.0))
    ledger.reserve("first", {alice: Repeated(TENTH, 10)})
    with pytest.raises(BudgetExceeded, match="has not reserved"):
        ledger.commit([charge(alice, 0, FIFTH)])
    # The budget has room for six, but the run reserved 1.0 and gets no more than that.
    assert ledger.exchange("first", {alice: Repeated(FIFTH, 6)}) == []
    assert ledger.exchange("first", {alice: Repeated(FIFTH, 5)}) == [alice]
    assert ledger.reserved(alice) == {"first": Composed([Repeated(FIFTH, 5)])}
    with pytest.raises(BudgetExceeded, match="has not reserved"):
        ledger.commit([charge(alice, 0, TENTH)])
    ledger.commit([charge(alice, 0, Repeated(FIFTH, 2))])
    assert ledger.exchange("first", {alice: Repeated(TENTH, 7)}) == []
    assert ledger.exchange("first", {alice: Repeated(TENTH, 6)}) == [alice]
    assert ledger.exchange("first", {alice: Repeated(TENTH, 6)}) == [alice]
    rows = reserved_rows(ledger, alice)
    assert [row.content.get("exchanged", False) for row in rows] == [False, True, True]
    with Ledger(path) as other:  # what the first run holds is still its own
        with pytest.raises(BudgetExceeded):
            other.reserve("second", {alice: Repeated(TENTH, 21)})
        other.reserve("second", {alice: Repeated(TENTH, 19)})
    assert ledger.exchange("first", {alice: Repeated(FIFTH, 3)}) == [alice]
    for _ in range(3):
        assert not ledger.would_exceed(alice, Repeated(FIFTH, 3), "first")
    ledger.commit([charge(alice, 1, Repeated(FIFTH, 3))])
    assert ledger.statement(alice).epsilon == pytest.approx(1.0)
    assert ledger.verify() == []


def test_what_cannot_be_exchanged(ledger):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb", runs="one")
    ledger.set_budgets([alice, bob], Budget(3.0, 0.0))
    assert ledger.exchange("first", {alice: TENTH}) == []  # nothing was reserved
    ledger.reserve("first", {alice: Repeated(TENTH, 10), bob: Repeated(TENTH, 10)})
    both = {alice: Repeated(FIFTH, 2), bob: Repeated(FIFTH, 2)}
    assert ledger.exchange("first", both) == [alice]  # an account of one run has no filter
    assert ledger.exchange("first", {bob: Repeated(TENTH, 9)}) == [bob]
    assert len(reserved_rows(ledger, bob)) == 1
    ledger.set_budget(alice, Budget(0.3, 0.0))
    assert ledger.exchange("first", {alice: Repeated(FIFTH, 3)}) == []  # the budget was lowered
    assert ledger.exchange("first", {alice: FIFTH}) == [alice]
    ledger.set_budget(alice, Budget(3.0, 0.0), reason="a vote")
    ledger.give_back("first")
    assert ledger.exchange("first", {alice: FIFTH}) == []
    ledger.reserve("first", {alice: TENTH})  # less than at first; it may grow to what that was
    assert ledger.exchange("first", {alice: Repeated(FIFTH, 5)}) == [alice]
    assert ledger.exchange("first", {alice: Repeated(FIFTH, 6)}) == []


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


SLOW = [pytest.param(part, marks=pytest.mark.slow) for part in range(3, 10)]


@pytest.mark.parametrize("part", [0, 1, 2, *SLOW])
def test_processes_that_share_a_budget_never_exceed_it(tmp_path, part):
    """A thousand interleavings in all, three hundred of them in the fast tests."""
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
