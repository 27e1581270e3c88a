"""Small data, small models and a listener, for tests of whole runs."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from udpfl.federation.observers import Observer
from udpfl.federation.plan import ReleasePlan
from udpfl.runs.folder import RunFolder

WIDE = 2_000


def blobs(count=60):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    return (rng.normal(size=(count, 4)) + 2 * labels[:, None]).astype(np.float32), labels


def linear():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 2)


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


class Wide(nn.Module):
    """As many parameters as make noise measurable, all zero at the start."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDE // 2, 2))

    def forward(self, x):
        return x.repeat(1, WIDE // 8) @ self.weight


class Seen(Observer):
    """Keeps the messages and the models of a run."""

    def __init__(self):
        self.messages, self.models = [], []

    def on_message(self, message):
        self.messages.append(message)

    def on_model(self, round_, model):
        self.models.append(torch.cat([t.flatten() for t in model.values()]))

    def on_round(self, row): ...


def people_of(result):
    """The plans of all clients, as a run folder has them."""
    return [ReleasePlan.from_row(row) for row in RunFolder(result.folder).clients]


class PowerCut(Exception):
    """The end of a process, as far as its run folder can tell."""


class Stops(Observer):
    """Cuts the power after a round, which is on disk by then."""

    def __init__(self, after):
        self.after = after

    def on_round(self, row):
        if row["round"] == self.after:
            raise PowerCut
