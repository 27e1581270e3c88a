"""Whole runs against plain PyTorch, and what the seed decides of them."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import nn

from tests.federation.samples import (
    SEEDED,
    Watch,
    account_of,
    blobs,
    flat,
    network,
    parts_of,
    read,
    records_of,
)
from udpfl.data import as_dataset

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_a_seeded_run_repeats_exactly_and_claims_nothing(federate):
    first, again = federate(SEEDED), federate(SEEDED)
    assert torch.equal(flat(first.model), flat(again.model))
    assert not torch.equal(flat(first.model), flat(federate(SEEDED, seed=1).model))
    assert first.privacy.kind == "none"
    assert {statement.kind for statement in first.clients.values()} == {"none"}
    assert read(first, "run.json")["privacy"]["kind"] == "none"
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
    assert read(first, "run.json")["privacy"]["kind"] == "guarantee"


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


def test_a_run_is_short_on_a_line_and_a_table_in_a_notebook(federate):
    result = federate("none", {"rounds": 1})
    assert repr(result).startswith(f"<Run {result.folder}: accuracy ")
    assert repr(result).endswith(", not private>")
    page = result._repr_html_()
    assert "1 of 1" in page
    assert str(result.report) in page
    assert "http" not in page
    hostile = dataclasses.replace(result, stopped="<b>no client is left</b>")
    assert "&lt;b&gt;no client is left&lt;/b&gt;" in hostile._repr_html_()
