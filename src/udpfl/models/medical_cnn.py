"""The UDP-FL paper's network for Medical MNIST: 167,302 parameters on 28×28 grey images.

The paper says "a four-layer CNN with additional fully connected layers", ReLU, and log softmax with
cross entropy; it gives no width, kernel or pooling. Decided here: 3×3 kernels, 32 and then three
times 64 channels, a pool that halves the image after each of the first three convolutions, and one
hidden layer of 128 units. The log softmax is in the loss. The paper speaks of three colours; the
images have one, and the network takes as many as the data has.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from udpfl.models._shapes import activation_named, image, too_small


class MedicalCnn(nn.Module):
    """Four 3×3 convolutions, three pools, 128 hidden units.

    Args:
        input_shape: Channels, height and width.
        outputs: Numbers per image.
        activation: A name of `udpfl.models._shapes.ACTIVATIONS`.

    Raises:
        InvalidInput: The input is no image of at least 8×8, or the activation is not known.

    Example:
        >>> import torch
        >>> from udpfl.models import MedicalCnn
        >>> MedicalCnn((1, 28, 28), 6)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 6])
    """

    def __init__(
        self, input_shape: Sequence[int], outputs: int, *, activation: str = "relu"
    ) -> None:
        super().__init__()
        channels, height, width = image("medical-cnn", input_shape)
        flat = 64 * (height // 8) * (width // 8)
        if not flat:
            raise too_small("medical-cnn", input_shape, 8)
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(64, 64, kernel_size=3, padding=1)
        self.conv4 = nn.Conv2d(64, 64, kernel_size=3, padding=1)
        self.hidden = nn.Linear(flat, 128)
        self.output = nn.Linear(128, outputs)
        self.pool = nn.MaxPool2d(kernel_size=2)
        self.activation = activation_named(activation)

    def forward(self, images: Tensor) -> Tensor:
        """One row of scores per image."""
        x = self.pool(self.activation(self.conv1(images)))
        x = self.pool(self.activation(self.conv2(x)))
        x = self.pool(self.activation(self.conv3(x)))
        x = self.activation(self.conv4(x))
        scores: Tensor = self.output(self.activation(self.hidden(x.flatten(1))))
        return scores
