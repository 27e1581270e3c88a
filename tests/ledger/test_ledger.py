"""The ledger: nothing is released that was not charged, nothing charged is ever lost."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import udpfl
from tests.conftest import Logistic
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
    SecretlySelected,
    Sensitivity,
    Shuffled,
    Staircase,
    Unsupported,
    account,
)
from udpfl.accounting.events import NominallyShuffled
from udpfl.accounting.serial import event_from_dict, event_from_json, event_to_dict, event_to_json
from udpfl.cli.budget import budget as budget_app
from udpfl.errors import BudgetExceeded, LedgerError
from udpfl.ledger import file as ledger_file
from udpfl.ledger import ledger as ledger_
from udpfl.ledger import outbox, spending
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger
from udpfl.mechanisms import tabulated

STEP = PoissonSampled(0.02, Release(Gaussian(1.1), Sensitivity(1.0)))
ROUND = Repeated(STEP, 5)
TENTH = PureDP(0.1)
TABLES = ("charges", "outbox")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger(path) as opened:
        begin(opened)
        yield opened


def begin(ledger, run="run", randomness="entropy"):
    ledger.begin_run(run, randomness=randomness, accounting="vector", description={"rounds": 9})


def charge(account, round_, *events, run="run", message=None, state=b""):
    return Charge(account, run, round_, events, message or f"answer {round_}".encode(), state)


def raw(path):
    return closing(sqlite3.connect(path, isolation_level=None))


def counted(path):
    with raw(path) as db:
        return tuple(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)


# Events as data

numbers = st.floats(1e-3, 1e3)
whole_numbers = st.integers(1, 10**12)
mechanisms = st.one_of(
    st.builds(Gaussian, numbers),
    st.builds(Laplace, numbers),
    st.builds(Staircase, st.floats(1e-2, 100.0), numbers, st.floats(0.0, 1.0)),
    st.builds(Staircase, st.floats(1e-2, 100.0), numbers),
    st.builds(Logistic, numbers),
)
sensitivities = st.builds(
    Sensitivity,
    st.floats(1e-100, 1e100),
    st.sampled_from(["l1", "l2", "linf"]),
    st.none() | whole_numbers,
)
units = st.sampled_from(["record", "client"])
rates = st.floats(1e-9, 1.0)
releases = st.builds(Release, mechanisms, sensitivities, units)
pure = st.builds(PureDP, numbers, units, st.just("add-remove"), st.booleans())
replaced = st.builds(PureDP, numbers, units, st.just("replace-one"), st.booleans())
answers = st.one_of(releases, pure, st.builds(PoissonSampled, rates, releases | pure))
shuffled = st.builds(Shuffled, answers, whole_numbers, st.booleans())
events = st.recursive(
    answers | shuffled | replaced,
    lambda inner: st.one_of(
        st.builds(Repeated, inner, whole_numbers),
        st.builds(Composed, st.lists(inner, max_size=3)),
        st.builds(SecretlySelected, rates, inner),
    ),
    max_leaves=5,
)


@given(events)
def test_every_event_survives_json_exactly(event):
    text = json.dumps(event_to_dict(event), allow_nan=False)
    back = event_from_dict(json.loads(text))
    assert back == event
    assert repr(back) == repr(event)  # every float to the last digit
    assert event_from_json(event_to_json(event)) == event


def test_equal_events_have_equal_texts_whatever_the_number_types():
    plain = PoissonSampled(0.5, Release(Gaussian(2.0), Sensitivity(1.0, "l2", 10)))
    odd = PoissonSampled(
        np.float32(0.5), Release(Gaussian(np.float64(2)), Sensitivity(1, "l2", np.int64(10)))
    )
    assert plain == odd
    event_to_json.cache_clear()
    first = event_to_json(plain)
    event_to_json.cache_clear()
    assert event_to_json(odd) == first


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: inner,
        lambda inner: Repeated(inner, 3),
        lambda inner: Composed([inner]),
        lambda inner: SecretlySelected(0.5, inner),
    ],
)
def test_a_nominal_shuffle_is_refused(wrap):
    with pytest.raises(Unsupported, match="nominal"):
        event_to_dict(wrap(NominallyShuffled(TENTH, 10)))


@pytest.mark.parametrize(
    "change",
    [
        {"type": "Guess"},
        {"type": None},
        {"type": ["Release"]},
        {"type": "NominallyShuffled"},
        {"rate": "0.5"},
        {"rate": True},
        {"rate": math.nan},
        {"rate": 1.5},
        {"colour": "red"},
        {"rate": ...},
        {"event": None},
        {"event": {"type": "PureDP", "epsilon": 1.0, "unit": "galaxy", "neighbours": "add-remove",
                   "discrete": False}},
        {"event": {"type": "PureDP", "epsilon": 1.0, "unit": "record", "neighbours": "add-remove",
                   "discrete": "no"}},
    ],
)  # fmt: skip
def test_what_is_not_exactly_an_event_is_refused(change):
    data = {**event_to_dict(STEP), **change}
    with pytest.raises(InvalidInput):
        event_from_dict({name: value for name, value in data.items() if value is not ...})


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "uniform", "parameters": {}},
        {"name": "gaussian", "parameters": {}},
        {"name": "gaussian", "parameters": {"std": 1.0, "scale": 1.0}},
        {"name": "gaussian", "parameters": {"std": -1.0}},
        {"name": "gaussian", "parameters": [1.0]},
        {"name": "gaussian"},
        {"class": "tests.conftest:Logistic", "parameters": {"scale": 1.0}},
        None,
    ],
)
def test_what_is_not_exactly_a_mechanism_is_refused(mechanism):
    data = {**event_to_dict(STEP.event), "mechanism": mechanism}
    with pytest.raises(InvalidInput):
        event_from_dict(data)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"type": {}}', "[" * 100_000])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(InvalidInput):
        event_from_json(text)


@dataclass(frozen=True)
class Sly(Gaussian):
    """A subclass that borrows a built-in name."""

    name = "gaussian"


def test_a_mechanism_of_ones_own_is_stored_by_its_class():
    event = Release(Sly(1.0), Sensitivity(1.0))
    data = event_to_dict(event)
    assert data["mechanism"]["class"] == "tests.ledger.test_ledger:Sly"
    assert type(event_from_dict(data).mechanism) is Sly


@pytest.mark.parametrize("path", ["no.such.module:Noise", "tests.conftest:Gone", "json:loads"])
def test_a_mechanism_that_cannot_be_loaded_is_refused_by_name(path):
    data = event_to_dict(Release(Logistic(1.0), Sensitivity(1.0, dimension=1)))
    data["mechanism"]["class"] = path
    with pytest.raises(Unsupported, match=path):
        event_from_dict(data)


def test_a_mechanism_whose_code_changed_is_refused(monkeypatch):
    data = event_to_dict(Release(Logistic(2.0), Sensitivity(1.0, dimension=1)))
    assert event_from_dict(data).mechanism == Logistic(2.0)
    tabulated._tabulate.cache_clear()  # a change of code means another process
    monkeypatch.setattr(Logistic, "shape", lambda self, x: -1.001 * x - 2 * np.log1p(np.exp(-x)))
    try:
        with pytest.raises(Unsupported, match=r"tests\.conftest:Logistic has another density"):
            event_from_dict(data)
    finally:
        tabulated._tabulate.cache_clear()


def test_a_mechanism_nobody_else_could_load_is_not_stored(monkeypatch):
    @dataclass(frozen=True)
    class Local(Gaussian):
        pass

    with pytest.raises(Unsupported, match="Local cannot be stored"):
        event_to_dict(Release(Local(1.0), Sensitivity(1.0)))
    monkeypatch.setattr(Sly, "__module__", "__main__")
    with pytest.raises(Unsupported, match="__main__:Sly cannot be stored"):
        event_to_dict(Release(Sly(1.0), Sensitivity(1.0)))


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
    with pytest.raises(InvalidInput, match="was begun with entropy randomness and vector"):
        begin(ledger, randomness="seeded")
    alice = ledger.account("alice", "aa")
    with pytest.raises(InvalidInput, match="has not begun"):
        ledger.commit([charge(alice, 0, TENTH, run="another")])
    with pytest.raises(InvalidInput, match="has no account 77"):
        ledger.commit([charge(77, 0, TENTH)])


# Charging


def test_a_commit_that_fails_stores_nothing(ledger, path, monkeypatch):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    put = outbox.Outbox.put
    for error in (RuntimeError("boom"), KeyboardInterrupt(), sqlite3.OperationalError("boom")):

        def failing(self, charge, error=error):
            put(self, charge)
            if charge.account == bob:
                raise error

        monkeypatch.setattr(outbox.Outbox, "put", failing)
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
    monkeypatch.setattr(ledger_, "accounted", lambda totals, delta, filter_: broken)
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


# The outbox


def test_a_repeated_request_gets_the_same_bytes(ledger, path):
    alice = ledger.account("alice", "aa")
    sent = bytes(range(256)) * 4
    assert ledger.message("run", alice, 0) is None
    assert ledger.state("run", alice) is None
    ledger.commit([charge(alice, 0, TENTH, message=sent, state=b"momentum")])
    with Ledger(path, read_only=True) as elsewhere:
        assert elsewhere.message("run", alice, 0) == sent
        assert elsewhere.state("run", alice) == b"momentum"
    with pytest.raises(LedgerError, match="answered round 0 of run run already"):
        ledger.commit([charge(alice, 0, TENTH, message=b"other")])
    assert ledger.message("run", alice, 0) == sent
    assert counted(path) == (1, 1)


def test_a_charge_without_a_message_may_be_charged_anew(ledger, path):
    alice = ledger.account("alice", "aa")
    ledger.commit([charge(alice, 0, TENTH)])
    with raw(path) as db:
        db.execute("DELETE FROM outbox")
    ledger.commit([charge(alice, 0, TENTH)])
    assert counted(path) == (2, 1)
    assert ledger.verify() == []
    assert ledger.statement(alice, 0.0).epsilon == pytest.approx(0.2)


def test_old_messages_are_dropped_and_stay_charged(ledger, path):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    for round_ in range(4):
        state = f"state {round_}".encode()
        clients = (alice, bob) if round_ < 2 else (alice,)
        ledger.commit([charge(client, round_, TENTH, state=state) for client in clients])
    ledger.commit([charge(alice, 4, TENTH, state=b"state 4")], settled=2)
    assert ledger.message("run", alice, 3) == b"answer 3"  # nothing is settled unless it is said
    with pytest.raises(LedgerError, match="already"):  # what fails drops nothing either
        ledger.commit([charge(alice, 0, TENTH)], settled=3)
    kept = [ledger.message("run", alice, round_) for round_ in range(5)]
    assert kept == [None, None, None, b"answer 3", b"answer 4"]
    assert (ledger.state("run", alice), ledger.state("run", bob)) == (b"state 4", b"state 1")
    with raw(path) as db:
        states = db.execute("SELECT account, round FROM outbox WHERE state IS NOT NULL").fetchall()
        digests = db.execute("SELECT count(digest) FROM outbox").fetchone()
    assert (sorted(states), digests) == ([(alice, 3), (alice, 4), (bob, 1)], (7,))
    with pytest.raises(LedgerError, match="already"):
        ledger.commit([charge(alice, 0, TENTH)])
    assert ledger.verify() == []
    assert ledger.statement(alice, 0.0).epsilon == pytest.approx(0.5)


def test_a_dropped_message_is_nowhere_on_disk(ledger, path):
    alice = ledger.account("alice", "aa")
    secrets = [os.urandom(size) for size in (200, 5_000, 300_000)]
    for round_, secret in enumerate(secrets):
        ledger.commit([charge(alice, round_, TENTH, message=secret, state=secret[::-1])])

    def stored():
        ledger._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        content = path.read_bytes()
        return [(secret[:100] in content, secret[:-101:-1] in content) for secret in secrets]

    assert stored() == [(True, True)] * 3
    ledger.forget("run", 2)
    assert stored() == [(False, False), (False, False), (False, True)]  # its latest state stays


def test_dropped_messages_leave_their_room_to_others(ledger, path):
    """A row that only shrinks would keep a page of its own."""
    clients = [ledger.account(name, name) for name in ("alice", "bob", "carol")]
    sizes = []
    for round_ in range(80):
        message, state = bytes(50_000 + round_), bytes(3_000)
        sent = [charge(each, round_, TENTH, message=message, state=state) for each in clients]
        ledger.commit(sent, settled=round_ - 2)
        ledger._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append(path.stat().st_size)
    assert sizes[-1] <= 1.3 * sizes[10]
    assert ledger.verify() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("round", -1), ("round", 1.0), ("round", True), ("message", "text"), ("state", None)],
)
def test_a_malformed_charge_is_refused(field, value):
    values = {"account": 1, "run": "run", "round": 0, "events": (), "message": b"", "state": b""}
    with pytest.raises(InvalidInput, match=field):
        Charge(**{**values, field: value})


# Tampering


@pytest.fixture
def used(path):
    """A closed ledger with two clients, two runs and some charges."""
    with Ledger(path) as ledger:
        begin(ledger)
        begin(ledger, "test", randomness="seeded")
        alice, bob = ledger.account("alice", "aa11", runs="one"), ledger.account("bob", "bb22")
        ledger.set_budget(alice, Budget(2.0, 1e-5))
        for round_ in range(3):
            ledger.commit([charge(alice, round_, ROUND), charge(bob, round_, TENTH, run="test")])
        assert ledger.verify() == []
    return path


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


# Several processes

WRITER = """
import sys, time
from pathlib import Path
from udpfl import PureDP
from udpfl.errors import BudgetExceeded
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger

path, run, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
while not path.with_name("go").exists():
    time.sleep(0.001)
with Ledger(path) as ledger:
    ledger.begin_run(run, randomness="entropy", accounting="vector", description={})
    account = ledger.account("alice", "aa")
    first = 1 + max((entry.round for entry in ledger.history(account)), default=-1)
    for number in range(first, first + rounds):
        try:
            ledger.commit([Charge(account, run, number, (PureDP(0.1),), bytes(2000))])
        except BudgetExceeded:
            continue
        print(number, flush=True)
"""


def started(path, run, rounds):
    source = str(Path(udpfl.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, "-c", WRITER, str(path), run, str(rounds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def race(path, *runs):
    processes = [started(path, run, 50) for run in runs]
    path.with_name("go").touch()
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return outputs


def test_two_processes_lose_no_charge(path):
    outputs = race(path, "left", "right")  # neither finds a file: both create it at once
    assert [len(output) for output in outputs] == [50, 50]
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        assert counted(path) == (100, 100)
        assert ledger.spent(1) == Composed([Repeated(TENTH, 100)])
        assert Counter(entry.run for entry in ledger.history()) == {"left": 50, "right": 50}


def test_many_may_create_the_ledger_at_once(tmp_path):
    def opened(path):
        with Ledger(path) as ledger:
            return ledger.account("alice", "aa")

    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            assert set(pool.map(opened, [tmp_path / f"{number}.sqlite"] * 8)) == {1}


def test_two_processes_share_one_budget(path):
    with Ledger(path) as ledger:
        ledger.set_budget(ledger.account("alice", "aa"), Budget(3.05, 0.0))  # thirty tenths fit
    outputs = race(path, "left", "right")
    assert sum(len(output) for output in outputs) == 30
    assert counted(path) == (30, 30)
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        assert ledger.statement(1).epsilon == pytest.approx(3.0)


@pytest.mark.parametrize("rival_round", [0, 1])
def test_a_rival_between_check_and_lock_is_seen(ledger, path, monkeypatch, rival_round):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(0.15, 0.0))
    writing = ledger._file.writing

    def late():
        monkeypatch.undo()
        with Ledger(path) as rival:
            rival.commit([charge(alice, rival_round, TENTH, message=b"first")])
        return writing()

    monkeypatch.setattr(ledger._file, "writing", late)
    # The same request is answered with the stored message; another one finds the budget used up.
    with pytest.raises(LedgerError if rival_round == 0 else BudgetExceeded):
        ledger.commit([charge(alice, 0, TENTH, message=b"second")])
    assert counted(path) == (1, 1)
    assert ledger.message("run", alice, rival_round) == b"first"


def test_a_killed_writer_leaves_a_sound_ledger(path):
    chance = random.Random(7)
    path.with_name("go").touch()
    acknowledged = []
    for _ in range(3):
        process = started(path, "run", 10**6)
        acknowledged.append(int(process.stdout.readline()))
        time.sleep(chance.uniform(0.0, 0.25))
        process.kill()
        acknowledged += [int(line) for line in process.communicate()[0].split()]
        with Ledger(path, read_only=True) as ledger:
            assert ledger.verify() == []
            stored = [entry.round for entry in ledger.history()]
        charges, messages = counted(path)
        assert charges == messages == len(stored)
        assert set(acknowledged) <= set(stored)  # what was confirmed is on record
    assert len(stored) - len(acknowledged) <= 3  # what was not confirmed is over-counted


# The command

app = typer.Typer()
app.add_typer(budget_app)


def call(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["budget", *map(str, arguments)])


def failure(*arguments):
    result = call(*arguments)
    assert result.exit_code == 1
    return result.exception


def test_show(used):
    rows = json.loads(call("show", used.parent, "--json").stdout)  # the folder of a run
    alice, bob = rows
    expected = account(Repeated(STEP, 15), 1e-5).epsilon
    assert (alice["client"], alice["releases"], alice["runs"]) == ("alice", 15, ["run"])
    assert alice["statement"]["epsilon"] == pytest.approx(expected)
    assert alice["left"] == pytest.approx(1 - expected / 2.0)
    assert (bob["statement"]["kind"], bob["budget"], bob["left"]) == ("none", None, None)
    table = call("show", used).stdout
    assert "  data aa11" in table
    assert f"{math.floor(100 * (1 - expected / 2))} %" in table
    assert "not private" in table
    assert "bob: noise of a seeded run" in table
    assert "bob" not in call("show", used, "--client", "alice").stdout
    assert failure("show", used, "--delta", "2").parameter == "delta"
    assert failure("show", used, "--client", "carol").parameter == "client"


def test_set(used):
    higher = ("set", used, "alice", "--epsilon", "3", "--delta", "1e-6")
    assert failure(*higher).parameter == "reason"
    said = call(*higher, "--reason", "ethics vote", "--by", "Ada").stdout
    assert "budget ε = 3 at δ = 1e-06" in said
    with Ledger(used) as ledger:
        assert ledger.budget(1) == Budget(3.0, 1e-6)
        last = ledger.decisions(1)[-1]
        assert (last.kind, last.reason, last.author) == ("budget", "ethics vote", "Ada")
    options = ("--epsilon", "2", "--delta", "1e-6")
    assert call("set", used, "alice", *options).exit_code == 0  # lower needs no reason
    assert failure("set", used, "alice", *options, "--block", "Q3").parameter == "block"
    assert failure("set", used, "carol", *options).parameter == "client"
    for bad in (("--epsilon", "2.5", "--delta", "1e-6"), ("--epsilon", "2", "--delta", "1e-5")):
        assert failure("set", used, "alice", *bad, "--reason", " ").parameter == "reason"
    assert failure("set", used, "alice", "--epsilon", "-1", "--delta", "0").parameter == "epsilon"


def test_history_and_export(used, tmp_path):
    call("set", used, "alice", "--epsilon", "1.9", "--delta", "1e-5", "--by", "Ada")
    found = json.loads(call("history", used, "--json").stdout)
    assert found["changes"][-1]["content"] == {"delta": 1e-5, "epsilon": 1.9}
    assert found["changes"][-1]["author"] == "Ada"
    rows = [{k: v for k, v in row.items() if k != "folder"} for row in found["charges"]]
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert event_from_dict(rows[0]["event"]) == STEP
    table = call("history", used, "--client", "alice").stdout
    assert "gaussian (std 1.1), l2 clip 1 per record, sampled at 0.02" in table
    assert "bob" not in table
    assert "budget ε = 1.9 at δ = 1e-05" in table
    assert "Ada" in table
    assert table.count("gaussian") == 1  # three rounds alike are one line, with their sum
    assert "0–2" in table
    assert " 15 " in table
    every = call("history", used, "--client", "alice", "--all").stdout
    assert every.count("gaussian") == 3
    assert "0–2" not in every
    for name in ("charges.json", "charges.csv"):
        assert "wrote 6 charges" in call("export", used, tmp_path / name).stdout
    assert json.loads((tmp_path / "charges.json").read_text(encoding="utf-8")) == rows
    with (tmp_path / "charges.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(line["client"], line["count"]) for line in lines[:2]] == [("alice", "5"), ("bob", "1")]
    assert event_from_json(lines[0]["event_json"]) == STEP
    assert failure("export", used, tmp_path / "charges.xml").parameter == "file"
    assert failure("export", used, tmp_path / "nowhere" / "charges.csv").parameter == "file"


def test_verify_command(used):
    assert call("verify", used).stdout == "sound: 6 charges of 2 clients\n"
    with raw(used) as db:
        db.execute("DROP TRIGGER charges_never_update")
        db.execute("UPDATE charges SET count = 1 WHERE id = 5")
    result = call("verify", used)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2  # the edit and the missing trigger
    assert "charge 5 was edited" in result.stdout
    used.write_bytes(b"nonsense" * 1000)
    assert "damaged" in call("verify", used).stdout


@pytest.mark.parametrize("verb", ["show", "set", "history", "export", "verify"])
def test_a_missing_ledger_is_never_created(tmp_path, verb):
    more = {"set": ["alice", "--epsilon", "1", "--delta", "0"], "export": [tmp_path / "out.csv"]}
    for missing in (tmp_path / "none.sqlite", tmp_path):
        error = failure(verb, missing, *more.get(verb, []))
        assert isinstance(error, InvalidInput)
        assert error.parameter == "ledger"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["show", "set", "history", "export", "verify"])
def test_every_verb_shows_an_example(verb):
    assert f"udpfl budget {verb} " in call(verb, "--help").stdout
    assert verb in call().stdout


def test_one_unreadable_account_hides_no_other(used):
    with raw(used) as db:
        db.execute("DROP TRIGGER charges_never_update")
        db.execute("UPDATE charges SET event = replace(event, 'gaussian', 'x') WHERE account = 1")
        db.execute("UPDATE charges SET event = replace(event, '\"name\"', '\"class\"')")
        db.execute("DROP TRIGGER runs_never_update")
        db.execute("UPDATE runs SET randomness = 'entropy'")
    alice, bob = json.loads(call("show", used, "--json").stdout)
    assert alice["statement"]["notes"][0].startswith("cannot be accounted")
    assert bob["statement"]["kind"] == "guarantee"
    assert "unreadable" in call("history", used).stdout
    with Ledger(used) as ledger:
        with pytest.raises(InvalidInput):
            ledger.statement(1)
        assert ledger.statement(2, 0.0).epsilon == pytest.approx(0.3)
        with pytest.raises(InvalidInput):
            ledger.commit([charge(1, 9, ROUND)])
        ledger.commit([charge(2, 9, TENTH)])
