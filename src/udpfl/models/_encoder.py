"""An encoder of images: maps of several stages, and the pooled features that are made of them.

Every image is looked at alone, and is brought to mean 0 and variance 1 first, so that neither the
scale of the pixels nor the light in which a picture was taken matters. Grey images are repeated in
three colours.

References: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, with
group normalisation (Wu and He, ECCV 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl.models._residual import Block

COLOURS = 3
SMALLEST, LARGEST = 8, 64
"""Sides of images that are encoded."""
_FLAT = 1e-2
"""Added to an image's standard deviation: an image without contrast becomes 0, not noise."""
_FINE, _COARSE = 4, 2
"""Positions along a side that are kept of every stage but the last, and of the last."""
_FAR = 5.0
"""Standard deviations at which a feature ends."""


@dataclass(frozen=True)
class EncoderShape:
    """How large an encoder is."""

    stem: int = 32
    """Channels after the first convolution."""
    widths: tuple[int, ...] = (64, 128, 256)
    """Channels of the stages; each but the first halves the image."""
    blocks: int = 1
    """Residual blocks of a stage."""
    stride: int = 2
    """Of the first convolution."""
    groups: int = 8
    """Of a normalisation."""

    @property
    def features(self) -> int:
        """How many numbers are pooled from an image."""
        *early, last = self.widths
        return sum(early) * _FINE**2 + last * (_COARSE**2 + 1)


class Encoder(nn.Module):
    """A stem and stages of residual blocks.

    Args:
        shape: How large it is.

    Example:
        >>> import torch
        >>> encoder = Encoder(EncoderShape(stem=8, widths=(8, 16), groups=4))
        >>> [tuple(own.shape) for own in encoder.maps(torch.zeros(2, 1, 28, 28))]
        [(2, 8, 14, 14), (2, 16, 7, 7)]
    """

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.stem = nn.Conv2d(COLOURS, shape.stem, 3, shape.stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(shape.groups, shape.stem)
        self.stages = nn.ModuleList()
        before = shape.stem
        for number, width in enumerate(shape.widths):
            made = []
            for place in range(shape.blocks):
                stride = 2 if number and not place else 1
                made.append(Block(before, width, stride, shape.groups, "relu"))
                before = width
            self.stages.append(nn.Sequential(*made))

    def maps(self, images: Tensor) -> list[Tensor]:
        """What every stage makes of images [n, channels, height, width]."""
        return self.later_maps(self.first_map(images), 0)

    def first_map(self, images: Tensor) -> Tensor:
        """What the stem makes of images."""
        x: Tensor = F.relu(self.norm(self.stem(standardised(images))))
        return x

    def later_maps(self, before: Tensor, stage: int) -> list[Tensor]:
        """What the stages from this one on make of the map before it."""
        maps = []
        for own in self.stages[stage:]:
            before = own(before)
            maps.append(before)
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """The mean of the last map over its positions."""
        return self.maps(images)[-1].mean((2, 3))


def standardised(images: Tensor) -> Tensor:
    """Images in three colours, each with mean 0 and variance 1 over all of its pixels."""
    centred = images - images.mean((1, 2, 3), keepdim=True)
    deviation = centred.square().mean((1, 2, 3), keepdim=True).sqrt()
    same = centred / (deviation + _FLAT)
    return same.expand(-1, COLOURS, -1, -1) if same.shape[1] == 1 else same


def pooled(maps: Sequence[Tensor]) -> Tensor:
    """Averages over parts of maps: 4×4 of every stage, but 2×2 and the whole of the last [n, d]."""
    *early, last = maps
    parts = [F.adaptive_avg_pool2d(own, _FINE) for own in early]
    parts += [F.adaptive_avg_pool2d(last, side) for side in (_COARSE, 1)]
    return torch.cat([own.flatten(1) for own in parts], 1)


def scaled(features: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Features in standard deviations of random images, bounded, and of norm √d all together."""
    bounded = ((features - mean) / deviation).clamp(-_FAR, _FAR)
    return F.normalize(bounded, dim=1) * features.shape[1] ** 0.5
