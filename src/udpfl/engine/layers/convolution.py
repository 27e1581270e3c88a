"""Convolutions as matrix products over the patches under the kernel.

The patches that the forward pass multiplies are what every sample's weight gradient is made of, so
they are cut out once. Images are laid out channels last, where a patch is a few long runs of
memory, lanes need no reordering, and torch's pooling is several times as fast on a CPU.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl.engine._kernels import kernels_for
from udpfl.engine._windows import Window
from udpfl.engine.layers._patches import cut_patches
from udpfl.engine.layers._products import add_up, multiply, widened
from udpfl.engine.layers.rule import (
    FEW,
    Named,
    Rule,
    Use,
    aligned,
    gram_norm,
    put_products,
    put_weighted,
    sizes,
    writing_pays,
)

_WORTH_KEEPING = 1 << 16
"""Numbers in the patches of one sample, up to which one product beats torch's convolution."""


class Convolution(Rule):
    """Conv1d and Conv2d with stride, padding, dilation and groups."""

    multiplies: ClassVar[bool] = True

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
        self._flat = len(m.kernel_size) == 1  # a 1-d convolution is a 2-d one of height 1
        one: tuple[int, ...] = (1,) if self._flat else ()
        self._kernel: tuple[int, int] = (*one, *m.kernel_size)
        self._stride: tuple[int, int] = (*one, *m.stride)
        self._dilation: tuple[int, int] = (*one, *m.dilation)
        self._padding: tuple[int, int] = (*(0 for _ in one), *padding)
        self._groups: int = m.groups

    def _image(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-2) if self._flat else x

    def _plain(self, y: Tensor) -> Tensor:
        return y.squeeze(-2) if self._flat else y

    def forward(self, use: Use, weights: Named) -> Tensor:
        image = self._image(use.x)
        height, width = self._output_size(image)
        bias = weights.get("bias")
        if not self._multiplies_patches(image):
            return self._plain(self._native(image, weights["weight"], bias, use.lanes))
        use.kept = self._patches(image)
        rows, kernels = aligned(use.kept, self._kernels(weights["weight"]).flatten(2, 4))
        rows, kernels = rows.view(use.lanes, -1, rows.shape[-1]), kernels.transpose(1, 2)
        y = multiply(rows, kernels, None if bias is None else bias.unsqueeze(1))
        return self._plain(y.view(-1, height, width, y.shape[-1]).permute(0, 3, 1, 2))

    def _multiplies_patches(self, image: Tensor) -> bool:
        """Whether the forward pass is a product with patches, not torch's own convolution.

        On CUDA that one takes lanes as groups, slowly, and rounds a record by its place.
        """
        if self._groups > 1:
            return False
        return image.is_cuda or self._patch_floats(image) <= _WORTH_KEEPING

    def _kernels(self, weight: Tensor) -> Tensor:
        """Kernels [L, O, C, (kh,) kw] in the order of the patches: [L, O, kh, kw, C]."""
        return self._image(weight).permute(0, 1, 3, 4, 2)

    def _window(self, image: Tensor) -> Window:
        return Window.over(image, self._kernel, self._stride, self._padding, self._dilation)

    def _output_size(self, image: Tensor) -> tuple[int, int]:
        window = self._window(image)
        return window.rows, window.columns

    def _patch_floats(self, image: Tensor) -> int:
        return image.shape[1] * math.prod(self._kernel) * math.prod(self._output_size(image))

    def _patches(self, image: Tensor) -> Tensor:
        """Inputs under the kernel [N, groups, P, kh * kw * C / groups], P positions."""
        return cut_patches(image, self._window(image), self._groups)

    def _gradient_rows(self, use: Use) -> Tensor:
        """Output gradients [N, groups, P, O / groups]."""
        g = self._image(use.g)
        rows = g.permute(0, 2, 3, 1).flatten(1, 2).unflatten(2, (self._groups, -1))
        return rows.transpose(1, 2)

    def _native(self, image: Tensor, weight: Tensor, bias: Tensor | None, lanes: int) -> Tensor:
        """torch's own convolution; lanes are further groups."""
        y = F.conv2d(
            _side_by_side(widened(image), lanes),
            self._image(widened(weight).flatten(0, 1)),
            None if bias is None else bias.flatten(),
            self._stride,
            self._padding,
            self._dilation,
            lanes * self._groups,
        )
        return _one_by_one(y, lanes)

    def input_gradient(self, use: Use, weights: Named) -> Tensor:
        image, g, weight = self._image(use.x), self._image(use.g), weights["weight"]
        kernels = kernels_for(image)
        if kernels is not None and use.kept is not None:
            rows = self._gradient_rows(use).reshape(use.lanes, -1, weight.shape[1])
            cut = multiply(rows, self._kernels(weight).flatten(2, 4))
            cut = cut.view(len(image), -1, cut.shape[-1])
            return self._plain(kernels.folded(cut, self._window(image), image.shape[1]))
        dilated = max(self._dilation) > 1
        alone = use.lanes == 1 and max(self._stride) == 1
        if self._groups > 1 or dilated or alone or use.kept is None:
            back = torch.ops.aten.convolution_backward(
                _side_by_side(widened(g), use.lanes),
                _side_by_side(widened(image), use.lanes),
                self._image(widened(weight).flatten(0, 1)),
                None,
                self._stride,
                self._padding,
                self._dilation,
                False,
                [0, 0],
                use.lanes * self._groups,
                [True, False, False],
            )[0]
            return _one_by_one(back, use.lanes).reshape(use.x.shape)
        return self._plain(self._folded(use, weight, image))

    def _folded(self, use: Use, weight: Tensor, image: Tensor) -> Tensor:
        """What each position's gradient sends back through the kernel, added up.

        The kernel is cut into blocks of the size of the stride, filled up with zeros: one block
        sends its results to places that do not overlap, so a block is one product and one addition.
        """
        (sy, sx), (top, left) = self._stride, self._padding
        samples, channels, high, wide = image.shape
        height, width = self._output_size(image)
        down, across = (-(-k // s) for k, s in zip(self._kernel, self._stride, strict=True))
        kernels = F.pad(
            self._kernels(weight),
            (0, 0, 0, across * sx - self._kernel[1], 0, down * sy - self._kernel[0]),
        )
        # [down, across, L, O, sy * sx * C]: a product's columns are one block of the image.
        blocks = kernels.unflatten(3, (across, sx)).unflatten(2, (down, sy))
        blocks = blocks.permute(2, 4, 0, 1, 3, 5, 6).flatten(4)
        rows = self._gradient_rows(use).reshape(use.lanes, -1, weight.shape[1])
        # Room for all that the kernel reaches, and for input that it does not.
        tall = max(height + down - 1, -(-(high + top) // sy))
        broad = max(width + across - 1, -(-(wide + left) // sx))
        kind = torch.float32 if use.rounded else image.dtype
        back = image.new_zeros(samples, tall, broad, blocks.shape[-1], dtype=kind)
        for i in range(down):
            for j in range(across):
                part = multiply(rows, blocks[i, j]).view(samples, height, width, -1)
                back[:, i : i + height, j : j + width] += part
        whole = back.view(samples, tall, broad, sy, sx, channels).transpose(2, 3)
        whole = whole.reshape(samples, tall * sy, broad * sx, channels)
        return whole[:, top : top + high, left : left + wide].permute(0, 3, 1, 2)

    def each(self, use: Use) -> Named:
        patches = self._patches(self._image(use.x)) if use.kept is None else use.kept
        rows = self._gradient_rows(use).transpose(2, 3).flatten(0, 1)
        outputs, own = self.module.weight.shape[0], rows.shape[1]
        if own % 4 and patches.shape[-1] % 4 and own <= FEW:  # as in `aligned`
            rows = F.pad(rows, (0, 0, 0, -own % 4))
        full = multiply(rows, patches.flatten(0, 1))[:, :own]
        full = full.reshape(use.lanes, -1, outputs, full.shape[-1])
        named = {"weight": self._module_order(full)}
        if self.module.bias is not None:
            named["bias"] = self._bias(use)
        return named

    def _module_order(self, full: Tensor) -> Tensor:
        """[..., O, kh * kw * C] as [..., O, C, (kh,) kw], a view."""
        view = full.unflatten(-1, (*self._kernel, -1)).movedim(-1, -3)
        return view.squeeze(-2) if self._flat else view

    def _product_order(self, view: Tensor) -> Tensor:
        """The inverse, contiguous as it was made."""
        view = view.unsqueeze(-2) if self._flat else view
        return view.movedim(-3, -1).flatten(-3)

    def _bias(self, use: Use) -> Tensor:
        """Gradients of the bias, made once: in another order a sum that cancels is another one."""
        if "bias" not in use.written:
            rows = self._gradient_rows(use)
            if rows.shape[3] % 4:  # a product would add up by where a row lies
                sums = add_up(rows, 2)
            else:
                products = rows.flatten(0, 1)
                ones = rows.new_ones(1, 1, rows.shape[2]).expand(len(products), -1, -1)
                sums = multiply(ones, products)
            use.written["bias"] = sums.view(use.lanes, -1, self.module.bias.numel())
        return use.written["bias"]

    def _writes(self, use: Use) -> bool:
        weight = self.module.weight
        positions = math.prod(self._output_size(self._image(use.x)))
        return writing_pays(positions, weight[0].numel(), weight.shape[0])

    def floats_written(self, use: Use) -> int:
        image = self._image(use.x)
        positions, weight = math.prod(self._output_size(image)), self.module.weight.numel()
        patches = self._patch_floats(image)
        return patches + (weight if self._writes(use) else 4 * positions**2 + 2 * patches)

    def norms(self, use: Use, p: int) -> Named:
        if p == 2 and not self._writes(use):
            patches = self._patches(self._image(use.x)) if use.kept is None else use.kept
            size = gram_norm(patches, self._gradient_rows(use)).sum(1).view(use.lanes, -1)
            named = {"weight": size}
            if self.module.bias is not None:
                named["bias"] = sizes(self._bias(use), p)
            return named
        return {
            name: sizes(self._product_order(full) if name == "weight" else full, p)
            for name, full in self.write(use).items()
        }

    def put_weighted(self, use: Use, factors: Tensor, total: Named) -> None:
        if "weight" in total:
            weight = self.module.weight
            sums = factors.new_empty(use.lanes, weight.shape[0], weight[0].numel())
            if use.x.is_cuda and self._writes(use):
                self.write(use)  # quicker there than few long products, where nothing was measured
            if "weight" in use.written:
                put_weighted(factors, self._product_order(use.written["weight"]), sums)
            else:
                self._put_products(use, factors, sums)
            total["weight"].copy_(self._module_order(sums))
        if "bias" in total:
            put_weighted(factors, self._bias(use), total["bias"])

    def _put_products(self, use: Use, factors: Tensor, sums: Tensor) -> None:
        """Sum over samples and positions [L, O, kh * kw * C / groups], nothing written out."""
        patches = self._patches(self._image(use.x)) if use.kept is None else use.kept
        # [N, groups, P, .] as [L * groups, B, P, .]
        rows, patches = (
            t.unflatten(0, (use.lanes, -1)).transpose(1, 2).flatten(0, 1)
            for t in (self._gradient_rows(use), patches)
        )
        by_group = sums.view(use.lanes * self._groups, -1, sums.shape[-1])
        put_products(factors.repeat_interleave(self._groups, 0), patches, rows, by_group)


def _side_by_side(x: Tensor, lanes: int) -> Tensor:
    """[L * B, C, H, W] as B images with L * C channels."""
    if lanes == 1:
        return x
    lane_first = x.unflatten(0, (lanes, -1))
    return lane_first.transpose(0, 1).flatten(1, 2)


def _one_by_one(y: Tensor, lanes: int) -> Tensor:
    if lanes == 1:
        return y
    apart = y.unflatten(1, (lanes, -1))
    return apart.transpose(0, 1).flatten(0, 1)
