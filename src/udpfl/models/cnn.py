"""A plain convolutional network: 421,642 parameters on MNIST."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from udpfl.models._shapes import activation_named, image, too_small


class Cnn(nn.Module):
    """Two 3×3 convolutions, each followed by a pool that halves the image, then 128 units.

    Args:
        input_shape: Channels, height and width.
        outputs: Numbers per image.
        activation: A name of `udpfl.models._shapes.ACTIVATIONS`.

    Raises:
        InvalidInput: The input is no image of at least 4×4, or the activation is not known.

    Example:
        >>> import torch
        >>> from udpfl.models import Cnn
        >>> Cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, input_shape: Sequence[int], outputs: int, *, activation: str = "relu"
    ) -> None:
        super().__init__()
        channels, height, width = image("cnn", input_shape)
        flat = 64 * (height // 4) * (width // 4)
        if not flat:
            raise too_small("cnn", input_shape, 4)
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.hidden = nn.Linear(flat, 128)
        self.output = nn.Linear(128, outputs)
        self.pool = nn.MaxPool2d(kernel_size=2)
        self.activation = activation_named(activation)

    def forward(self, images: Tensor) -> Tensor:
        """One row of scores per image."""
        x = self.pool(self.activation(self.conv1(images)))
        x = self.pool(self.activation(self.conv2(x)))
        scores: Tensor = self.output(self.activation(self.hidden(x.flatten(1))))
        return scores
