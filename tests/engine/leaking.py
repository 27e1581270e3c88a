"""Models and losses in which a record sees others."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.engine.isolated import Net, same, squared
from tests.small import cross_entropy


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
