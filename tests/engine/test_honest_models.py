"""Models that keep records apart keep the fast path."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.engine.isolated import VECTORS, Case, Net, Words, records, squared, tried
from tests.engine.leaking_rarely import (
    Bag,
    bounded,
    clamped,
    full_sentences,
    of_own_length,
    padded_sentences,
)
from tests.small import cross_entropy
from udpfl import models
from udpfl.engine import LaneModel
from udpfl.engine._modes import InDouble
from udpfl.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("one_thread")


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.n, self.out = nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, t):
        t = torch.relu(self.a(t))
        return self.out((t + torch.relu(self.n(self.b(t)))).mean((2, 3)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight, self.out = self.a.weight, nn.Linear(4, 3)

    def forward(self, t):
        return self.out(torch.tanh(self.b(torch.tanh(self.a(t)))))


class Attends(nn.Module):
    """Over the four columns of a picture, some of which are alike: their scores tie."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = *(nn.Linear(8, 5) for _ in range(3)), nn.Linear(5, 3)

    def forward(self, t):
        t = t.squeeze(1)
        scores = self.q(t) @ self.k(t).transpose(1, 2) / 5**0.5
        return self.out((torch.softmax(scores, 2) @ self.v(t)).mean(1))


class Casts(Net):
    """Writes float32 wherever one may: nothing of it is a reason to go slowly."""

    def __init__(self):
        super().__init__(self.cast)
        self.ones = torch.ones(4)

    @staticmethod
    def cast(net, t):
        t = t.float().to(torch.float32) * net.ones
        room = torch.zeros(len(t), 4, dtype=torch.float32)
        room[:, :2], room[:, 2:] = t[:, :2], t[:, 2:]
        return room + torch.from_numpy(np.zeros(4, np.float32))


class Half(Net):
    """Frozen weights, and a layer that is never used."""

    def __init__(self):
        super().__init__()
        self.a.requires_grad_(False)
        self.unused = nn.Linear(3, 3)


def saturated():
    net = Net()
    with torch.no_grad():
        net.b.bias += torch.tensor([50.0, 0.0, -50.0])
    return net


class Positions(Bag):
    """A fixed table that has no batch, for as many positions as there are rows in a batch."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 6).requires_grad_(False)

    def forward(self, t):
        return self.b((self.a(t) * (1 + self.table(torch.arange(4)))).mean(1))


def repaired(net, t):
    return t.nan_to_num(0.0, 1.0, -1.0)


def zero_if_own(net, t):
    return torch.where(torch.isfinite(t).all(1, keepdim=True), t, 0.0)


def unless_own_broken(outputs, targets):
    each = cross_entropy(outputs, targets)
    return torch.where(torch.isfinite(each), each, 0.0)


def asserted(net, t):
    assert torch.isfinite(t).all()
    return t


def without_zero(t):
    assert (t > 0).all()
    return t


def weighted(outputs, targets):
    weights = torch.tensor([1.0, 2.0, 0.5])
    return F.cross_entropy(outputs, targets, weight=weights, reduction="none")


def smoothed(outputs, targets):
    return F.cross_entropy(outputs, targets, label_smoothing=0.1, reduction="none")


def pictures(rows=8):
    """Digits as they are: the margin is black, the rest is not; one picture is blank."""
    x = torch.zeros(rows, 1, 8, 8)
    x[:-1, :, 2:6, 2:6] = torch.rand(rows - 1, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return x


def conv(*after):
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *after, nn.Flatten(), nn.LazyLinear(3))


def plain(*layers):
    return nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(8, 3))


LABELS = torch.arange(8) % 3
HONEST = {
    "mlp": (lambda: plain(nn.Tanh()), VECTORS, cross_entropy),
    "relu": (lambda: plain(nn.ReLU()), VECTORS, cross_entropy),
    "gelu": (lambda: plain(nn.GELU()), VECTORS, cross_entropy),
    "softplus": (lambda: plain(nn.Softplus()), VECTORS, cross_entropy),
    "elu": (lambda: plain(nn.ELU()), VECTORS, cross_entropy),
    "layer norm": (lambda: plain(nn.LayerNorm(8), nn.ReLU()), VECTORS, cross_entropy),
    "dropout": (lambda: plain(nn.Dropout(0.5), nn.ReLU()), VECTORS, cross_entropy),
    "alpha dropout": (lambda: plain(nn.SELU(), nn.AlphaDropout(0.2)), VECTORS, cross_entropy),
    "weighted": (lambda: plain(nn.ReLU()), VECTORS, weighted),
    "smoothed": (lambda: plain(nn.ReLU()), VECTORS, smoothed),
    "a loss module": (Net, VECTORS, nn.CrossEntropyLoss(weight=torch.ones(3), reduction="none")),
    "regression": (Net, VECTORS, lambda o, y: squared(o, F.one_hot(y, 3))),
    "hinge": (Net, VECTORS, lambda o, y: (1 + o - o.gather(1, y[:, None])).relu().sum(1)),
    "casts": (Casts, VECTORS, cross_entropy),
    "saturated": (saturated, VECTORS, cross_entropy),
    "bytes": (Net, torch.arange(0.0, 256, 8).view(8, 4), cross_entropy),
    "frozen": (Half, VECTORS, cross_entropy),
    "tied": (Tied, VECTORS, cross_entropy),
    "normalised rows": (lambda: Net(lambda n, t: t / t.norm(dim=1, keepdim=True)), VECTORS,
                        cross_entropy),
    "overflows": (lambda: Net(lambda n, t: torch.exp(t)), VECTORS, cross_entropy),
    "poisson": (Net, VECTORS, lambda o, y: (o.exp() - o * y[:, None]).sum(1)),
    "words": (Words, torch.arange(40).view(8, 5) % 20, cross_entropy),
    "bounded": (lambda: Net(bounded), VECTORS, cross_entropy),
    "clamped": (lambda: Net(clamped, lambda n, h: h.clamp(-1, 1)), VECTORS, cross_entropy),
    "repaired numbers": (lambda: Net(repaired, o=repaired), VECTORS, cross_entropy),
    "broken rows zeroed": (lambda: Net(bounded, zero_if_own, zero_if_own), VECTORS, cross_entropy),
    "loss: broken rows left out": (lambda: Net(clamped), VECTORS, unless_own_broken),
    "asserts finite numbers": (lambda: Net(clamped, o=asserted), VECTORS, cross_entropy),
    "bag of ids": (Bag, full_sentences(8)[0], unless_own_broken),
    "mean over its own length": (lambda: Bag(of_own_length), padded_sentences(8)[0], cross_entropy),
    "ids that are not 0": (lambda: Bag(trim=without_zero), full_sentences(8)[0], cross_entropy),
    "as many positions as rows": (Positions, full_sentences(8)[0][:, :4], cross_entropy),
    "convolution": (lambda: conv(nn.ReLU(), nn.MaxPool2d(2)), pictures(), cross_entropy),
    "average pooling": (lambda: conv(nn.Tanh(), nn.AvgPool2d(2)), pictures(), cross_entropy),
    "group norm": (lambda: conv(nn.GroupNorm(2, 4), nn.ReLU()), pictures(), cross_entropy),
    "group norm of constants": (
        lambda: conv(nn.GroupNorm(2, 4), nn.MaxPool2d(2)), torch.full((8, 1, 8, 8), 0.7),
        cross_entropy),
    "residual": (Residual, pictures(), cross_entropy),
    "attention": (Attends, pictures(), cross_entropy),
    "1-d convolution": (
        lambda: nn.Sequential(nn.Conv1d(1, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(124, 3)),
        pictures().flatten(2), cross_entropy),
}  # fmt: skip
for _name, _shape in {
    "logistic": (1, 28, 28), "mlp": (1, 28, 28), "cnn-small": (1, 28, 28), "cnn": (1, 28, 28),
    "lenet": (1, 28, 28),
    "resnet-small": (3, 32, 32), "medical-cnn": (1, 64, 64), "wind-cnn": (7, 72),
}.items():  # fmt: skip
    HONEST[f"the built-in {_name}"] = (
        lambda name=_name, shape=_shape: models.build(name, shape, 3, seed=0),
        torch.rand(8, *_shape, generator=torch.Generator().manual_seed(1)),
        cross_entropy,
    )


@pytest.mark.parametrize("name", HONEST)
def test_honest_models_keep_the_fast_path(name, caplog):
    make, x, loss = HONEST[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = make()
        if any(isinstance(module, nn.LazyLinear) for module in net.modules()):
            net(x)
    model = LaneModel(net, loss)
    with caplog.at_level(logging.WARNING):
        model.check(model.initial(), x, LABELS)
    assert model.book_keeping
    assert not caplog.records


class Stacked(nn.Module):
    """A layer between two others, for lanes that are computed at once."""

    def __init__(self, layer):
        super().__init__()
        self.a, self.layer, self.b = nn.Linear(4, 4), layer, nn.Linear(4, 3)

    def forward(self, t):
        return self.b(self.layer(self.a(t)))


@pytest.mark.parametrize(
    ("layer", "is_fast"),
    [(nn.ReLU(inplace=True), True), (nn.PReLU(), False), (nn.PReLU(4), False)],
    ids=["in place", "one slope", "slopes"],
)
def test_lanes_do_not_see_each_other(layer, is_fast):
    """As many lanes as rows and features: where they are mixed up, nothing else gives it away."""
    model = tried(Case(lambda: Stacked(layer)))
    assert model.book_keeping == is_fast
    x, y = (torch.stack(t) for t in zip(*(records(4, seed) for seed in range(4)), strict=True))
    start = model.initial()
    parameters = start + 0.1 * torch.randn(
        4, len(start), generator=torch.Generator().manual_seed(1)
    )
    real = torch.ones(4, 4, dtype=torch.bool)
    together = model.gradients(parameters, x, y, real).written_out()
    for lane in range(4):
        own = slice(lane, lane + 1)
        one = model.gradients(parameters[own], x[own], y[own], real[own]).written_out()[0]
        assert torch.allclose(together[lane], one, atol=1e-6)


def test_reduced_precision_inside_the_model_is_not_left_to_the_rules():
    def autocast(net, h):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net.inner(h).float()

    def make():
        net = Net(h=autocast)
        net.inner = nn.Linear(6, 6)
        return net

    assert not tried(Case(make)).book_keeping


def test_numbers_that_are_ids_are_not_scaled():
    class Ids(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Embedding(5, 4), nn.Linear(7, 3)

        def forward(self, t):
            return self.b(torch.cat([self.a(t[:, 0].long()), t[:, 1:]], 1))

    x, y = records(8)
    x[:, 0] = torch.arange(8) % 5
    model = LaneModel(Ids(), cross_entropy)
    model.check(model.initial(), x, y)
    assert model.book_keeping


def test_a_model_without_a_finite_gradient_is_refused():
    with pytest.raises(InvalidInput, match="no finite gradient"):
        tried(Case(lambda: Net(h=lambda n, h: h / 0.0)))


def test_in_double_widens_what_is_used_and_never_what_is_written_to():
    held = torch.zeros(3)
    x = torch.full((2, 3), 1 + 2.0**-40, dtype=torch.float64)
    with InDouble():
        for made in (x.float(), x.to(torch.float32), x.type(torch.float32), torch.zeros(3),
                     torch.ones(3, dtype=torch.float32), held + 1):  # fmt: skip
            assert made.dtype == torch.float64
        assert torch.equal(x.float(), x)
        assert (x @ torch.ones(3)).shape == (2,)
        for write in (lambda: held.add_(1), lambda: held.__setitem__(0, 1.0),
                      lambda: torch.add(held, 1, out=held)):  # fmt: skip
            with pytest.raises(TypeError, match="float32"):
                write()
    assert torch.equal(held, torch.zeros(3))
