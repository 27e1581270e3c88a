"""Book-keeping rules: what one layer's parameters owe to each sample, from its input and its
output gradient alone.

Data flows through the user's own `forward` as a flat batch of L * B samples, lane after lane; a
rule applies lane l's weights to lane l's samples. Of the backward pass only the gradient of the
layer's input is computed. The gradients of its parameters come later, once the clipping factors
are known:

    norms     sum over a parameter of |gradient|^p, per sample
    weighted  sum over samples of factor * gradient, one matrix product
    each      every sample's gradient, written out (shared parameters, coordinate clipping)

Every rule is checked against automatic differentiation on the first batch it sees (`lanes.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl.errors import Unsupported

Named = dict[str, Tensor]
"""Tensors by the name of the layer's parameter: "weight", "bias"."""


def _by_lane(factors: Tensor, x: Tensor) -> Tensor:
    """Factors [L, B] shaped to multiply x [L, B, ...]."""
    return factors.view(*factors.shape, *([1] * (x.dim() - 2)))


def powers(x: Tensor, p: int) -> Tensor:
    """|x|^p for p = 1 or 2. Summed with `sum`, which adds in a tree: `vector_norm` adds in a row,
    and a long vector comes out too small."""
    return x.abs() if p == 1 else x * x


def _weighted(factors: Tensor, each: Tensor) -> Tensor:
    """Sum over samples of factors [L, B] * each [L, B, *shape]."""
    return torch.bmm(factors.unsqueeze(1), each.flatten(2)).view(-1, *each.shape[2:])


def _gram_norm(a: Tensor, b: Tensor) -> Tensor:
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


def _writing_pays(positions: int, inputs: int, outputs: int) -> bool:
    """Whether writing a gradient out (inputs * outputs numbers, read three times) costs less than
    two Gram matrices over the positions, in double precision."""
    return 2 * inputs * outputs <= positions**2 * (inputs + outputs)


class Rule(ABC):
    """One kind of layer. `lanes` is the number of lanes in the flat batch."""

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
    def forward(self, x: Tensor, weights: Named, lanes: int) -> Tensor:
        """The layer with each lane's own weights."""

    @abstractmethod
    def input_gradient(self, x: Tensor, g: Tensor, weights: Named, lanes: int) -> Tensor:
        """Gradient of the input from the gradient of the output."""

    @abstractmethod
    def each(self, x: Tensor, g: Tensor, lanes: int) -> Named:
        """Per-sample gradients [L, B, *shape]."""

    def norms(self, x: Tensor, g: Tensor, lanes: int, p: int, written: Named) -> Named:
        """Sum of |gradient|^p per sample [L, B]; `written` caches gradients written out."""
        if not written:
            written.update(self.each(x, g, lanes))
        return {name: powers(full, p).flatten(2).sum(2) for name, full in written.items()}

    def weighted(self, x: Tensor, g: Tensor, factors: Tensor, written: Named) -> Named:
        """Sum over samples of factor * gradient [L, *shape]."""
        if not written:
            written.update(self.each(x, g, factors.shape[0]))
        return {name: _weighted(factors, full) for name, full in written.items()}

    def floats_written(self, x: Tensor, g: Tensor) -> int:
        """Numbers per sample that this rule writes out beyond input and output gradient."""
        return 0


class Linear(Rule):
    """y = x W' + b. With one position per sample the norm is a product of two norms."""

    def _split(self, x: Tensor, g: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
        """[L, B, T, in] and [L, B, T, out]; T is the number of positions."""
        batch = x.shape[0] // lanes
        return x.reshape(lanes, batch, -1, x.shape[-1]), g.reshape(lanes, batch, -1, g.shape[-1])

    def forward(self, x: Tensor, weights: Named, lanes: int) -> Tensor:
        weight, bias = weights["weight"], weights.get("bias")
        if lanes == 1:
            return F.linear(x, weight[0], None if bias is None else bias[0])
        rows, turned = x.reshape(lanes, -1, x.shape[-1]), weight.transpose(1, 2)
        y = (
            torch.bmm(rows, turned)
            if bias is None
            else torch.baddbmm(bias.unsqueeze(1), rows, turned)
        )
        return y.view(*x.shape[:-1], weight.shape[1])

    def input_gradient(self, x: Tensor, g: Tensor, weights: Named, lanes: int) -> Tensor:
        weight = weights["weight"]
        return torch.bmm(g.reshape(lanes, -1, g.shape[-1]), weight).view(x.shape)

    def each(self, x: Tensor, g: Tensor, lanes: int) -> Named:
        a, b = self._split(x, g, lanes)
        full = {"weight": torch.einsum("lbto,lbti->lboi", b, a)}
        if self.module.bias is not None:
            full["bias"] = b.sum(2)
        return full

    def _writes(self, x: Tensor, g: Tensor) -> bool:
        positions = x.shape[1:-1].numel()
        return positions > 1 and _writing_pays(positions, x.shape[-1], g.shape[-1])

    def floats_written(self, x: Tensor, g: Tensor) -> int:
        positions = x.shape[1:-1].numel()
        if positions == 1:
            return 0
        gram = 4 * positions**2  # two matrices in double precision
        return x.shape[-1] * g.shape[-1] if self._writes(x, g) else gram

    def norms(self, x: Tensor, g: Tensor, lanes: int, p: int, written: Named) -> Named:
        a, b = self._split(x, g, lanes)
        if a.shape[2] == 1:
            # In double: one square may be too small for float32 where the other is huge.
            out = {"weight": powers(a.double(), p).sum((2, 3)) * powers(b.double(), p).sum((2, 3))}
        elif p == 2 and not self._writes(x, g):
            out = {"weight": _gram_norm(a, b)}
        else:
            return super().norms(x, g, lanes, p, written)
        if self.module.bias is not None:
            out["bias"] = powers(b.sum(2), p).sum(2)
        return out

    def weighted(self, x: Tensor, g: Tensor, factors: Tensor, written: Named) -> Named:
        if written:
            return super().weighted(x, g, factors, written)
        a, b = self._split(x, g, factors.shape[0])
        scaled = b * _by_lane(factors, b)
        out = {"weight": torch.bmm(scaled.flatten(1, 2).transpose(1, 2), a.flatten(1, 2))}
        if self.module.bias is not None:
            out["bias"] = _weighted(factors, b.sum(2))  # the very numbers that were measured
        return out


class Convolution(Rule):
    """Conv1d and Conv2d with stride, padding, dilation and groups; lanes are further groups."""

    @classmethod
    def supports(cls, module: nn.Module) -> bool:
        m: Any = module
        if m.padding_mode != "zeros":
            return False
        return m.padding != "same" or all(
            d * (k - 1) % 2 == 0 for d, k in zip(m.dilation, m.kernel_size, strict=True)
        )

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        m = self.module
        padding = m.padding
        if padding == "valid":
            padding = (0,) * len(m.kernel_size)
        elif padding == "same":
            padding = tuple(
                d * (k - 1) // 2 for d, k in zip(m.dilation, m.kernel_size, strict=True)
            )
        flat = len(m.kernel_size) == 1  # a 1-d convolution is a 2-d one of height 1
        self._flat = flat
        self._kernel = (1, *m.kernel_size) if flat else m.kernel_size
        self._stride = (1, *m.stride) if flat else m.stride
        self._padding = (0, *padding) if flat else padding
        self._dilation = (1, *m.dilation) if flat else m.dilation

    def _image(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-2) if self._flat else x

    def _side_by_side(self, x: Tensor, lanes: int) -> Tensor:
        """[L * B, C, H, W] as B images with L * C channels."""
        if lanes == 1:
            return x
        lane_first = x.view(lanes, -1, *x.shape[1:])
        return lane_first.transpose(0, 1).reshape(-1, lanes * x.shape[1], *x.shape[2:])

    def _one_by_one(self, y: Tensor, lanes: int) -> Tensor:
        if lanes == 1:
            return y
        apart = y.view(y.shape[0], lanes, -1, *y.shape[2:])
        return apart.transpose(0, 1).reshape(-1, *apart.shape[2:])

    def _kernels(self, weights: Named) -> Tensor:
        return self._image(weights["weight"].flatten(0, 1))

    def forward(self, x: Tensor, weights: Named, lanes: int) -> Tensor:
        bias = weights.get("bias")
        y = F.conv2d(
            self._side_by_side(self._image(x), lanes),
            self._kernels(weights),
            None if bias is None else bias.flatten(),
            self._stride,
            self._padding,
            self._dilation,
            lanes * self.module.groups,
        )
        y = self._one_by_one(y, lanes)
        return y.squeeze(-2) if self._flat else y

    def input_gradient(self, x: Tensor, g: Tensor, weights: Named, lanes: int) -> Tensor:
        gradient = self._backward(x, g, self._kernels(weights), lanes, [True, False, False])[0]
        return self._one_by_one(gradient, lanes).reshape(x.shape)

    def _backward(
        self, x: Tensor, g: Tensor, kernels: Tensor, lanes: int, wanted: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of input, kernels and bias, as far as they are wanted."""
        return torch.ops.aten.convolution_backward(
            self._side_by_side(self._image(g), lanes),
            self._side_by_side(self._image(x), lanes),
            kernels,
            None,
            self._stride,
            self._padding,
            self._dilation,
            False,
            [0, 0],
            lanes * self.module.groups,
            wanted,
        )

    def _patches(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs under the kernel [N, groups, K, P] and output gradients [N, groups, O, P].

        One strided copy: `F.unfold` takes several times as long, and on CUDA a launch per sample.
        """
        (top, left), (dy, dx), (sy, sx) = self._padding, self._dilation, self._stride
        image = self._image(x)
        image = F.pad(image, (left, left, top, top)) if top or left else image.contiguous()
        samples, channels = image.shape[:2]
        steps, (height, width) = image.stride(), self._image(g).shape[2:]
        view = image.as_strided(
            (samples, channels, *self._kernel, height, width),
            (steps[0], steps[1], dy * steps[2], dx * steps[3], sy * steps[2], sx * steps[3]),
        )
        groups = self.module.groups
        return (
            view.reshape(samples, groups, -1, height * width),
            g.reshape(samples, groups, -1, height * width),
        )

    def each(self, x: Tensor, g: Tensor, lanes: int) -> Named:
        patches, out = self._patches(x, g)
        full = out @ patches.transpose(2, 3)
        shape = (lanes, -1, *self.module.weight.shape)
        named = {"weight": full.reshape(shape)}
        if self.module.bias is not None:
            named["bias"] = g.flatten(2).sum(2).view(lanes, -1, g.shape[1])
        return named

    def _writes(self, x: Tensor, g: Tensor) -> bool:
        weight = self.module.weight
        return _writing_pays(g.shape[2:].numel(), weight[0].numel(), weight.shape[0])

    def floats_written(self, x: Tensor, g: Tensor) -> int:
        positions, weight = g.shape[2:].numel(), self.module.weight.numel()
        patches = x.shape[1] * math.prod(self._kernel) * positions
        return patches + (weight if self._writes(x, g) else 4 * positions**2)

    def norms(self, x: Tensor, g: Tensor, lanes: int, p: int, written: Named) -> Named:
        if p != 2 or self._writes(x, g):
            return super().norms(x, g, lanes, p, written)
        patches, out = (t.transpose(2, 3) for t in self._patches(x, g))
        named = {"weight": _gram_norm(patches, out).sum(1).view(lanes, -1)}
        if self.module.bias is not None:
            named["bias"] = g.flatten(2).sum(2).square().sum(1).view(lanes, -1)
        return named

    def weighted(self, x: Tensor, g: Tensor, factors: Tensor, written: Named) -> Named:
        if written:
            return super().weighted(x, g, factors, written)
        lanes = factors.shape[0]
        scaled = g * factors.flatten().view(-1, *([1] * (g.dim() - 1)))
        shape = self._image(self.module.weight).repeat(lanes, 1, 1, 1)  # only its shape matters
        weight = self._backward(x, scaled, shape, lanes, [False, True, False])[1]
        named = {"weight": weight.view(lanes, *self.module.weight.shape)}
        if self.module.bias is not None:
            each = g.flatten(2).sum(2).view(lanes, -1, g.shape[1])
            named["bias"] = _weighted(factors, each)  # the very numbers that were measured
        return named


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

    def forward(self, x: Tensor, weights: Named, lanes: int) -> Tensor:
        apart = x.view(lanes, -1, *x.shape[1:])
        y = apart * self._shaped(weights["weight"], apart)
        if "bias" in weights:
            y = y + self._shaped(weights["bias"], apart)
        return y.view(x.shape)

    def input_gradient(self, x: Tensor, g: Tensor, weights: Named, lanes: int) -> Tensor:
        apart = g.reshape(lanes, -1, *x.shape[1:])
        return (apart * self._shaped(weights["weight"], apart)).view(x.shape)

    def each(self, x: Tensor, g: Tensor, lanes: int) -> Named:
        named = {"weight": x * g}
        if self.module.bias is not None:
            named["bias"] = g
        for name, full in named.items():
            apart = full.reshape(lanes, -1, *x.shape[1:])
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


class Embedding(Rule):
    """Rows of a table. A token that occurs twice in a sample adds up before it is measured."""

    @classmethod
    def supports(cls, module: nn.Module) -> bool:
        m: Any = module
        return m.max_norm is None and not m.scale_grad_by_freq

    def forward(self, x: Tensor, weights: Named, lanes: int) -> Tensor:
        table = weights["weight"]
        return F.embedding(self._rows(x, lanes), table.flatten(0, 1))

    def _rows(self, x: Tensor, lanes: int) -> Tensor:
        """Token ids as rows of all lanes' tables, one under the other."""
        rows = self.module.num_embeddings
        if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < rows:
            # Beyond its own table lies the table of another client.
            raise Unsupported(f"a token id lies outside the {rows} rows of the embedding")
        offset = torch.arange(lanes, device=x.device) * self.module.num_embeddings
        return x + offset.repeat_interleave(x.shape[0] // lanes).view(-1, *([1] * (x.dim() - 1)))

    def input_gradient(self, x: Tensor, g: Tensor, weights: Named, lanes: int) -> Tensor:
        raise AssertionError("token ids have no gradient")

    def _merged(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Ids [N, T] and gradients [N, T, E], each id's gradients moved to its first place."""
        ids, rows = x.reshape(x.shape[0], -1), g.reshape(x.shape[0], -1, g.shape[-1])
        if self.module.padding_idx is not None:
            rows = rows * (ids != self.module.padding_idx).unsqueeze(-1)
        first = (ids.unsqueeze(2) == ids.unsqueeze(1)).to(torch.int8).argmax(2)
        merged = torch.zeros_like(rows).scatter_add_(1, first.unsqueeze(2).expand_as(rows), rows)
        return ids, merged

    def each(self, x: Tensor, g: Tensor, lanes: int) -> Named:
        ids, rows = self._merged(x, g)
        full = g.new_zeros(x.shape[0], *self.module.weight.shape)
        full.scatter_add_(1, ids.unsqueeze(2).expand_as(rows), rows)
        return {"weight": full.view(lanes, -1, *self.module.weight.shape)}

    def norms(self, x: Tensor, g: Tensor, lanes: int, p: int, written: Named) -> Named:
        return {"weight": powers(self._merged(x, g)[1], p).sum((1, 2)).view(lanes, -1)}

    def weighted(self, x: Tensor, g: Tensor, factors: Tensor, written: Named) -> Named:
        if written:
            return super().weighted(x, g, factors, written)
        lanes = factors.shape[0]
        _, rows = self._merged(x, g)
        rows = rows * factors.reshape(-1, 1, 1)
        table = g.new_zeros(lanes * self.module.num_embeddings, g.shape[-1])
        ids = self._rows(x, lanes).flatten()
        table.index_add_(0, ids, rows.flatten(0, 1))
        return {"weight": table.view(lanes, *self.module.weight.shape)}


RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Linear: Linear,
    nn.Conv1d: Convolution,
    nn.Conv2d: Convolution,
    nn.GroupNorm: GroupNorm,
    nn.LayerNorm: LayerNorm,
    nn.Embedding: Embedding,
}
