"""Normalisation within a sample, followed by one weight and bias per channel or per number."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl.engine.layers.rule import Named, Rule, Use


class _Affine(Rule):
    """y = x * weight + bias on a normalised input; `axes` are the dimensions the weight spans."""

    @abstractmethod
    def _axes(self, x: Tensor) -> tuple[int, ...]: ...

    @classmethod
    def supports(cls, module: nn.Module) -> bool:
        m: Any = module
        return m.weight is not None

    def _shaped(self, weight: Tensor, x: Tensor) -> Tensor:
        """Weights [L, *shape] shaped to multiply x [L, B, ...]."""
        shape = [1] * x.dim()
        shape[0] = weight.shape[0]
        for axis in self._axes(x):
            shape[axis] = x.shape[axis]
        return weight.reshape(shape)

    def forward(self, use: Use, weights: Named) -> Tensor:
        x = use.x
        apart = x.reshape(use.lanes, -1, *x.shape[1:])
        y = apart * self._shaped(weights["weight"], apart)
        if "bias" in weights:
            y = y + self._shaped(weights["bias"], apart)
        return y.view(x.shape)

    def input_gradient(self, use: Use, weights: Named) -> Tensor:
        apart = use.g.reshape(use.lanes, -1, *use.x.shape[1:])
        return (apart * self._shaped(weights["weight"], apart)).view(use.x.shape)

    def each(self, use: Use) -> Named:
        named = {"weight": use.x * use.g}
        if self.module.bias is not None:
            named["bias"] = use.g
        for name, full in named.items():
            apart = full.reshape(use.lanes, -1, *use.x.shape[1:])
            rest = [i for i in range(2, apart.dim()) if i not in self._axes(apart)]
            named[name] = apart.sum(rest) if rest else apart
        return named


class GroupNorm(_Affine):
    """Normalises within a sample, so no sample sees another."""

    def prepare(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.module.num_groups, eps=self.module.eps)

    def _axes(self, x: Tensor) -> tuple[int, ...]:
        return (2,)


class LayerNorm(_Affine):
    """Normalises within a sample, so no sample sees another."""

    def prepare(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.module.normalized_shape, eps=self.module.eps)

    def _axes(self, x: Tensor) -> tuple[int, ...]:
        return tuple(range(x.dim() - len(self.module.normalized_shape), x.dim()))
