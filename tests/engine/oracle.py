"""Sums of clipped gradients by automatic differentiation, and small lanes to train."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.small import cross_entropy
from udpfl.engine import Keyed, LaneModel, Lanes, NormClipper
from udpfl.engine.randomness import PrivateStream
from udpfl.mechanisms import Gaussian, Laplace, Staircase


def oracle_sum(model, layout, parameters, x, y, loss, norm, bound):
    """Clip each sample's autograd gradient by the textbook formula and add them up, in float64."""
    total = torch.zeros(layout.dimension, dtype=torch.float64)
    scale = 0.0
    named = layout.named(parameters)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.copy_(named[name])
    wanted = [p for p in model.parameters() if p.requires_grad]
    for i in range(len(x)):
        grads = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]).sum(), wanted)
        g = torch.cat([p.flatten() for p in grads]).double()
        if norm == "linf":
            clipped = g.clamp(-bound, bound)
        else:
            size = g.abs().sum() if norm == "l1" else g.square().sum().sqrt()
            clipped = g * (bound / max(float(size), bound))
        total += clipped
        scale += float(clipped.abs().max())
    return total, scale


def assert_same_sums(model, x, y, loss=cross_entropy, *, rules=True, bounds=(0.05, 0.7, 40.0)):
    """x, y are [L, B, ...]; every lane gets weights and a clip of its own."""
    model.train()
    lane_model = LaneModel(model, loss)
    lane_model.check(lane_model.initial(), x[0], y[0])
    assert lane_model.book_keeping == rules
    lanes = x.shape[0]
    generator = torch.Generator().manual_seed(3)
    start = lane_model.initial()
    parameters = start + 0.1 * torch.randn(lanes, start.numel(), generator=generator)
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    for norm in ("l2", "l1", "linf"):
        factor = {"l1": 10, "l2": 1, "linf": 0.1}[norm]
        limits = [factor * bounds[i % len(bounds)] for i in range(lanes)]
        gradients = lane_model.gradients(parameters, x, y, real)
        ours = NormClipper(norm, limits).clipped_sum(gradients).sum
        for lane in range(lanes):
            theirs, scale = oracle_sum(
                model,
                lane_model.layout,
                parameters[lane],
                x[lane],
                y[lane],
                loss,
                norm,
                limits[lane] * (1 - 2**-11),  # the documented margin for rounding
            )
            assert ours.dtype == torch.float64
            assert torch.allclose(ours[lane], theirs, rtol=0, atol=8e-5 * scale + 1e-9), norm


def labels(lanes, batch, classes=3):
    return torch.arange(lanes * batch).view(lanes, batch) % classes


class Net(nn.Module):
    """Any layer, then an average over positions and a head."""

    def __init__(self, layer, features, channel_axis=1):
        super().__init__()
        self.layer, self.head, self.axis = layer, nn.Linear(features, 3), channel_axis

    def forward(self, x):
        y = torch.tanh(self.layer(x)).movedim(self.axis, 1)
        return self.head(y.flatten(2).mean(2) if y.dim() > 2 else y)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.block = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(16, 3))

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        return self.head(self.pool(x + self.block(x)))


class RawParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x * self.scale)


class LooksAtOthers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x - x.mean(0))


def small_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3))


def problem(records=60, lanes=4):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(records, 1, 8, 8, generator=generator)
    y = torch.randint(0, 3, (records,), generator=generator)
    cuts = np.array_split(np.arange(records), lanes)
    return x, y, [torch.tensor(cut) for cut in cuts]


def lanes_of(records, *, clipper, noiser, rate=0.5, steps=None, lr=0.5, clients=None):
    n = len(records)
    return Lanes(
        runs=("run",) * n,
        clients=tuple(clients or (f"client-{i}" for i in range(n))),
        records=tuple(records),
        rates=(rate,) * n,
        denominators=torch.tensor([max(rate * len(r), 1.0) for r in records]),
        learning_rates=torch.full((n,), lr),
        steps=tuple(steps or (3,) * n),
        clipper=clipper,
        noiser=noiser,
    )


MIXED = [Gaussian(0.8), Laplace(0.5), Gaussian(0.8), Staircase(1.0, 0.3, 0.4)]


class Noted(PrivateStream):
    """A seeded stream, and the keys it was asked for."""

    private = False

    def __init__(self):
        self.keys = []

    def _bits(self, key):
        self.keys.append(key)
        return Keyed(5)._bits(key)
