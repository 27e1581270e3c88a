"""Nominal runs: planned and stated by one accountant, with the same guarantee beside it."""

from __future__ import annotations

import json
import math

import pytest

import udpfl
from tests.small import PowerCut, Stops, blobs, linear
from udpfl.accounting import PoissonSampled, Release, Repeated, Sensitivity, Shuffled, account
from udpfl.accounting.budget import Budget
from udpfl.accounting.rounding import rounding_of_event
from udpfl.accounting.serial import event_from_dict
from udpfl.cli import main
from udpfl.cli._decision_words import describe_decision
from udpfl.config import load
from udpfl.errors import InvalidInput
from udpfl.ledger.ledger import Ledger
from udpfl.mechanisms import Gaussian
from udpfl.report.verification import check_run
from udpfl.runs.files import RunFiles

pytestmark = pytest.mark.usefixtures("one_thread")


def settings(folder, accountant, training=None, **privacy):
    return {
        "out": str(folder),
        "data": {"clients": 3},
        "privacy": {
            "mechanism": "laplace", "epsilon": 8.0, "delta": 1e-3, "accounting": "scalar",
            "accountant": accountant, **privacy,
        },
        "training": {
            "rounds": 3, "sampling_rate": 0.3, "learning_rate": 0.1, "averaging": 0.0,
            **(training or {}),
        },
    }  # fmt: skip


def train(folder, accountant, training=None, observers=(), **privacy):
    chosen = settings(folder, accountant, training, **privacy)
    return udpfl.run(chosen, data=blobs(), model=linear(), observers=observers)


def planned(result):
    """One release of the first client, as its plan has it."""
    (first, *_) = json.loads((result.folder / "participants.json").read_text())
    return PoissonSampled(0.3, event_from_dict(first["release"]))


@pytest.mark.parametrize("accountant", ["rdp", "pld", "best", "paper"])
def test_every_number_of_a_nominal_run_is_of_the_accountant_that_planned_it(tmp_path, accountant):
    result = train(tmp_path / "run", accountant)
    step = planned(result)
    stated = {"best": "pld"}.get(accountant, accountant)
    for statement in (result.privacy, *result.clients.values()):
        assert (statement.kind, statement.accountant) == ("nominal", stated)
        assert 7.98 < statement.epsilon <= 8.0  # what was asked for, and not less
        assert statement.vector_epsilon == account(Repeated(step, 3), 1e-3).epsilon
    for row in result.metrics:
        so_far = account(Repeated(step, row["round"]), 1e-3, accountant, "scalar")
        assert row["privacy"] == "nominal"
        assert row["epsilon"]["max"] == pytest.approx(so_far.epsilon, rel=1e-12)
        proved = account(Repeated(step, row["round"]), 1e-3).epsilon
        assert row["guaranteed_epsilon"]["max"] == pytest.approx(proved, rel=1e-12)
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["privacy"]["accountant"] == stated
    assert summary["privacy"]["epsilon"] == result.privacy.epsilon
    assert check_run(RunFiles.read(result.folder), nominal=True).state == "verified"
    with Ledger(result.ledger_path, read_only=True) as ledger:
        assert {ledger.statement(own.id, 1e-3).kind for own in ledger.accounts()} == {"guarantee"}


def test_the_accountant_is_known_after_a_crash_and_from_the_folder(tmp_path, capsys):
    folder = tmp_path / "run"
    with pytest.raises(PowerCut):
        train(folder, "paper", observers=[Stops(after=1)])
    found = reported(capsys, folder)["statement"]
    assert (found["kind"], found["accountant"]) == ("nominal", "paper")
    assert 7.98 < found["epsilon"] <= 8.0  # the whole plan
    result = udpfl.run(resume=folder, data=blobs(), model=linear())
    assert result.privacy.accountant == "paper"
    assert 7.98 < result.privacy.epsilon <= 8.0
    assert reported(capsys, folder)["state"] == "verified"
    code, budget = command(capsys, "budget", "show", folder, "--delta", "1e-3", "--json")
    assert code == 0
    # Of budgets and balances only what is guaranteed is said.
    for own in json.loads(budget):
        assert own["statement"]["kind"] == "guarantee"
        assert own["statement"]["epsilon"] == result.privacy.vector_epsilon
    with Ledger(result.ledger_path, read_only=True) as ledger:
        (begun,) = (own for own in ledger.decisions() if own.kind == "begin")
        said = describe_decision(begun, ledger.folders())
    assert said == "run begun, its files sealed, planned by the paper accountant"


def reported(capsys, folder):
    page = folder / "page.html"
    return json.loads(command(capsys, "report", folder, "--json", "--out", page)[1])


def command(capsys, *words):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return stopped.value.code or 0, capsys.readouterr().out


def test_a_summary_that_another_accountant_would_state_is_contradicted(tmp_path):
    """Planned by the paper's, which is the largest; whoever states less has edited something."""
    result = train(tmp_path / "run", "paper")
    path = result.folder / "summary.json"
    summary = json.loads(path.read_text())
    smaller = account(Repeated(planned(result), 3), 1e-3, "best", "scalar").epsilon
    for own in (summary["privacy"], *summary["clients"].values()):
        own["epsilon"] = smaller
    path.write_text(json.dumps(summary))
    found = check_run(RunFiles.read(result.folder), nominal=True)
    assert found.state == "contradicted"
    assert any("recomputed it is" in reason for reason in found.reasons)


# On a ledger that runs share


def test_on_a_shared_ledger_the_guarantee_is_that_of_its_filter(tmp_path):
    shared = tmp_path / "shared.sqlite"
    first = train(tmp_path / "first", "paper", ledger=str(shared))
    second = train(tmp_path / "second", "rdp", ledger=str(shared))
    with Ledger(shared, read_only=True) as ledger:
        for own in ledger.accounts():
            proved = ledger.statement(own.id, 1e-3)
            assert (proved.kind, proved.accountant) == ("guarantee", "filter")
            rule = ledger.filter(own.id)
            assert proved.epsilon == account(ledger.spent(own.id), 1e-3, rule).epsilon
            assert second.clients[own.client].vector_epsilon == proved.epsilon
    assert (first.privacy.accountant, second.privacy.accountant) == ("paper", "rdp")
    assert first.privacy.epsilon <= 8.0
    assert first.privacy.vector_epsilon < second.privacy.vector_epsilon


def test_a_budget_on_a_shared_ledger_never_asks_the_papers_accountant(tmp_path):
    """A run whose nominal number is small is refused where its true cost is not paid for."""
    shared = tmp_path / "shared.sqlite"
    train(tmp_path / "first", "paper", ledger=str(shared))
    with Ledger(shared) as ledger:
        for own in ledger.accounts():
            spent = ledger.statement(own.id, 1e-3).epsilon
            ledger.set_budget(own.id, Budget(spent * 1.001, 1e-3))
    with pytest.raises(udpfl.UdpflError, match=r"budget|too small"):
        train(tmp_path / "second", "paper", ledger=str(shared))


# What is refused


@pytest.mark.parametrize(
    ("privacy", "key"),
    [
        ({"accountant": "paper"}, "privacy.accountant"),
        ({"accountant": "paper", "accounting": "vector"}, "privacy.accountant"),
        ({"accountant": "paper", "ledger": "shared.sqlite"}, "privacy.accountant"),
        ({"accountant": "papers", "accounting": "scalar"}, "privacy.accountant"),
    ],
)
def test_a_configuration_with_a_guarantee_cannot_name_it(privacy, key):
    with pytest.raises(InvalidInput) as told:
        load({"privacy": privacy})
    assert told.value.parameter == key
    if privacy["accountant"] == "paper":
        assert "never gives a guarantee: set accounting to scalar" in str(told.value)


def test_there_is_no_noise_of_it_for_pure_dp(tmp_path):
    with pytest.raises(InvalidInput, match="no pure DP") as told:
        train(tmp_path / "run", "paper", delta=0.0)
    assert told.value.parameter == "privacy.delta"
    assert not (tmp_path / "run").exists()


def test_counts_of_an_adaptive_clip_are_planned_by_it_too(tmp_path):
    result = train(tmp_path / "run", "paper", clip_quantile=0.5)
    assert (result.privacy.kind, result.privacy.accountant) == ("nominal", "paper")
    assert 7.98 < result.privacy.epsilon <= 8.0


def test_rounding_is_counted_for_what_is_guaranteed(tmp_path):
    """The nominal ε is smaller, and so would be what rounding adds to δ."""
    result = train(tmp_path / "run", "paper", mechanism="staircase", epsilon=4.0)
    with Ledger(result.ledger_path, read_only=True) as ledger:
        events = [ledger.spent(own.id) for own in ledger.accounts()]
    added = json.loads((result.folder / "summary.json").read_text())["rounding"]
    privacy = result.privacy
    assert privacy.vector_epsilon > 1.5 * privacy.epsilon
    assert added == pytest.approx(rounding_of_event(events[0], privacy.vector_epsilon).total)
    assert added > rounding_of_event(events[0], privacy.epsilon).total


def test_two_numbers_about_different_runs_say_so(tmp_path):
    shared = {"ledger": str(tmp_path / "shared.sqlite"), "mechanism": "gaussian"}
    alone, own = "of this run alone", {"epsilon": 400.0}
    result = train(tmp_path / "one", "paper", **shared, **own)
    assert any(alone in note for note in result.privacy.notes)
    result = train(tmp_path / "two", "paper", mechanism="gaussian")
    assert not any(alone in note for note in result.privacy.notes)


# Shuffled


def test_a_message_of_several_steps_is_shuffled_as_one(tmp_path):
    """Against the lemma by hand: all releases of a message at once, then the rounds."""
    training = {"shuffle": True, "local_steps": 3, "sampling_rate": 1.0}
    result = train(tmp_path / "run", "paper", training, mechanism="gaussian", epsilon=4.0)
    std = planned(result).event.mechanism.std
    best = math.inf
    for order in range(2, 12):  # the best one is far below
        gamma = 3 * order / (2 * std**2)
        pairs = order * (order - 1) / 2 * 4 / 3
        claimed = math.log1p(pairs * math.expm1(gamma) ** 2) / (order - 1)
        own = min(gamma, claimed) if claimed >= responses(order, gamma) else gamma
        best = min(best, 3 * own + math.log(1e3) / (order - 1))
    assert result.privacy.epsilon == pytest.approx(best, rel=1e-9)
    assert 3.5 < result.privacy.epsilon <= 4.0  # it jumps where the lemma is refuted
    bare = Repeated(Release(Gaussian(std), Sensitivity(1.0, "l2", 10)), 9)
    assert result.privacy.vector_epsilon == pytest.approx(account(bare, 1e-3).epsilon, rel=1e-9)
    assert any("all 3 releases of a message at once" in note for note in result.privacy.notes)
    with Ledger(result.ledger_path, read_only=True) as ledger:
        entries = list(ledger.history())
        assert {(e.count, e.event.clients, e.event.releases) for e in entries} == {(3, 3, 3)}
        assert ledger.verify() == []
    assert check_run(RunFiles.read(result.folder), nominal=True).state == "verified"


def responses(order, epsilon):
    """The divergence of three shuffled randomised responses, one of which flips."""
    truth, lie = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    others = [truth**2, 2 * truth * lie, lie**2]
    ones, zeros = [0.0, *others], [*others, 0.0]
    p = [truth * a + lie * b for a, b in zip(ones, zeros, strict=True)]
    q = [lie * a + truth * b for a, b in zip(ones, zeros, strict=True)]
    return max(
        math.log(sum(x * (x / y) ** (order - 1) for x, y in zip(*both, strict=True))) / (order - 1)
        for both in ((p, q), (q, p))
    )


def test_shuffled_runs_with_a_guarantee_are_charged_as_without_a_shuffler(tmp_path):
    training = {"shuffle": True, "local_steps": 2}
    result = train(tmp_path / "run", "best", training, accounting="vector", mechanism="gaussian")
    assert result.privacy.kind == "guarantee"
    with Ledger(result.ledger_path, read_only=True) as ledger:
        assert not any(isinstance(entry.event, Shuffled) for entry in ledger.history())
