"""Curves between models: their points, bends and barriers, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.federation.samples import blobs, network
from tests.small import cross_entropy
from udpfl import InvalidInput
from udpfl.algorithms.curves import Curve, RecordLoss, Search, along, barrier, find_curve
from udpfl.engine import LaneModel

pytestmark = pytest.mark.usefixtures("one_thread")


class Bowl:
    """1/2 (w - m)' H (w - m), exact gradients."""

    def __init__(self, centre, curvature):
        self.m, self.h = centre, curvature

    def loss(self, w):
        return float(((w - self.m) * self.h * (w - self.m)).sum() / 2)

    def slope(self, w, rng):
        return self.loss(w), self.h * (w - self.m)


class DoubleWell:
    """(x^2 - 1)^2 + (y - (1 - x^2))^2: the two valleys are (-1, 0) and (1, 0), both of loss 0."""

    def at(self, w):
        x, y = w
        return (x * x - 1) ** 2 + (y - (1 - x * x)) ** 2

    def loss(self, w):
        return float(self.at(w))

    def slope(self, w, rng):
        w = w.clone().requires_grad_()
        loss = self.at(w)
        (gradient,) = torch.autograd.grad(loss, w)
        return float(loss.detach()), gradient


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 0.7, 1.0])
def test_points_of_both_curves_are_those_of_the_paper(p):
    a, t, b = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 2.0], [5.0, -3.0], [0.0, 7.0]))
    first = 2 * (p * t + (0.5 - p) * a)
    second = 2 * ((p - 0.5) * b + (1 - p) * t)
    torch.testing.assert_close(Curve("chain", a, t, b).point(p), first if p <= 0.5 else second)
    bezier = (1 - p) * ((1 - p) * a + p * t) + p * ((1 - p) * t + p * b)  # de Casteljau
    torch.testing.assert_close(Curve("bezier", a, t, b).point(p), bezier)
    for kind in ("chain", "bezier"):
        torch.testing.assert_close(Curve.straight(kind, a, b).point(p), (1 - p) * a + p * b)


def test_no_point_outside_of_the_curve():
    a = torch.zeros(2)
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        Curve("chain", a, a, a).point(1.01)


@pytest.mark.parametrize(
    ("kind", "of_centre", "of_ends"), [("bezier", 2.5, -0.75), ("chain", 1.5, -0.25)]
)
def test_the_bend_of_a_quadratic_loss(kind, of_centre, of_ends):
    """E[b (a w1 + b theta + c w2 - m)] = 0, whatever the curvature.

    Bezier: E b = 1/3, E b^2 = 2/15, E ab = E bc = 1/10. Chain: 1/2, 1/3, 1/12, 1/12.
    """
    rng = np.random.default_rng(0)
    w1, w2, m = (torch.from_numpy(rng.normal(size=6)) for _ in range(3))
    bowl = Bowl(m, torch.linspace(0.5, 2.0, 6, dtype=torch.float64))
    search = Search(steps=10_000, learning_rate=0.003, every=10_000)
    found = find_curve(kind, w1, w2, bowl, np.random.default_rng(1), search)
    wanted = of_centre * m + of_ends * (w1 + w2)
    midpoint = (w1 + w2) / 2
    off = float((found.curve.bend - wanted).norm() / (midpoint - wanted).norm())
    assert off < 0.02
    assert found.steps == len(found.losses) == 10_000
    assert found.curve.start is w1
    assert found.curve.end is w2


def test_a_search_says_whether_it_converged_and_keeps_its_best_bend():
    bowl = Bowl(torch.full((2,), 3.0), torch.ones(2))
    ends = torch.zeros(2), torch.ones(2)
    rng = np.random.default_rng
    done = find_curve("chain", *ends, bowl, rng(0), Search(steps=5000, learning_rate=0.02))
    assert done.converged
    assert done.ended == "converged"
    assert done.steps < 5000
    assert len(done.checks) == 1 + done.steps // 50
    eleven = [bowl.loss(done.curve.point(i / 10)) for i in range(11)]
    assert sum(eleven) / 11 == pytest.approx(min(done.checks))
    assert min(done.checks[-2:]) >= (1 - 1e-3) * min(done.checks[:-2])
    capped = find_curve("chain", *ends, bowl, rng(0), Search(steps=60, learning_rate=1e-4))
    assert not capped.converged
    assert (capped.steps, capped.ended) == (60, "steps")
    wild = find_curve("chain", *ends, bowl, rng(0), Search(steps=500, learning_rate=1e4, every=100))
    assert torch.equal(wild.curve.bend, torch.full((2,), 0.5))  # nothing better was ever checked
    assert (wild.ended, wild.steps < 500) == ("not finite", True)
    none = find_curve("chain", *ends, bowl, rng(0), Search(steps=0))
    assert torch.equal(none.curve.bend, torch.full((2,), 0.5))


def test_a_step_that_is_not_finite_is_not_taken():
    class Broken(Bowl):
        def slope(self, w, rng):
            loss, slope = super().slope(w, rng)
            return loss, slope * math.nan

    ends = torch.zeros(2), torch.ones(2)
    found = find_curve(
        "bezier", *ends, Broken(torch.zeros(2), torch.ones(2)), np.random.default_rng(0),
        Search(steps=10),
    )  # fmt: skip
    assert found.steps == 0
    assert found.curve.bend.tolist() == [0.5, 0.5]


def test_the_barrier_of_a_double_well_and_the_way_around_it():
    """Along y = 0 the loss is 2 (x^2 - 1)^2: a barrier of 2 at x = 0 between two ends of 0.

    A Bezier curve with its bend at (0, b) has y = b/2 (1 - x^2) and the loss
    (1 - x^2)^2 (1 + (b/2 - 1)^2): b = 2 leaves a barrier of 1, and no curve a smaller one, because
    the loss is at least 1 wherever x = 0. The mean of (1 - x^2)^2 is 8/15.
    """
    left, right = torch.tensor([-1.0, 0.0]).double(), torch.tensor([1.0, 0.0]).double()
    well = DoubleWell()
    line = [loss for _, loss in along(Curve.straight("bezier", left, right), well.loss, 101)]
    assert barrier(line) == pytest.approx(2.0)
    by_hand = Curve("bezier", left, torch.tensor([0.0, 2.0]).double(), right)
    assert barrier([loss for _, loss in along(by_hand, well.loss, 101)]) == pytest.approx(1.0)
    search = Search(steps=4000, learning_rate=0.02)
    found = find_curve("bezier", left, right, well, np.random.default_rng(0), search)
    losses = [loss for _, loss in along(found.curve, well.loss, 1001)]
    assert sum(losses) / 1001 < 8 / 15 + 0.01
    assert 0.99 < barrier(losses) < 1.9
    assert found.curve.point(0.0).tolist() == [-1.0, 0.0]


def test_the_barrier_is_measured_from_the_line_between_the_ends():
    assert barrier([1.0, 2.0, 3.0]) == 0.0
    assert barrier([1.0, 5.0, 3.0]) == pytest.approx(3.0)
    assert barrier([4.0, 0.0, 0.0]) == 0.0
    with pytest.raises(InvalidInput, match="at least 2"):
        along(Curve.straight("chain", torch.zeros(1), torch.ones(1)), float, 1)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"steps": -1}, "steps"),
        ({"batch": 0}, "batch"),
        ({"learning_rate": math.inf}, "learning_rate"),
        ({"tolerance": 0}, "tolerance"),
        ({"every": 1.5}, "every"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(wrong, name):
    with pytest.raises(InvalidInput, match=name):
        Search(**wrong)


def test_an_unknown_curve_is_refused():
    with pytest.raises(InvalidInput, match="bezier, chain"):
        find_curve("spline", torch.zeros(1), torch.ones(1), Bowl(0, 1), np.random.default_rng(0))


def test_the_gradient_of_public_records_is_that_of_plain_pytorch():
    net, (x, y) = network(), blobs()
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    model = LaneModel(net, cross_entropy)
    loss, gradient = model.public_gradient(model.initial(), x, y)
    wanted = nn.functional.cross_entropy(net(x), y)
    wanted.backward()
    assert float(loss) == pytest.approx(wanted.item())
    torch.testing.assert_close(gradient, torch.cat([p.grad.flatten() for p in net.parameters()]))
    kept = RecordLoss(model, x, y, 16, kept=30)
    own = nn.functional.cross_entropy(net(x[:30]), y[:30])
    assert kept.loss(model.initial()) == pytest.approx(own.item(), rel=1e-6)


@pytest.mark.parametrize("kind", ["bezier", "chain"])
def test_between_two_networks_on_digits_the_curve_lowers_the_barrier(kind):
    x, y, tx, ty = digits()
    models = [trained(x, y, seed) for seed in (0, 1)]
    lane = LaneModel(models[0], cross_entropy)
    start, end = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models)
    landscape = RecordLoss(lane, x, y, 128, kept=500)
    found = find_curve(kind, start, end, landscape, np.random.default_rng(0), Search(steps=400))
    test = RecordLoss(lane, tx, ty, 1)
    line = barrier([v for _, v in along(Curve.straight(kind, start, end), test.loss, 11)])
    curve = barrier([v for _, v in along(found.curve, test.loss, 11)])
    assert line > 0.1
    assert curve < line / 2


def digits():
    """The embedded digits: 4,000 to train on, 1,000 to test on."""
    from udpfl.data.mnist5k import load

    data = load(seed=0, directory=None, test=0.2, options={})
    parts = (data.train.inputs, data.train.targets, data.test.inputs, data.test.targets)
    return [torch.from_numpy(part) for part in parts]


def trained(x, y, seed):
    """A small network, trained for a while in plain PyTorch."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        for _ in range(400):
            rows = torch.randint(len(x), (128,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net
