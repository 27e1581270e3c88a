"""What a model is tried on before it trains: few public records, and when two answers agree."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_AGREEMENT = 1e-3


class Trial(NamedTuple):
    """A batch to try a model on; `order` says which rows of the first batch it holds."""

    inputs: Tensor
    targets: Tensor
    order: Tensor


def trial_batches(inputs: Tensor, targets: Tensor) -> tuple[Trial, Trial]:
    """Eight rows made of public records, then the same rows in another order."""
    device = inputs.device
    pick = torch.arange(8, device=device) % len(inputs)
    rows, labels = inputs[pick].clone(), targets[pick].clone()
    if rows.is_floating_point():
        scale = torch.tensor([1.0, 1.0, 1.0, 1.0, 30.0, 0.0, -1.0, 0.5], device=device)
        rows *= scale.view(-1, *([1] * (rows.dim() - 1)))
    elif rows.dim() > 1:  # other token ids than the record's own would need its vocabulary
        rows = torch.stack([row.roll(i, dims=-1) for i, row in enumerate(rows)])
    order = torch.tensor([4, 6, 1, 7, 0, 3, 2, 5], device=device)
    whole = torch.arange(8, device=device)
    return Trial(rows, labels, whole), Trial(rows[order], labels[order], order)


def agree(found: Tensor, expected: Tensor) -> bool:
    """Row by row, to a thousandth of the row's largest number."""
    scale = expected.abs().amax(1, keepdim=True).clamp(min=1e-6)
    return bool(((found - expected).abs() <= _AGREEMENT * scale).all())
