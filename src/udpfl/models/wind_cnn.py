"""A small 1-D convolutional network that answers along the time axis: 3,185 parameters on wind.

Every hour is treated by the same weights, so there are few of them: noise, which grows with their
number, does less harm. Dilations let an answer see 14 steps to either side, recent power included.

References: Bai, Kolter, Koltun, "An Empirical Evaluation of Generic Convolutional and Recurrent
Networks for Sequence Modeling", arXiv:1803.01271 (dilated convolutions in place of recurrence; here
they look both ways, as a forecast of the weather is known for all hours ahead).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from udpfl.errors import InvalidInput
from udpfl.models._shapes import activation_named


class WindCnn(nn.Module):
    """Three dilated convolutions over time, then one number for each of the last steps.

    Args:
        input_shape: Channels and time steps.
        outputs: For how many of the last steps there is an answer.
        width: Channels of the hidden layers.
        activation: A name of `udpfl.models._shapes.ACTIVATIONS`.

    Raises:
        InvalidInput: The input is no timeline of at least `outputs` steps, or an option is out of
            range.

    Example:
        >>> import torch
        >>> from udpfl.models import WindCnn
        >>> WindCnn((4, 48), 24)(torch.zeros(2, 4, 48)).shape
        torch.Size([2, 24])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        *,
        width: int = 16,
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        if len(input_shape) != 2:
            raise InvalidInput(
                "model.name",
                f"wind-cnn needs timelines of channels × steps, got records of shape "
                f"{tuple(input_shape)}: use mlp or logistic",
            )
        channels, steps = input_shape
        if steps < outputs:
            raise InvalidInput(
                "model.name",
                f"wind-cnn answers for the last {outputs} steps of a timeline, got {steps} steps",
            )
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise InvalidInput(
                "model.options.width", f"must be a whole number from 1, got {width!r}"
            )
        self.outputs = outputs
        self.conv1 = nn.Conv1d(channels, width, kernel_size=5, padding=2)
        self.conv2 = nn.Conv1d(width, width, kernel_size=5, padding=4, dilation=2)
        self.conv3 = nn.Conv1d(width, width, kernel_size=5, padding=8, dilation=4)
        self.output = nn.Conv1d(width, 1, kernel_size=1)
        self.activation = activation_named(activation)

    def forward(self, timelines: Tensor) -> Tensor:
        """One row of `outputs` numbers per timeline."""
        x = self.activation(self.conv1(timelines))
        x = self.activation(self.conv2(x))
        x = self.activation(self.conv3(x))
        answers: Tensor = self.output(x)[:, 0, -self.outputs :]
        return answers
