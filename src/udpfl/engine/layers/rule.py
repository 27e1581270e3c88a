"""What a book-keeping rule is: how one kind of layer owes its parameters to each sample.

Data flows through the user's own `forward` as a flat batch of L * B samples, lane after lane; a
rule applies lane l's weights to lane l's samples. Of the backward pass only the gradient of the
layer's input is computed. The gradients of its parameters come later, once the clipping factors
are known:

    norms     sum over a parameter of |gradient|^p, per sample
    weighted  sum over samples of factor * gradient, in double where anything was measured
    each      every sample's gradient, written out (shared parameters, coordinate clipping)

Before training `each` is checked against automatic differentiation on public records (`trial.py`);
that `norms` and `put_weighted` agree with it is what the tests are for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl.engine._kernels import kernels_for
from udpfl.engine.layers._products import widened

Named = dict[str, Tensor]
"""Tensors by the name of the layer's parameter: "weight", "bias"."""

_ROW = 256
"""Numbers that a norm adds up in float32; the sums of such rows are added in double."""
_CONVERTED, _CONVERTED_ON_CPU = 1 << 25, 1 << 18
"""Numbers that are turned into double at once."""
FEW = 16
"""Outputs of a layer up to which rows are aligned."""
POSITIONS = 1 << 9
"""Positions whose products are added up in one go where they may cancel."""
CANCELLED = 2.0**7
"""How many times the norm of a gradient is taken to be exceeded by the sizes of its terms, at most.
A gradient whose terms cancel further counts as larger than it is."""


@dataclass
class Use:
    """One use of a layer in a pass: its input, the gradient of its output, what is kept between."""

    x: Tensor
    """The flat batch [L * B, ...] that the parameters are applied to."""
    lanes: int
    gradient: Tensor | None = None
    kept: Tensor | None = None
    """What the forward pass made of `x` and the norms will want again."""
    rounded: bool = False
    """Whether input, weights and gradient were rounded to bfloat16 for this use."""
    written: Named = field(default_factory=dict)
    """Gradients that were written out for their norms, for the sum."""

    @property
    def g(self) -> Tensor:
        """Gradient of the output; there is one after the backward pass."""
        assert self.gradient is not None
        return self.gradient


class Rule(ABC):
    """One kind of layer."""

    looks: ClassVar[bool] = False
    """Whether it looks at numbers on the device, which a CUDA graph cannot do."""
    multiplies: ClassVar[bool] = False
    """Whether it multiplies matrices, whose factors may be rounded."""

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

    def write(self, use: Use) -> Named:
        """Per-sample gradients [L, B, *shape], made once: what was measured is what is summed."""
        if "weight" not in use.written:
            use.written = {**self.each(use), **use.written}
        return use.written

    def norms(self, use: Use, p: int) -> Named:
        """Sum of |gradient|^p per sample [L, B]."""
        return {name: sizes(full, p) for name, full in self.write(use).items()}

    def put_weighted(self, use: Use, factors: Tensor, total: Named) -> None:
        """Write the sum over samples of factor * gradient to each total [L, *shape] given."""
        written = self.write(use)
        for name in total:
            put_weighted(factors, written[name], total[name])

    def floats_written(self, use: Use) -> int:
        """Numbers per sample that this rule writes out beyond input and output gradient."""
        return 0


def powers(x: Tensor, p: int) -> Tensor:
    """|x|^p for p = 1 or 2."""
    return x.abs() if p == 1 else x * x


def sizes(full: Tensor, p: int) -> Tensor:
    """Sum of |x|^p over all but the two leading axes, in double.

    Guarantee: within 260 units of float32 rounding of the true sum where nothing vanishes in
    float32, and finite where every x is. A sample's size depends on that sample alone: nothing else
    in the batch decides how it is computed.
    """
    rows = full.flatten(2).contiguous()
    if rows.device.type == "cpu":
        rows = widened(rows)
    if (kernels := kernels_for(rows)) is not None:
        return kernels.powers_of_rows(rows, p)
    if rows.device.type != "cpu":  # where to look at a result costs more than double precision
        return powers(rows.double(), p).sum(2)
    short = rows.shape[2] // _ROW * _ROW
    if not short:
        return powers(rows.double(), p).sum(2)
    parts = rows[..., :short].unflatten(2, (-1, _ROW))
    if p == 1:
        size = parts.abs().sum(3).double().sum(2)
    else:
        size = torch.linalg.vector_norm(parts, dim=3).double().square().sum(2)
    overflown = ~torch.isfinite(size)
    if bool(overflown.any()):
        size[overflown] = powers(parts[overflown].double(), p).sum((1, 2))
    if short < rows.shape[2]:
        size += powers(rows[..., short:].double(), p).sum(2)
    return size


def put_weighted(factors: Tensor, full: Tensor, total: Tensor) -> None:
    """Write the sum over samples of factors [L, B] * full [L, B, *shape] to a total [L, *shape], in
    the precision of the factors, which is that of the total.

    On an accelerator a sample whose factor is zero counts for nothing, whatever it holds.
    """
    rows, weights = full.flatten(2), factors.unsqueeze(1)
    lanes, samples, width = rows.shape
    if (kernels := kernels_for(rows)) is not None:
        sums = total if total[0].is_contiguous() else torch.empty_like(total)
        kernels.weighted_rows(factors.contiguous(), rows.contiguous(), sums.view(lanes, width))
        if sums is not total:
            total.copy_(sums)
        return
    if rows.device.type != "cpu":
        rows = torch.where(factors.unsqueeze(2) != 0, rows, 0.0)
    most = _CONVERTED_ON_CPU if full.device.type == "cpu" else _CONVERTED
    step = samples if factors.dtype == full.dtype else most // max(1, lanes * width)
    sums = factors.new_zeros(lanes, 1, width)  # lanes side by side, as batched products want them
    for start in range(0, samples, max(1, step)):
        part = slice(start, min(start + max(1, step), samples))
        own = rows[:, part].to(factors.dtype)
        sums.baddbmm_(weights[:, :, part], own, beta=int(start > 0))
    total.copy_(sums.view(total.shape))


def put_products(factors: Tensor, a: Tensor, b: Tensor, total: Tensor) -> None:
    """Write the sum over samples and positions of factor * b a' to a total [L, out, in], in the
    precision of the factors, which is that of the total.

    factors [L, B], a [L, B, T, in], b [L, B, T, out]. In double, terms that may cancel are added up
    in short runs, because the rounding of a run grows with its length. On an accelerator a sample
    whose factor is zero counts for nothing, whatever it holds.
    """
    scaled, a = _scaled(factors, a, b)
    samples, positions = a.shape[1], a.shape[2]
    cancels = factors.dtype == torch.float64 and positions > 1
    step = max(1, POSITIONS // positions if cancels else samples)
    sums = total if total.is_contiguous() else torch.empty_like(total)
    for start in range(0, max(1, samples), step):  # no samples sum up to zero
        part = slice(start, start + step)
        inputs = a[:, part].flatten(1, 2).to(factors.dtype)
        rows = scaled[:, part].flatten(1, 2).transpose(1, 2)
        sums.baddbmm_(rows, inputs, beta=int(start > 0))
    if sums is not total:
        total.copy_(sums)


def _scaled(factors: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """b times the factors, in their precision, and a."""
    if (kernels := kernels_for(b)) is not None:
        flat = factors.flatten().contiguous()
        scaled, kept = (
            kernels.kept_rows(t.reshape(len(flat), -1).contiguous(), flat, scaled=t is b)
            for t in (b, a)
        )
        return scaled.view(b.shape), kept.view(a.shape)
    if b.device.type == "cpu":
        return b * factors[..., None, None], a
    keep = (factors != 0)[..., None, None]
    return torch.where(keep, b * factors[..., None, None], 0.0), torch.where(keep, a, 0.0)


def aligned(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs [..., in] and weights [..., out, in], filled up with zeros to a multiple of four.

    With few outputs a CPU adds up a product of rows in an order that depends on where each row lies
    in memory, unless all rows begin at a multiple of 16 bytes (`engine/_widths.py` finds out).
    """
    missing = -x.shape[-1] % 4
    if not missing or weight.shape[-2] > FEW:
        return x, weight
    return F.pad(x, (0, missing)), F.pad(weight, (0, missing))


def even_columns(weight: Tensor) -> Tensor:
    """Weights [..., out, in], filled up with zeros to a multiple of four inputs if these are few.

    A product with such weights rounds rows by their place otherwise.
    """
    missing = -weight.shape[-1] % 4
    return F.pad(weight, (0, missing)) if missing and weight.shape[-1] <= FEW else weight


def gram_norm(a: Tensor, b: Tensor) -> Tensor:
    """Squared norm [...] of sum_t b_t a_t' from a [..., T, in] and b [..., T, out].

    By Gram matrices in double. They lose what cancels: with r = 2^-53 and `terms` the sum of the
    |a_t| |b_t|, their sum is off by at most (in + out + T^2 + 8) r terms^2, and the root of that is
    added to the norm.

    Guarantee: not below the true norm, and not below terms / `CANCELLED`.
    """
    a64, b64 = a.double(), b.double()
    gram = ((a64 @ a64.transpose(-1, -2)) * (b64 @ b64.transpose(-1, -2))).sum((-1, -2))
    terms = (a64.square().sum(-1) * b64.square().sum(-1)).sqrt().sum(-1)
    lost = math.sqrt((a.shape[-1] + b.shape[-1] + a.shape[-2] ** 2 + 8) * 2.0**-53)
    norm = gram.clamp(min=0).sqrt() + lost * terms
    return torch.maximum(norm, terms / CANCELLED).square()


def writing_pays(positions: int, inputs: int, outputs: int) -> bool:
    """Whether writing a gradient out (inputs * outputs numbers, read three times) costs less than
    two Gram matrices over the positions, in double precision."""
    return 2 * inputs * outputs <= positions**2 * (inputs + outputs)
