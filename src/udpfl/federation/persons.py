"""A network and a loss for persons with several rows, as the engine trains them.

The gradient of a record is then the sum of the gradients of all rows of a person: clipping bounds
what the person changes, whatever its rows have in common.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from udpfl.data.persons import NO_LABEL
from udpfl.engine import Loss
from udpfl.errors import Unsupported


class _RowByRow(nn.Module):
    """Gives every row of every person to a network by itself: [n, m, ...] to [n, m, ...]."""

    why_alone = "the gradients of a person's rows are added up before they are clipped"

    def forward(self, persons: Tensor) -> Any:
        outputs = super().forward(persons.flatten(0, 1))
        return outputs.unflatten(0, persons.shape[:2])


def apply_to_rows(network: nn.Module) -> nn.Module:
    """A copy of the network that takes persons; its parameters keep their names."""
    copied = copy.deepcopy(network)
    kind = type(copied)
    try:
        copied.__class__ = type(kind.__name__, (_RowByRow, kind), {})
    except TypeError as error:
        raise Unsupported(
            f"data.person: a {kind.__name__} cannot be applied to the rows of a person: {error}"
        ) from error
    return copied


def sum_over_rows(loss: Loss) -> Loss:
    """The loss of a person: the sum over those of its rows that are there."""

    def summed(outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            there = ~torch.isnan(targets).flatten(2).any(2)
        else:
            there = targets != NO_LABEL
        is_there = there.view(*there.shape, *[1] * (targets.dim() - 2))
        wanted = torch.where(is_there, targets, targets[:, :1])  # the first row is always there
        each = loss(outputs.flatten(0, 1), wanted.flatten(0, 1))
        return torch.where(there, each.view(there.shape), 0.0).sum(1)

    return summed
