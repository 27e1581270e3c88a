"""Fully connected layers, on one position per sample or on many."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from udpfl.engine.layers._products import add_up, multiply
from udpfl.engine.layers.rule import (
    Named,
    Rule,
    Use,
    aligned,
    even_columns,
    gram_norm,
    powers,
    put_products,
    put_weighted,
    sizes,
    writing_pays,
)


class Linear(Rule):
    """y = x W' + b. With one position per sample the norm is a product of two norms."""

    multiplies: ClassVar[bool] = True

    def _split(self, use: Use) -> tuple[Tensor, Tensor]:
        """[L, B, T, in] and [L, B, T, out]; T is the number of positions."""
        x, g = use.x, use.g
        lead = (use.lanes, x.shape[0] // use.lanes, -1)
        return x.reshape(*lead, x.shape[-1]), g.reshape(*lead, g.shape[-1])

    def forward(self, use: Use, weights: Named) -> Tensor:
        (x, weight), bias = aligned(use.x, weights["weight"]), weights.get("bias")
        if use.lanes == 1 and not use.rounded:
            return F.linear(x, weight[0], None if bias is None else bias[0])
        rows, turned = x.reshape(use.lanes, -1, x.shape[-1]), weight.transpose(1, 2)
        y = multiply(rows, turned, None if bias is None else bias.unsqueeze(1))
        return y.view(*x.shape[:-1], weight.shape[1])

    def input_gradient(self, use: Use, weights: Named) -> Tensor:
        rows = use.g.reshape(use.lanes, -1, use.g.shape[-1])
        weight = even_columns(weights["weight"])
        inputs = use.x.shape[-1]
        return multiply(rows, weight)[..., :inputs].reshape(use.x.shape)

    def each(self, use: Use) -> Named:
        a, b = self._split(use)
        if use.rounded:
            product = multiply(b.flatten(0, 1).transpose(1, 2), a.flatten(0, 1))
            full = {"weight": product.unflatten(0, a.shape[:2])}
        else:
            full = {"weight": torch.einsum("lbto,lbti->lboi", b, a)}
        if self.module.bias is not None:
            full["bias"] = add_up(b, 2)
        return full

    def _writes(self, use: Use) -> bool:
        positions = use.x.shape[1:-1].numel()
        return positions > 1 and writing_pays(positions, use.x.shape[-1], use.g.shape[-1])

    def floats_written(self, use: Use) -> int:
        positions = use.x.shape[1:-1].numel()
        if positions == 1:
            return 0
        gram = 4 * positions**2  # two matrices in double precision
        return use.x.shape[-1] * use.g.shape[-1] if self._writes(use) else gram

    def norms(self, use: Use, p: int) -> Named:
        a, b = self._split(use)
        if a.shape[2] == 1:
            out = {"weight": _full_size(a, p) * _full_size(b, p)}
        elif p == 2 and not self._writes(use):
            out = {"weight": gram_norm(a, b)}
        else:
            return super().norms(use, p)
        if self.module.bias is not None:
            out["bias"] = sizes(self._bias(use, b), p)
        return out

    def _bias(self, use: Use, b: Tensor) -> Tensor:
        """Gradients of the bias, made once: in another order a sum that cancels is another one."""
        if "bias" not in use.written:
            use.written["bias"] = add_up(b, 2)
        return use.written["bias"]

    def put_weighted(self, use: Use, factors: Tensor, total: Named) -> None:
        if "weight" in use.written:
            super().put_weighted(use, factors, total)
            return
        a, b = self._split(use)
        if "weight" in total:
            put_products(factors, a, b, total["weight"])
        if "bias" in total:
            put_weighted(factors, self._bias(use, b), total["bias"])


def _full_size(x: Tensor, p: int) -> Tensor:
    """Sum of |x|^p [L, B], right even where it is too small or too large for float32.

    Two such sizes are multiplied: one may vanish in float32 where the other one is huge.
    """
    size = sizes(x, p)
    if x.device.type != "cpu":  # which was added up in double
        return size
    odd = (size < 1e-20) | (size > 1e30)
    if bool(odd.any()):  # each by itself: no sample decides how another one is measured
        size[odd] = powers(x[odd].double(), p).flatten(1).sum(1)
    return size
