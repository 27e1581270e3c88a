"""Seeded streams of several runs in one call: every key is drawn from that of its own run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import pytest
import torch
from torch import nn

from udpfl.engine import (
    Entropy,
    Keyed,
    LaneModel,
    Lanes,
    Limits,
    MechanismNoiser,
    NormClipper,
    merging,
)
from udpfl.engine.merging import Call, can_merge, train_merged
from udpfl.mechanisms import Gaussian

X, Y = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 2


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


MODEL = LaneModel(nn.Linear(4, 2), loss)


def call(run, stream, clients=2):
    lanes = Lanes(
        runs=(run,) * clients,
        clients=tuple(f"client-{i}" for i in range(clients)),
        records=tuple(torch.arange(5) for _ in range(clients)),
        rates=(0.5,) * clients,
        denominators=torch.full((clients,), 2.5),
        learning_rates=torch.full((clients,), 0.5),
        steps=(2,) * clients,
        clipper=NormClipper("l2", [1.0] * clients),
        noiser=MechanismNoiser([Gaussian(0.5)] * clients),
    )
    return Call(MODEL, X, Y, MODEL.initial().expand(clients, -1), lanes, 1, stream, Limits(9, 8))


@pytest.fixture
def sizes(monkeypatch):
    """Lanes of every call of the engine."""
    seen, train_round = [], merging.train_round

    def noted(model, inputs, targets, parameters, *rest):
        seen.append(len(parameters))
        return train_round(model, inputs, targets, parameters, *rest)

    monkeypatch.setattr(merging, "train_round", noted)
    return seen


def agree(calls, sizes, expected):
    """Merged they come out as alone, and none as another."""
    alone = [each.train().parameters for each in calls]
    sizes.clear()
    found = [trained.parameters for trained in train_merged(calls)]
    for mine, other in zip(found, alone, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    assert sizes == expected
    return found


def test_runs_with_seeds_of_their_own_are_merged(sizes):
    found = agree([call(f"seed-{seed}", Keyed(seed)) for seed in range(3)], sizes, [6])
    for one, other in combinations(found, 2):
        assert (one - other).abs().min() > 0


def test_the_seed_decides_and_not_only_the_name_of_the_run(sizes):
    """Of the same name in two comparisons, say: keys alone would draw the same for both."""
    one, other = (
        agree([call("a", Keyed(seed)), call("b", Keyed(7))], sizes, [4]) for seed in (0, 1)
    )
    assert (one[0] - other[0]).abs().min() > 0
    assert torch.equal(one[1], other[1])


def test_a_run_has_one_stream(sizes):
    """Each of two goes with the first, but they say that they are the same run."""
    calls = [call("a", Keyed(0)), call("b", Keyed(1)), call("b", Keyed(2))]
    agree(calls, sizes, [4, 2])
    assert can_merge(calls[0], calls[2])
    assert not can_merge(calls[1], calls[2])
    assert not can_merge(calls[2], calls[1])


def test_private_draws_and_seeded_ones_are_kept_apart(sizes):
    calls = [call("a", Keyed(0)), call("b", Entropy()), call("c", Entropy()), call("d", Keyed(1))]
    train_merged(calls)
    assert sizes == [4, 4]


@dataclass(frozen=True)
class Dice(Keyed):
    """A private stream of somebody's own, with something in it."""

    private: ClassVar[bool] = True


def test_private_streams_are_merged_only_if_they_are_the_same(sizes):
    agree([call("a", Dice(0)), call("b", Dice(1)), call("c", Dice(0))], sizes, [4, 2])
