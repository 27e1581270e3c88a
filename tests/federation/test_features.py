"""Features that are computed once see one record at a time, and neither remember nor draw."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.isolated import VECTORS, same
from tests.federation.refused import assert_nothing_charged, run, sentences
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.builders import prepare_inputs

pytestmark = pytest.mark.usefixtures("one_thread")


class Fixed(nn.Module):
    """What `precompute` is called with goes through `step` first."""

    def __init__(self, step=same):
        super().__init__()
        self.layer, self.step, self.seen, self.calls = nn.Linear(4, 3), step, None, 0
        self.rng = torch.Generator().manual_seed(0)

    def precompute(self, t):
        self.calls += 1
        return torch.tanh(self.step(self, t))

    def forward(self, t):
        return self.layer(t)


def untraceable(step):
    """Computed one by one, where a record can be looked at."""

    def inner(net, t):
        float(t.sum())
        return step(net, t)

    return inner


def between_calls(net, t):
    """Keeps one call, shows it in the next, forgets it after that."""
    before, net.seen = net.seen, t if net.calls % 2 == 0 else None
    return t if before is None else t + 1e-3 * before


def sum_so_far(net, t):
    net.seen = (0.0 if net.seen is None else net.seen) + 1e-9 * float(t.sum())
    return t + net.seen


@pytest.mark.parametrize(
    "step",
    [
        untraceable(between_calls),
        untraceable(sum_so_far),
        lambda net, t: t + torch.rand(4, generator=net.rng),
        lambda net, t: t + torch.rand(4),
        untraceable(lambda net, t: t + 0.0 * torch.rand(4)),
        lambda net, t: t + float(np.random.rand()),
        lambda net, t: t + 0.0 * np.random.rand(),
        lambda net, t: t + 0.0 * random.random(),
    ],
    ids=["the last call", "a small share of all", "its own generator", "torch", "torch unseen",
         "numpy", "numpy unseen", "random unseen"],
)  # fmt: skip
def test_features_that_remember_or_draw_are_refused(step):
    x = VECTORS.repeat(70, 1).numpy()
    with pytest.raises(Unsupported, match=r"two different results|draws from"):
        prepare_inputs(Fixed(step), x, torch.device("cpu"))


def test_features_may_be_made_in_place_and_need_not_be_finite():
    x = VECTORS.repeat(70, 1).numpy()
    before = x.copy()
    features = prepare_inputs(Fixed(lambda net, t: t.mul_(2).log()), x, torch.device("cpu"))
    assert np.array_equal(x, before)
    assert torch.allclose(features, torch.tanh(torch.log(2 * torch.from_numpy(x))), equal_nan=True)


def test_a_record_without_features_is_named(tmp_path):
    x, y = sentences()
    x[41, 2] = 20
    net = Fixed()
    net.table = nn.Embedding(20, 4).requires_grad_(False)
    net.step = lambda net, t: net.table(t).mean(1)
    with pytest.raises(
        InvalidInput, match="data: the model's `precompute` cannot compute record 41"
    ):
        run(tmp_path, net, (x, y), test=(x[:8], y[:8]))
    assert_nothing_charged(tmp_path)
