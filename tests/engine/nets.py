"""Networks whose layers are of every kind that products are made in."""

from __future__ import annotations

import torch
from torch import nn


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2),
        nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 9, 24), nn.ReLU(),
        nn.Linear(24, 10),
    )  # fmt: skip


def positions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(14, 40), nn.Tanh(), nn.Flatten(), nn.Linear(560, 10))


class Parts(nn.Module):
    """Layers whose inputs and output gradients are parts of larger tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(7, 6), nn.Linear(7, 5)
        self.last, self.rows = nn.Linear(11, 9), nn.Linear(9, 40)
        self.out = nn.Linear(40, 10)

    def forward(self, x):
        both = torch.cat([self.one(x[..., :7]), self.two(x[..., 7:])], -1)
        hidden = self.last(both).relu()
        return self.out(self.rows(hidden[:, 1:]).tanh()[:, 0])


NETS = {
    "parts": (Parts, (14, 14)),
    "convolutions": (convolutions, (1, 14, 14)),
    "positions": (positions, (14, 14)),
}
