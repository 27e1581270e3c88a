"""Products of matrices that are added up in float32, or better, whatever their factors are.

Numbers of bfloat16 are numbers of float32 with eight digits: the product of two of them is exact in
float32. So it makes no difference but to speed whether they are multiplied as what they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from udpfl.engine.precision import multiplies_into_float32


def multiply(a: Tensor, b: Tensor, plus: Tensor | None = None) -> Tensor:
    """Products [n, i, j] of stacked matrices a [n, i, k] and b [n, k, j], plus what is given."""
    if a.dtype != torch.bfloat16:
        return torch.bmm(a, b) if plus is None else torch.baddbmm(plus, a, b)
    if not multiplies_into_float32(a.device):
        return multiply(a.float(), b.float(), plus)
    product = torch.bmm(a, b, out_dtype=torch.float32)
    return product if plus is None else product.add_(plus)


def add_up(x: Tensor, axis: int) -> Tensor:
    """The sum along an axis, in float32 or better."""
    return widened(x).sum(axis)


def widened(x: Tensor) -> Tensor:
    """The same numbers, in float32 if they are bfloat16."""
    return x.float() if x.dtype == torch.bfloat16 else x
