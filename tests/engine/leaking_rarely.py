"""Models, losses and generators that let a record see others, and show it only at times."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.engine.isolated import Net, records, squared
from tests.small import cross_entropy

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
