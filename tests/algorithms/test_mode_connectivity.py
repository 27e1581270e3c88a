"""The tree of curves and the public records that its searches learn from."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import udpfl
from tests.algorithms.samples import messages, prepared, public
from tests.federation.samples import blobs, flat, network
from tests.small import PowerCut, Stops
from udpfl import InvalidInput, Unsupported
from udpfl.algorithms import FedAvg, ModeConnectivity, ServerStep
from udpfl.algorithms.mode_connectivity import merge_in_pairs

pytestmark = pytest.mark.usefixtures("one_thread")


# The tree


@pytest.mark.parametrize("n", range(1, 18))
def test_the_tree_ends_and_uses_every_model_once(n):
    seen, keys = [], []

    def merge(a, b, level, pair):
        keys.append((level, pair))
        seen.extend(m for m in (a, b) if isinstance(m, int))
        return (a, b)

    whole, levels = merge_in_pairs(list(range(n)), merge)
    assert levels == math.ceil(math.log2(n))
    assert len(keys) == n - 1 == len(set(keys))
    assert n == 1 or sorted(seen) == list(range(n))

    def leaves(node):
        return [node] if isinstance(node, int) else leaves(node[0]) + leaves(node[1])

    assert leaves(whole) == list(range(n))


# Methods on messages


def test_without_a_search_the_tree_by_size_is_federated_averaging():
    rng = np.random.default_rng(0)
    for n in range(1, 10):
        sent = messages(rng.normal(size=(n, 2)).astype(np.float32), range(1, n + 1))
        server = {"model": torch.tensor([1.0, -1.0])}
        method = prepared(ModeConnectivity(ServerStep(), point="size", steps=0))
        plain = FedAvg(ServerStep()).aggregate(server, sent)["model"]
        torch.testing.assert_close(method.aggregate(server, sent)["model"], plain)


def test_the_best_point_is_the_one_nearest_to_the_public_records():
    """Loss |w|^2 on the line from (1, 0) to (-3, 0): least at p = 1/4, which is one of five."""
    method = prepared(ModeConnectivity(ServerStep(), curve="chain", steps=0, points=5))
    sent = messages([[1.0, 0.0], [-3.0, 0.0]], [1, 2])
    found = method.aggregate({"model": torch.zeros(2)}, sent)["model"]
    torch.testing.assert_close(found, torch.zeros(2))
    # Where no evenly spaced point does better, the place by size wins: p = 2/3 of 0 and 6, at 4.
    data = public([(4.1, 0.0)])
    sent = messages([[0.0, 0.0], [6.0, 0.0]], [1, 2])
    method = prepared(ModeConnectivity(ServerStep(), steps=0, points=3), data)
    found = method.aggregate({"model": torch.zeros(2)}, sent)["model"]
    torch.testing.assert_close(found, torch.tensor([4.0, 0.0]))


def test_the_bend_is_what_the_paper_keeps():
    """One step at p from the midpoint (1, 0): minus learning rate * b(p) * 2 (point - record)."""
    method = prepared(
        ModeConnectivity(ServerStep(), curve="chain", point="bend", steps=1, learning_rate=0.1)
    )
    sent = messages([[0.0, 0.0], [2.0, 0.0]], [1, 1])
    found = float(method.aggregate({"model": torch.zeros(2)}, sent)["model"][0])
    first, second = (sent[i].tensors["update"] for i in public().rng(3).permutation(2))
    p = public().rng(3, 0, 0).random()
    b = 2 * p if p < 0.5 else 2 - 2 * p
    place = (1 - p) * float(first[0]) + p * float(second[0])
    assert found == pytest.approx(1 - 0.1 * b * 2 * place, rel=1e-5)


def test_the_search_learns_from_the_public_records_alone():
    """Both models lie far off; the bend moves towards the public record and the best point too."""
    data = public([(0.0, 5.0)])
    sent = messages([[-1.0, 0.0], [1.0, 0.0]], [1, 1])
    far = prepared(ModeConnectivity(ServerStep(), steps=300, learning_rate=0.01), data)
    found = far.aggregate({"model": torch.zeros(2)}, sent)["model"]
    assert float(found[1]) > 2.0


def test_a_round_draws_the_same_numbers_however_often_it_is_asked():
    method = prepared(ModeConnectivity(ServerStep(), steps=5))
    server = {"model": torch.zeros(2)}
    updates = np.random.default_rng(0).normal(3, 1, size=(5, 2)).astype(np.float32)
    sent = messages(updates, [1] * 5)
    first = method.aggregate(server, sent)["model"]
    method.aggregate(server, messages(updates, [1] * 5, round_=4))
    assert torch.equal(method.aggregate(server, sent)["model"], first)
    other = prepared(ModeConnectivity(ServerStep(), steps=5), public(seed=1))
    assert not torch.equal(other.aggregate(server, sent)["model"], first)


def test_a_server_that_was_not_prepared_says_so():
    with pytest.raises(Unsupported, match="not prepared"):
        ModeConnectivity(ServerStep()).aggregate(
            {"model": torch.zeros(2)}, messages([[1.0, 0.0]], [1])
        )


@pytest.mark.parametrize(
    ("method", "options", "key"),
    [
        ("bezier", {"constants": "other"}, "constants"),
        ("bezier", {"smoothness": 0}, "smoothness"),
        ("bezier", {"r": 1.5}, "r"),
        ("bezier", {"step": "giant"}, "step"),
        ("bezier", {"smoothness": "estimated"}, "smoothness"),
        ("client-bezier", {"constants": "other"}, "constants"),
        ("client-bezier", {"smoothness": -1}, "smoothness"),
        ("client-bezier", {"smoothness": "guessed"}, "smoothness"),
        ("client-bezier", {"step": ""}, "step"),
        ("client-bezier", {"r": float("nan")}, "r"),
        ("mode-connectivity", {"curve": "spline"}, "curve"),
        ("mode-connectivity", {"point": "worst"}, "point"),
        ("mode-connectivity", {"steps": -1}, "steps"),
        ("mode-connectivity", {"learning_rate": 0}, "learning_rate"),
        ("mode-connectivity", {"batch": 0}, "batch"),
        ("mode-connectivity", {"points": 1}, "points"),
    ],
)
def test_wrong_options_are_refused_by_name(federate, method, options, key):
    with pytest.raises(InvalidInput, match=rf"training\.options\.{key}"):
        federate(
            training={"algorithm": method, "options": options}, data={"clients": 3, "public": 9}
        )


# Whole runs


@pytest.fixture
def federate(tmp_path):
    numbers = itertools.count()

    def start(training=None, data=None, **more):
        settings = {
            "out": str(tmp_path / f"run-{next(numbers)}"),
            "privacy": {"mechanism": "gaussian", "randomness": "seeded"},
            "training": {"rounds": 4, "learning_rate": 0.3, **(training or {})},
            "data": {"clients": 3, **(data or {})},
        }
        return udpfl.run(settings, data=blobs(), model=network(), **more)

    return start


def test_a_method_that_needs_public_records_refuses_to_go_without(federate):
    with pytest.raises(InvalidInput, match=r"data\.public.*but there are none"):
        federate(training={"algorithm": "mode-connectivity"})


def test_the_hook_brings_the_public_split_and_nothing_of_a_client(federate, monkeypatch):
    seen = []
    prepare = ModeConnectivity.prepare
    monkeypatch.setattr(
        ModeConnectivity, "prepare", lambda self, data: (seen.append(data), prepare(self, data))
    )
    result = federate(training={"algorithm": "mode-connectivity"}, data={"public": 12})
    (data,) = seen
    x, _ = blobs()
    with np.load(result.folder / "records.npz") as parts:
        train, rows = parts["train"], parts["public"]
        held = np.concatenate([parts[f"client-{i}"] for i in range(3)])
    assert len(data.inputs) == len(data.targets) == 12
    np.testing.assert_array_equal(data.inputs.numpy(), x[train[rows]])
    assert not {r.tobytes() for r in data.inputs.numpy()} & {r.tobytes() for r in x[train[held]]}


def test_a_run_says_that_its_public_records_are_not_protected(tmp_path):
    result = udpfl.run(
        {"out": str(tmp_path / "run"), "data": {"clients": 3, "public": 12},
         "privacy": {"mechanism": "gaussian"},
         "training": {"rounds": 1, "algorithm": "mode-connectivity"}},
        data=blobs(), model=network(),
    )  # fmt: skip
    assert result.privacy.kind == "guarantee"
    needed = "assumes that the 12 public records (data.public) need no protection"
    assert needed in result.privacy.assumptions
    plain = udpfl.run(
        {"out": str(tmp_path / "plain"), "data": {"clients": 3, "public": 12},
         "privacy": {"mechanism": "gaussian"}, "training": {"rounds": 1}},
        data=blobs(), model=network(),
    )  # fmt: skip
    assert plain.privacy.epsilon == result.privacy.epsilon  # the method costs nothing more
    assert not any("public records" in note for note in plain.privacy.remarks)


@pytest.mark.parametrize("method", ["bezier", "client-bezier", "mode-connectivity"])
def test_a_resumed_run_ends_where_it_would_have(federate, tmp_path, method):
    training, data = {"algorithm": method}, {"public": 12}
    whole = federate(training=training, data=data)
    with pytest.raises(PowerCut):
        federate(training=training, data=data, observers=[Stops(2)])
    resumed = udpfl.run(resume=tmp_path / "run-1", data=blobs(), model=network())
    assert [row["round"] for row in resumed.metrics] == [1, 2, 3, 4]
    assert torch.equal(flat(resumed.model), flat(whole.model))
