"""ResNet-18 for small images, with group normalisation: 11,173,962 parameters on CIFAR-10.

The UDP-FL paper trains a ResNet-18 from scratch on CIFAR-10 and says no more about it. Decided
here: the usual form for 32×32 images, with a 3×3 stem and no pool after it, and group in place of
batch normalisation, which clipping rules out.

References: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, table 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpfl.models._residual import Residual


class ResNet18(Residual):
    """Four stages of two blocks, 64 to 512 channels wide.

    Args:
        input_shape: Channels, height and width.
        outputs: Numbers per image.
        groups: The most groups of a normalisation.
        activation: A name of `udpfl.models._shapes.ACTIVATIONS`.

    Raises:
        InvalidInput: The input is no image, or an option is out of range.

    Example:
        >>> from udpfl.models import ResNet18
        >>> ResNet18((3, 32, 32), 10).output.out_features
        10
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        *,
        groups: int = 32,
        activation: str = "relu",
    ) -> None:
        super().__init__(
            "resnet18",
            input_shape,
            outputs,
            widths=(64, 128, 256, 512),
            blocks=2,
            groups=groups,
            activation=activation,
        )
