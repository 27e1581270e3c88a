"""Curves between models, the tree, the Bezier update and the public hook, against closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import udpfl
from tests.federation.test_federation import blobs, cross_entropy, flat, network
from udpfl import InvalidInput, Unsupported
from udpfl.algorithms import (
    Bezier,
    ClientMessage,
    FedAvg,
    ModeConnectivity,
    PublicData,
    ServerStep,
)
from udpfl.algorithms.curves import (
    Curve,
    RecordLoss,
    Search,
    along,
    barrier,
    find_curve,
)
from udpfl.algorithms.mode_connectivity import merge_in_pairs
from udpfl.engine import LaneModel

pytestmark = pytest.mark.usefixtures("one_thread")


# Curves


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


def messages(updates, sizes, round_=3):
    return [
        ClientMessage(f"c{i}", round_, {"update": torch.tensor(u)}, (), {"declared_size": n})
        for i, (u, n) in enumerate(zip(updates, sizes, strict=True))
    ]


class Line(nn.Module):
    """Two weights, and the loss of a record is its squared distance to them."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x - self.w


def public(points=((0.0, 0.0),), seed=0):
    x = torch.tensor(points)
    model = LaneModel(Line(), lambda out, _: out.square().sum(1))
    return PublicData(model, x, torch.zeros(len(x)), seed)


def prepared(method, data=None):
    method.prepare(data or public())
    return method


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


# The Bezier update, by hand: w = (1, 2), updates (3, 0) and (0, 8) of sizes 1 and 1, so the mean is
# (1.5, 4), v = (2.5, 6), |v - w| = sqrt(18.25)


@pytest.mark.parametrize(
    ("options", "theta"),
    [
        # 2w - v + 3 (v - w) = 2v - w
        ({}, (4.0, 10.0)),
        # 1.1 w - 0.1 v + 1.2 (v - w) = 1.1 v - 0.1 w
        ({"constants": "paper"}, (2.65, 6.4)),
        # 2w - v + 3/2 u, u = (1.5, 4) / 4.272001873
        ({"smoothness": 2.0}, (-0.5 + 1.5 * 0.351123442, -2.0 + 1.5 * 0.936329178)),
        # 1.1 w - 0.1 v + 0.6 u
        (
            {"smoothness": 2.0, "constants": "paper"},
            (0.85 + 0.6 * 0.351123442, 1.6 + 0.6 * 0.936329178),
        ),
    ],
)
@pytest.mark.parametrize("r", [0.0, 0.25, 1.0])
def test_the_bezier_update_by_hand(options, theta, r):
    method = Bezier(ServerStep(), r=r, **options)
    found = method.aggregate(
        {"model": torch.tensor([1.0, 2.0])}, messages([[3.0, 0.0], [0.0, 8.0]], [5, 5])
    )["model"]
    of_v, of_theta, of_w = {0.0: (1, 0, 0), 0.25: (0.5625, 0.375, 0.0625), 1.0: (0, 0, 1)}[r]
    wanted = [
        of_v * v + of_theta * t + of_w * w
        for v, t, w in zip((2.5, 6.0), theta, (1.0, 2.0), strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)


def test_the_mean_over_r_is_the_step_with_the_corrected_constants_only():
    """Simpson's rule is exact for a quadratic in r: the weights are 1/6, 4/6, 1/6."""
    sent = messages([[3.0, 4.0]], [1])
    means = {}
    for constants in ("corrected", "paper"):
        ends = [
            Bezier(ServerStep(), constants=constants, smoothness=0.5, r=r).aggregate(
                {"model": torch.zeros(2)}, sent
            )["model"]
            for r in (0.0, 0.5, 1.0)
        ]
        means[constants] = (ends[0] + 4 * ends[1] + ends[2]) / 6
    assert means["corrected"].tolist() == pytest.approx([1.2, 1.6])  # length 2 = 1/L along (3, 4)
    assert means["paper"].norm() != pytest.approx(2.0, rel=0.05)


def test_r_is_drawn_from_the_round_and_uniform():
    method = prepared(Bezier(ServerStep()))
    server = {"model": torch.zeros(1)}
    found = []
    for round_ in range(1, 2001):
        sent = messages([[1.0]], [1], round_)
        found.append(float(method.aggregate(server, sent)["model"]))
    # w = 0, v = 1 and theta = 2: (1 - r)^2 + 4 (r - r^2) = 1 + 2r - 3r^2, from 0 to 4/3
    assert 0 <= min(found) < 0.01
    assert 1.33 < max(found) < 4 / 3 + 1e-6
    again = float(method.aggregate(server, messages([[1.0]], [1], 7))["model"])
    assert again == found[6]
    # Its mean is 1, its variance 4/12 + 9 * 4/45 - 12 * (1/4 - 1/6) = 2/15.
    assert np.mean(found) == pytest.approx(1.0, abs=4 * math.sqrt(2 / 15 / 2000))
    assert np.var(found) == pytest.approx(2 / 15, rel=0.15)


def test_an_update_of_nothing_stays():
    method = Bezier(ServerStep(), smoothness=1.0, r=0.5)
    found = method.aggregate({"model": torch.tensor([2.0])}, messages([[0.0]], [1]))["model"]
    assert found.tolist() == [2.0]


@pytest.mark.parametrize(
    ("method", "options", "key"),
    [
        ("bezier", {"constants": "other"}, "constants"),
        ("bezier", {"smoothness": 0}, "smoothness"),
        ("bezier", {"r": 1.5}, "r"),
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
    with pytest.raises(InvalidInput, match=r"data\.public.*none are set aside"):
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
    assert "the 12 public records (data.public) are not protected" in result.privacy.notes
    plain = udpfl.run(
        {"out": str(tmp_path / "plain"), "data": {"clients": 3, "public": 12},
         "privacy": {"mechanism": "gaussian"}, "training": {"rounds": 1}},
        data=blobs(), model=network(),
    )  # fmt: skip
    assert plain.privacy.epsilon == result.privacy.epsilon  # the method costs nothing more
    assert not any("public records" in note for note in plain.privacy.notes)


class Stop(Exception):
    """Ends a run in the middle."""


class After:
    """An observer that stops the run after a round."""

    def __init__(self, last):
        self.last = last

    def on_message(self, message): ...

    def on_model(self, round_, model): ...

    def on_round(self, row):
        if row["round"] == self.last:
            raise Stop


@pytest.mark.parametrize("method", ["bezier", "mode-connectivity"])
def test_a_resumed_run_ends_where_it_would_have(federate, tmp_path, method):
    training, data = {"algorithm": method}, {"public": 12}
    whole = federate(training=training, data=data)
    with pytest.raises(Stop):
        federate(training=training, data=data, observers=[After(2)])
    resumed = udpfl.run(resume=tmp_path / "run-1", data=blobs(), model=network())
    assert [row["round"] for row in resumed.metrics] == [1, 2, 3, 4]
    assert torch.equal(flat(resumed.model), flat(whole.model))
