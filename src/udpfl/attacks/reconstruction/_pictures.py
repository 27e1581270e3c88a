"""Records as pictures: from the inputs of a network to grey or colour, and a grid of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from udpfl.attacks.base import Picture
from udpfl.attacks.reconstruction.metrics import Floats
from udpfl.attacks.target import Target
from udpfl.data.records import Array
from udpfl.errors import Unsupported

_COLUMNS = 10


@dataclass(frozen=True)
class Scale:
    """Which inputs of a network are black and which are white.

    Networks take pixels shifted and stretched by public constants. The smallest and the largest
    number of all training records stand for black and white here.
    """

    low: float
    high: float

    @classmethod
    def of(cls, target: Target, attack: str) -> Scale:
        """That of a run on pictures; any other is refused."""
        target.require_single_records(attack)
        data = target.setup.data
        shape, inputs = data.input_shape, data.train.inputs
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < 7:
            raise Unsupported(
                f"{attack} reconstructs pictures [1 or 3 channels, height, width] of 7 pixels or "
                f"more on each side, and records have the shape {shape}"
            )
        if hasattr(target.setup.network, "precompute"):
            raise Unsupported(
                f"{attack} looks for the inputs of the trained network, and those of "
                f"{target.config.model.name} are features, not pictures"
            )
        low, high = float(inputs.min()), float(inputs.max())
        if not low < high:
            raise Unsupported(f"{attack}: all pixels of the training records are equal")
        return cls(low, high)

    def pixels(self, inputs: Tensor | Array) -> Floats:
        """Inputs as numbers from 0 (black) to 1 (white)."""
        values = inputs.detach().cpu().numpy() if isinstance(inputs, Tensor) else inputs
        found: Floats = (values.astype(np.float64) - self.low) / (self.high - self.low)
        return found


def grid(title: str, rows: Sequence[tuple[str, Floats]]) -> Picture:
    """Rows of pictures under each other, each with what it shows.

    Args:
        title: What all of it is.
        rows: A caption, and pictures [n, channels, height, width]; the first ten are shown.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(_COLUMNS, max(len(pictures) for _, pictures in rows))
    size = (1.9 + 0.75 * columns, 0.8 * len(rows))
    figure, axes = plt.subplots(len(rows), columns, figsize=size, squeeze=False)
    for line, (caption, pictures) in zip(axes, rows, strict=True):
        for column, place in enumerate(line):
            place.set_xticks([])
            place.set_yticks([])
            place.spines[:].set_visible(False)
            if column < len(pictures):
                own = np.clip(np.nan_to_num(pictures[column], nan=0.5), 0, 1).transpose(1, 2, 0)
                place.imshow(own.squeeze(), cmap="gray", vmin=0, vmax=1)
        line[0].set_ylabel(caption, rotation=0, ha="right", va="center", fontsize=8)
    left = 1.6 / size[0]
    figure.subplots_adjust(left=left, right=0.99, bottom=0.02, top=0.98, wspace=0.06, hspace=0.06)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return Picture(title, base64.b64encode(buffer.getvalue()).decode())
