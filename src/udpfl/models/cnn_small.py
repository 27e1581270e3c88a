"""The small network of the differentially private MNIST literature: 26,010 parameters.

References: Papernot, Thakurta, Song, Chien, Erlingsson, "Tempered Sigmoid Activations for Deep
Learning with Differential Privacy", AAAI 2021. Bounded activations such as tanh keep gradients
small, so that clipping distorts them less.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from udpfl.models._shapes import activation_named, after_window, image, too_small


class CnnSmall(nn.Module):
    """Two strided convolutions with overlapping max pools, then 32 hidden units.

    Args:
        input_shape: Channels, height and width.
        outputs: Numbers per image.
        activation: A name of `udpfl.models._shapes.ACTIVATIONS`.

    Raises:
        InvalidInput: The input is no image of at least 14×14, or the activation is not known.

    Example:
        >>> import torch
        >>> from udpfl.models import CnnSmall
        >>> CnnSmall((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, input_shape: Sequence[int], outputs: int, *, activation: str = "tanh"
    ) -> None:
        super().__init__()
        channels, height, width = image("cnn-small", input_shape)
        flat = 32 * _side(height) * _side(width)
        if not flat:
            raise too_small("cnn-small", input_shape, 14)
        self.conv1 = nn.Conv2d(channels, 16, kernel_size=8, stride=2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=4, stride=2)
        self.hidden = nn.Linear(flat, 32)
        self.output = nn.Linear(32, outputs)
        self.pool = nn.MaxPool2d(kernel_size=2, stride=1)
        self.activation = activation_named(activation)

    def forward(self, images: Tensor) -> Tensor:
        """One row of scores per image."""
        x = self.pool(self.activation(self.conv1(images)))
        x = self.pool(self.activation(self.conv2(x)))
        scores: Tensor = self.output(self.activation(self.hidden(x.flatten(1))))
        return scores


def _side(size: int) -> int:
    size = after_window(size, kernel=8, stride=2, padding=3)
    size = after_window(size, kernel=2, stride=1)
    size = after_window(size, kernel=4, stride=2)
    return after_window(size, kernel=2, stride=1)
