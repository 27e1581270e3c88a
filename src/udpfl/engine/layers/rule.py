"""What a book-keeping rule is: how one kind of layer owes its parameters to each sample.

Data flows through the user's own `forward` as a flat batch of L * B samples, lane after lane; a
rule applies lane l's weights to lane l's samples. Of the backward pass only the gradient of the
layer's input is computed. The gradients of its parameters come later, once the clipping factors
are known:

    norms     sum over a parameter of |gradient|^p, per sample
    weighted  sum over samples of factor * gradient, one matrix product
    each      every sample's gradient, written out (shared parameters, coordinate clipping)

Before training `each` is checked against automatic differentiation on public records (`lanes.py`);
that `norms` and `weighted` agree with it is what the tests are for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Named = dict[str, Tensor]
"""Tensors by the name of the layer's parameter: "weight", "bias"."""

_ROW = 2048
_SHORT = 256
"""Numbers per sample so few that double precision costs less than another call."""


@dataclass
class Use:
    """One use of a layer in a pass: its input, the gradient of its output, what is kept between."""

    x: Tensor
    """The flat batch [L * B, ...] that the parameters are applied to."""
    lanes: int
    gradient: Tensor | None = None
    kept: Tensor | None = None
    """What the forward pass made of `x` and the norms will want again."""
    measured: bool = False
    """Whether norms were taken, so that a bound depends on what is summed."""
    written: Named = field(default_factory=dict)
    """Gradients that were written out for their norms, for the sum."""

    @property
    def g(self) -> Tensor:
        """Gradient of the output; there is one after the backward pass."""
        assert self.gradient is not None
        return self.gradient


class Rule(ABC):
    """One kind of layer."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    @classmethod
    def supports(cls, module: nn.Module) -> bool:
        """Whether this rule covers every option of the module."""
        return True

    def prepare(self, x: Tensor) -> Tensor:
        """What happens to the input before the parameters come in (differentiated as usual)."""
        return x

    @abstractmethod
    def forward(self, use: Use, weights: Named) -> Tensor:
        """The layer with each lane's own weights."""

    @abstractmethod
    def input_gradient(self, use: Use, weights: Named) -> Tensor:
        """Gradient of the input from the gradient of the output."""

    @abstractmethod
    def each(self, use: Use) -> Named:
        """Per-sample gradients [L, B, *shape]."""

    def norms(self, use: Use, p: int) -> Named:
        """Sum of |gradient|^p per sample [L, B]."""
        if not use.written:
            use.written.update(self.each(use))
        return {name: sizes(full, p) for name, full in use.written.items()}

    def weighted(self, use: Use, factors: Tensor) -> Named:
        """Sum over samples of factor * gradient [L, *shape]."""
        if not use.written:
            use.written.update(self.each(use))
        return {name: weighted_sum(factors, full) for name, full in use.written.items()}

    def floats_written(self, use: Use) -> int:
        """Numbers per sample that this rule writes out beyond input and output gradient."""
        return 0


def powers(x: Tensor, p: int) -> Tensor:
    """|x|^p for p = 1 or 2."""
    return x.abs() if p == 1 else x * x


def sizes(full: Tensor, p: int) -> Tensor:
    """Sum of |x|^p over all but the two leading axes, in double.

    Finite where every x is, however large: whether a sample is clipped or counts as broken must
    depend on that sample alone, so no other size of the batch decides on a branch here.

    `vector_norm` adds in a row, and a long vector comes out too small: it gets short ones, whose
    squares are added in double, and contiguous ones, where it has several sums going at once. `sum`
    adds in a tree.
    """
    rows = full.flatten(2).contiguous()
    if rows.shape[2] <= _SHORT:
        return powers(rows.double(), p).sum(2)
    if p == 1 or rows.shape[2] % (whole := -(-rows.shape[2] // _ROW)):
        size = powers(rows, p).sum(2).double()
    else:
        short = rows.unflatten(2, (whole, -1))
        size = torch.linalg.vector_norm(short, dim=3).double().square().sum(2)
    overflown = ~torch.isfinite(size)
    if bool(overflown.any()):
        size[overflown] = powers(rows[overflown].double(), p).sum(1)
    return size


def weighted_sum(factors: Tensor, full: Tensor) -> Tensor:
    """Sum over samples of factors [L, B] * full [L, B, *shape]."""
    return torch.bmm(factors.unsqueeze(1), full.flatten(2)).view(-1, *full.shape[2:])


def gram_norm(a: Tensor, b: Tensor) -> Tensor:
    """Squared norm [...] of sum_t a_t b_t' from a [..., T, in] and b [..., T, out].

    Positions may cancel, so the Gram matrices are in double precision, and the size includes what
    float32 leaves behind where they do: the sum itself is a float32 product, and its rounding is
    bounded by the sizes of its terms, not by the size of the result.
    """
    a64, b64 = a.double(), b.double()
    gram = ((a64 @ a64.transpose(-1, -2)) * (b64 @ b64.transpose(-1, -2))).sum((-1, -2))
    terms = (a64.square().sum(-1) * b64.square().sum(-1)).sqrt().sum(-1)
    rounding = (a.shape[-2] + 2) * torch.finfo(torch.float32).eps * terms
    return (gram.clamp(min=0).sqrt() + rounding).square()


def normal(x: Tensor) -> Tensor:
    """The same numbers, zero in place of those too small for full precision.

    Rounding among them may double a number, and what it is multiplied with may be huge.
    """
    return x.masked_fill(x.abs() < torch.finfo(x.dtype).tiny, 0.0)


def writing_pays(positions: int, inputs: int, outputs: int) -> bool:
    """Whether writing a gradient out (inputs * outputs numbers, read three times) costs less than
    two Gram matrices over the positions, in double precision."""
    return 2 * inputs * outputs <= positions**2 * (inputs + outputs)
