"""A multilayer perceptron on inputs of any shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from udpfl.errors import InvalidInput
from udpfl.models._shapes import activation_named


class Mlp(nn.Module):
    """Fully connected layers of the sizes in `hidden`, then the outputs.

    Args:
        input_shape: The shape of one record; it is flattened.
        outputs: Numbers per record.
        hidden: Units of each hidden layer.
        activation: A name of `udpfl.models._shapes.ACTIVATIONS`.

    Raises:
        InvalidInput: `hidden` is no list of sizes, or the activation is not known.

    Example:
        >>> import torch
        >>> from udpfl.models import Mlp
        >>> Mlp((4,), 2, hidden=(16, 8))(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        *,
        hidden: Sequence[int] = (128,),
        activation: str = "relu",
    ) -> None:
        super().__init__()
        if not isinstance(hidden, (list, tuple)) or not all(
            isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in hidden
        ):
            raise InvalidInput(
                "model.options.hidden", f"must be a list of layer sizes, got {hidden!r}"
            )
        sizes = [math.prod(input_shape), *hidden]
        self.hidden = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(len(hidden)))
        self.output = nn.Linear(sizes[-1], outputs)
        self.activation = activation_named(activation)

    def forward(self, inputs: Tensor) -> Tensor:
        """One row of scores per input."""
        x = inputs.flatten(1)
        for layer in self.hidden:
            x = self.activation(layer(x))
        scores: Tensor = self.output(x)
        return scores
