"""Images cut into the patches under a kernel."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from udpfl.engine._kernels import kernels_for
from udpfl.engine._windows import Window

_SHORT_RUN = 9
"""Numbers side by side, below which a CPU copies them faster one by one."""


def cut_patches(image: Tensor, window: Window, groups: int) -> Tensor:
    """Images [N, C, H, W] under a window [N, groups, P, kh * kw * C / groups], P positions.

    One strided copy: `F.unfold` takes several times as long, and on CUDA a launch per sample.
    Where it would copy a few numbers at a time, to look each one up takes half as long.
    """
    if (kernels := kernels_for(image)) is not None:
        cut: Tensor = kernels.patches(image, window, groups)
        return cut
    (top, left), (dy, dx), (sy, sx) = window.padding, window.dilation, window.stride
    rows = image.permute(0, 2, 3, 1)
    rows = F.pad(rows, (0, 0, left, left, top, top)) if top or left else rows
    rows = rows.contiguous()
    samples, channels = rows.shape[0], rows.shape[3]
    n, y, x, c = rows.stride()
    own = channels // groups
    size = (groups, window.rows, window.columns, *window.kernel, own)
    stride = (own * c, sy * y, sx * x, dy * y, dx * x, c)
    if rows.device.type == "cpu" and window.kernel[1] * own < _SHORT_RUN:
        places = torch.arange(n).as_strided(size, stride).flatten()
        patches = rows.flatten(1).index_select(1, places)
    else:
        patches = rows.as_strided((samples, *size), (n, *stride))
    width = math.prod(window.kernel) * own
    patches = patches.reshape(samples, groups, window.rows * window.columns, width)
    return patches.contiguous()  # in one dimension they may still be a view that overlaps
