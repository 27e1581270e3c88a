"""The ledger: nothing is released that was not charged, and no budget is exceeded."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from contextlib import closing

import pytest

import udpfl
from tests.accounting.samples import STEP, TENTH
from tests.ledger.samples import ROUND, begin, charge, counted, raw
from udpfl import (
    Budget,
    Composed,
    Gaussian,
    InvalidInput,
    Laplace,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    Sensitivity,
    Unsupported,
    account,
)
from udpfl.errors import BudgetExceeded, LedgerError
from udpfl.ledger import _limits, _outbox, spending
from udpfl.ledger.ledger import Ledger

# Accounts, runs, budgets


def test_a_client_has_one_account_with_all_versions_of_its_data(ledger):
    alice = ledger.account("alice", "aa")
    assert ledger.account("alice", "aa") == ledger.account("alice", "bb") == alice
    bob = ledger.account("bob", "cc")
    assert bob != alice
    assert (ledger.versions(alice), ledger.versions(bob)) == (["aa", "bb"], ["cc"])
    assert ledger.other_names("bob", "bb") == ["alice"]
    assert ledger.other_names("alice", "bb") == ledger.other_names("bob", "dd") == []
    assert [found.id for found in ledger.find("alice")] == [alice]
    assert [found.name for found in ledger.accounts()] == ["alice", "bob"]
    ledger.commit([charge(alice, 0, TENTH)])
    assert ledger.spent(bob) is None


def test_the_last_budget_counts_and_all_stay_on_record(ledger, path):
    alice = ledger.account("alice", "aa")
    assert ledger.budget(alice) is None
    assert not ledger.would_exceed(alice, Repeated(PureDP(9.0), 1000))
    for epsilon in (3.0, 0.1 + 0.2):
        ledger.set_budget(alice, Budget(epsilon, 1e-5))
    assert ledger.budget(alice) == Budget(0.1 + 0.2, 1e-5)
    assert ledger.budgets(alice) == [Budget(3.0, 1e-5), Budget(0.1 + 0.2, 1e-5)]
    with raw(path) as db:
        texts = db.execute("SELECT content FROM decisions WHERE kind = 'budget'").fetchall()
    assert [json.loads(text)["epsilon"] for (text,) in texts] == [3.0, 0.1 + 0.2]


def test_a_run_may_be_resumed_but_not_turned_into_another(ledger):
    begin(ledger)
    with pytest.raises(InvalidInput, match="began with entropy randomness and vector"):
        begin(ledger, randomness="seeded")
    alice = ledger.account("alice", "aa")
    with pytest.raises(InvalidInput, match="has not begun"):
        ledger.commit([charge(alice, 0, TENTH, run="another")])
    with pytest.raises(InvalidInput, match="has no account 77"):
        ledger.commit([charge(77, 0, TENTH)])


# Charging


def test_a_commit_that_fails_stores_nothing(ledger, path, monkeypatch):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    put = _outbox.Outbox.put
    for error in (RuntimeError("boom"), KeyboardInterrupt(), sqlite3.OperationalError("boom")):

        def failing(self, charge, error=error):
            put(self, charge)
            if charge.account == bob:
                raise error

        monkeypatch.setattr(_outbox.Outbox, "put", failing)
        expected = LedgerError if isinstance(error, sqlite3.Error) else type(error)
        with pytest.raises(expected):
            ledger.commit([charge(alice, 0, TENTH), charge(bob, 0, TENTH)])
        assert counted(path) == (0, 0)
        assert ledger.spent(alice) is None
    monkeypatch.undo()
    ledger.commit([charge(alice, 0, TENTH), charge(bob, 0, TENTH)])
    assert counted(path) == (2, 2)
    assert ledger.verify() == []


def test_a_budget_is_kept_to_the_last_release(ledger, path):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(0.55, 0.0))  # pure epsilons add up: five tenths fit
    for round_ in range(5):
        assert not ledger.would_exceed(alice, TENTH)
        ledger.commit([charge(alice, round_, TENTH)])
    assert ledger.would_exceed(alice, TENTH)
    with pytest.raises(BudgetExceeded, match=r"alice.*ε = 0\.6.*budget ε = 0\.55"):
        ledger.commit([charge(alice, 5, TENTH)])
    assert counted(path) == (5, 5)
    assert ledger.statement(alice).epsilon == pytest.approx(0.5)
    ledger.set_budget(alice, Budget(0.65, 0.0), reason="a vote")
    ledger.commit([charge(alice, 5, TENTH)])
    ledger.set_budget(alice, Budget(0.3, 0.0))  # a smaller budget forgets what fitted before
    assert ledger.would_exceed(alice, PureDP(1e-9))


def test_a_round_of_very_many_clients_is_looked_up_at_once(tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger._outbox.answered("run", 1, range(40_000)) == set()


def test_several_charges_in_one_commit_add_up(ledger, path):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    begin(ledger, "second")
    ledger.set_budget(alice, Budget(0.25, 0.0))
    three = [
        charge(alice, 0, TENTH),
        charge(alice, 0, TENTH, run="second"),
        charge(alice, 1, TENTH),
    ]
    with pytest.raises(BudgetExceeded):
        ledger.commit([charge(bob, 0, TENTH), *three])
    assert counted(path) == (0, 0)
    ledger.commit([charge(bob, 0, TENTH), *three[:2]])
    assert counted(path) == (3, 3)
    with pytest.raises(InvalidInput, match="only once"):
        ledger.commit([charge(bob, 1, TENTH), charge(bob, 1, TENTH)])


def test_an_infinite_cost_exceeds_any_budget(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1e9, 1e-5))
    naked = Release(Gaussian(1e-6), Sensitivity(1.0))
    assert account(Repeated(naked, 10), 1e-5).epsilon > 1e9
    with pytest.raises(BudgetExceeded):
        ledger.commit([charge(alice, 0, Repeated(naked, 10))])


def test_an_epsilon_that_is_not_a_number_fits_no_budget(ledger, path, monkeypatch):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1e9, 1e-5))
    broken = udpfl.PrivacyStatement(math.nan, 1e-5, "guarantee", "rdp")
    monkeypatch.setattr(spending, "accounted", lambda totals, delta, filter_: broken)
    monkeypatch.setattr(_limits, "accounted", lambda totals, delta, filter_: broken)
    assert ledger.would_exceed(alice, TENTH)
    with pytest.raises(BudgetExceeded):
        ledger.commit([charge(alice, 0, TENTH)])
    assert counted(path) == (0, 0)


def test_others_may_write_while_a_cost_is_computed(ledger, path, monkeypatch):
    """Accounting may take a while; the file is locked for the charge alone."""
    computed = []

    def computing(*arguments, **options):
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")  # an error where the file is locked
            other.execute("ROLLBACK")
        computed.append(arguments)
        return account(*arguments, **options)

    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(5.0, 1e-5))
    monkeypatch.setattr(spending, "account", computing)
    spending._accounted.cache_clear()
    ledger.commit([charge(alice, 0, ROUND)])
    assert len(computed) == 1
    assert counted(path) == (1, 1)


def test_an_answer_without_a_claim_is_never_private(ledger, path):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    ledger.set_budget(alice, Budget(1e9, 1e-5))
    with pytest.raises(BudgetExceeded, match="ε = inf"):
        ledger.commit([charge(alice, 0)])
    ledger.commit([charge(bob, 0), charge(bob, 1, TENTH)])
    statement = ledger.statement(bob, 1e-5)
    assert (statement.kind, statement.epsilon) == ("none", math.inf)
    assert [entry.event for entry in ledger.history(bob)] == [None, TENTH]
    assert ledger.verify() == []
    ledger.set_budget(bob, Budget(1e9, 1e-5))
    assert ledger.would_exceed(bob, PureDP(1e-9))


def test_units_and_neighbours_are_never_mixed(ledger, path):
    alice = ledger.account("alice", "aa")
    ledger.commit([charge(alice, 0, TENTH)])
    for other in (PureDP(0.1, unit="client"), PureDP(0.1, neighbours="replace-one")):
        with pytest.raises(Unsupported, match="different units or neighbour"):
            ledger.commit([charge(alice, 1, other)])
    ledger.set_budget(alice, Budget(100.0, 1e-5))
    with pytest.raises(Unsupported, match="different units or neighbour"):
        ledger.would_exceed(alice, PureDP(0.1, unit="client"))
    assert counted(path) == (1, 1)


def test_totals_are_those_of_the_history(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(50.0, 1e-6))
    rule = ledger.filter(alice)
    begin(ledger, "second")
    other = PoissonSampled(0.1, Release(Gaussian(2.0), Sensitivity(1.0)))
    listed = []
    for round_ in range(6):
        run, mixed = ("run", (ROUND, other)) if round_ % 2 else ("second", (Composed([STEP]),))
        ledger.commit([charge(alice, round_, *mixed, run=run)])
        listed += mixed
        assert ledger.statement(alice).epsilon == pytest.approx(
            account(Composed(listed), 1e-6, rule).epsilon, rel=1e-9
        )
        fixed = ledger.statement(alice, fixed_beforehand=True)
        assert fixed.epsilon == pytest.approx(account(Composed(listed), 1e-6).epsilon, rel=1e-9)
        assert (fixed.composition, ledger.statement(alice).composition) == ("fixed", "filter")
    brute = Counter()
    for entry in ledger.history(alice):
        brute[entry.event] += entry.count
    assert brute == {STEP: 3 * 5 + 3, other: 3}
    spent = ledger.spent(alice)
    assert isinstance(spent, Composed)
    assert {part.event: part.count for part in spent.events} == brute
    assert ledger.spent(alice, "second") == Composed([Repeated(STEP, 3)])
    assert ledger.spent(alice, "third") is None
    statement = ledger.statement(alice, 1e-5)
    assert (statement.kind, statement.delta) == ("guarantee", 1e-5)
    assert statement.epsilon == pytest.approx(account(Composed(listed), 1e-5, rule).epsilon)
    assert statement.epsilon > account(Composed(listed), 1e-5).epsilon


def test_a_nominal_run_counts_at_its_vector_value(ledger):
    alice = ledger.account("alice", "aa", runs="one")
    ledger.begin_run("paper", randomness="entropy", accounting="scalar", description={})
    event = Repeated(Release(Laplace(20.0), Sensitivity(1.0, "l2", 400)), 3)
    ledger.commit([charge(alice, 0, event, run="paper")])
    statement = ledger.statement(alice, 1e-5)
    assert statement.kind == "guarantee"
    assert statement.epsilon == pytest.approx(account(event, 1e-5).epsilon)
    assert statement.epsilon > account(event, 1e-5, accounting="scalar").epsilon


def test_statements_of_nothing_and_of_a_seeded_run(ledger, path):
    alice = ledger.account("alice", "aa")
    nothing = ledger.statement(alice)
    assert (nothing.epsilon, nothing.vector_epsilon, nothing.kind) == (0.0, 0.0, "guarantee")
    ledger.commit([charge(alice, 0, TENTH)])
    with pytest.raises(InvalidInput, match="alice has no budget"):
        ledger.statement(alice)
    with Ledger(path) as elsewhere:  # another process charges a seeded run
        begin(elsewhere, "test", randomness="seeded")
        assert ledger.statement(alice, 1e-5).kind == "guarantee"
        elsewhere.commit([charge(alice, 0, TENTH, run="test")])
    assert ledger.statement(alice, 1e-5).kind == "none"


def test_a_charge_whose_run_is_gone_proves_nothing(ledger, path):
    alice = ledger.account("alice", "aa")
    ledger.commit([charge(alice, 0, TENTH)])
    assert ledger.statement(alice, 1e-5).kind == "guarantee"
    with raw(path) as db:
        db.execute("DROP TRIGGER runs_never_delete")
        db.execute("DELETE FROM runs")
    with Ledger(path, read_only=True) as again:
        assert again.statement(alice, 1e-5).kind == "none"


# Cost


def test_a_reservation_makes_every_round_free(ledger, monkeypatch):
    calls = []

    def counting(*arguments, **options):
        calls.append(arguments)
        return account(*arguments, **options)

    monkeypatch.setattr(spending, "account", counting)
    spending._accounted.cache_clear()
    alice = ledger.account("alice", "aa", runs="one")
    rounds = 60
    epsilon = account(Repeated(ROUND, rounds), 1e-5).epsilon
    ledger.set_budget(alice, Budget(epsilon * (1 + 1e-9), 1e-5))
    ledger.reserve("run", {alice: Repeated(ROUND, rounds)})
    assert len(calls) == 1
    for round_ in range(rounds):
        assert not ledger.would_exceed(alice, ROUND, "run")
        ledger.commit([charge(alice, round_, ROUND)])
    assert len(calls) == 1
    assert ledger.would_exceed(alice, ROUND, "run")
    with pytest.raises(BudgetExceeded):
        ledger.commit([charge(alice, rounds, ROUND)])


def test_what_was_found_to_fit_ends_with_its_budget(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.05, 0.0))
    assert not ledger.would_exceed(alice, Repeated(TENTH, 10))
    ledger.set_budget(alice, Budget(0.55, 0.0))
    assert ledger.would_exceed(alice, Repeated(TENTH, 6))
    with pytest.raises(BudgetExceeded):
        ledger.commit([charge(alice, 0, Repeated(TENTH, 6))])
    ledger.commit([charge(alice, 0, Repeated(TENTH, 5))])


def test_what_was_found_to_fit_does_not_cover_other_releases(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1.05, 0.0))
    assert not ledger.would_exceed(alice, Repeated(TENTH, 10))
    ledger.commit([charge(alice, 0, PureDP(0.5))])
    assert not ledger.would_exceed(alice, Repeated(TENTH, 5))
    assert ledger.would_exceed(alice, Repeated(TENTH, 6))


def test_cost_is_flat_in_rounds(ledger):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(1000.0, 1e-5))
    ledger.reserve("run", {alice: Repeated(ROUND, 1000)})
    db = ledger._file._db
    work = []
    for round_ in range(400):
        steps = 0

        def step():
            nonlocal steps
            steps += 1
            return 0

        db.set_progress_handler(step, 1)  # called for every instruction of SQLite's machine
        ledger.commit([charge(alice, round_, ROUND)], settled=round_ - 1)
        ledger.spent(alice)
        assert ledger.message("run", alice, round_)
        db.set_progress_handler(None, 0)
        work.append(steps)
    assert max(work[300:]) <= 1.05 * max(work[10:30])
    assert ledger.verify() == []


def test_totals_of_several_clients_are_those_of_each():
    shared = Repeated(STEP, 2)
    several = [(shared,), (Repeated(TENTH, 2),), (shared, shared), (), (Repeated(STEP, 2),)]
    found = spending.totals_of_each(iter(several))
    assert found == [spending.totals_of(events) for events in several]
    made = spending.totals_of_each((Repeated(own, 2),) for own in (STEP, TENTH, STEP))
    assert made == [spending.totals_of([Repeated(own, 2)]) for own in (STEP, TENTH, STEP)]


def test_noise_that_was_changed_is_charged_as_it_is():
    """Nothing is remembered of an object from one call to the next."""
    noise = Gaussian(4.0)
    event = Release(noise, Sensitivity(1.0))
    before = spending.totals_of_each([(event,)])
    object.__setattr__(noise, "std", 0.5)
    assert spending.totals_of_each([(event,)]) != before
