"""No record sees another: models, losses and generators that would let it are found."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.engine.isolated import HUGE, VECTORS, Case, Net, records, tried
from tests.engine.leaking import minus
from tests.engine.leaking_rarely import OwnGenerator, auc, of_one_class
from tests.engine.leaks import LEAKS
from tests.federation.refused import run
from tests.small import cross_entropy
from udpfl.engine import LaneModel, NormClipper
from udpfl.errors import Unsupported

pytestmark = pytest.mark.usefixtures("one_thread")


# Generators that training does not seed


def clipped_sum(model, x, y):
    """What the engine makes of a batch, with a clip of 1."""
    real = torch.ones(1, len(x), dtype=torch.bool)
    gradients = model.gradients(model.initial()[None], x[None], y[None], real)
    return NormClipper("l2", [1.0]).clipped_sum(gradients).sum[0].double()


def alone(case, x, y):
    """Each record's gradient by plain autograd on a model that has seen no other, clipped to 1 less
    the documented margin."""
    rows, bound = [], 1 - 2**-11
    for i in range(len(x)):
        net = case.make().train()
        loss = case.loss(net(x[i : i + 1].clone()), y[i : i + 1]).sum()
        wanted = [p for p in net.parameters() if p.requires_grad]
        row = torch.cat([g.flatten() for g in torch.autograd.grad(loss, wanted)]).double()
        rows.append(row * bound / max(bound, float(row.norm())))
    return torch.stack(rows)


@pytest.mark.parametrize("name", LEAKS)
def test_records_that_see_each_other_are_computed_alone_or_refused(name):
    case = LEAKS[name]
    try:
        model = tried(case)
    except Unsupported:
        return
    assert not model.book_keeping
    x, y = case.private(65) if case.private else records(65, seed=3, values=case.values)
    if x.is_floating_point():
        x[-1] *= HUGE
    expected = alone(case, x, y)
    assert torch.allclose(clipped_sum(model, x, y), expected.sum(0), atol=2e-3)
    moved = clipped_sum(model, x, y) - clipped_sum(model, x[:-1], y[:-1])
    assert moved.norm() <= 1
    for count in (2, 5, 9):
        some = torch.cat([x[:count], x[-1:]]), torch.cat([y[:count], y[-1:]])
        moved = clipped_sum(model, *some) - clipped_sum(model, x[:count], y[:count])
        assert moved.norm() <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_trial_on_cuda():
    device = torch.device("cuda")
    x, y = (t.to(device) for t in records(8))
    for net, is_fast in ((Net(), True), (Net(h=minus(1e-8)), False)):
        model = LaneModel(net, cross_entropy).to(device)
        model.check(model.initial().to(device), x, y)
        assert model.book_keeping == is_fast
    own = OwnGenerator(torch.Generator(device).manual_seed(0), lambda r, h: torch.rand(
        6, generator=r, device=h.device).to(h))  # fmt: skip
    model = LaneModel(own, cross_entropy).to(device)
    with pytest.raises(Unsupported, match="generator of its own"):
        model.check(model.initial().to(device), x, y)


def test_there_are_enough_leaks():
    assert len(LEAKS) >= 50


def test_without_the_trial_a_small_share_of_the_mean_breaks_the_bound():
    """So the oracle above can fail."""
    model = LaneModel(Net(minus(2e-4)), cross_entropy)
    x, y = records(65, seed=3)
    x[-1] *= HUGE
    moved = clipped_sum(model, x, y) - clipped_sum(model, x[:-1], y[:-1])
    assert moved.norm() > 5


def test_a_rare_class_of_the_test_split_is_tried(tmp_path):
    """One record in 80, wherever it is."""
    x, y = VECTORS.repeat(10, 1).numpy(), np.zeros(80, dtype=np.int64)
    y[37] = 1
    with pytest.raises(Unsupported, match="samples of a batch see each other"):
        run(tmp_path, Net(), (x, np.arange(80) % 2), auc, test=(x, y))


@pytest.mark.parametrize("loss", [cross_entropy, lambda o, y: (o[:, 0] - y).square()])
def test_one_class_in_the_test_split_is_no_reason_to_go_slowly(loss):
    for net in (Net(), nn.Linear(4, 1)):
        model = LaneModel(net, loss)
        model.check(model.initial(), *of_one_class(8))
        assert model.book_keeping


@pytest.mark.parametrize("rows", [1, 2])
def test_few_public_records_are_enough(rows):
    for name in ("1e-08 of the mean from the input", "sorted rows", "loss: by class"):
        assert not tried(LEAKS[name], rows).book_keeping


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("statistics in place", "two answers.*keeps something"),
        ("statistics of the first batch", "two answers.*keeps something"),
        ("few rows, from the seventh call on", "two answers.*keeps something"),
        ("without a rule, from the tenth call on", "two answers.*keeps something"),
        ("statistics in a buffer", "buffer mean"),
        ("in place, alone", "changes its input"),
        ("branches on the batch", "samples of a batch see each other.*data-dependent"),
        ("otherwise under vmap", "torch.func computes other gradients"),
        ("mask by numpy", "numpy's global generator: .*nn.Dropout"),
        ("loss: noise by numpy", "numpy's global generator: .*nn.Dropout"),
        ("mask by random", "Python's `random`: .*nn.Dropout"),
        ("mask from a seed", "seeds torch's generator itself"),
        ("mask by numpy in a dropout layer", "generator of its own; .*nn.Dropout"),
        ("its own numpy generator", "generator of its own; .*nn.Dropout"),
        ("its own torch generator", "generator of its own; .*nn.Dropout"),
        ("its own Python generator", "generator of its own; .*nn.Dropout"),
    ],
)
def test_a_refusal_says_why(name, reason):
    with pytest.raises(Unsupported, match=reason):
        tried(LEAKS[name])


# Models that draw from torch's global generator


class OwnDropout(nn.Dropout):
    """Other masks than torch's, from torch's generator."""

    def forward(self, t):
        return t * (torch.rand_like(t) >= self.p)


def test_a_model_that_draws_is_computed_alone_even_where_it_makes_no_difference():
    """In a trial that is: one unit in a billion is dropped."""
    model = tried(Case(lambda: Net(h=lambda n, h: h * (torch.rand_like(h) > 1e-9))))
    assert not model.book_keeping
    assert "draws random numbers" in model.why_alone


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(h=lambda n, h: F.dropout(h, 0.5, n.training)),
        lambda: Net(h=lambda n, h: h + 0.1 * torch.randn_like(h)),
        lambda: nn.Sequential(Net(), nn.Linear(3, 4), OwnDropout(0.5), nn.Linear(4, 3)),
    ],
    ids=["dropout by function", "noise in evaluation as well", "dropout by a subclass"],
)
def test_torch_s_own_generator_is_allowed(make):
    net = make()
    state = torch.get_rng_state()
    model = tried(Case(lambda: net))
    assert not model.book_keeping
    assert not model.reentrant
    assert torch.equal(torch.get_rng_state(), state)
    x, y = records(6)
    sums = []
    for seed in (0, 0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sums.append(clipped_sum(model, x, y))
    assert torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[0], sums[2])
    assert all(total.norm() <= len(x) for total in sums)


def test_the_trial_leaves_the_model_and_the_generators_as_they_were():
    def cached(net, t):
        net.seen = torch.ones(4) if net.seen is None else net.seen
        return t * net.seen

    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    model = tried(Case(lambda: nn.Sequential(Net(cached), nn.Dropout(0.5))))
    assert model.book_keeping
    for network in (model._model, model._plain):
        assert network[0].calls == 0
        assert network[0].seen is None
        assert network[1].p == 0.5
        assert all(p.dtype == torch.float32 for p in network.parameters())
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])
