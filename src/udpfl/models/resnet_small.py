"""A small residual network for 32×32 images: 175,258 parameters on CIFAR-10.

The noise of a private step grows with the number of parameters, the signal does not; so a network
of this size often learns more within a budget than ResNet-18.

References: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
section 4.2 with n = 2 (14 layers); here with group normalisation and 1×1 shortcuts.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpfl.errors import InvalidInput
from udpfl.models._residual import Residual


class ResNetSmall(Residual):
    """Three stages, `width` channels wide and doubling, of `blocks` blocks each.

    Args:
        input_shape: Channels, height and width.
        outputs: Numbers per image.
        width: Channels of the first stage.
        blocks: Residual blocks of a stage.
        groups: The most groups of a normalisation.
        activation: A name of `udpfl.models._shapes.ACTIVATIONS`.

    Raises:
        InvalidInput: The input is no image, or an option is out of range.

    Example:
        >>> import torch
        >>> from udpfl.models import ResNetSmall
        >>> ResNetSmall((3, 32, 32), 10, width=8)(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        *,
        width: int = 16,
        blocks: int = 2,
        groups: int = 8,
        activation: str = "relu",
    ) -> None:
        for option, value in (("width", width), ("blocks", blocks)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(
                    f"model.options.{option}", f"must be a whole number from 1, got {value!r}"
                )
        super().__init__(
            "resnet-small",
            input_shape,
            outputs,
            widths=(width, 2 * width, 4 * width),
            blocks=blocks,
            groups=groups,
            activation=activation,
        )
