"""Fixed scattering features and one linear layer: 155,530 parameters on CIFAR-10.

The features are computed once per record and cost no privacy: nothing in them is learned, and no
record's features depend on another record. What is trained is convex and has few parameters for
its accuracy, which suits small budgets.

With the defaults a 32×32 image in three colours becomes 3 × 81 channels of 8 × 8 positions
(`wavelets.py` has the mathematics and the order of the 81; the colours follow one another). Each
record's channels are then normalised in up to 27 groups of neighbours, as in the reference.

References: Tramèr and Boneh, "Differentially Private Learning Needs Better Features (or Much More
Data)", ICLR 2021, section 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl.errors import InvalidInput
from udpfl.models._shapes import image, too_small
from udpfl.models._wavelets import Scattering2d

_NORMALIZATIONS = ("group", "none")
_EPSILON = 1e-9
"""Below the variance that rounding pixels to 8 bits leaves; second-order groups have about 1e-6."""


class Scattering(nn.Module):
    """Scores from images, or from the features that `precompute` made of them.

    Args:
        input_shape: Channels, height and width.
        outputs: Numbers per image.
        scales: J; positions are 2^J pixels apart.
        orientations: L, from 2.
        normalization: "group", with as many groups as divide the channels, or "none".
        groups: The most groups.

    Raises:
        InvalidInput: The input is no image, or too small for the scales, or an option is out of
            range.

    Example:
        >>> import torch
        >>> from udpfl.models import Scattering
        >>> Scattering((1, 16, 16), 10, scales=1)(torch.zeros(2, 1, 16, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        *,
        scales: int = 2,
        orientations: int = 8,
        normalization: str = "group",
        groups: int = 27,
    ) -> None:
        super().__init__()
        channels, height, width = image("scattering", input_shape)
        for option, value, least in (
            ("scales", scales, 1),
            ("orientations", orientations, 2),
            ("groups", groups, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInput(
                    f"model.options.{option}", f"must be a whole number from {least}, got {value!r}"
                )
        if normalization not in _NORMALIZATIONS:
            raise InvalidInput(
                "model.options.normalization",
                f"must be one of {', '.join(_NORMALIZATIONS)}: {normalization!r}",
            )
        self.input_shape, step = (channels, height, width), 2**scales
        # The transform takes an image for a circle: its edges get mirrored margins first.
        least = 3 * step // 2 + 1
        if min(height, width) < least:  # a mirror shows no more than there is
            raise too_small("scattering", input_shape, least)
        down, right = step + -height % step, step + -width % step
        self.margins = (step, right, step, down)
        self.fixed = Scattering2d(step + height + down, step + width + right, scales, orientations)
        self.positions = (-(-height // step), -(-width // step))
        planes = self.planes = channels * self.fixed.paths
        self.groups = 0
        if normalization == "group":
            self.groups = max(n for n in range(1, min(groups, planes) + 1) if planes % n == 0)
        self.features = planes * self.positions[0] * self.positions[1]
        self.output = nn.Linear(self.features, outputs)
        nn.init.zeros_(self.output.weight)  # the problem is convex, so any start will do
        nn.init.zeros_(self.output.bias)

    def precompute(self, images: Tensor) -> Tensor:
        """Normalised features [n, features] of images [n, channels, height, width]."""
        if images.shape[1:] != self.input_shape:
            raise InvalidInput(
                "model", f"was built for images {self.input_shape}, got {tuple(images.shape[1:])}"
            )
        margin = F.pad(images, self.margins, mode="reflect")
        height, width = self.positions
        found = self.fixed(margin.flatten(0, 1))[..., 1 : 1 + height, 1 : 1 + width]
        planes = found.reshape(-1, self.planes, height, width)  # of any number of images
        if self.groups:
            planes = F.group_norm(planes, self.groups, eps=_EPSILON)
        return planes.flatten(1)

    def forward(self, inputs: Tensor) -> Tensor:
        """One row of scores per image or row of features."""
        features = inputs if inputs.dim() == 2 else self.precompute(inputs)
        scores: Tensor = self.output(features)
        return scores
