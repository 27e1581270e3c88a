"""A linear layer on features of an encoder that was trained on random images: 69,120 parameters.

The encoder (`udpfl.features`) comes with the package and has seen no real image, so its features
cost no privacy; they are computed once per record, from this record alone. `finetune` trains more
than the linear layer, within the same privacy budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl.errors import InvalidInput
from udpfl.features import Encoder, load_encoder
from udpfl.features.encoder import COLOURS, prepared, prepared_sides
from udpfl.features.files import SHIPPED_SHA256
from udpfl.models._shapes import image, too_small
from udpfl.models.scattering import Scattering

_FINETUNE = ("none", "last", "all")
_SMALLEST, _LARGEST = 8, 64
"""Sides of images."""


class RandomPrior(nn.Module):
    """Scores from images, or from what `precompute` made of them.

    Args:
        input_shape: Channels (1 or 3), height and width (8 to 64).
        outputs: Numbers per image.
        finetune: What is trained beside the linear layer: "none", "last" (the mixtures of the last
            stage) or "all" (filters and mixtures of all stages).
        mirrored: Whether what the encoder says of the mirror image is averaged in; if None, of
            images in colour. Digits and organs are not their mirror images.
        scattering: Whether the features of `scattering` stand beside the encoder's.
        encoder: A file of `udpfl features train`; if empty, the one of the package.
        sha256: The SHA-256 of this file, which keeps a run from going on with another one.

    Raises:
        InvalidInput: The records are no such images, or an option is out of range.

    Example:
        >>> import torch
        >>> from udpfl.models import RandomPrior
        >>> RandomPrior((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        *,
        finetune: str = "none",
        mirrored: bool | None = None,
        scattering: bool = False,
        encoder: str = "",
        sha256: str = "",
    ) -> None:
        super().__init__()
        _check(input_shape, finetune, scattering)
        _check_types(mirrored, scattering, encoder, sha256)
        self.finetune = finetune
        self.input_shape = tuple(input_shape)
        self.mirrored = input_shape[0] == COLOURS if mirrored is None else mirrored
        self.encoder = _encoder(encoder, sha256).requires_grad_(finetune == "all")
        self.sha256 = sha256.lower()
        if finetune == "last":
            self.encoder.outputs[-1].requires_grad_(True)
        features = self.encoder.features
        self.wavelets: Scattering | None = None
        if scattering:
            self.wavelets = Scattering(input_shape, outputs)
            features += self.wavelets.features
            del self.wavelets.output  # only its features are wanted
        self.output = nn.Linear(features, outputs, bias=False)  # features have norm 1
        nn.init.zeros_(self.output.weight)

    @property
    def origin(self) -> str:
        """What a statement has to say of the encoder, where this network began as it was built."""
        trained = (
            "" if self.finetune == "none" else ", before this run trained it within its budget"
        )
        if self.sha256:
            return (
                f"features: of an encoder of one's own (SHA-256 {self.sha256}){trained}; no budget "
                "was spent on it, which holds only if it has seen none of these records"
            )
        return (
            "features: of an encoder that was trained on random images; no real image was used "
            f"for it{trained} (SHA-256 {SHIPPED_SHA256})"
        )

    def precompute(self, images: Tensor) -> Tensor:
        """What is fixed of images [n, channels, height, width]: [n, numbers]."""
        if images.shape[1:] != self.input_shape:
            raise InvalidInput(
                "model", f"was built for images {self.input_shape}, got {tuple(images.shape[1:])}"
            )
        ready = prepared(images)
        if self.finetune == "all":
            return ready.flatten(1)
        averages = self.encoder.averages(ready, self.mirrored)
        if self.finetune == "last":
            early = [self.encoder.mixed(averages[:-1])] if len(averages) > 1 else []
            return torch.cat([*early, averages[-1].flatten(1)], 1)
        features = self.encoder.combine(averages)
        if self.wavelets is None:
            return features
        beside = F.normalize(self.wavelets.precompute(images), dim=1)
        return torch.cat([features, beside], 1) / 2**0.5  # of norm 1 together

    def forward(self, inputs: Tensor) -> Tensor:
        """One row of scores per image, or per row that was computed before."""
        fixed = inputs if inputs.dim() == 2 else self.precompute(inputs)
        scores: Tensor = self.output(self._features(fixed))
        return scores

    def _features(self, fixed: Tensor) -> Tensor:
        """Features of norm 1, with what is trained of the encoder."""
        if self.finetune == "none":
            return fixed
        count = len(fixed)
        if self.finetune == "all":
            images = fixed.view(count, COLOURS, *prepared_sides(*self.input_shape[1:]))
            return self.encoder.combine(self.encoder.averages(images, self.mirrored))
        stages, parts = self.encoder.shape, self.encoder.parts
        last = 2 * stages[-1].filters * parts**2
        averages = fixed[:, -last:].reshape(count, -1, parts, parts)
        late = self.encoder.mix_stage(len(stages) - 1, averages)
        return F.normalize(torch.cat([fixed[:, :-last], late], 1), dim=1)


def _check(input_shape: Sequence[int], finetune: str, scattering: bool) -> None:
    channels, height, width = image("random-prior", input_shape)
    if channels not in (1, COLOURS):
        raise InvalidInput("model.name", f"random-prior needs 1 or 3 channels, got {channels}")
    if min(height, width) < _SMALLEST:
        raise too_small("random-prior", input_shape, _SMALLEST)
    if max(height, width) > _LARGEST:
        raise InvalidInput(
            "model.name", f"random-prior takes images up to {_LARGEST} a side, got {height}×{width}"
        )
    if finetune not in _FINETUNE:
        raise InvalidInput(
            "model.options.finetune", f"must be one of {', '.join(_FINETUNE)}: {finetune!r}"
        )
    if finetune != "none" and scattering:
        raise InvalidInput("model.options.scattering", 'goes with finetune = "none" only')


def _check_types(mirrored: object, scattering: object, encoder: object, sha256: object) -> None:
    """A text such as "false" is not false."""
    for name, value, kinds in (
        ("mirrored", mirrored, (bool, type(None))),
        ("scattering", scattering, (bool,)),
        ("encoder", encoder, (str,)),
        ("sha256", sha256, (str,)),
    ):
        if not isinstance(value, kinds):
            asked = "a text" if kinds == (str,) else "true or false"
            raise InvalidInput(f"model.options.{name}", f"must be {asked}, got {value!r}")


def _encoder(path: str, sha256: str) -> Encoder:
    if not path:
        if sha256:
            raise InvalidInput("model.options.sha256", "is that of a file in model.options.encoder")
        return load_encoder()
    if not sha256:
        raise InvalidInput(
            "model.options.sha256",
            "must be given with model.options.encoder, or another file of the same name could take "
            "its place; `udpfl features show FILE` prints it",
        )
    try:
        return load_encoder(Path(path), sha256)
    except InvalidInput as error:
        raise InvalidInput("model.options.encoder", error.message) from None
