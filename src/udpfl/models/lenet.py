"""The network of the literature on gradient inversion: 13,426 parameters on 28×28 grey pictures.

Sigmoids are smooth, nothing is pooled, and weights begin large, so gradients tell a lot about the
record. It is here to be attacked; other networks of its size learn better.

References: Zhu, Liu, Han, "Deep Leakage from Gradients", NeurIPS 2019, whose code begins with
weights between -1/2 and 1/2.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from udpfl.models._shapes import after_window, image


class LeNet(nn.Module):
    """Three 5×5 convolutions of 12 channels with sigmoids, two of them strided, and a dense layer.

    Args:
        input_shape: Channels, height and width.
        outputs: Numbers per image.

    Raises:
        InvalidInput: The input is no image.

    Example:
        >>> import torch
        >>> from udpfl.models import LeNet
        >>> LeNet((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, input_shape: Sequence[int], outputs: int) -> None:
        super().__init__()
        channels, height, width = image("lenet", input_shape)
        self.conv1 = nn.Conv2d(channels, 12, kernel_size=5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(12, 12, kernel_size=5, stride=2, padding=2)
        self.conv3 = nn.Conv2d(12, 12, kernel_size=5, padding=2)
        self.output = nn.Linear(12 * _side(height) * _side(width), outputs)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)

    def forward(self, images: Tensor) -> Tensor:
        """One row of scores per image."""
        x = self.conv1(images).sigmoid()
        x = self.conv2(x).sigmoid()
        x = self.conv3(x).sigmoid()
        scores: Tensor = self.output(x.flatten(1))
        return scores


def _side(size: int) -> int:
    for _ in range(2):
        size = after_window(size, kernel=5, stride=2, padding=2)
    return size
