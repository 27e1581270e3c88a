"""Names of methods, and answers of clients of two weights."""

from __future__ import annotations

import torch
from torch import nn

from udpfl.algorithms import ClientMessage, PublicData, Terms
from udpfl.engine import LaneModel

ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi")


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


def agreed(method, seed=0, rate=0.1, local_steps=1):
    """The method, on the terms of a run of nine rounds with three clients."""
    method.agree(Terms(3, 3, 9, local_steps, lambda _: rate, seed))
    return method


def prepared(method, data=None):
    method.prepare(data or public())
    return method
