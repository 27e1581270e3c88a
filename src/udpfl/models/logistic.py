"""Logistic (or linear) regression on inputs of any shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn


class Logistic(nn.Module):
    """One linear layer that starts at zero: the problem is convex, so any start will do.

    Args:
        input_shape: The shape of one record; it is flattened.
        outputs: Numbers per record.

    Example:
        >>> import torch
        >>> from udpfl.models import Logistic
        >>> Logistic((4,), 3)(torch.ones(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(self, input_shape: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.output = nn.Linear(math.prod(input_shape), outputs)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """One row of scores per input."""
        scores: Tensor = self.output(inputs.flatten(1))
        return scores
