"""Noise that follows results: whatever those are, no account pays more than its budget.

What was charged is read from the file with plain SQL and added up by a Rényi formula of this file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import udpfl
from tests.ledger.samples import raw
from tests.small import PowerCut, Seen, Stops, Wide, blobs, linear, people_of
from udpfl import Budget, Gaussian, Release, Sensitivity, Setting, calibrate
from udpfl.accounting.filter import Filter
from udpfl.accounting.pacing import noise_factors, noise_levels
from udpfl.audit.ledger import audit_ledger
from udpfl.errors import BudgetExceeded, InvalidInput
from udpfl.federation import ReleasePlan, Request
from udpfl.federation._pacing import Pacing
from udpfl.federation.request import PACE
from udpfl.federation.stages.plateau import Plateau, step_length
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger
from udpfl.report import read_run
from udpfl.report.charts import run_charts

ANYTHING = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 0.5, 1.0, 1.2, 99.0]))


# Levels, and what a server asks for


@given(st.floats(1.0, 50.0))
def test_the_planned_noise_is_in_the_middle_of_the_levels(ratio):
    levels = noise_levels("plateau", ratio)
    assert levels[0] / levels[-1] == pytest.approx(ratio)
    assert levels[4] == 1
    assert list(levels) == sorted(levels, reverse=True)
    for pace in ("uniform", "increasing", "decaying"):
        assert noise_levels(pace, ratio) == ()
    assert noise_factors("plateau", ratio, 9) == ()  # all rounds are planned alike


def by_hand(followed, levels, patience):
    """The level that is asked for after every round, rule by rule."""
    asked, best, waited, place = [], math.inf, 0, 0
    for value in followed:
        is_better = math.isfinite(value) and (
            math.isinf(best) or best - value > 0.01 * abs(value)
        )  # fmt: skip
        best, waited = (value, 0) if is_better else (best, waited + 1)
        if waited == patience:
            place, waited = min(place + 1, len(levels) - 1), 0
        asked.append(levels[place])
    return asked


@given(st.lists(st.one_of(st.floats(-3, 3), st.just(math.nan), st.just(math.inf))),
       st.integers(1, 4), st.integers(0, 30))  # fmt: skip
def test_noise_falls_after_some_rounds_without_improvement(followed, patience, crash):
    """And goes on after a crash as it would have."""
    levels = (1.4, 1.0, 0.7)

    def build():
        return Plateau(levels, patience, lambda before, after: float(after[0]))

    stage, asked = build(), []
    assert stage.request()[PACE].item() == 1.4
    for round_, value in enumerate(followed, 1):
        if round_ == crash:
            kept, stage = stage.state(), build()
            stage.restore({**kept, "average": torch.zeros(1)})
        stage.receive(round_, {"model": torch.zeros(1)}, [])
        model = {"model": torch.tensor([value], dtype=torch.float64)}
        assert stage.publish(round_, model) is model
        asked.append(stage.request()[PACE].item())
        json.dumps(stage.measure(), allow_nan=False)
    assert asked == by_hand(followed, levels, patience)


def test_the_length_of_a_step():
    assert step_length(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 6.0])) == 5.0


def test_the_price_of_a_filter_that_the_page_on_mathematics_states():
    def std(epsilon, **rule):
        setting = Setting(epsilon, 1e-5, 80, Sensitivity(1.0, "l2", 100), 0.5, **rule)
        return calibrate("gaussian", setting).mechanism.std

    for epsilon, fixed, filtered in ((2.0, 9.03, 10.07), (8.0, 2.81, 3.07)):
        assert std(epsilon) == pytest.approx(fixed, abs=0.005)
        by_filter = std(epsilon, accountant=Filter.planned(epsilon, 1e-5))
        assert by_filter == pytest.approx(filtered, abs=0.005)


# What clients make of it


ROUNDS, DELTA = 8, 1e-5
LEVELS = noise_levels("plateau", 4.0)


def planned(name, epsilon, asked):
    """Full batches, so that a release of order a costs a / (2 std^2): noise by bisection."""
    low, high = 0.01, 1e4
    rule = Filter.planned(epsilon, DELTA)
    rules = list(zip(rule.orders, rule.shares, strict=True))
    for _ in range(80):
        middle = math.sqrt(low * high)
        is_too_little = spent([middle] * len(asked), rules) > epsilon
        low, high = (middle, high) if is_too_little else (low, middle)
    release = Release(Gaussian(high), Sensitivity(1.0, "l2", 3))
    return ReleasePlan(
        name, 10, 1.0, len(asked), 1, release, Budget(epsilon, DELTA), levels=LEVELS, asked=asked
    )


def spent(stds, rules):
    """Epsilon of Gaussian releases by the theorem in docs/mathematics.md, section 10."""
    cost = sum(std**-2 for std in stds) / 2
    return min(
        a * cost + math.log((a - 1) / a) - (math.log(w * DELTA) + math.log(a)) / (a - 1)
        for a, w in rules
    )


def charged(path):
    """Noise of everything charged, and budget and orders, by account: nothing but the file."""
    with raw(path) as db:
        stds, rules, budgets = {}, {}, {}
        for account, event, count in db.execute("SELECT account, event, count FROM charges"):
            released = json.loads(event)
            assert released["rate"] == 1
            std = released["event"]["mechanism"]["parameters"]["std"]
            stds.setdefault(account, []).extend([std] * count)
        for kind, account, content in db.execute("SELECT kind, account, content FROM decisions"):
            said = json.loads(content)
            if kind == "orders":
                rules[account] = list(zip(said["orders"], said["shares"], strict=True))
            if kind == "budget":
                budgets[account] = said["epsilon"]
    return stds, rules, budgets


def paid(ledger, run, request, plans):
    """A round in which every client charges what it has chosen; who was refused."""
    chosen = Pacing(ledger, run).at(request, plans)
    events = {account: own.round_event(request.round) for account, own in chosen.items()}
    refused = ledger.refusals(run, events)
    ledger.commit([
        Charge(account, run, request.round, (event,), b"answer")
        for account, event in events.items() if account not in refused
    ])  # fmt: skip
    return refused


def begin(ledger, plans, run="run"):
    ledger.begin_run(run, randomness="entropy", accounting="vector", description={})
    ledger.reserve(run, {number: plan.rest_event() for number, plan in plans.items()})


@settings(max_examples=15, deadline=None)
@given(st.lists(ANYTHING, min_size=ROUNDS, max_size=ROUNDS), st.data())
def test_no_server_makes_a_client_pay_more_than_its_budget(tmp_path_factory, asked, data):
    """It asks for whatever it likes, of clients with other budgets and other rounds."""
    path = tmp_path_factory.mktemp("adversary") / "site.sqlite"
    rounds = st.sets(st.integers(1, ROUNDS), min_size=1)
    with Ledger(path) as ledger:
        plans = {}
        for name, epsilon in (("ann", 0.5), ("bob", 4.0)):
            account = ledger.account(name, 32 * name[0])
            ledger.set_budget(account, Budget(epsilon, DELTA))
            plans[account] = planned(name, epsilon, tuple(sorted(data.draw(rounds))))
        begin(ledger, plans)
        for round_, level in enumerate(asked, 1):
            received = {PACE: torch.tensor(level, dtype=torch.float64)}
            now = {number: own for number, own in plans.items() if round_ in own.asked}
            assert paid(ledger, "run", Request(round_, received, 1.0), now) == {}
    stds, rules, budgets = charged(path)
    for number, plan in plans.items():
        own = plan.release.mechanism.std
        assert len(stds[number]) == plan.rounds  # and nobody had to stop early
        known = [own * level for level in LEVELS]
        assert all(any(math.isclose(std, k) for k in known) for std in stds[number])
        assert spent(stds[number], rules[number]) <= budgets[number] * (1 + 1e-9)
    assert audit_ledger(path).sound


def test_less_noise_is_paid_for_by_more_noise_before(tmp_path):
    """All of it is used up in the end, and the last rounds have less noise than was planned."""
    path = tmp_path / "site.sqlite"
    with Ledger(path) as ledger:
        account = ledger.account("ann", 32 * "a")
        ledger.set_budget(account, Budget(4.0, DELTA))
        plans = {account: planned("ann", 4.0, tuple(range(1, 25)))}
        begin(ledger, plans)
        for round_ in range(1, 25):
            level = (LEVELS[0], math.nan, 99.0)[round_ % 3] if round_ <= 12 else 0.0
            request = Request(round_, {PACE: torch.tensor(level)}, 1.0)
            assert paid(ledger, "run", request, plans) == {}
            # What it has not spent stays reserved: nobody else may have it.
            held = udpfl.account(ledger.held(account), DELTA, ledger.filter(account)).epsilon
            assert 3.5 < held <= 4.0
        rows = [own for own in ledger.decisions(account) if own.kind == "reserve"]
    assert len(rows) <= 1 + len(LEVELS)  # not one for every round
    stds, rules, _ = charged(path)
    base = plans[account].release.mechanism.std
    levels = [std / base for std in stds[account]]
    assert levels[:12] == pytest.approx([LEVELS[0]] * 12)
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] < 0.9
    assert 3.8 < spent(stds[account], rules[account]) <= 4.0
    one_less = min(level for level in LEVELS if level > levels[-1])
    assert spent([*stds[account][:-1], base * one_less], rules[account]) < 4.0


def test_a_client_that_obeys_is_stopped_by_its_ledger(tmp_path):
    """The second line of defence: no charge that was not reserved, whoever asks for it."""
    with Ledger(tmp_path / "site.sqlite") as ledger:
        account = ledger.account("ann", 32 * "a")
        ledger.set_budget(account, Budget(4.0, DELTA))
        plan = planned("ann", 4.0, tuple(range(1, 9)))
        begin(ledger, {account: plan})
        least = plan.at_level(LEVELS[-1]).round_event(1)
        with pytest.raises(BudgetExceeded, match="has not reserved this release"):
            ledger.commit([Charge(account, "run", 1, (least,), b"answer")])
        for times in (8, 5):
            assert ledger.exchange("run", {account: udpfl.Repeated(least, times)}) == []
        assert ledger.exchange("run", {account: least}) == [account]  # one round, and no more
        ledger.commit([Charge(account, "run", 1, (least,), b"answer")])
        with pytest.raises(BudgetExceeded, match="has not reserved this release"):
            ledger.commit([Charge(account, "run", 2, (least,), b"answer")])


# Whole runs


def started(folder, name="run", privacy=None, training=None, data=None, **more):
    return udpfl.run(
        {
            "out": str(folder / name), "threads": 1, "data": {"clients": 3, "public": 12},
            "privacy": {"mechanism": "gaussian", "epsilon": 4.0, "pace": "plateau",
                        "ledger": str(folder / "site.sqlite"), **(privacy or {})},
            "training": {"rounds": 6, "averaging": 0.0, "sampling_rate": 1.0,
                         "learning_rate": 0.5, **(training or {})},
        },
        data=data or blobs(), **{"model": linear(), **more},
    )  # fmt: skip


def asks_for(monkeypatch, levels):
    """A server whose published numbers lead to these levels, round by round."""
    asked = iter(levels)

    def publish(self, round_, server):
        self._level = next(asked)
        return server

    monkeypatch.setattr(Plateau, "publish", publish)


@pytest.mark.parametrize(("mechanism", "unit"), [("gaussian", "record"), ("laplace", "client")])
def test_rounds_carry_the_noise_they_are_charged_for(tmp_path, monkeypatch, mechanism, unit):
    seen, ratio = Seen(), 9.0
    top = noise_levels("plateau", ratio)
    asks_for(monkeypatch, [top[0], top[2], 0.0, 0.0])
    result = started(
        tmp_path,
        privacy={"mechanism": mechanism, "unit": unit, "pace_ratio": ratio, "delta": 1e-3},
        training={"rounds": 4, "learning_rate": 1.0}, model=Wide(), observers=[seen],
        loss=lambda outputs, _: 0.0 * outputs.sum(1),
    )  # fmt: skip
    row = {own["round"]: own for own in result.metrics}
    for person in people_of(result):
        scale = person.declared_size if unit == "record" else 1.0
        stds = []
        for round_ in range(1, 5):
            (message,) = [m for m in seen.messages if (m.client, m.round) == (person.name, round_)]
            noise = message.tensors["update"].numpy() * scale
            std = json.loads(message.events[0])["event"]["event"]["mechanism"]["parameters"]
            std = std["std"] if mechanism == "gaussian" else math.sqrt(2) * std["scale"]
            known = stats.norm if mechanism == "gaussian" else stats.laplace
            size = std if mechanism == "gaussian" else std / math.sqrt(2)
            assert stats.kstest(noise, known(0, size).cdf).pvalue > 1e-6
            assert stats.kstest(noise, known(0, 2 * size).cdf).pvalue < 1e-9
            assert row[round_]["noise_std"]["max"] == pytest.approx(std)
            stds.append(std / person.release.mechanism.noise_std)
        assert stds[:3] == pytest.approx([top[0], top[0], top[2]])
        assert 1 > stds[3] > top[-1]
    assert all(own.epsilon <= 4.0 for own in result.clients.values())


def test_a_server_that_always_asks_for_less_gets_the_planned_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(Plateau, "request", lambda self: {PACE: torch.tensor(-1.0)})
    result = started(tmp_path)
    assert len(result.metrics) == 6
    stds, rules, budgets = charged(tmp_path / "site.sqlite")
    for number, person in enumerate(people_of(result), 1):
        assert stds[number] == [person.release.mechanism.std] * 6
        assert 3.9 < spent(stds[number], rules[number]) <= budgets[number] == 4.0


def test_what_is_not_needed_is_left_for_other_runs(tmp_path, monkeypatch):
    asks_for(monkeypatch, [10.0] * 12)  # it improves all the time
    first = started(tmp_path, "first", {"pace_ratio": 9.0})
    assert first.privacy.epsilon < 2.0
    with Ledger(tmp_path / "site.sqlite") as ledger:
        assert ledger.reserved(1) == {}
    second = started(tmp_path, "second", {"epsilon": 2.0, "pace_ratio": 9.0})
    assert first.privacy.epsilon < second.privacy.epsilon <= 4.0
    assert audit_ledger(tmp_path / "site.sqlite").sound


@pytest.mark.parametrize("follows", ["loss", "update"])
def test_what_is_followed_is_made_of_released_models(tmp_path, follows):
    seen, start = Seen(), torch.cat([p.detach().flatten() for p in linear().parameters()])
    privacy = {"pace_follows": follows, "pace_patience": 1}
    result = started(tmp_path, privacy=privacy, observers=[seen])
    with np.load(result.folder / "records.npz") as kept:
        rows = kept["train"][kept["public"]]
    x, y = (torch.from_numpy(own)[rows] for own in blobs())
    models = [start, *seen.models]
    for before, after, row in zip(models, models[1:], result.metrics, strict=False):
        if follows == "update":
            expected = float((after - before).norm())
        else:
            outputs = x @ after[:8].view(2, 4).T + after[8:]
            expected = float(torch.nn.functional.cross_entropy(outputs, y))
        assert row["pace"]["followed"] == pytest.approx(expected, rel=1e-4)
    levels = noise_levels("plateau", 2.0)
    wanted = by_hand([row["pace"]["followed"] for row in result.metrics], levels, 1)
    assert [row["pace"]["next"] for row in result.metrics] == pytest.approx(wanted, abs=1e-6)


def test_a_run_whose_power_was_cut_goes_on_with_the_same_noise(tmp_path):
    settings = {"checkpoint_every": 2, "rounds": 8}
    privacy = {"pace_patience": 1, "pace_ratio": 4.0}
    with pytest.raises(PowerCut):
        started(tmp_path, privacy=privacy, training=settings, observers=[Stops(5)])
    path = tmp_path / "site.sqlite"
    before, _, _ = charged(path)
    with Ledger(path) as ledger:
        reserved = [own for own in ledger.decisions(1) if own.kind == "reserve"]
    seen = Seen()
    result = udpfl.run(
        resume=tmp_path / "run", data=blobs(), model=linear(), observers=[seen]
    )  # fmt: skip
    with Ledger(path) as ledger:
        again = [own for own in ledger.decisions(1) if own.kind == "reserve"]
        assert again[: len(reserved)] == reserved
        assert all(own.content.get("exchanged") for own in again[1:])  # it never reserved anew
        assert ledger.verify() == []
    stds, rules, budgets = charged(path)
    levels = noise_levels("plateau", 4.0)
    wanted = [levels[0], *by_hand([r["pace"]["followed"] for r in result.metrics], levels, 1)]
    for number, person in enumerate(people_of(result), 1):
        base = person.release.mechanism.std
        assert len(before[number]) == 5
        assert stds[number][:5] == before[number]  # rounds that ran again were sent again
        assert len(stds[number]) == 8
        for std, level in zip(stds[number], wanted, strict=False):
            assert std >= base * level * (1 - 1e-9)  # as asked, or more where the budget needs it
        assert spent(stds[number], rules[number]) <= budgets[number]
    assert audit_ledger(path).sound


def test_a_resumed_run_keeps_what_it_holds_where_that_has_less_noise_than_planned(
    tmp_path, monkeypatch
):
    """Four rounds with twice the noise pay for less of it later on."""
    privacy, training = {"pace_ratio": 4.0}, {"rounds": 10}
    asks_for(monkeypatch, [2.0] * 4 + [0.5] * 8)
    with pytest.raises(PowerCut):
        started(tmp_path, privacy=privacy, training=training, observers=[Stops(7)])
    path = tmp_path / "site.sqlite"
    before, _, _ = charged(path)
    with Ledger(path) as ledger:
        reserved = ledger.reserved(1)
    udpfl.run(resume=tmp_path / "run", data=blobs(), model=linear())
    base = json.loads((tmp_path / "run" / "participants.json").read_text())[0]["release"]
    assert before[1][-1] < 0.95 * base["mechanism"]["parameters"]["std"]
    with Ledger(path) as ledger:
        made = [own for own in ledger.decisions(1) if own.kind == "reserve"]
        assert all(own.content.get("exchanged") for own in made[1:])
    assert len(reserved) == 1
    stds, rules, budgets = charged(path)
    for number, own in stds.items():
        assert len(own) == 10
        assert spent(own, rules[number]) <= budgets[number]


def test_a_run_that_gave_back_what_it_reserved_reserves_again(tmp_path):
    with pytest.raises(PowerCut):
        started(tmp_path, observers=[Stops(2)])
    with Ledger(tmp_path / "site.sqlite") as ledger:
        (run,) = ledger.unfinished(1)
        ledger.give_back(run, reason="for a while")
    result = udpfl.run(resume=tmp_path / "run", data=blobs(), model=linear())
    stds, rules, budgets = charged(tmp_path / "site.sqlite")
    assert [len(own) for own in stds.values()] == [6] * 3
    assert all(spent(stds[own], rules[own]) <= budgets[own] for own in stds)
    assert result.stopped is None


def test_the_report_shows_the_noise_of_every_round(tmp_path, monkeypatch):
    asks_for(monkeypatch, [10.0, 10.0, 0.0, 0.0, 0.0, 0.0])
    record = read_run(started(tmp_path).folder)
    assert record.verification.state == "verified"
    charts = {chart.id: chart for chart in run_charts(record)}
    (line,) = charts["noise"].series
    stds, _, _ = charged(tmp_path / "site.sqlite")
    assert line.y == pytest.approx(stds[1])
    said = " ".join(record.protection)
    assert "The noise follows results" in said
    assert f"{stds[1][0]:.4g} to {stds[1][-1]:.4g}" in said


def test_where_records_may_have_moved_it_is_refused(tmp_path):
    started(tmp_path, "first", {"epsilon": 1.0})
    with Ledger(tmp_path / "site.sqlite") as ledger:
        for own in ledger.accounts():
            ledger.set_budget(own.id, Budget(9.0, 1e-5), reason="a vote")
    with pytest.raises(BudgetExceeded, match="choose another pace"):
        started(tmp_path, "second", {"epsilon": 1.0}, seed=1)
    assert not Path(tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"privacy": {"ledger": None}}, "privacy.pace", "set privacy.ledger as well"),
        ({"privacy": {"accounting": "scalar"}}, "privacy.pace", "states a guarantee"),
        ({"privacy": {"pace": "decaying", "pace_patience": 9}}, "privacy.pace_patience", "no eff"),
        ({"privacy": {"pace": "decaying", "pace_follows": "update"}}, "privacy.pace_follows", "no"),
        ({"privacy": {"randomness": "seeded"}}, "privacy.ledger", "is not private"),
        ({"data": {"public": 0}}, "privacy.pace_follows", "set data.public"),
    ],
)
def test_what_it_needs_is_said(changes, key, words):
    own = {
        "data": {"public": 9, **changes.get("data", {})},
        "privacy": {"pace": "plateau", "ledger": "x.sqlite", **changes.get("privacy", {})},
    }
    with pytest.raises(InvalidInput, match=words) as refused:
        udpfl.run(own)
    assert refused.value.parameter == key


def test_a_trusted_server_does_not_follow(tmp_path):
    with pytest.raises(InvalidInput, match="every client chooses how much"):
        started(tmp_path, privacy={"unit": "client"}, training={"algorithm": "dp-fedavg"})
