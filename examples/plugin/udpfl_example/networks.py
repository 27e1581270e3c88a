"""A model: a function of the shape of one input and the number of outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn


def wide(input_shape: Sequence[int], outputs: int, *, width: int = 64) -> nn.Module:
    """One wide hidden layer. Keyword arguments are what `model.options` may hold."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), width),
        nn.Tanh(),
        nn.Linear(width, outputs),
    )
