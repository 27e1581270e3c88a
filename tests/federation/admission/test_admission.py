"""Whether a run may begin: budgets, reservations, moves and refusals, through Python."""

from __future__ import annotations

import json
import logging
import signal

import numpy as np
import pytest
import torch
from torch import nn

import udpfl
from udpfl import Budget, PureDP, Repeated
from udpfl.accounting.filter import Filter
from udpfl.accounting.serial import event_from_dict
from udpfl.config import load
from udpfl.errors import BudgetExceeded, InvalidInput, LedgerError
from udpfl.ledger.divisions import Divisions
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import Sealed

pytestmark = pytest.mark.usefixtures("one_thread")


def blobs(seed=0, size=90):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(size, 4)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0).astype(np.int64)


def settings(tmp_path, name, **changes):
    privacy = {
        "mechanism": "gaussian", "epsilon": 2.0, "delta": 1e-5,
        "ledger": str(tmp_path / "site.sqlite"), **changes.pop("privacy", {}),
    }  # fmt: skip
    training = {"rounds": 3, **changes.pop("training", {})}
    data = {"clients": changes.pop("clients", 3), "block": changes.pop("data_block", None)}
    data = {key: value for key, value in data.items() if value is not None}
    return {
        "out": str(tmp_path / name), "privacy": privacy, "training": training, "data": data,
        **changes,
    }  # fmt: skip


def run(tmp_path, name="run", data=None, observers=(), **changes):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    if isinstance(data, list):
        changes.setdefault("clients", len(data))
    return udpfl.run(
        settings(tmp_path, name, **changes), data=data or blobs(), model=model, observers=observers
    )


def opened(tmp_path):
    return Ledger(tmp_path / "site.sqlite")


def test_a_plan_is_reserved_while_it_runs_and_given_back_at_the_end(tmp_path):
    seen = []

    class Watch(udpfl.Observer):
        def on_round(self, row):
            with opened(tmp_path) as ledger:
                rest = ledger.reserved(1)
                seen.append(sum(e.count for own in rest.values() for e in own.events))
                ledger.begin_run("other", randomness="entropy", accounting="vector", description={})
                with pytest.raises(BudgetExceeded):
                    ledger.reserve("other", {1: PureDP(1.0)})

    run(tmp_path, observers=[Watch()])
    assert seen == [2, 1, 0]
    with opened(tmp_path) as ledger:
        assert ledger.reserved(1) == {}
        assert ledger.verify() == []


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    run(tmp_path, "first")
    before = (tmp_path / "site.sqlite").read_bytes()
    with pytest.raises(BudgetExceeded, match="nothing was trained"):
        run(tmp_path, "second")
    assert not (tmp_path / "second").exists()
    assert (tmp_path / "site.sqlite").read_bytes() == before


def test_skip_begins_without_those_who_cannot_pay(tmp_path, caplog):
    parts = [blobs(seed) for seed in range(3)]
    run(tmp_path, "first", data=parts)
    with opened(tmp_path) as ledger:
        ledger.set_budget(2, Budget(9.0, 1e-5), reason="a vote")
    with caplog.at_level(logging.WARNING):
        result = run(tmp_path, "second", data=parts, privacy={"exhausted": "skip"})
    assert (
        "the run begins without client-0, client-2: the budget is too small for it" in caplog.text
    )
    assert {row["participants"] for row in result.metrics} == {1}
    with opened(tmp_path) as ledger:
        assert [sum(e.count for e in ledger.history(own)) for own in (1, 2, 3)] == [3, 6, 3]
    again = udpfl.run(resume=result.folder, model=nn.Linear(4, 2), data=parts)
    assert again.privacy == result.privacy
    with pytest.raises(BudgetExceeded, match="no client has enough budget left"):
        run(tmp_path, "third", data=parts, privacy={"exhausted": "skip", "epsilon": 9.0})


def test_fit_trains_all_rounds_with_more_noise(tmp_path, caplog):
    parts = [blobs(seed) for seed in range(3)]
    run(tmp_path, "first", data=parts)
    with opened(tmp_path) as ledger:
        ledger.set_budget(2, Budget(9.0, 1e-5), reason="a vote")
        for own in (1, 3):
            ledger.set_budget(own, Budget(2.5, 1e-5), reason="a vote")
    result = run(tmp_path, "second", data=parts, privacy={"exhausted": "fit"})
    assert [row["participants"] for row in result.metrics] == [3, 3, 3]
    people = json.loads((tmp_path / "second" / "participants.json").read_text())
    noise = [event_from_dict(own["release"]).mechanism.noise_std for own in people]
    assert noise[0] == noise[2] > 1.2 * noise[1]
    with opened(tmp_path) as ledger:
        assert 2.49 < ledger.statement(1).epsilon <= 2.5
        assert 2 < ledger.statement(2).epsilon < 5


def test_fit_that_cannot_fit_is_refused(tmp_path):
    run(tmp_path, "first")
    with opened(tmp_path) as ledger:
        for own in (1, 2, 3):
            ledger.set_budget(own, Budget(1.0, 1e-5))
    with pytest.raises(BudgetExceeded, match="no noise makes this run fit"):
        run(tmp_path, "second", privacy={"exhausted": "fit"})
    assert not (tmp_path / "second").exists()


def test_stop_names_its_successor(tmp_path):
    with pytest.raises(InvalidInput, match=r"'stop' no longer exists: use 'refuse'"):
        run(tmp_path, privacy={"exhausted": "stop"})


def test_another_accountant_than_the_ledgers_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="adds up runs with its own filter"):
        run(tmp_path, privacy={"accountant": "rdp"})


def test_a_killed_run_holds_what_it_reserved_until_it_is_freed_on_record(tmp_path, udpfl_):
    class Dies(udpfl.Observer):
        def on_round(self, row):
            raise KeyboardInterrupt if row["round"] == 1 else AssertionError

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "killed", observers=[Dies()])
    with pytest.raises(BudgetExceeded):
        run(tmp_path, "other", privacy={"epsilon": 1.5})
    site = tmp_path / "site.sqlite"
    assert "reserved by killed" in " ".join(udpfl_("budget", "show", site)[1].split())
    free = ("budget", "free", site, tmp_path / "killed")
    assert udpfl_(*free, "--reason", " ")[0] == 2
    code, out, _ = udpfl_(*free, "--reason", "power cut", "--by", "Ada")
    assert code == 0
    assert "the reserved budgets of 3 clients are free again" in out
    assert udpfl_(*free, "--reason", "again")[0] == 2
    said = [d for d in opened(tmp_path).decisions() if d.kind == "give back"]
    assert {(d.reason, d.author) for d in said} == {("power cut", "Ada")}
    run(tmp_path, "other", training={"rounds": 1}, privacy={"exhausted": "fit"})
    # What is left is not enough for the killed run any more, and it says so before it trains.
    with pytest.raises(BudgetExceeded):
        udpfl.run(resume=tmp_path / "killed", model=nn.Linear(4, 2), data=blobs())


def test_a_resumed_run_goes_on_with_what_it_reserved(tmp_path):
    class Dies(udpfl.Observer):
        def on_round(self, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "killed", observers=[Dies()])
    with opened(tmp_path) as ledger:
        rows = len(ledger.decisions())
    again = udpfl.run(resume=tmp_path / "killed", model=nn.Linear(4, 2), data=blobs())
    assert again.privacy.epsilon <= 2.0
    with opened(tmp_path) as ledger:
        kinds = [d.kind for d in ledger.decisions()[rows:]]
    assert kinds == ["give back"] * 3 + ["end"]


def test_another_division_takes_over_the_largest_spending(tmp_path):
    budgets = {"epsilon": 6.0}
    run(tmp_path, "first", privacy=budgets)
    with opened(tmp_path) as ledger:
        ledger.import_charge(1, Repeated(PureDP(0.01), 2), source="elsewhere")
        for own in (1, 2, 3):
            ledger.set_budget(own, Budget(12.0, 1e-5), reason="a vote")
    second = run(tmp_path, "second", seed=1, privacy=budgets)
    for name, statement in second.clients.items():
        assert statement.epsilon > 6.0
        moved = any("may have been at other clients" in note for note in statement.notes)
        assert moved == (name != "client-0")
    with opened(tmp_path) as ledger:
        assert [sum(own.count for own in ledger.spent(a).events) for a in (1, 2, 3)] == [8, 8, 8]
    with pytest.raises(LedgerError, match="client-2, which may have held them, is not in this run"):
        run(tmp_path, "third", clients=2, privacy=budgets)


def test_clients_that_pay_unlike_are_refused_after_a_move(tmp_path):
    run(tmp_path, "first", privacy={"epsilon": [2.0, 2.0, 2.0]})
    with opened(tmp_path) as ledger:
        for own in (1, 2, 3):
            ledger.set_budget(own, Budget(9.0, 1e-5), reason="a vote")
    with pytest.raises(BudgetExceeded, match="all clients need the same plan"):
        run(tmp_path, "second", seed=1, privacy={"epsilon": [0.5, 1.0, 2.0]})
    assert not (tmp_path / "second").exists()


def test_the_ledger_of_a_run_is_not_for_others(tmp_path):
    first = run(tmp_path, "first", privacy={"ledger": None})
    with pytest.raises(LedgerError, match="belongs to one run and cannot be shared"):
        run(tmp_path, "second", privacy={"ledger": str(first.ledger_path)})


def test_a_run_that_a_person_stops_is_stated_with_its_plan(tmp_path):
    class Stops(udpfl.Observer):
        def on_round(self, row):
            if row["round"] == 1:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "own", observers=[Stops()], privacy={"ledger": None})
    with Ledger(tmp_path / "own" / "ledger.sqlite", read_only=True) as ledger:
        stated = ledger.statement(1)
        so_far = ledger.statement(1, fixed_beforehand=True)
    assert 1.9 < stated.epsilon <= 2.0
    assert so_far.epsilon < 0.8 * stated.epsilon
    assert any("planned to release" in note for note in stated.notes)


@pytest.mark.parametrize(
    "changes", [{"privacy": {"pace": "increasing"}}, {"privacy": {"clip_quantile": 0.5}}]
)
def test_pace_and_adaptive_clip_fix_their_privacy_parameters_beforehand(tmp_path, changes):
    """What is charged is what was reserved before the first round, release by release."""
    run(tmp_path, **changes)
    with opened(tmp_path) as ledger:
        reserved = [d for d in ledger.decisions(1) if d.kind == "reserve"]
        charged = {}
        for entry in ledger.history(1):
            charged[entry.event_json] = charged.get(entry.event_json, 0) + entry.count
    assert len(reserved) == 1
    assert reserved[0].charges == 0
    assert charged == reserved[0].content["totals"]


def test_an_account_that_was_opened_without_a_budget_gets_the_runs(tmp_path):
    """Its orders are planned for that budget, and so is the noise."""
    parts = [blobs(seed) for seed in range(2)]
    with opened(tmp_path) as ledger:
        alice = ledger.account("client-0", "0" * 32)
        assert ledger.filter(alice) != Filter.planned(0.5, 1e-5)
    run(tmp_path, data=parts, clients=2, privacy={"epsilon": 0.5})
    with opened(tmp_path) as ledger:
        assert ledger.filter(alice) == Filter.planned(0.5, 1e-5)
        assert 0.49 < ledger.statement(alice).epsilon <= 0.5


def test_clients_that_are_left_out_pay_unlike_after_a_move(tmp_path):
    run(tmp_path, "first")
    with opened(tmp_path) as ledger:
        for own in (1, 2):
            ledger.set_budget(own, Budget(9.0, 1e-5), reason="a vote")
    with pytest.raises(BudgetExceeded, match="all clients need the same plan"):
        run(tmp_path, "second", seed=1, privacy={"exhausted": "skip"})
    assert not (tmp_path / "second").exists()


def test_a_list_takes_over_what_a_divided_set_has_spent(tmp_path):
    inputs, labels = blobs()
    run(tmp_path, "first")
    parts = [(inputs[i::3], labels[i::3]) for i in range(3)]
    with pytest.raises(BudgetExceeded, match="is too small for this run"):
        run(tmp_path, "second", data=[*parts, (inputs, labels)], clients=4)
    with pytest.raises(BudgetExceeded, match="no client has enough budget left"):
        run(
            tmp_path, "third", data=[*parts, (inputs, labels)], clients=4,
            privacy={"exhausted": "skip"},
        )  # fmt: skip


def test_two_clients_with_the_very_same_records_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="client-0 and client-1 hold exactly the same records"):
        udpfl.run(
            settings(tmp_path, "run", clients=2), data=[blobs(), blobs()], test=blobs(9),
            model=nn.Linear(4, 2),
        )  # fmt: skip
    assert not (tmp_path / "site.sqlite").exists()


def lists(*seeds):
    return [blobs(seed) for seed in seeds]


def test_records_are_known_under_another_name_whatever_was_held_out_for_testing(tmp_path):
    run(tmp_path, "first", lists(1, 2))
    for seed in (0, 5):
        with pytest.raises(InvalidInput, match="client-0 is known there as client-1"):
            run(tmp_path, "second", lists(2, 1), seed=seed)
    with pytest.raises(InvalidInput, match="client-2 is known there as client-0"):
        run(tmp_path, "second", lists(3, 2, 1), seed=5)
    with opened(tmp_path) as ledger:
        assert [own.client for own in ledger.accounts()] == ["client-0", "client-1"]


def test_a_data_set_is_not_a_block_of_itself_after_another_seed(tmp_path):
    run(tmp_path, "first")
    with opened(tmp_path) as ledger:
        for number in range(3):
            ledger.declare_block(f"client-{number}", "Q3", reason="a mistake")
    for seed in (0, 1):
        with pytest.raises(InvalidInput, match=r"known there as|exactly this data set"):
            run(tmp_path, "second", seed=seed, data_block="Q3")


def test_what_is_imported_later_moves_as_well(tmp_path):
    """Those records may be at another client by now."""
    run(tmp_path, "first", privacy={"epsilon": 0.5})
    with opened(tmp_path) as ledger:
        ledger.set_budgets([1, 2, 3], Budget(6.0, 1e-5), reason="a vote")
        ledger.import_charge(1, Repeated(PureDP(0.5), 4), source="elsewhere")
    result = run(tmp_path, "second", privacy={"epsilon": 0.5})
    assert min(own.epsilon for own in result.clients.values()) > 2


def test_a_run_that_is_refused_at_the_last_moment_leaves_the_ledger_as_it_was(
    tmp_path, monkeypatch
):
    run(tmp_path, "first", privacy={"epsilon": 0.5})
    with opened(tmp_path) as ledger:
        before = ledger.decisions()
    monkeypatch.setattr("udpfl.federation.admission.fitting.fits_budget", lambda *_: True)
    with pytest.raises(BudgetExceeded, match="nothing was reserved"):
        run(tmp_path, "second", seed=1, privacy={"epsilon": 6.0})
    with opened(tmp_path) as ledger:
        assert ledger.decisions() == before


def test_a_freed_run_does_not_go_on_until_it_is_resumed(tmp_path):
    class Free(udpfl.Observer):
        def on_round(self, row):
            if row["round"] == 1:
                with opened(tmp_path) as ledger:
                    ledger.give_back(next(iter(ledger.reserved(1))), reason="by mistake")

    result = run(tmp_path, "first", observers=[Free()])
    assert "its reservation was freed" in result.stopped
    with opened(tmp_path) as ledger:
        assert ledger.rounds_charged(ledger.history(1).__next__().run, 1) == 1
    torch.manual_seed(0)
    again = udpfl.run(resume=tmp_path / "first", data=blobs(), model=nn.Linear(4, 2))
    assert again.stopped is None
    assert [row["round"] for row in again.metrics] == [1, 2, 3]


def test_nothing_is_offered_that_would_not_fit(tmp_path):
    run(tmp_path, "first")
    with opened(tmp_path) as ledger:
        ledger.set_budgets([1, 2, 3], Budget(2.8, 1e-5), reason="a vote")
    with pytest.raises(BudgetExceeded, match="no part of this run would fit"):
        run(tmp_path, "second", privacy={"accounting": "scalar"})
    with pytest.raises(BudgetExceeded) as refused:
        run(tmp_path, "second", privacy={"epsilon": [1.5, 1.8, 2.0]})
    assert "of 3 rounds" not in str(refused.value)
    assert "3 rounds with noise" in str(refused.value)


def test_a_refusal_says_what_was_spent_and_why_another_seed_does_not_help(tmp_path):
    first = run(tmp_path, "first")
    with pytest.raises(BudgetExceeded) as refused:
        run(tmp_path, "second")
    assert f"of which ε = {first.privacy.epsilon:.4g} is spent; " in str(refused.value)
    assert "records may have moved" not in str(refused.value)
    assert "reserved" not in str(refused.value)
    assert "`udpfl budget set` raises a budget" in str(refused.value)
    with pytest.raises(BudgetExceeded, match="so every client continues with the largest spending"):
        run(tmp_path, "second", seed=1)


def test_a_refusal_names_runs_that_hold_reservations(tmp_path):
    class Killed(Exception):
        pass

    class Kill(udpfl.Observer):
        def on_round(self, row):
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, "first", observers=[Kill()])
    with pytest.raises(BudgetExceeded) as refused:
        run(tmp_path, "second")
    assert "is spent or reserved; " in str(refused.value)
    assert "first may still spend what it reserved: continue it (--resume)" in str(refused.value)


def test_a_test_split_of_the_same_records_is_an_assumption_of_shared_ledgers(tmp_path):
    settings = {"training": {"rounds": 1}, "privacy": {"epsilon": 1.0}}
    own = udpfl.run(settings, out=str(tmp_path / "own"))
    assert "test split" not in str(own.privacy)
    shared = load(settings, {"privacy": {"ledger": str(tmp_path / "site.sqlite")}})
    shared = udpfl.run(shared, out=str(tmp_path / "shared"))
    assert "assumes that the records of the test split are public" in str(shared.privacy)


def test_an_own_ledger_takes_no_second_plan(tmp_path, monkeypatch):
    """Somebody has seen the results, raises the budget and edits the run's files."""
    first = run(tmp_path, "own", privacy={"ledger": None, "epsilon": 1.0})
    with Ledger(first.ledger_path) as ledger:
        for own in (1, 2, 3):
            ledger.set_budget(own, Budget(8.0, 1e-5), reason="results were good")
    people = tmp_path / "own" / "participants.json"
    people.write_text(people.read_text().replace('"rounds": 3', '"rounds": 12'))
    config = tmp_path / "own" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 3", "rounds = 12"))
    with pytest.raises(InvalidInput, match=r"is not the file that the run began with"):
        udpfl.run(resume=tmp_path / "own", model=nn.Linear(4, 2), data=blobs())
    monkeypatch.setattr(Ledger, "sealed", lambda *_: Sealed(None, None))  # by an earlier version
    with pytest.raises(LedgerError, match="planned as a whole before it began"):
        udpfl.run(resume=tmp_path / "own", model=nn.Linear(4, 2), data=blobs())
    with Ledger(first.ledger_path) as ledger:
        assert ledger.statement(1).epsilon <= 1.0


def test_what_a_run_reads_before_it_begins_is_of_one_moment(tmp_path, monkeypatch):
    """Another run with the same clients begins between two reads: nothing has moved."""
    accounts = tmp_path / "first"
    accounts.mkdir()
    run(accounts)
    with opened(accounts) as known, opened(tmp_path) as ledger:  # budgets only, no division yet
        for own in known.accounts():
            (data,) = known.versions(own.id)
            ledger.set_budget(ledger.account(own.client, data), Budget(9.0, 1e-5))
    read_division, others = (
        Divisions.last,
        iter([lambda: run(tmp_path, "other", observers=[Dies()])]),
    )

    class Dies(udpfl.Observer):
        def on_round(self, row):
            raise RuntimeError("killed, with reservations")

    def other_run_begins_afterwards(divisions, block):
        division = read_division(divisions, block)
        monkeypatch.setattr(Divisions, "last", read_division)
        with pytest.raises(RuntimeError, match="with reservations"):
            next(others)()
        return division

    monkeypatch.setattr(Divisions, "last", other_run_begins_afterwards)
    run(tmp_path)
    assert next(others, None) is None
    with opened(tmp_path) as ledger:
        assert ledger.verify() == []
        assert len(list(ledger.history())) == 3 * 3 + 3
