"""What runs have in common: shared where it is the same to the last bit, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.federation.samples import blobs, network
from udpfl.config import load
from udpfl.data import DataSet, Records
from udpfl.federation import Setup
from udpfl.federation._common import Common, are_alike, train_the_same
from udpfl.models import BUILT_IN

DATA = blobs()


def setup(common=None, *, model=None, given=DATA, loss=None, **sections):
    named = model if isinstance(model, dict) else {"name": "mlp"}
    config = load({"threads": 1, "data": {"clients": 2}, "model": named, **sections})
    built = model if isinstance(model, nn.Module) else None
    return Setup.of(config, data=given, test=0.2, model=built, loss=loss, common=common)


def shared(*setups):
    """Whether they train one object."""
    return len({id(own.lane_model) for own in setups}) == 1


def test_one_network_for_all_seeds_and_a_start_for_each():
    common = Common()
    one, other = (setup(common, seed=seed) for seed in (0, 1))
    assert shared(one, other)
    assert not torch.equal(one.start, other.start)
    for own in (one, other):
        assert torch.equal(own.start, setup(seed=own.config.seed).start)


@pytest.mark.parametrize("options", [{"hidden": [8]}, {"activation": "tanh"}])
def test_networks_that_only_have_the_same_form_are_kept_apart(options):
    common = Common()
    one, same = setup(common), setup(common, seed=1)
    other = setup(common, model={"name": "mlp", "options": options})
    assert shared(one, same)
    assert not shared(one, other)


class Partly(nn.Module):
    """With parts that are drawn when it is built, and not trained."""

    def __init__(self, input_shape, outputs, *, part="none"):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], outputs)
        drawn, plain = torch.rand(4), torch.ones(4)
        self.register_buffer("scale", drawn if part == "buffer" else plain)
        self.shift = nn.Parameter(drawn if part == "frozen" else plain, requires_grad=False)

    def forward(self, x):
        return self.linear(x * self.scale + self.shift)


@pytest.mark.parametrize(
    ("part", "is_shared"), [("none", True), ("buffer", False), ("frozen", False)]
)
def test_what_is_not_trained_has_to_be_the_same(monkeypatch, part, is_shared):
    monkeypatch.setitem(BUILT_IN, "partly", Partly)
    common, model = Common(), {"name": "partly", "options": {"part": part}}
    one, other = (setup(common, model=model, seed=seed) for seed in (0, 1))
    assert shared(one, other) == is_shared
    assert shared(one, setup(common, model=model, seed=0))


@pytest.mark.parametrize(
    "change", [{"why_alone": "so"}, {"lanes_apart": True}, {"one_by_one": True}]
)
def test_trials_have_to_come_out_the_same(change):
    common = Common()
    one, other = setup(common), setup(common)
    _ = other.bytes_per_sample
    for name, value in change.items():
        setattr(other.trained_model, name, value)
    assert not shared(one, other)
    for name, value in change.items():  # of the copy that is trained as well
        assert getattr(other.lane_model, name) == value


def test_a_loss_of_somebodys_own_has_to_be_the_same_object():
    def losses():
        return lambda outputs, targets: outputs.square().sum(1)

    own = losses()
    one, *others = (setup(loss=each) for each in (own, own, losses()))
    assert [train_the_same(one, other) for other in others] == [True, False]


def test_a_network_of_somebodys_own_is_the_same_only_if_it_is_the_same_object():
    common, own = Common(), network()
    assert shared(setup(common, model=own), setup(common, model=own))
    assert not shared(setup(common, model=network()), setup(common, model=network()))


def test_data_and_tensors_are_there_once():
    common = Common()
    one, other = (setup(common, given=(DATA[0].copy(), DATA[1].copy())) for _ in range(2))
    assert one.data is other.data
    assert all(
        a is b for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True)
    )
    third = setup(common, given=(DATA[0] + 1, DATA[1]))
    assert third.data is not one.data
    assert third.train[0] is not one.train[0]


def test_a_bit_makes_a_difference():
    zeros = np.zeros((4, 2), np.float32)
    signed = zeros.copy()
    signed[0, 0] = -0.0
    labels = np.array([0, 1, 0, 1])
    one, same, other = (
        DataSet("n", "classification", Records(x, labels), Records(zeros, labels), 2)
        for x in (zeros, zeros.copy(), signed)
    )
    assert are_alike(one, same)
    assert not are_alike(one, other)
    assert are_alike({"a": [1, (2.0, labels)]}, {"a": [1, (2.0, labels.copy())]})
    assert not are_alike({"a": [1]}, {"b": [1]})
    assert not are_alike(labels, labels.astype(np.int32))
    assert not are_alike(zeros, signed)
    assert not are_alike([1], (1,))
    assert are_alike(np.array(["a", None], object), np.array(["a", None], object))
