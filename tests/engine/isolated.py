"""Small networks, and trials of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from tests.small import cross_entropy
from udpfl.engine import LaneModel

HUGE = 1e6


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


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.b = nn.Embedding(20, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, t):
        return self.b(torch.tanh(self.n(self.a(t))).mean(1))


VECTORS = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
