"""Sums as they are before noise is added, kept for comparison."""

from __future__ import annotations

import torch
from torch import nn

from tests.small import cross_entropy
from udpfl.engine import Keyed, LaneModel, Lanes, Limits, NormClipper, train_round
from udpfl.engine.noise import Noiser


class Recorder(Noiser):
    """Keeps the sums that it is given."""

    def __init__(self, kept):
        self.kept = kept

    def lanes(self, which):
        return self

    def std(self, device):
        return torch.zeros((), device=device)

    def add(self, sums, stream, keys):
        self.kept.append(sums.clone())
        return sums.float()


def lanes_of(records, kept, norm="l2", clip=0.1):
    count, device = len(records), records[0].device
    return Lanes(
        runs=("run",) * count, clients=tuple(map(str, range(count))), records=tuple(records),
        rates=(1.0,) * count, denominators=torch.full((count,), 300.0, device=device),
        learning_rates=torch.zeros(count, device=device), steps=(1,) * count,
        clipper=NormClipper(norm, [clip] * count), noiser=Recorder(kept),
    )  # fmt: skip


def sums(model, x, y, parameters, *records, samples=512, **more):
    kept = []
    start = parameters.expand(len(records), -1)
    lanes = lanes_of(records, kept, **more)
    train_round(model, x, y, start, lanes, 0, Keyed(0), Limits(8, samples))
    return torch.cat(kept)


def on_the_edge(inputs, count, outputs=10, device="cpu"):
    """A network whose units are zero but for rounding, for these records: on or off by a bit."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, 2))
    weight = 0.3 * torch.randn(inputs, generator=generator)
    second = torch.ones(2, outputs) * torch.tensor([[1.0], [-1.0]])
    zeros = torch.zeros(outputs)
    parameters = torch.cat([weight.repeat(outputs), zeros, second.flatten(), zeros[:2]])
    exact = weight.double()
    x = torch.rand(count, inputs, generator=generator, dtype=torch.float64)
    x -= (x @ exact).unsqueeze(1) * exact / (exact @ exact)
    model = LaneModel(net, cross_entropy).to(torch.device(device))
    x, y = x.float().to(device), torch.zeros(count, dtype=torch.int64, device=device)
    return model, x, y, parameters.to(device)
