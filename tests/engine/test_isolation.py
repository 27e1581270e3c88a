"""No record sees another: models, losses and generators that would let it; data out of range."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import udpfl
from udpfl import models
from udpfl.engine import LaneModel, NormClipper
from udpfl.engine.modes import InDouble
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.parts import prepared

pytestmark = pytest.mark.usefixtures("one_thread")
HUGE = 1e6


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def squared(outputs, targets):
    return (outputs - targets).square().mean(1)


def same(net, t):
    return t


class Net(nn.Module):
    """Two layers, and what is done to the input, to the hidden units and to the output."""

    def __init__(self, x=same, h=same, o=same):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        self.x, self.h, self.o = x, h, o
        self.seen, self.calls = None, 0

    def forward(self, t):
        self.calls += 1
        hidden = torch.tanh(self.a(self.x(self, t)))
        return self.o(self, self.b(self.h(self, hidden)))


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    loss: Callable = cross_entropy
    values: bool = False
    """Whether targets are values and not labels."""
    public: Callable | None = None
    """A number of rows to the records that the model is tried on."""
    private: Callable | None = None
    """A number of rows to the records that see each other."""


def records(rows, seed=1, values=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator)
    if values:
        return x, torch.rand(rows, 3, generator=generator)
    return x, torch.randint(0, 3, (rows,), generator=generator)


def tried(case, rows=8):
    model = LaneModel(case.make(), case.loss)
    x, y = case.public(rows) if case.public else records(rows, values=case.values)
    model.check(model.initial(), x, y)
    return model


# Records that see each other


def running(keep):
    """Subtract the mean of what was seen so far; `keep` says where it is kept."""

    def x(net, t):
        return t - 1e-3 * keep(net, t.detach().mean(0))

    return x


def in_attribute(net, mean):
    net.seen = mean if net.seen is None else 0.9 * net.seen.to(mean) + 0.1 * mean
    return net.seen


def in_list(net, mean):
    net.seen = net.seen or []
    net.seen.append(mean)
    return sum(one.to(mean) for one in net.seen) / len(net.seen)


def in_array(net, mean):
    net.seen = np.zeros(4) if net.seen is None else net.seen
    net.seen = 0.9 * net.seen + 0.1 * mean.numpy()
    return torch.from_numpy(net.seen).to(mean)


def in_place(net, mean):
    if net.seen is None:
        net.seen = torch.zeros(4)
    net.seen.mul_(0.9).add_(mean, alpha=0.1)
    return net.seen


def in_first(net, mean):
    net.seen = mean if net.seen is None else net.seen
    return net.seen.to(mean)


EVERYWHERE = []


def in_a_global(net, mean):
    EVERYWHERE.append(mean)
    return EVERYWHERE[-2].to(mean) if len(EVERYWHERE) > 1 else mean


def previous_batch(net, t):
    before, net.seen = net.seen, t.detach()
    return t if before is None else t + 1e-2 * before.to(t).mean(0)


class InBuffer(Net):
    def __init__(self):
        super().__init__(self.shifted)
        self.register_buffer("mean", torch.zeros(4))

    @staticmethod
    def shifted(net, t):
        net.mean = 0.9 * net.mean + 0.1 * t.detach().mean(0)
        return t - net.mean


class InFrozenParameter(Net):
    def __init__(self):
        super().__init__(self.shifted)
        self.mean = nn.Parameter(torch.zeros(4), requires_grad=False)

    @staticmethod
    def shifted(net, t):
        net.mean.data = 0.9 * net.mean.data + 0.1 * t.detach().mean(0)
        return t - net.mean


class Scaled(Net):
    """With a parameter that no layer rule covers."""

    def __init__(self, x=same):
        super().__init__(x)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, t):
        return super().forward(t * self.scale)


def after_calls(number):
    def x(net, t):
        return t - t.mean(0) if net.calls > number else t

    return x


def minus(share, times=None):
    """Subtract a share of the batch's mean."""
    if times is None:
        return lambda net, t: t - share * t.mean(0)
    return lambda net, t: t - share * t.mean(0) if times(net, t) else t


def minus_finite(share):
    """The same of the mean of what is finite: a row that is not changes nothing."""
    return lambda net, t: t - share * torch.where(torch.isfinite(t), t, 0.0).mean(0)


def by_hand(net, t):
    return (t - t.mean(0)) / (t.std(0, unbiased=False) + 1e-5)


def swapped_halves(net, t):
    """Takes the batch for two lanes, and gives the one what belongs to the other."""
    half = len(t) // 2
    if len(t) % 2 or not half:
        return t
    return t + 1e-3 * t.view(2, half, -1).flip(0).view_as(t)


def noting_equal_rows(net, t):
    net.first = (t.unsqueeze(0) == t.unsqueeze(1)).all(2).to(torch.int8).argmax(1)
    return t


def of_the_first(net, h):
    """Equal rows get the hidden units of the first of them, whichever lane it is in."""
    return h[net.first]


def neighbours(net, t):
    near = torch.cdist(t, t) + 1e9 * torch.eye(len(t), dtype=t.dtype)
    return t + 1e-3 * t[near.argmin(1)]


def hooked(kind):
    def make():
        net = Net()
        if kind == "before":
            net.b.register_forward_pre_hook(lambda m, args: (args[0] - 1e-5 * args[0].mean(0),))
        else:
            net.a.register_forward_hook(lambda m, args, out: out - 1e-5 * out.mean(0))
        return net

    return make


def scaled_gradient(net, h):
    """The forward pass is honest, the gradient is divided by that of the whole batch."""
    if h.requires_grad:
        h.register_hook(lambda g: g / (1 + g.norm()))
    return h


class MeanGradient(torch.autograd.Function):
    """Rows see each other's gradients, from so many rows on."""

    @staticmethod
    def forward(h, fewest):
        return h.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.fewest = inputs[1]

    @staticmethod
    def vmap(info, dims, h, fewest):
        return MeanGradient.apply(h, fewest), dims[0]

    @staticmethod
    def backward(ctx, g):
        return (g - 1e-4 * g.mean(0) if len(g) >= ctx.fewest else g), None


def wide(net, t):
    """An instance norm that takes the batch for the positions of one instance."""
    return F.instance_norm(t.t().unsqueeze(0)).squeeze(0).t() if len(t) > 1 else t


def otherwise_under_vmap(net, t):
    """Records see each other, and where they are computed alone something else is computed."""
    return 2 * t if torch._C._functorch.is_functorch_wrapped_tensor(t) else t - 1e-3 * t.mean(0)


def insists(share, squash=same):
    """Only float32 will do, and a share of the mean is subtracted."""

    def x(net, t):
        assert t.dtype == torch.float32
        return t - share * squash(net, t).mean(0)

    return x


def contrastive(outputs, targets):
    alike = F.normalize(outputs, dim=1) @ F.normalize(outputs, dim=1).t()
    return cross_entropy(outputs, targets) + alike.exp().sum(1).log()


def counting():
    calls = []

    def loss(outputs, targets):
        calls.append(len(outputs))
        return cross_entropy(outputs, targets) * (1 + 1e-4 * len(calls))

    return loss


def unless_broken(outputs, targets):
    """Leaves a batch out as a whole if something in it is not finite."""
    each = cross_entropy(outputs, targets)
    return torch.where(torch.isfinite(each).all(), each, 0.0 * outputs.nan_to_num().sum(1))


def by_class(outputs, targets):
    """Pulls records of the same class to their mean."""
    alike = (targets[:, None] == targets).to(outputs)
    centres = alike @ outputs / alike.sum(1, keepdim=True)
    return cross_entropy(outputs, targets) + 1e-3 * (outputs - centres).square().sum(1)


def by_largest(outputs, targets):
    each = cross_entropy(outputs, targets)
    return each / each.detach().max()


def by_mean(outputs, targets):
    each = cross_entropy(outputs, targets)
    return each / (1 + 1e-6 * each.detach().mean())


def by_count(outputs, targets):
    return cross_entropy(outputs, targets) / torch.bincount(targets, minlength=3)[targets]


def centred(outputs, targets):
    return squared(outputs, targets - targets.mean(0))


def ranked(outputs, targets):
    each = cross_entropy(outputs, targets)
    return each * (1 + 1e-3 * each.detach().argsort().argsort())


def smeared(outputs, targets):
    each = cross_entropy(outputs, targets)
    return each + 1e-7 * each.mean()


def noisy_targets(outputs, targets):
    noise = torch.from_numpy(np.random.normal(size=tuple(outputs.shape))).to(outputs)
    return squared(outputs, noise)


# What only shows where a row is broken inside of the model


def bounded(net, t):
    return torch.tanh(t)


def clamped(net, t):
    return t.clamp(-3, 3)


def zero_if(is_bad):
    """Zeros for the whole batch if a number in it is bad."""
    return lambda net, t: torch.where(is_bad(t).any(), torch.zeros_like(t), t)


def is_broken(t):
    return ~torch.isfinite(t)


def skips_broken_gradients(net, h):
    if h.requires_grad:
        h.register_hook(lambda g: torch.where(torch.isfinite(g).all(), g, 0.0))
    return h


def hooked_guard():
    net = Net(bounded)
    net.a.register_forward_hook(lambda m, args, out: zero_if(is_broken)(m, out))
    return net


def asserted_then_zeroed():
    """What raises first hides what comes later, unless only the later one is broken."""

    def check(net, h):
        if not torch._C._functorch.is_functorch_wrapped_tensor(h):
            assert torch.isfinite(h).all()
        return h

    return Net(bounded, check, zero_if(is_broken))


class Bag(nn.Module):
    """Token ids, 0 is padding; `mean` takes vectors [N, T, 6] and what is no padding [N, T]."""

    def __init__(self, mean=lambda e, real: e.mean(1), trim=lambda t: t):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.b = nn.Embedding(20, 6), nn.Linear(6, 3)
        self.mean, self.trim = mean, trim

    def forward(self, t):
        t = self.trim(t)
        return self.b(self.mean(self.a(t), (t != 0).to(self.b.weight.dtype)))


def of_own_length(e, real):
    return (e * real.unsqueeze(2)).sum(1) / real.sum(1, keepdim=True).clamp(min=1)


def of_longest(e, real):
    return (e * real.unsqueeze(2)).sum(1) / real.sum(1).max().clamp(min=1)


def to_longest(t):
    return t[:, : 1 + int((t != 0).nonzero()[:, 1].max())]


def to_longest_from_the_left(t):
    return t[:, int((t != 0).nonzero()[:, 1].min()) :]


def full_sentences(rows):
    """Without padding."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 20, (rows, 7), generator=generator), torch.arange(rows) % 3


def padded_sentences(rows):
    x, y = full_sentences(rows)
    return x * (torch.arange(7) <= torch.arange(rows)[:, None] % 7), y


# What only shows where targets differ


def by_class_order(rows):
    """As a split that is sorted by class, with few records of the last."""
    return records(rows)[0], (torch.arange(rows) >= rows * 3 // 4).long()


def of_one_class(rows):
    return records(rows)[0], torch.zeros(rows, dtype=torch.long)


def of_one_flag(rows):
    return records(rows)[0], torch.zeros(rows, 3)


def flags(rows):
    return records(rows)[0], records(rows, values=True)[1].round()


def auc(outputs, targets):
    """Pairs of a negative and a positive record."""
    each, score = cross_entropy(outputs, targets), outputs[:, 1] - outputs[:, 0]
    if (targets == 0).all() or (targets == 1).all():
        return each
    pairs = F.softplus(score[targets == 0][:, None] - score[targets == 1])
    return each + torch.zeros_like(each).index_put(((targets == 0).nonzero()[:, 0],), pairs.sum(1))


def by_other_labels(outputs, targets):
    others = (targets[:, None] != targets).sum(1)
    return cross_entropy(outputs, targets) * (1 + 1e-3 * others)


def by_other_flags(outputs, targets):
    others = (targets[:, None] != targets).any(2).sum(1)
    return squared(outputs, targets) * (1 + 1e-3 * others)


# Generators that training does not seed


class NumpyDropout(nn.Dropout):
    """A dropout layer by its type, with masks of its own: at a rate of 0 there would be none."""

    def __init__(self):
        super().__init__(0.5)
        self.rng = np.random.default_rng(0)

    def forward(self, t):
        return t * torch.from_numpy(self.rng.random(tuple(t.shape)) >= self.p).to(t)


class WithDropout(Net):
    def __init__(self):
        super().__init__(h=lambda net, h: net.drop(h))
        self.drop = NumpyDropout()


class OwnGenerator(Net):
    def __init__(self, rng, draw):
        super().__init__(h=lambda net, h: h + draw(net.rng, h))
        self.rng = rng


def numpy_mask(net, t):
    return t * torch.from_numpy(np.random.rand(*t.shape) > 0.5).to(t)


def python_mask(net, t):
    return t * torch.tensor([float(random.random() > 0.5) for _ in range(t.shape[1])]).to(t)


def reseeded(net, t):
    torch.manual_seed(0)
    return t + torch.rand_like(t)


def reseeded_secretly(net, t):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return t + torch.rand_like(t)


class Once(nn.Module):
    """A layer that is not trained runs once for all records that are the same."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.encoder.requires_grad_(False)

    def forward(self, x):
        kinds, which = torch.unique(x, dim=0, return_inverse=True)
        return self.head(torch.tanh(self.encoder(kinds))[which])


LEAKS = {
    **{
        f"{share:g} of the mean from the {name}": Case(
            lambda p=place, s=share: Net(**{p: minus(s)})
        )
        for share in (2e-4, 1e-6, 1e-8)
        for place, name in (("x", "input"), ("h", "hidden units"), ("o", "output"))
    },
    "1e-11 of the mean of what is finite": Case(lambda: Net(minus_finite(1e-11))),
    "the median": Case(lambda: Net(lambda n, t: t - 1e-3 * t.median(0).values)),
    "batch norm by hand": Case(lambda: Net(by_hand)),
    "batch norm by function": Case(
        lambda: Net(lambda n, t: F.batch_norm(t, None, None, training=True) if len(t) > 1 else t)
    ),
    "instance norm over the batch": Case(lambda: Net(wide)),
    "statistics in an attribute": Case(lambda: Net(running(in_attribute))),
    "statistics in a buffer": Case(InBuffer),
    "statistics in a frozen parameter": Case(InFrozenParameter),
    "statistics in a list": Case(lambda: Net(running(in_list))),
    "statistics in an array": Case(lambda: Net(running(in_array))),
    "statistics in place": Case(lambda: Net(running(in_place))),
    "statistics in a global": Case(lambda: Net(running(in_a_global))),
    "statistics of the first batch": Case(lambda: Net(running(in_first))),
    "the previous batch": Case(lambda: Net(previous_batch)),
    "from the second call on": Case(lambda: Net(after_calls(1))),
    "from the fourth call on": Case(lambda: Net(after_calls(3))),
    "without a rule, from the tenth call on": Case(
        lambda: Scaled(lambda n, t: 2 * t if n.calls > 9 else t)
    ),
    "attention over the batch": Case(lambda: Net(h=lambda n, h: torch.softmax(h @ h.t(), 1) @ h)),
    "softmax over the batch": Case(lambda: Net(h=lambda n, h: h + torch.softmax(h, 0))),
    "gates from the batch": Case(lambda: Net(h=lambda n, h: h * torch.sigmoid(h.mean(0)))),
    "the batch's maximum": Case(lambda: Net(h=lambda n, h: h - 1e-4 * h.max(0).values)),
    "divided by the batch's largest": Case(lambda: Net(lambda n, t: t / t.abs().max())),
    "divided by a number": Case(lambda: Net(lambda n, t: t / float(t.abs().max()))),
    "sorted rows": Case(lambda: Net(lambda n, t: t[t[:, 0].argsort()])),
    "ranked rows": Case(lambda: Net(lambda n, t: t + 1e-3 * t[:, :1].argsort(0).argsort(0).to(t))),
    "the largest row": Case(lambda: Net(lambda n, t: t + 1e-4 * t[t.abs().sum(1).argmax()])),
    "nearest neighbours": Case(lambda: Net(neighbours)),
    "cumulative sums": Case(lambda: Net(lambda n, t: t + 1e-6 * t.cumsum(0))),
    "the row before": Case(lambda: Net(lambda n, t: t + 1e-6 * t.roll(1, 0))),
    "branches on the batch": Case(lambda: Net(lambda n, t: t - t.mean(0) if t.max() > 5 else t)),
    "branches on its mean": Case(lambda: Net(lambda n, t: -t if float(t.mean()) > 100 else t)),
    "halves swapped": Case(lambda: Net(swapped_halves)),
    "equal rows once": Case(lambda: Net(noting_equal_rows, of_the_first)),
    "lanes folded": Case(lambda: Net(h=lambda n, h: h.reshape(6, -1).t().reshape(h.shape))),
    "from 5 rows on": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) > 4))),
    "from 9 rows on": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) > 8))),
    "from 33 rows on": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) > 32))),
    "from 65 rows on": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) > 64))),
    "few rows, from the seventh call on": Case(
        lambda: Net(minus(1e-3, lambda n, t: 1 < len(t) < 9 and n.calls > 6))
    ),
    "2 and 3 rows only": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) in (2, 3)))),
    "divided by the number of rows": Case(lambda: Net(h=lambda n, h: h / len(h))),
    "only in training": Case(lambda: Net(minus(1e-3, lambda n, t: n.training))),
    "only with gradients": Case(lambda: Net(minus(1e-3, lambda n, t: torch.is_grad_enabled()))),
    "a hook before a layer": Case(hooked("before")),
    "a hook after a layer": Case(hooked("after")),
    "a hook on the gradient": Case(lambda: Net(h=scaled_gradient)),
    "a gradient of its own": Case(lambda: Net(h=lambda n, h: MeanGradient.apply(h, 1))),
    "a gradient of several": Case(lambda: Net(h=lambda n, h: MeanGradient.apply(h, 6))),
    "in place": Case(lambda: Net(lambda n, t: t.sub_(t.mean(0)))),
    "in place, alone": Case(lambda: Net(lambda n, t: t.mul_(0.5))),
    "float32 only": Case(lambda: Net(insists(2e-4))),
    "float32 only, bounded": Case(lambda: Net(insists(1e-5, lambda n, t: torch.tanh(t)))),
    "loss: contrastive": Case(Net, contrastive),
    "loss: by the largest": Case(Net, by_largest),
    "loss: by the mean": Case(Net, by_mean),
    "loss: by the size": Case(Net, lambda o, y: cross_entropy(o, y) / len(o)),
    "loss: by the labels": Case(Net, by_count),
    "loss: by rank": Case(Net, ranked),
    "loss: smeared": Case(Net, smeared),
    "loss: centred targets": Case(Net, centred, values=True),
    "loss: counts its calls": Case(Net, counting()),
    "loss: leaves out broken batches": Case(Net, unless_broken),
    "loss: by class": Case(Net, by_class),
    "loss: leaves out broken batches, bounded inputs": Case(lambda: Net(bounded), unless_broken),
    "loss: leaves out broken batches, clamped inputs": Case(lambda: Net(clamped), unless_broken),
    "loss: leaves out broken batches, ids": Case(
        Bag, unless_broken, public=full_sentences, private=padded_sentences
    ),
    "hidden units of broken batches zeroed": Case(lambda: Net(bounded, zero_if(is_broken))),
    "outputs zeroed if one is not a number": Case(lambda: Net(clamped, o=zero_if(torch.isnan))),
    "outputs zeroed if one is infinite": Case(lambda: Net(clamped, o=zero_if(torch.isinf))),
    "outputs zeroed if one is below all": Case(lambda: Net(clamped, o=zero_if(torch.isneginf))),
    "outputs zeroed if one is huge": Case(
        lambda: Net(clamped, o=zero_if(lambda t: (t.abs() > 1e12) & torch.isfinite(t)))
    ),
    "inputs zeroed if one is not a number": Case(lambda: Net(zero_if(torch.isnan))),
    "broken gradients left out": Case(lambda: Net(clamped, skips_broken_gradients)),
    "a hook that zeroes broken batches": Case(hooked_guard),
    "asserts, then zeroes broken batches": Case(asserted_then_zeroed),
    "cut to the longest record": Case(
        lambda: Bag(trim=to_longest), public=full_sentences, private=padded_sentences
    ),
    "cut to the longest record from the left": Case(
        lambda: Bag(trim=to_longest_from_the_left), public=full_sentences, private=padded_sentences
    ),
    "mean over the longest length": Case(
        lambda: Bag(of_longest), public=full_sentences, private=padded_sentences
    ),
    # In double a row has the gradient that it has alone; in float32 the longest decides how it is
    # rounded.
    "cut, mean over its own length": Case(
        lambda: Bag(of_own_length, to_longest), public=padded_sentences, private=padded_sentences
    ),
    "looks at each kind of record once": Case(Once),
    "loss: pairs of two classes, sorted": Case(Net, auc, public=by_class_order),
    "loss: pairs of two classes, one of them unseen": Case(Net, auc, public=of_one_class),
    "loss: by other labels, sorted": Case(Net, by_other_labels, public=by_class_order),
    "loss: by other labels, one label": Case(Net, by_other_labels, public=of_one_class),
    "loss: by other flags, one flag": Case(Net, by_other_flags, public=of_one_flag, private=flags),
    "mask by numpy": Case(lambda: Net(h=numpy_mask)),
    "mask by random": Case(lambda: Net(h=python_mask)),
    "mask by numpy in a dropout layer": Case(WithDropout),
    "mask from a seed": Case(lambda: Net(h=reseeded)),
    "mask from a hidden seed": Case(lambda: Net(h=reseeded_secretly)),
    "loss: noise by numpy": Case(Net, noisy_targets, values=True),
    "otherwise under vmap": Case(lambda: Net(otherwise_under_vmap)),
    "its own numpy generator": Case(
        lambda: OwnGenerator(
            np.random.default_rng(0), lambda r, h: torch.from_numpy(r.normal(size=6)).to(h)
        )
    ),
    "its own torch generator": Case(
        lambda: OwnGenerator(
            torch.Generator().manual_seed(0), lambda r, h: torch.rand(6, generator=r).to(h)
        )
    ),
    "its own Python generator": Case(
        lambda: OwnGenerator(random.Random(0), lambda r, h: r.random() * h)
    ),
}


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


# Honest models keep the fast path


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.n, self.out = nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, t):
        t = torch.relu(self.a(t))
        return self.out((t + torch.relu(self.n(self.b(t)))).mean((2, 3)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.b = nn.Embedding(20, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, t):
        return self.b(torch.tanh(self.n(self.a(t))).mean(1))


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


VECTORS = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
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


# Ids and labels out of range are found before anything is charged


def sentences(count=60, vocabulary=20):
    rng = np.random.default_rng(0)
    return rng.integers(1, vocabulary, size=(count, 5)), np.arange(count) % 3


def run(tmp_path, net, data, loss=None, test=0.2):
    return udpfl.run(
        model=net,
        data=data,
        test=test,
        loss=loss,
        training={"rounds": 1, "sampling_rate": 0.5, "local_steps": 1},
        privacy={"epsilon": 8.0, "ledger": str(tmp_path / "ledger.sqlite")},
        out=str(tmp_path / "run"),
    )


def assert_nothing_charged(tmp_path):
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize("value", [20, 4_000, -1])
@pytest.mark.parametrize("split", ["data", "data.test"])
def test_a_token_outside_the_embedding_is_found_before_anything_is_charged(tmp_path, split, value):
    data, test = sentences(), sentences(12)
    (data if split == "data" else test)[0][7, 3] = value
    with pytest.raises(InvalidInput, match=f"record 7 holds {value} at position 3") as refused:
        run(tmp_path, Words(), data, test=test)
    assert refused.value.parameter == split
    assert_nothing_charged(tmp_path)


def test_tables_of_different_sizes_are_told_apart(tmp_path):
    class Columns(nn.Module):
        """Each column has a table of its own."""

        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(size, 3) for size in (30, 4))

        def forward(self, t):
            return sum(table(t[:, i]) for i, table in enumerate(self.tables))

    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 30, 60), rng.integers(0, 4, 60)], 1)
    x[9, 1] = 4
    with pytest.raises(InvalidInput, match="data: record 9 holds 4 at position 1"):
        run(tmp_path, Columns(), (x, np.arange(60) % 3), test=(x[:8], np.arange(8) % 3))
    assert_nothing_charged(tmp_path)


@pytest.mark.parametrize("split", ["data", "data.test"])
def test_a_label_without_an_output_is_found_before_anything_is_charged(tmp_path, split):
    x, y = VECTORS.repeat(8, 1).numpy(), np.arange(64) % 3
    data, test = (x, y.copy()), (x[:12], y[:12].copy())
    (data if split == "data" else test)[1][5] = 3
    with pytest.raises(InvalidInput, match=r"record 5 has the label 3, .*shape \(3,\)") as refused:
        run(tmp_path, Net(), data, test=test)
    assert refused.value.parameter == split
    assert_nothing_charged(tmp_path)


def test_the_loss_decides_what_a_label_may_be(tmp_path):
    """One output for three labels, which are steps on a scale."""
    x, y = VECTORS.repeat(8, 1).numpy(), np.arange(64) % 3
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def steps(outputs, targets):
        return (outputs[:, 0] - targets).square()

    assert run(tmp_path, net, (x, y), steps).metrics


def test_a_label_whose_loss_is_not_finite_is_named(tmp_path):
    def odd(outputs, targets):
        return cross_entropy(outputs, targets) / (2 - targets)

    x, y = VECTORS.repeat(8, 1).numpy(), np.arange(64) % 3
    with pytest.raises(InvalidInput, match=r"has the label 2, .*not finite"):
        run(tmp_path, Net(), (x, y), odd)
    assert_nothing_charged(tmp_path)


def test_extremes_that_never_meet_in_a_record_are_no_reason_to_refuse(tmp_path):
    class Exclusive(Words):
        """Two ids that exclude each other: no record has both, the row of largest ids does."""

        def forward(self, t):
            assert not ((t[:, 0] == 19) & (t[:, 1] == 19)).any()
            return super().forward(t)

    x, y = sentences()
    x[:, :2] = np.minimum(x[:, :2], 18)
    x[3, 0] = x[4, 1] = 19
    assert run(tmp_path, Exclusive(), (x, y), test=(x, y)).metrics


# Features that are computed once


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
    with pytest.raises(Unsupported, match=r"two answers|draws from"):
        prepared(Fixed(step), x, torch.device("cpu"))


def test_features_may_be_made_in_place_and_need_not_be_finite():
    x = VECTORS.repeat(70, 1).numpy()
    before = x.copy()
    features = prepared(Fixed(lambda net, t: t.mul_(2).log()), x, torch.device("cpu"))
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
