"""How a window moves over images: that of a convolution, or of a pool."""

from __future__ import annotations

from typing import NamedTuple, Self

from torch import Tensor

Pair = tuple[int, int]
"""For the rows of an image, and for its columns."""


class Window(NamedTuple):
    """A window over images of one size."""

    image: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @classmethod
    def over(cls, image: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Self:
        """Over images [N, C, H, W]."""
        height, width = image.shape[2:]
        return cls((height, width), kernel, stride, padding, dilation)

    @property
    def rows(self) -> int:
        """Places from top to bottom."""
        return self._places(0)

    @property
    def columns(self) -> int:
        """Places from left to right."""
        return self._places(1)

    def _places(self, axis: int) -> int:
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return (self.image[axis] + 2 * self.padding[axis] - reach) // self.stride[axis] + 1
