"""Everybody's own noise for everybody's own releases, and budgets that outlast a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import Logistic
from tests.federation.samples import (
    DIMENSION,
    Meanwhile,
    Watch,
    account_of,
    blobs,
    charged,
    noise_of,
    read,
)
from udpfl import (
    Budget,
    BudgetExceeded,
    Gaussian,
    InvalidInput,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    Setting,
    account,
    calibrate,
)
from udpfl.accounting.serial import event_from_dict
from udpfl.ledger.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread")


# Planning: everybody's own noise for everybody's own releases


def released(row, fraction_of_noise=1.0):
    """What participants.json says a client releases."""
    release = event_from_dict(row["release"])
    noise = release.mechanism.scaled(fraction_of_noise)
    event = PoissonSampled(row["rate"], Release(noise, release.sensitivity))
    return Repeated(event, row["rounds"] * row["steps"])


def priced(row, fraction_of_noise=1.0, accounting="vector"):
    """The same, accounted from scratch."""
    return account(released(row, fraction_of_noise), row["budget"][1], "best", accounting)


def test_noise_is_calibrated_to_each_clients_own_number_of_releases(federate):
    watch = Watch()
    result = federate(
        {"epsilon": 3.0},
        {"rounds": 7, "clients_per_round": 2, "local_steps": 2},
        {"clients": 4},
        observers=[watch],
    )
    people = {row["name"]: row for row in read(result, "participants.json")}
    answered = Counter(message.client for message in watch.messages)
    assert answered == {name: row["rounds"] for name, row in people.items()}
    assert sum(answered.values()) == 14
    assert len(set(answered.values())) > 1  # else this test says nothing
    for name, row in people.items():
        assert priced(row).epsilon <= 3.0
        assert priced(row, 0.99).epsilon > 3.0
        assert result.clients[name].epsilon == pytest.approx(priced(row).epsilon, rel=1e-9)
        assert result.clients[name].kind == "guarantee"
        assert sum(entry.count for entry in charged(result, name)) == 2 * row["rounds"]
    spread = sorted((row["rounds"], noise_of(row).noise_std) for row in people.values())
    scales = [scale for _, scale in spread]
    assert scales == sorted(scales)  # more releases, more noise
    assert scales[0] < scales[-1]


def test_a_client_that_is_never_picked_spends_nothing(federate):
    result = federate(None, {"rounds": 1, "clients_per_round": 1}, {"clients": 4})
    people = read(result, "participants.json")
    idle = [row["name"] for row in people if not row["rounds"]]
    assert len(idle) == 3
    assert all(row["release"] is None for row in people if row["name"] in idle)
    assert {result.clients[name].epsilon for name in idle} == {0.0}
    assert {result.clients[name].delta for name in idle} == {1e-5}
    assert result.privacy.epsilon > 7


def test_what_an_idle_client_spent_in_an_earlier_run_counts(federate, tmp_path):
    shared = {"ledger": str(tmp_path / "budget.sqlite"), "mechanism": "gaussian"}
    nominal = {**shared, "accounting": "scalar", "accountant": "rdp", "epsilon": 2.0}
    first = federate(nominal, {"rounds": 1})
    once = {"rounds": 1, "clients_per_round": 1}
    with pytest.raises(BudgetExceeded, match=r"^client-\d: the budget in .* is too small"):
        federate(shared, once, seed=0)
    result = federate({**shared, "exhausted": "fit"}, once, seed=0)
    (asked,) = [row["name"] for row in read(result, "participants.json") if row["rounds"]]
    assert {statement.kind for statement in result.clients.values()} == {"guarantee"}
    past = {row["name"]: released(row) for row in read(first, "participants.json")}
    with Ledger(shared["ledger"], read_only=True) as ledger:
        for found in ledger.accounts():
            wanted = account(past[found.client], 1e-5, ledger.filter(found.id)).epsilon
            stated = result.clients[found.client].epsilon
            if found.client == asked:
                assert 7.5 < stated <= 8.0
            else:
                assert stated == pytest.approx(wanted)
                assert stated > 1.0


def test_lists_are_dealt_out_to_the_clients(federate):
    result = federate(
        {
            "mechanism": ["gaussian", "laplace", "staircase"],
            "epsilon": [2.0, 5.0],
            "delta": [1e-5, 1e-6],
            "clip": [0.5, 1.0, 2.0],
        },
        {"rounds": 2},
        {"clients": 4},
    )
    people = read(result, "participants.json")
    dealt = [
        (noise_of(row).name, *row["budget"], row["release"]["sensitivity"]["bound"])
        for row in people
    ]
    assert dealt == [
        ("gaussian", 2.0, 1e-5, 0.5),
        ("laplace", 5.0, 1e-6, 1.0),
        ("staircase", 2.0, 1e-5, 2.0),
        ("gaussian", 5.0, 1e-6, 0.5),
    ]
    with Ledger(result.ledger_path, read_only=True) as ledger:
        for row in people:
            epsilon, delta = row["budget"]
            assert row["release"]["sensitivity"]["dimension"] == DIMENSION
            statement = ledger.statement(account_of(result.ledger_path, row["name"]))
            assert statement == replace(result.clients[row["name"]], assumptions=(), notes=())
            assert (statement.kind, statement.delta) == ("guarantee", delta)
            assert 0.98 * epsilon < statement.epsilon <= epsilon
            assert statement.epsilon == pytest.approx(priced(row).epsilon, rel=1e-9)
    assert result.privacy.epsilon == max(s.epsilon for s in result.clients.values())


def test_auto_takes_the_mechanism_that_needs_least_noise(federate):
    result = federate({"mechanism": "auto"}, {"rounds": 2, "local_steps": 2})
    (chosen,) = {json.dumps(row["release"]) for row in read(result, "participants.json")}
    setting = Setting(8.0, 1e-5, 4, Sensitivity(1.0, "l2", DIMENSION), 0.5)
    rivals = {
        name: calibrate(name, setting).mechanism.noise_std
        for name in ("gaussian", "laplace", "staircase")
    }
    noise = event_from_dict(json.loads(chosen)).mechanism
    assert noise.name == min(rivals, key=rivals.__getitem__)
    assert noise.noise_std == pytest.approx(min(rivals.values()), rel=1e-3)


def test_scalar_accounting_is_nominal_and_the_ledger_knows_the_truth(federate):
    # A client that has not been asked yet comes first, and must not hide what the others claim.
    seed = next(
        seed
        for seed in range(50)
        if np.random.default_rng([*b"selection", seed]).choice(4, 1, replace=False)[0] != 0
    )
    result = federate(
        {"accounting": "scalar", "accountant": "rdp"},
        {"rounds": 3, "clients_per_round": 1},
        {"clients": 4},
        seed=seed,
    )
    people = [row for row in read(result, "participants.json") if row["rounds"]]
    assert result.privacy.kind == "nominal"
    assert result.privacy.epsilon <= 8.0 < 2 * result.privacy.epsilon
    assert result.privacy.vector_epsilon > 2 * result.privacy.epsilon
    for row in people:
        said = result.clients[row["name"]]
        assert said.epsilon == pytest.approx(priced(row, accounting="scalar").epsilon, rel=1e-9)
        with Ledger(result.ledger_path, read_only=True) as ledger:
            truth = ledger.statement(account_of(result.ledger_path, row["name"]), 1e-5)
        assert truth.kind == "guarantee"
        assert truth.epsilon == pytest.approx(priced(row).epsilon, rel=1e-9)
        assert truth.epsilon == pytest.approx(said.vector_epsilon, rel=1e-9)
    assert "not a privacy guarantee" in read(result, "run.json")["privacy"]["why"]
    assert [row["privacy"] for row in result.metrics] == ["nominal"] * 3
    last = result.metrics[-1]
    assert last["guaranteed_epsilon"]["max"] > last["epsilon"]["max"]


def test_a_mechanism_of_ones_own(federate):
    result = federate({"mechanism": "tests.conftest:Logistic"}, {"rounds": 1})
    row = read(result, "participants.json")[0]
    assert isinstance(noise_of(row), Logistic)
    assert priced(row).epsilon <= 8.0 < priced(row, 0.98).epsilon
    assert 7.5 < result.privacy.epsilon <= 8.0
    with pytest.raises(InvalidInput, match="is not a mechanism"):
        federate({"mechanism": "tests.conftest:settings"})
    with pytest.raises(InvalidInput, match=r"privacy\.mechanism.*laplace"):
        federate({"mechanism": "laplce"})


# Budgets that outlast a run


def test_a_shared_ledger_refuses_a_second_run_and_lets_a_richer_client_go_on(
    federate, tmp_path, caplog
):
    shared = tmp_path / "budget.sqlite"
    first = federate({"ledger": str(shared)})
    assert first.stopped is None
    assert not first.folder.joinpath("ledger.sqlite").exists()
    spent = len(charged(first, "client-0"))

    def refused(names, **privacy):
        folders, before = sorted(tmp_path.glob("run-*")), shared.read_bytes()
        with pytest.raises(BudgetExceeded, match=names):
            federate({"ledger": str(shared), **privacy})
        assert sorted(tmp_path.glob("run-*")) == folders  # nothing was begun, nothing charged
        assert shared.read_bytes() == before

    refused("^client-0, client-1, client-2: the budget in .* is too small for this run")
    refused("no client has enough budget left for this run: client-0, client-1", exhausted="skip")

    with Ledger(shared) as ledger:
        ledger.set_budget(account_of(shared, "client-1"), Budget(40.0, 1e-5), reason="it agreed")
    refused("^client-0, client-2: the budget in .* is too small for this run")
    watch = Watch()
    third = federate({"ledger": str(shared), "exhausted": "skip"}, observers=[watch])
    assert third.stopped is None
    assert {message.client for message in watch.messages} == {"client-1"}
    assert [row["participants"] for row in third.metrics] == [1] * 3
    assert (
        "the run begins without client-0, client-2: the budget is too small for it" in caplog.text
    )
    assert first.privacy.epsilon < third.privacy.epsilon <= 40.0  # of both runs together
    assert third.clients["client-0"] == first.clients["client-0"]
    assert len(charged(third, "client-0")) == spent
    assert len(charged(third, "client-1")) == 2 * spent

    with Ledger(shared, read_only=True) as ledger:
        assert ledger.verify() == []


def lowered(ledger, found):
    ledger.set_budget(found.id, Budget(6.0, 1e-5))


def imported(ledger, found):
    event = Repeated(Release(Gaussian(2.0), Sensitivity(1.0)), 9)
    ledger.import_charge(found.id, event, source="elsewhere")


@pytest.mark.parametrize(("change", "limit"), [(lowered, 6.0), (imported, math.inf)])
def test_a_budget_that_runs_out_in_between_ends_the_run_there(federate, tmp_path, change, limit):
    """What a run has reserved nobody else can spend, but these two need nobody's leave."""
    shared = tmp_path / "budget.sqlite"
    watch = Meanwhile(shared, 2, change)
    result = federate({"ledger": str(shared)}, {"rounds": 6}, observers=[watch])
    assert [row["round"] for row in result.metrics] == [1, 2]
    assert {message.round for message in watch.messages} == {1, 2}
    assert result.stopped.startswith("no client is left to train: client-0, client-1, client-2")
    assert all(statement.epsilon <= limit for statement in result.clients.values())
    assert result.accuracy is not None
    with Ledger(shared, read_only=True) as ledger:
        assert sum(not entry.imported for entry in ledger.history()) == 6
        assert [ledger.reserved(found.id) for found in ledger.accounts()] == [{}] * 3
        assert ledger.verify() == []


def test_a_run_with_a_ledger_of_its_own_starts_from_nothing(federate):
    for _ in range(3):
        result = federate()
        assert result.stopped is None
        assert result.privacy.epsilon <= 8.0
        assert len(charged(result, "client-0")) == 3


def test_other_data_under_the_same_name_goes_on_with_its_budget(federate, tmp_path):
    shared = {"ledger": str(tmp_path / "budget.sqlite")}
    first = federate(shared)
    with pytest.raises(BudgetExceeded, match="client-0, client-1, client-2"):
        federate(shared, given=blobs(seed=7))
    with Ledger(shared["ledger"]) as ledger:
        for found in ledger.accounts():
            ledger.set_budget(found.id, Budget(40.0, 1e-5), reason="new measurements")
    second = federate(shared, given=blobs(seed=7))
    assert second.stopped is None
    with second.ledger as ledger:
        for row in read(second, "participants.json"):
            (found,) = ledger.find(row["name"])
            versions = ledger.versions(found.id)
            assert len(versions) == 2
            assert {entry.fingerprint for entry in ledger.history(found.id)} == set(versions)
            rule = ledger.filter(found.id)
            both = account(Repeated(released(row), 2), 1e-5, rule).epsilon  # as dear as the first
            assert second.clients[row["name"]].epsilon == pytest.approx(both)
            assert both > first.clients[row["name"]].epsilon
