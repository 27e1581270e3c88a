"""Whole runs, against plain PyTorch, independent accounting, and the promises of the ledger."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import udpfl
from tests.conftest import Logistic
from tests.repository import ROOT
from udpfl import (
    Budget,
    BudgetExceeded,
    Gaussian,
    InvalidInput,
    Laplace,
    LedgerError,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    Setting,
    Unsupported,
    account,
    calibrate,
)
from udpfl.accounting.serial import event_from_dict, event_to_json
from udpfl.algorithms import Algorithm, ClientMessage, FedAvg, weighted_mean
from udpfl.data import as_dataset
from udpfl.engine import Keyed, LaneModel, Limits, Noiseless, NormClipper, train_round
from udpfl.federation import (
    InProcessClients,
    LocalClient,
    ReleasePlan,
    Request,
    RunFolder,
    Trainer,
)
from udpfl.federation.protection import planned_protection
from udpfl.ledger.ledger import Ledger

DIMENSION = 43  # of `network()`


def blobs(n=90, seed=0):
    """Three classes around three corners, every record unlike any other."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.normal(size=(n, 4)) + 3 * np.eye(4)[y]
    return x.astype(np.float32), y


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def without_gradient(outputs, targets):
    """A loss that no parameter changes: whatever a client sends is noise."""
    return 0.0 * outputs.flatten(1).sum(1)


class Watch:
    """Keeps everything an observer is shown."""

    def __init__(self):
        self.messages, self.models, self.rows = [], {}, []

    def on_message(self, message):
        self.messages.append(message)

    def on_model(self, round_, model):
        self.models[round_] = model

    def on_round(self, row):
        self.rows.append(row)

    def of(self, round_):
        return [message for message in self.messages if message.round == round_]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def federate(tmp_path):
    """A small run; every section goes on top of small defaults."""
    numbers = itertools.count()

    def start(privacy=None, training=None, data=None, *, given=None, net=None, **more):
        if privacy != "none":
            privacy = {"mechanism": "laplace", **(privacy or {})}
        training = {"rounds": 3, "learning_rate": 0.3, "averaging": 0.0, **(training or {})}
        settings = {
            "out": str(tmp_path / f"run-{next(numbers)}"),
            "privacy": privacy,
            "training": training,
            "data": {"clients": 3, **(data or {})},
            **{name: more.pop(name) for name in ("seed", "record_updates") if name in more},
        }
        given = blobs() if given is None else given
        return udpfl.run(settings, data=given, model=net or network(), **more)

    return start


def flat(model):
    tensors = model.values() if isinstance(model, dict) else model.parameters()
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def read(result, name):
    return json.loads((result.folder / name).read_text())


def records_of(result):
    with np.load(result.folder / "records.npz") as arrays:
        return dict(arrays)


def parts_of(result):
    arrays = records_of(result)
    return [arrays[f"client-{i}"] for i in range(sum("client" in name for name in arrays))]


def charged(result, client):
    with Ledger(result.ledger_path, read_only=True) as ledger:
        return [entry for entry in ledger.history() if entry.client == client]


def account_of(path, client):
    with Ledger(path, read_only=True) as ledger:
        (found,) = ledger.find(client)
    return found.id


# The same as plain PyTorch where no privacy is in the way

RATES = [
    ({}, [0.3] * 6),
    (
        {"schedule": "linear", "final_learning_rate": 0.1, "warmup": 2},
        [0.1, 0.2, 0.3, 0.21, 0.12, 0.03],
    ),
    ({"schedule": "cosine", "warmup": 2}, [0.1, 0.2, 0.3, 0.225, 0.075, 0.0003]),
    ({"schedule": "linear"}, [0.3, 0.24, 0.18, 0.12, 0.06, 0.0003]),
    ({"warmup": 5}, [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]),
]


def fedavg_by_hand(x, y, parts, sizes, rates, steps, server_rate, momentum):
    """The textbook loop in float64 with torch's own optimiser: the model after every round."""
    x, y = torch.from_numpy(x).double(), torch.from_numpy(y)
    server = network().double()
    start = flat(server)
    velocity = torch.zeros_like(start)
    models = []
    for rate in rates:
        mean = torch.zeros_like(start)
        for part, size in zip(parts, sizes, strict=True):
            own = copy.deepcopy(server)
            optimizer = torch.optim.SGD(own.parameters(), lr=rate)
            for _ in range(steps):
                optimizer.zero_grad()
                (F.cross_entropy(own(x[part]), y[part], reduction="sum") / size).backward()
                optimizer.step()
            mean += size / sum(sizes) * (flat(own) - start)
        velocity = momentum * velocity + mean
        start = start + server_rate * velocity
        nn.utils.vector_to_parameters(start, server.parameters())
        models.append(start)
    return models


@pytest.mark.parametrize("sizes", ["partition", [10, 40, 70]])
@pytest.mark.parametrize(("schedule", "rates"), RATES[:3])
def test_without_privacy_a_run_is_plain_federated_averaging(federate, sizes, schedule, rates):
    x, y = blobs()
    watch = Watch()
    result = federate(
        "none",
        {
            "rounds": 6,
            "local_steps": 3,
            "sampling_rate": 1.0,
            "server_learning_rate": 0.7,
            "server_momentum": 0.4,
            **schedule,
        },
        {"partition": "power-law", "declared_sizes": sizes},
        given=(x, y),
        test=blobs(30, seed=1),
        observers=[watch],
    )
    parts = parts_of(result)
    assert len({len(part) for part in parts}) == 3
    declared = [len(part) for part in parts] if sizes == "partition" else sizes
    wanted = fedavg_by_hand(x, y, parts, declared, rates, 3, 0.7, 0.4)
    for round_, model in enumerate(wanted, 1):
        assert torch.allclose(flat(watch.models[round_]).double(), model, rtol=0, atol=1e-5)
    assert torch.equal(flat(result.model), flat(watch.models[6]))
    assert not torch.allclose(wanted[-1], flat(network()).double(), atol=0.05)  # it did move
    unweighted = fedavg_by_hand(x, y, parts, [30] * 3, rates, 3, 0.7, 0.4)
    assert not torch.allclose(flat(result.model).double(), unweighted[-1], atol=1e-3)


@pytest.mark.parametrize(("schedule", "rates"), RATES)
def test_learning_rates_of_the_rounds(federate, schedule, rates):
    result = federate("none", {"rounds": 6, **schedule})
    assert [row["learning_rate"] for row in result.metrics] == pytest.approx(rates, rel=1e-9)


def test_the_observed_model_is_the_moving_average(federate):
    watch = Watch()
    federate(
        "none",
        {"rounds": 6, "averaging": 0.35, "server_momentum": 0.0, "server_learning_rate": 0.5},
        {"declared_sizes": [10, 30, 60]},
        observers=[watch],
    )
    server = average = flat(network())
    for round_ in range(1, 7):
        messages = watch.of(round_)
        mean = sum(
            w / 100 * m.tensors["update"] for w, m in zip((10, 30, 60), messages, strict=True)
        )
        server = server + 0.5 * mean
        decay = min(0.35, (1 + round_) / (10 + round_))  # 2/11, 3/12, 4/13, then 0.35
        average = decay * average + (1 - decay) * server
        assert torch.allclose(flat(watch.models[round_]), average, rtol=0, atol=1e-6)
    assert not torch.allclose(average, server, atol=1e-3)


def test_the_final_model_is_the_users_own_architecture(federate):
    mine, tested = network(), blobs(60, seed=1)
    before = flat(mine).clone()
    result = federate("none", {"rounds": 5}, net=mine, test=tested)
    assert torch.equal(flat(mine), before)
    saved = load_file(result.folder / "model.safetensors")
    assert set(saved) == set(mine.state_dict())
    mine.load_state_dict(saved)
    outputs, labels = mine(torch.from_numpy(tested[0])), torch.from_numpy(tested[1])
    right = (outputs.argmax(1) == labels).double().mean().item()
    assert right == pytest.approx(result.accuracy, abs=1e-9)
    assert result.accuracy > 0.6
    assert F.cross_entropy(outputs, labels).item() == pytest.approx(result.loss, rel=1e-5)
    assert read(result, "summary.json")["accuracy"] == result.accuracy
    assert torch.equal(flat(result.model), flat(mine))


# Randomness: what the seed decides, and what it must not

SEEDED = {"randomness": "seeded"}


def test_a_seeded_run_repeats_exactly_and_claims_nothing(federate):
    first, again = federate(SEEDED), federate(SEEDED)
    assert torch.equal(flat(first.model), flat(again.model))
    assert not torch.equal(flat(first.model), flat(federate(SEEDED, seed=1).model))
    assert first.privacy.kind == "none"
    assert {statement.kind for statement in first.clients.values()} == {"none"}
    assert "not private" in read(first, "run.json")["privacy"]
    assert "not private" in str(first.privacy)
    summary = read(first, "summary.json")
    assert summary["privacy"]["kind"] == "none"
    assert "seeded" in summary["privacy"]["notes"][0]
    assert [row["privacy"] for row in first.metrics] == ["none"] * 3
    assert [row["epsilon"] for row in first.metrics] == [None] * 3
    with first.ledger as ledger:
        assert ledger.statement(account_of(first.ledger_path, "client-0")).kind == "none"


def test_an_entropy_run_never_repeats(federate):
    first, again = federate(), federate()
    assert not torch.equal(flat(first.model), flat(again.model))
    assert first.privacy.kind == again.privacy.kind == "guarantee"
    assert read(first, "run.json")["privacy"].startswith("private")


@pytest.mark.parametrize(
    "how",
    [
        {"chunk": 7},
        {"chunk": 1},
        {"lanes": "stacked"},
        {"lanes": "single"},
        {"lanes": "single", "chunk": 11},
    ],
)
def test_how_much_is_computed_at_once_changes_nothing_but_rounding(federate, how):
    training = {"rounds": 5, "learning_rate": 1.0}
    wanted = federate(SEEDED, training)
    found = federate(SEEDED, {**training, **how})
    gap = (flat(found.model) - flat(wanted.model)).abs().max()
    assert gap <= 1e-5 * max(1.0, float(flat(wanted.model).abs().max()))


def test_partition_first_model_and_selection_depend_on_the_seed_alone(federate):
    def public_facts(seed=3, **privacy):
        result = federate(
            privacy or "none",
            {"rounds": 1, "clients_per_round": 2},
            {"clients": 5, "public": 8},
            seed=seed,
            net={"name": "mlp", "options": {"hidden": [4]}},
            test=blobs(9, seed=1),
        )
        start = load_file(result.folder / "checkpoints" / "round-000000.safetensors")
        people = read(result, "participants.json")
        chosen = [(p["name"], p["rounds"], p["declared_size"]) for p in people]
        return records_of(result), start["server.model"], chosen

    records, start, chosen = public_facts()
    for privacy in (
        {"mechanism": "gaussian", "accountant": "rdp"},
        {"epsilon": 0.5, "clip": 0.1},
        {"accounting": "scalar", "accountant": "rdp"},
        SEEDED,
    ):
        others = public_facts(**privacy)
        assert records.keys() == others[0].keys()
        assert all(np.array_equal(records[name], others[0][name]) for name in records)
        assert torch.equal(start, others[1])
        assert chosen == others[2]
    elsewhere = public_facts(seed=4)
    assert not np.array_equal(records["client-0"], elsewhere[0]["client-0"])
    assert not torch.equal(start, elsewhere[1])
    assert len({str(public_facts(seed=seed)[2]) for seed in range(5)}) > 1


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards", "power-law"])
def test_public_and_test_records_belong_to_no_client(federate, partition):
    x, y = blobs()
    result = federate("none", {"rounds": 1}, {"partition": partition, "public": 0.25}, seed=5)
    dataset = as_dataset((x, y), 0.2, seed=5)
    records = records_of(result)
    public = records["public"]
    owned = np.concatenate(parts_of(result))
    records = {name: own for name, own in records.items() if "client" in name}
    assert len(dataset.train) == 72
    assert len(public) == 18
    assert sorted([*owned, *public]) == list(range(72))  # everyone once: nothing is shared
    held = {row.tobytes() for row in dataset.test.inputs}
    assert len(held) == 18
    assert held.isdisjoint(row.tobytes() for row in dataset.train.inputs)
    # What the ledger charges is these very records.
    with result.ledger as ledger:
        kept = {found.client: ledger.versions(found.id) for found in ledger.accounts()}
        paid = {entry.client: [entry.fingerprint] for entry in ledger.history()}
    held_by = {name: [dataset.train.subset(rows).fingerprint()] for name, rows in records.items()}
    assert kept == paid == held_by


# Planning: everybody's own noise for everybody's own releases


def noise_of(row):
    return event_from_dict(row["release"]).mechanism


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
    with pytest.raises(BudgetExceeded, match=r"^client-\d: the budget in .* does not hold"):
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
            assert statement == replace(result.clients[row["name"]], notes=())
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
    assert "not a privacy guarantee" in read(result, "run.json")["privacy"]
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

    refused("^client-0, client-1, client-2: the budget in .* does not hold this run")
    refused("no client has enough left for this run: client-0, client-1", exhausted="skip")

    with Ledger(shared) as ledger:
        ledger.set_budget(account_of(shared, "client-1"), Budget(40.0, 1e-5), reason="it agreed")
    refused("^client-0, client-2: the budget in .* does not hold this run")
    watch = Watch()
    third = federate({"ledger": str(shared), "exhausted": "skip"}, observers=[watch])
    assert third.stopped is None
    assert {message.client for message in watch.messages} == {"client-1"}
    assert [row["participants"] for row in third.metrics] == [1] * 3
    assert "without client-0, client-2: the budget does not hold this run" in caplog.text
    assert first.privacy.epsilon < third.privacy.epsilon <= 40.0  # of both runs together
    assert third.clients["client-0"] == first.clients["client-0"]
    assert len(charged(third, "client-0")) == spent
    assert len(charged(third, "client-1")) == 2 * spent

    with Ledger(shared, read_only=True) as ledger:
        assert ledger.verify() == []


class Meanwhile(Watch):
    """Does something to the ledger after a round, as another process would."""

    def __init__(self, ledger, after, change):
        super().__init__()
        self.ledger, self.after, self.change = ledger, after, change

    def on_round(self, row):
        super().on_round(row)
        if row["round"] == self.after:
            with Ledger(self.ledger) as ledger:
                for found in ledger.accounts():
                    self.change(ledger, found)


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


# What leaves a client, and who may look at it


class Vandal(Watch):
    """Changes everything it is shown."""

    def on_message(self, message):
        for tensor in message.tensors.values():
            tensor.fill_(torch.nan)
        message.tensors.clear()
        message.metadata.clear()

    def on_model(self, round_, model):
        for tensor in model.values():
            tensor.zero_()

    def on_round(self, row):
        row.clear()


def test_observers_see_copies(federate):
    quiet, watch = federate(SEEDED, {"averaging": 0.5}), Watch()
    disturbed = federate(SEEDED, {"averaging": 0.5}, observers=[Vandal(), watch])
    assert torch.equal(flat(quiet.model), flat(disturbed.model))
    assert disturbed.accuracy == quiet.accuracy
    assert disturbed.loss == quiet.loss
    assert len(watch.messages) == 9
    assert all(message.tensors["update"].isfinite().all() for message in watch.messages)
    assert {message.weight for message in watch.messages} == {24.0}
    assert torch.equal(flat(watch.models[3]), flat(disturbed.model))
    assert [row["round"] for row in watch.rows] == [1, 2, 3]


def test_recorded_updates_are_the_released_messages(federate):
    watch = Watch()
    result = federate(
        None, {"rounds": 4}, {"declared_sizes": 17}, record_updates=[2, 4], observers=[watch]
    )
    files = sorted((result.folder / "updates").iterdir())
    assert [path.name for path in files] == [
        f"round-{round_:06d}-client-{client}.safetensors"
        for round_ in (2, 4)
        for client in range(3)
    ]
    people = {row["name"]: ReleasePlan.from_dict(row) for row in read(result, "participants.json")}
    sent = {(message.round, message.client): message for message in watch.messages}
    for path in files:
        kept = ClientMessage.from_bytes(path.read_bytes())
        seen = sent[kept.round, kept.client]
        assert kept.tensors.keys() == seen.tensors.keys() == {"update"}
        assert torch.equal(kept.tensors["update"], seen.tensors["update"])
        assert kept.events == seen.events == (event_to_json(people[kept.client].round_event),)
        # 24 records are held and 17 declared: only what is declared may be known.
        assert kept.metadata == {"declared_size": 17}
        header = path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")]
        public = json.loads(json.loads(header)["__metadata__"]["udpfl"])
        assert public.keys() == {"client", "round", "events", "metadata"}
        assert kept.to_bytes() == path.read_bytes() == seen.to_bytes()
    by_round = [sum(len(m.to_bytes()) for m in watch.of(round_)) for round_ in range(1, 5)]
    assert [row["bytes_up"] for row in result.metrics] == by_round
    assert [row["bytes_down"] for row in result.metrics] == [3 * 4 * DIMENSION] * 4


def test_a_damaged_message_is_refused():
    message = ClientMessage("a", 1, {"update": torch.arange(3.0)}, (), {"declared_size": 2})
    data = message.to_bytes()
    again = ClientMessage.from_bytes(data)
    assert (again.client, again.round, again.weight) == ("a", 1, 2.0)
    assert torch.equal(again.tensors["update"], torch.arange(3.0))
    for broken in (b"", data[:-1], data[:20], b"x" * len(data)):
        with pytest.raises(InvalidInput, match="message"):
            ClientMessage.from_bytes(broken)


# The client half by itself


class Counting(FedAvg):
    """Every client counts its rounds and sends the count."""

    name = "counting"

    def client_init(self, parameters):
        return {"rounds": torch.zeros(2)}

    def client_step(self, received, state, train):
        tensors, _ = super().client_step(received, state, train)
        state = {"rounds": state["rounds"] + torch.tensor([1.0, 10.0])}
        return {**tensors, "rounds": state["rounds"]}, state


NOISE = Release(Gaussian(2.0), Sensitivity(1.0, "l2", DIMENSION))


def answers_alone(path, round_, clients, start=None):
    """One request to some clients, as a process that has just started would answer it."""
    x, y = blobs(60)
    model = LaneModel(network(), cross_entropy)
    with Ledger(Path(path)) as ledger:
        ledger.begin_run("run", randomness="seeded", accounting="vector", description={})
        sites = [
            LocalClient(
                ReleasePlan(f"site-{i}", 30, 0.5, 4, 2, NOISE),
                ledger.account(f"site-{i}", f"data-{i}"),
                torch.arange(30 * i, 30 * i + 30),
            )
            for i in clients
        ]
        trainer = Trainer(
            "key", model, torch.from_numpy(x), torch.from_numpy(y),
            Counting(udpfl.algorithms.ServerStep()), Keyed(5), Limits(2, 100),
        )  # fmt: skip
        half = InProcessClients(sites, "run", trainer, ledger)
        received = {"model": model.initial() if start is None else start}
        answers = half.answer(Request(round_, received, 0.4), range(len(sites)))
        counts = Counter()
        for entry in ledger.history():
            counts[entry.client] += entry.count
    return answers, counts


def test_a_client_alone_keeps_its_state_and_answers_a_repeated_request_for_free(tmp_path):
    path, sent = tmp_path / "site.sqlite", {}
    for round_ in (1, 2, 3):
        answers, counts = answers_alone(path, round_, [0])
        (message,) = answers.messages
        assert message.tensors["rounds"].tolist() == [round_, 10.0 * round_]
        assert counts == {"site-0": 2 * round_}
        sent[round_] = message.to_bytes()
    for round_ in (3, 1):  # a server that lost the answer, and now even sends another model
        answers, counts = answers_alone(path, round_, [0], start=torch.ones(DIMENSION))
        assert [message.to_bytes() for message in answers.messages] == [sent[round_]]
        assert counts == {"site-0": 6}
    code = (
        "import sys; from tests.federation.test_federation import answers_alone\n"
        "answers, counts = answers_alone(sys.argv[1], 4, [0])\n"
        "print(*answers.messages[0].tensors['rounds'].tolist(), counts['site-0'])"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["4.0", "40.0", "8"]


def test_two_lanes_at_once_are_two_clients_one_by_one(tmp_path):
    together, _ = answers_alone(tmp_path / "both.sqlite", 1, [1, 0])
    assert [message.client for message in together.messages] == ["site-1", "site-0"]
    alone = [answers_alone(tmp_path / f"{i}.sqlite", 1, [i])[0].messages[0] for i in (1, 0)]
    for ours, theirs in zip(together.messages, alone, strict=True):
        cost = event_to_json(Repeated(PoissonSampled(0.5, NOISE), 2))
        assert ours.events == theirs.events == (cost,)
        gap = (ours.tensors["update"] - theirs.tensors["update"]).abs().max()
        assert gap <= 1e-5
    first, second = (message.tensors["update"] for message in together.messages)
    assert (first - second).abs().max() > 1e-3


def test_new_and_repeated_answers_mix(tmp_path):
    path = tmp_path / "site.sqlite"
    first, _ = answers_alone(path, 1, [1])
    both, counts = answers_alone(path, 1, [0, 1])
    assert [message.client for message in both.messages] == ["site-0", "site-1"]
    assert both.messages[1].to_bytes() == first.messages[0].to_bytes()
    assert counts == {"site-0": 2, "site-1": 2}


def test_a_client_without_budget_left_does_not_train(tmp_path, monkeypatch):
    path = tmp_path / "site.sqlite"
    answers_alone(path, 1, [0, 1])
    with Ledger(path) as ledger:
        ledger.set_budget(account_of(path, "site-0"), Budget(0.01, 1e-6))
    answers, counts = answers_alone(path, 2, [0, 1])
    assert answers.refused == {"site-0": "the budget does not allow another round"}
    assert [message.client for message in answers.messages] == ["site-1"]
    assert counts == {"site-0": 2, "site-1": 4}
    # Another process spends the last of it after this one has looked.
    monkeypatch.setattr(Ledger, "refusals", lambda *_: {})
    answers, counts = answers_alone(path, 3, [0, 1])
    assert answers.refused.keys() == {"site-0"}
    assert "no update was released" in answers.refused["site-0"]
    assert [message.client for message in answers.messages] == ["site-1"]
    assert counts == {"site-0": 2, "site-1": 6}


class Twice(Algorithm):
    """Trains two times a round and sends both halves of the way."""

    name = "twice"

    def init(self, parameters):
        return self.server.init(parameters)

    def client_step(self, received, state, train):
        start = received["model"].expand(len(train.clients), -1)
        middle = train(start)
        end = train(middle)
        return {"first": middle - start, "second": end - middle}, state

    def aggregate(self, server, messages):
        step = weighted_mean(messages, "first") + weighted_mean(messages, "second")
        return self.server.apply(server, step)


def test_a_method_that_trains_twice_pays_twice_and_gets_fresh_noise(federate):
    watch = Watch()
    result = federate(
        SEEDED,
        {"algorithm": f"{__name__}:Twice", "rounds": 4, "local_steps": 2},
        loss=without_gradient,
        net=nn.Linear(4, 300),
        observers=[watch],
    )
    for message in watch.messages:
        first, second = message.tensors["first"], message.tensors["second"]
        assert torch.corrcoef(torch.stack([first, second]))[0, 1].abs() < 0.15
        assert len(message.events) == 2
    noises = [tensor for message in watch.messages for tensor in message.tensors.values()]
    assert len({tuple(noise.tolist()) for noise in noises}) == 2 * 2 * 3
    for name in ("client-0", "client-1", "client-2"):
        assert [(e.round, e.count) for e in charged(result, name)] == [(1, 4), (2, 4)]


def test_a_method_that_trains_more_than_planned_stops_at_the_budget(federate):
    result = federate(None, {"algorithm": f"{__name__}:Twice", "rounds": 4})
    assert len(result.metrics) == 2
    assert result.stopped.startswith("no client is left to train")
    assert 7.5 < result.privacy.epsilon <= 8.0


class DeclaredTwice(Twice):
    name = "declared-twice"
    trainings = 2


def test_a_method_that_declares_its_trainings_has_noise_for_all_of_them(federate):
    method = {"algorithm": f"{__name__}:DeclaredTwice", "rounds": 4}
    result = federate(None, method)
    assert len(result.metrics) == 4
    assert result.stopped is None
    assert 7.5 < result.privacy.epsilon <= 8.0


# Noise that is really there


def test_the_noise_in_an_update_has_the_planned_size_and_shape(federate):
    watch, rate, sampling, steps = Watch(), 0.01, 0.25, 3
    sizes = [11, 40, 23]
    result = federate(
        {"mechanism": ["gaussian", "laplace", "gaussian"], "clip": [1.0, 2.0, 0.1]},
        {"rounds": 1, "local_steps": steps, "sampling_rate": sampling, "learning_rate": rate},
        {"declared_sizes": sizes},
        loss=without_gradient,
        net=nn.Linear(4, 2000),
        observers=[watch],
    )
    people = {row["name"]: row for row in read(result, "participants.json")}
    assert len(watch.messages) == 3
    for message, size in zip(watch.messages, sizes, strict=True):
        noise = noise_of(people[message.client])
        assert type(noise) is (Laplace if message.client == "client-1" else Gaussian)
        std = noise.std if isinstance(noise, Gaussian) else noise.scale * math.sqrt(2)
        wanted = rate * std / (sampling * size) * math.sqrt(steps)
        found = message.tensors["update"].double()

        def right(factor, found=found, wanted=wanted):
            return found.std().item() == pytest.approx(factor * wanted, rel=0.08)

        assert right(1.0)
        assert not right(2 / 3)
        assert not right(3 / 2)
        assert abs(found.mean().item()) < 5 * wanted / math.sqrt(len(found))


def test_each_mechanism_adds_noise_of_its_own_shape(federate):
    watch = Watch()
    federate(
        {"mechanism": ["gaussian", "laplace"]},
        {"rounds": 1, "local_steps": 1},
        {"clients": 2},
        loss=without_gradient,
        net=nn.Linear(4, 4000),
        observers=[watch],
    )
    normal, laplace = (message.tensors["update"] for message in watch.messages)
    for noise, ratio in ((normal, math.sqrt(2 / math.pi)), (laplace, 1 / math.sqrt(2))):
        assert (noise.abs().mean() / noise.std()).item() == pytest.approx(ratio, abs=0.02)


def test_an_update_moves_no_further_than_clip_and_noise_allow(federate):
    """Clipping is at work: without noise, one step of n records is at most lr n C / (q N)."""

    def clipped_only(people):
        return planned_protection(people)[0], Noiseless()

    watch = Watch()
    x, y = blobs()
    federate(
        {"clip": 0.01},
        {"rounds": 1, "local_steps": 1, "sampling_rate": 1.0, "learning_rate": 1.0},
        given=(100 * x, y),
        protection=clipped_only,
        observers=[watch],
    )
    sizes = [float(message.tensors["update"].norm()) for message in watch.messages]
    assert all(1e-4 < size <= 0.01 * (1 + 1e-5) for size in sizes)


# Clipping and noise replaced: nothing is claimed, anywhere


def test_nobody_replaces_the_training(federate, tmp_path, monkeypatch):
    """A run that claims privacy trains with this engine and no other."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="engine: unknown key"):
        udpfl.run(engine=train_round)
    assert list(tmp_path.iterdir()) == []
    finished = federate()
    with pytest.raises(InvalidInput, match="resume"):
        udpfl.run(resume=finished.folder, engine=train_round)


def test_replaced_protection_claims_nothing(federate, tmp_path):
    def noiseless(people):
        return NormClipper("l2", [1.0] * len(people)), Noiseless()

    result = federate(protection=noiseless)
    assert {statement.kind for statement in result.clients.values()} == {"none"}
    assert result.privacy.kind == "none"
    assert "replaced" in str(result.privacy)
    assert [row["privacy"] for row in result.metrics] == ["none"] * 3
    assert read(result, "summary.json")["privacy"]["kind"] == "none"
    assert "not private" in read(result, "run.json")["privacy"]
    with result.ledger as ledger:
        for found in ledger.accounts():
            assert ledger.statement(found.id, 1e-5).kind == "none"
    with pytest.raises(InvalidInput, match=r"privacy\.ledger"):
        federate({"ledger": str(tmp_path / "shared.sqlite")}, protection=noiseless)
    assert not (tmp_path / "shared.sqlite").exists()


# Data of every kind


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [([5, 6, 7], [5, 6, 7]), (12, [12] * 3), ("partition", None), ("auto", [24] * 3)],
)
def test_declared_sizes(federate, caplog, declared, wanted):
    caplog.set_level(logging.WARNING)
    result = federate("none", {"rounds": 1}, {"partition": "dirichlet", "declared_sizes": declared})
    real = [len(part) for part in parts_of(result)]
    assert len(set(real)) > 1
    found = [row["declared_size"] for row in read(result, "participants.json")]
    assert found == (wanted or real)
    assert ("every client declares the mean, 24" in caplog.text) is (declared == "auto")


def test_equal_shares_declare_their_size(federate, caplog):
    result = federate("none", {"rounds": 1})
    assert [row["declared_size"] for row in read(result, "participants.json")] == [24] * 3
    assert caplog.text == ""


def test_one_data_set_per_client(federate, caplog):
    x, y = blobs(100)
    clients = [(x[:20], y[:20]), (x[20:60], y[20:60]), (x[60:90], y[60:90]), (x[90:], y[90:])]
    result = federate("none", {"rounds": 1}, {"declared_sizes": "partition"}, given=clients)
    assert [len(part) for part in parts_of(result)] == [16, 32, 24, 8]
    assert [row["declared_size"] for row in read(result, "participants.json")] == [16, 32, 24, 8]
    assert result.config.data.clients == 4
    federate("none", {"rounds": 1}, given=clients)
    assert "every client declares the mean, 20" in caplog.text
    with pytest.raises(InvalidInput, match=r"data\.public"):
        federate("none", {"rounds": 1}, {"public": 0.1}, given=clients)


def test_regression_reports_errors_and_no_accuracy(federate):
    x, _ = blobs(120)
    y = (x @ np.array([0.5, -1.0, 0.2, 0.1], dtype=np.float32))[:, None]
    tested = (x[90:], y[90:])
    result = federate(
        "none",
        {"rounds": 8, "learning_rate": 0.05, "sampling_rate": 1.0},
        given=(x[:90], y[:90]),
        test=tested,
        net=nn.Linear(4, 1),
    )
    assert result.accuracy is None
    gap = result.model(torch.from_numpy(tested[0])).detach().numpy() - tested[1]
    last = result.metrics[-1]
    assert last["mae"] == pytest.approx(np.abs(gap).mean(), rel=1e-4)
    assert last["mse"] == pytest.approx(np.square(gap).mean(), rel=1e-4)
    assert result.loss == pytest.approx(last["mse"], rel=1e-6)
    assert last["mse"] < 0.5 * result.metrics[0]["mse"]
    summary = read(result, "summary.json")
    assert summary["accuracy"] is None
    assert summary["mae"] == last["mae"]


def test_a_table_by_configuration_alone(tmp_path):
    x, y = blobs(60)
    lines = ["site,a,b,c,d,kind"]
    lines += [
        f"s{i % 4},{','.join(map(str, row))},{'xyz'[label]}"
        for i, (row, label) in enumerate(zip(x.tolist(), y, strict=True))
    ]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    result = udpfl.run(
        {
            "out": str(tmp_path / "run"),
            "privacy": "none",
            "data": {
                "name": "table",
                "dir": str(tmp_path),
                "partition": "column",
                "by": "site",
                "clients": 4,
                "declared_sizes": 12,
                "options": {"path": "people.csv", "target": "kind"},
            },
            "model": {"name": "logistic"},
            "training": {"rounds": 10, "sampling_rate": 1.0, "learning_rate": 0.5},
        }
    )
    assert sum(len(part) for part in parts_of(result)) == 48
    assert result.accuracy > 0.7
    assert sum(p.numel() for p in result.model.parameters()) == 4 * 3 + 3


def test_map_style_data_are_the_same_as_arrays(federate):
    x, y = blobs()
    arrays = federate(SEEDED, given=(x, y))
    pairs = federate(SEEDED, given=TensorDataset(torch.from_numpy(x), torch.from_numpy(y)))
    assert torch.equal(flat(arrays.model), flat(pairs.model))


# Wrong input, before anything is written or released


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"training": {"options": {"speed": 3}}}, r"training\.options"),
        ({"training": {"algorithm": "fedagv"}}, r"training\.algorithm.*fedavg"),
        ({"training": {"algorithm": "builtins:dict"}}, r"training\."),
        ({"privacy": {"mechanism": "gaussian", "delta": 0.0}}, r"privacy\.delta.*gaussian"),
        (  # dealt out in turn: the second client has both
            {"privacy": {"mechanism": ["laplace", "gaussian"], "delta": [1e-5, 0.0, 1e-5]}},
            r"privacy\.delta.*gaussian",
        ),
        (
            {"privacy": {"delta": 0.99}, "training": {"rounds": 1, "local_steps": 1}},
            r"privacy\.delta",
        ),
        ({"resume": "nowhere"}, "resume"),
    ],
)
def test_wrong_input_leaves_nothing_behind(federate, tmp_path, more, key):
    with pytest.raises(udpfl.UdpflError, match=key):
        federate(**more)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_left_alone(federate, tmp_path):
    taken = tmp_path / "run-0"
    taken.mkdir()
    (taken / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidInput, match="not empty"):
        federate()
    assert [path.name for path in taken.iterdir()] == ["thesis.txt"]


def test_a_model_that_mixes_records_is_refused(federate):
    mixing = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    with pytest.raises(udpfl.Unsupported, match="replace_batchnorm"):
        federate(net=mixing)


def test_a_folder_whose_run_never_began_can_be_used_again(federate, tmp_path):
    half = tmp_path / "half"
    (half / "checkpoints").mkdir(parents=True)
    (half / "config.toml").write_text("seed = 1\n")
    assert RunFolder.create(half).path == half
    (half / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="not empty"):
        RunFolder.create(half)


def test_a_damaged_latest_checkpoint_costs_nothing(federate):
    """The older one is used, and the messages since then are sent again, not charged again."""
    whole = federate(SEEDED, {"rounds": 6, "checkpoint_every": 2})
    before = [(e.client, e.round, e.count) for e in whole.ledger.history()]
    latest = max((whole.folder / "checkpoints").iterdir())
    latest.write_bytes(latest.read_bytes()[:100])
    again = udpfl.run(resume=whole.folder, model=network(), data=blobs())
    assert [(e.client, e.round, e.count) for e in again.ledger.history()] == before
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])


def test_resuming_a_finished_run_says_so_and_keeps_its_time(federate, caplog):
    whole = federate(None, {"rounds": 2})
    assert "nothing was left to do" not in caplog.text
    file = whole.folder / "summary.json"
    file.write_text(json.dumps({**read(whole, "summary.json"), "seconds": 1234.5}))
    again = udpfl.run(resume=whole.folder, model=network(), data=blobs())
    assert "all 2 rounds of this run were trained before: nothing was left to do" in caplog.text
    assert again.seconds == read(whole, "summary.json")["seconds"] == 1234.5
    file.write_text("{}")  # whatever became of the file, the run can be resumed
    assert udpfl.run(resume=whole.folder, model=network(), data=blobs()).seconds < 1234.5


# What a run may not forget, and what it may not claim


def test_resuming_needs_the_ledger_that_holds_the_charges(federate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = {"ledger": "budget.sqlite", "epsilon": 2.0}
    whole = federate(shared, {"rounds": 4})
    assert whole.ledger_path == tmp_path / "budget.sqlite"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = udpfl.run(resume=whole.folder, model=network(), data=blobs())
    assert again.privacy == whole.privacy
    assert not list(elsewhere.iterdir())
    whole.ledger_path.rename(tmp_path / "moved.sqlite")
    with pytest.raises(LedgerError, match="is not there: it cannot go on"):
        udpfl.run(resume=whole.folder, model=network(), data=blobs())


def test_resuming_needs_the_same_data_and_model(federate):
    whole = federate(None, {"rounds": 2})
    inputs, labels = blobs()
    with pytest.raises(InvalidInput, match="not those that the run was begun with"):
        udpfl.run(resume=whole.folder, model=network(), data=(inputs + 1, labels))
    with pytest.raises(InvalidInput, match=r"planned for \d+ parameters"):
        udpfl.run(resume=whole.folder, model=nn.Linear(4, 3), data=blobs())


def test_one_statement_for_all_clients_holds_for_each(federate):
    result = federate({"epsilon": [3.0, 2.0, 2.0], "delta": [1e-6, 1e-2, 1e-5]})
    assert result.privacy.epsilon <= 3.0
    assert result.privacy.delta == 1e-2
    for statement in result.clients.values():
        assert statement.epsilon <= result.privacy.epsilon
        assert statement.delta <= result.privacy.delta
    nominal = federate({"accounting": "scalar", "epsilon": [2.0, 4.0, 1.0]})
    worst = max(statement.vector_epsilon for statement in nominal.clients.values())
    assert nominal.privacy.vector_epsilon == worst


def test_a_nominal_run_on_a_shared_ledger_says_what_all_runs_cost(federate, tmp_path):
    shared = {"accounting": "scalar", "epsilon": 2.0, "ledger": str(tmp_path / "b.sqlite")}
    guaranteed = [federate(shared).privacy.vector_epsilon for _ in range(2)]
    assert guaranteed[1] > 1.2 * guaranteed[0]


def test_data_known_under_another_name_gets_no_new_budget(federate, tmp_path):
    x, y = blobs()
    parts = [(x[i::3], y[i::3]) for i in range(3)]
    shared = {"ledger": str(tmp_path / "b.sqlite")}
    federate(shared, given=parts, test=blobs())
    with pytest.raises(InvalidInput, match="is known there as"):
        federate(shared, given=parts[::-1], test=blobs())


def test_what_is_read_off_ones_own_data_is_an_assumption(federate):
    notes = " ".join(federate().privacy.notes)
    assert "sizes of the clients" in notes
    assert "set of labels" in notes
    assert "sizes" not in " ".join(federate(None, None, {"declared_sizes": 20}).privacy.notes)


def test_dropout_is_not_drawn_from_the_public_seed(federate):
    """With everything else fixed, two private runs must not share their masks."""

    def masks(privacy):
        seen = []

        class Spy(nn.Module):
            def __init__(self):
                super().__init__()
                self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

            def forward(self, x):
                if torch.is_grad_enabled() and self.drop.p:  # 0 where the model is only tried
                    seen.append(self.drop(torch.ones(64)).tolist())
                return self.head(self.drop(x))

        federate(privacy, {"rounds": 1, "sampling_rate": 1.0}, net=Spy())
        return seen

    first, second = masks({"randomness": "entropy"}), masks({"randomness": "entropy"})
    assert first
    assert not {tuple(mask) for mask in first} & {tuple(mask) for mask in second}
    again = [masks({"randomness": "seeded"}) for _ in range(2)]
    assert again[0] == again[1]


def only_client_0(ledger, found):
    limit = 1e-3 if found.client == "client-0" else 50.0
    ledger.set_budget(found.id, Budget(limit, 1e-5), reason="a test")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_round_in_which_nobody_has_budget_is_skipped_not_the_end(federate, tmp_path, when):
    """Client 0 has nothing left; the rounds that ask only client 0 pass, the others go on."""
    shared = {"ledger": str(tmp_path / "b.sqlite"), "epsilon": 4.0, "exhausted": "skip"}
    plan = {"rounds": 8, "clients_per_round": 1}
    first = federate(shared, {"rounds": 1, "clients_per_round": 1}, seed=3)
    with Ledger(first.ledger_path) as ledger:
        for found in ledger.accounts():
            ledger.set_budget(found.id, Budget(50.0, 1e-5), reason="a test")
            if when == "before":
                only_client_0(ledger, found)
    watch = Meanwhile(first.ledger_path, 0 if when == "before" else 1, only_client_0)
    second = federate(shared, plan, seed=3, observers=[watch])
    asked = [row["participants"] for row in second.metrics]
    assert second.stopped is None
    assert 0 < len(asked) < 8
    assert set(asked) == {1}
    run = read(second, "run.json")["id"]
    rounds = {entry.round for entry in charged(second, "client-0") if entry.run == run}
    assert rounds == (set() if when == "before" else {1})
    assert any(row["round"] > 6 for row in second.metrics)  # which asks client 0 once more


class Prepared(nn.Module):
    """A fixed first step, then one layer; counts how many records the fixed step has seen."""

    seen = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def precompute(self, x):
        Prepared.seen += len(x)
        return torch.cat([x + self.shift, x * x], 1)

    def forward(self, x):
        return self.layer(self.precompute(x) if x.shape[1] == 4 else x)


class Mixing(Prepared):
    def precompute(self, x):
        return super().precompute(torch.cumsum(x, 0))


class Remembering(Prepared):
    def precompute(self, x):
        self.shift += x.abs().mean() * 1e-3
        return super().precompute(x)


class Random(Prepared):
    def precompute(self, x):
        return super().precompute(x + torch.randn(4))


def test_fixed_features_are_computed_once_and_train_the_same_model(federate):
    x, y = blobs()
    features = np.concatenate([x + 1, x * x], 1)
    Prepared.seen = 0
    plain = nn.Linear(8, 3)
    nn.init.zeros_(plain.weight)
    nn.init.zeros_(plain.bias)
    training = {"sampling_rate": 1.0, "local_steps": 3}
    once = federate("none", training, given=(x, y), net=Prepared())
    # Traced for two splits: a try, two records before, huge, all at once, two records after.
    assert Prepared.seen == 2 * (1 + 2 + 1 + 1 + 2)
    direct = federate("none", training, given=(features, y), net=plain)
    assert torch.allclose(once.model.layer.weight, direct.model.weight, atol=1e-6)
    assert set(load_file(once.folder / "model.safetensors")) == {"layer.weight", "layer.bias"}
    assert once.model(torch.from_numpy(x[:2])).shape == (2, 3)  # the plain model takes plain inputs


def test_features_see_one_record_at_a_time(federate):
    """What mixes the records of a batch has nothing to mix."""
    once = federate("none", {"sampling_rate": 1.0}, given=blobs(), net=Prepared())
    mixing = federate("none", {"sampling_rate": 1.0}, given=blobs(), net=Mixing())
    assert torch.equal(once.model.layer.weight, mixing.model.layer.weight)


@pytest.mark.parametrize("kind", [Remembering, Random])
def test_features_that_answer_the_same_record_in_two_ways_are_refused(federate, kind):
    with pytest.raises(Unsupported, match="two answers"):
        federate(given=blobs(), net=kind())
