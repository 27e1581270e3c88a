"""Residual blocks with group normalisation, the stages they form, and the whole network.

Batch normalisation would mix the records of a batch; group normalisation has as many parameters and
looks at one record at a time.

References: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.
Wu and He, "Group Normalization", ECCV 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from udpfl.errors import InvalidInput
from udpfl.models._shapes import activation_named, image, too_small


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut; a stride or a new width puts a 1×1 one on it."""

    def __init__(
        self, channels: int, width: int, stride: int, groups: int, activation: str
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.GroupNorm(groups, width)
            )
        self.activation = activation_named(activation)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what the convolutions add to it."""
        added = self.activation(self.norm1(self.conv1(x)))
        y: Tensor = self.activation(self.norm2(self.conv2(added)) + self.shortcut(x))
        return y


class Residual(nn.Module):
    """A 3×3 stem, stages of blocks, the mean over positions, one linear layer.

    Every stage but the first halves the image; there is no pool after the stem, which would throw
    away most of a 32×32 image.
    """

    def __init__(
        self,
        name: str,
        input_shape: Sequence[int],
        outputs: int,
        *,
        widths: Sequence[int],
        blocks: int,
        groups: int,
        activation: str,
    ) -> None:
        super().__init__()
        channels, height, width = image(name, input_shape)
        least = 2 ** (len(widths) - 1)
        if min(height, width) < least:
            raise too_small(name, input_shape, least)
        whole = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
        if not whole or any(width % groups for width in widths):
            raise InvalidInput(
                "model.options.groups",
                f"must be a whole number that divides {', '.join(map(str, widths))} channels, "
                f"got {groups!r}",
            )
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, widths[0])
        self.stages = nn.ModuleList()
        before = widths[0]
        for stage, width in enumerate(widths):
            made = []
            for place in range(blocks):
                stride = 2 if stage and not place else 1
                made.append(Block(before, width, stride, groups, activation))
                before = width
            self.stages.append(nn.Sequential(*made))
        self.output = nn.Linear(before, outputs)
        self.activation = activation_named(activation)

    def forward(self, images: Tensor) -> Tensor:
        """One row of scores per image."""
        x = self.activation(self.norm(self.stem(images)))
        for stage in self.stages:
            x = stage(x)
        scores: Tensor = self.output(x.mean((2, 3)))
        return scores
