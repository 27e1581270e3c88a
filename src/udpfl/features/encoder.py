"""An encoder of images in stages of filters that were learnt from patches of random images.

A stage compares every patch of its maps with a dictionary of patches: the patch is brought to unit
contrast, the filters answer, and what an answer exceeds a threshold by is kept, above and below
zero apart. Few mixtures of these answers, each with less of what all images have in common, are the
maps of the next stage. The features of an image are mixtures of the answers of every stage,
averaged over a few parts of the image; every image is looked at alone.

References: Coates, Lee, Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature
Learning", AISTATS 2011 (whitened patches, k-means). Coates and Ng, "Learning Feature
Representations with K-means", 2012 (two stages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl.errors import InvalidInput

COLOURS = 3
_FLAT = 0.02
"""Added to an image's standard deviation: an image without contrast becomes 0, not noise."""
_FAR = 5.0
"""Standard deviations at which an answer ends."""
_SMALL, _USUAL, _LARGE = 24, 32, 40
"""Images with a side outside of 24..40 are brought to 32 along it."""


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Refuse what is no whole number within these."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(name, f"must be a whole number from {least} to {most}, got {value!r}")


@dataclass(frozen=True)
class Stage:
    """How large a stage is.

    Example:
        >>> from udpfl.features import Stage
        >>> Stage(filters=512, kernel=6, stride=2, channels=64, features=512).side(32)
        14
    """

    filters: int
    """Patches in the dictionary."""
    kernel: int
    """Positions along a side of a patch."""
    stride: int
    """Positions from one patch to the next."""
    channels: int
    """Mixtures that the next stage sees; of the last stage, none."""
    features: int
    """Mixtures that become features, at every part of the image."""

    def side(self, before: int) -> int:
        """Positions along a side, after as many."""
        return (before - self.kernel) // self.stride + 1


STAGES = (Stage(512, 6, 2, 64, 512), Stage(768, 4, 1, 0, 256))
"""Those of the encoder that is shipped."""


def _check(stages: Sequence[Stage], parts: int) -> None:
    """Refuse sizes of which no encoder can be made."""
    check_whole("parts", parts, 1, 8)
    check_whole("stages", len(stages), 1, 8)
    for number, stage in enumerate(stages, 1):
        check_whole(f"stages: filters of stage {number}", stage.filters, 1, 8192)
        most = 2 * stage.filters
        for name, least, largest in (
            ("kernel", 1, 16), ("stride", 1, 16), ("channels", 0, most), ("features", 1, most),
        ):  # fmt: skip
            check_whole(f"stages: {name} of stage {number}", getattr(stage, name), least, largest)
    if [own.channels == 0 for own in stages] != [False] * (len(stages) - 1) + [True]:
        raise InvalidInput("stages", "every stage but the last needs channels, the last none")


class Filters(nn.Module):
    """Answers of filters to patches of unit contrast: what exceeds a threshold, by sign."""

    offset: Tensor
    threshold: Tensor
    floor: Tensor

    def __init__(self, channels: int, stage: Stage, centred: bool) -> None:
        super().__init__()
        self.kernel, self.stride, self.centred = stage.kernel, stage.stride, centred
        self.patches = nn.Conv2d(channels, stage.filters, stage.kernel, stage.stride, bias=False)
        self.register_buffer("offset", torch.zeros(stage.filters))
        self.register_buffer("threshold", torch.zeros(stage.filters))
        self.register_buffer("floor", torch.ones(()))
        """Added to the mean square of a patch."""

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [n, 2 × filters, height, width] from maps [n, channels, height, width]."""
        answers = self.answers(maps)
        threshold = self.threshold.to(answers.dtype)[:, None, None]
        return torch.cat([F.relu(answers - threshold), F.relu(-answers - threshold)], 1)

    def answers(self, maps: Tensor) -> Tensor:
        """Before the threshold, with the patches' own contrast taken out."""
        square = F.avg_pool2d(maps.square().mean(1, keepdim=True), self.kernel, self.stride)
        if self.centred:
            mean = F.avg_pool2d(maps.mean(1, keepdim=True), self.kernel, self.stride)
            square = (square - mean.square()).clamp(min=0)
        scale = (square + self.floor).rsqrt()
        dtype = _product_type(maps)
        if dtype == maps.dtype:
            found = self.patches(maps)
        else:
            found = F.conv2d(maps.to(dtype), self.patches.weight.to(dtype), stride=self.stride)
        answers: Tensor = found * scale.to(dtype) - self.offset.to(dtype)[:, None, None]
        return answers


class Mixtures(nn.Module):
    """Sums over the channels of every position, which are brought to variance 1 and bounded."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("deviation", torch.ones(channels))
        self.mix = nn.Conv2d(channels, out, 1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [n, out, height, width] from maps [n, channels, height, width]."""
        centred = maps.to(self.mean.dtype) - self.mean[:, None, None]
        mixed: Tensor = self.mix((centred / self.deviation[:, None, None]).clamp(-_FAR, _FAR))
        return mixed


class Encoder(nn.Module):
    """Stages, the mixtures between them, and those that become features.

    Args:
        stages: How large each is.
        parts: Along each side of an image, parts over which answers are averaged.

    Raises:
        InvalidInput: There are no stages, or one has a size that is out of range.

    Example:
        >>> import torch
        >>> from udpfl.features import Encoder, Stage
        >>> encoder = Encoder([Stage(8, 5, 2, 4, 6), Stage(8, 3, 1, 0, 5)], parts=2)
        >>> encoder(torch.rand(7, 1, 28, 28)).shape
        torch.Size([7, 44])
    """

    scale: Tensor

    def __init__(self, stages: Sequence[Stage] = STAGES, parts: int = 3) -> None:
        super().__init__()
        _check(stages, parts)
        self.shape, self.parts = tuple(stages), parts
        self.stages, self.links, self.outputs = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        channels = COLOURS
        for stage in stages:
            self.stages.append(Filters(channels, stage, centred=channels == COLOURS))
            self.outputs.append(Mixtures(2 * stage.filters, stage.features))
            if stage.channels:
                self.links.append(Mixtures(2 * stage.filters, stage.channels))
            channels = stage.channels
        self.register_buffer("scale", torch.ones(len(stages)))
        """What brings the features of every stage to the same size."""

    @property
    def features(self) -> int:
        """How many numbers describe an image."""
        return sum(stage.features for stage in self.shape) * self.parts**2

    def forward(self, images: Tensor, mirrored: bool = False) -> Tensor:
        """Features [n, features] of norm 1; `mirrored` averages answers to the mirror image in."""
        return self.combine(self.averages(prepared(images), mirrored))

    def averages(self, images: Tensor, mirrored: bool = False) -> list[Tensor]:
        """Answers of each stage to prepared images, averaged [n, channels, parts, parts].

        Those to the mirror image are averaged in at the same parts.
        """
        found = self._averages(images)
        if not mirrored:
            return found
        return [(a + b) / 2 for a, b in zip(found, self._averages(images.flip(3)), strict=True)]

    def combine(self, averages: Sequence[Tensor]) -> Tensor:
        """Features of norm 1 from the averages of all stages."""
        return F.normalize(self.mixed(averages), dim=1)

    def mixed(self, averages: Sequence[Tensor]) -> Tensor:
        """The features of the first stages, as many as there are averages, of any norm."""
        return torch.cat([self.mix_stage(own, found) for own, found in enumerate(averages)], 1)

    def mix_stage(self, stage: int, averages: Tensor) -> Tensor:
        """The features of one stage, by its number from 0, of any norm [n, features]."""
        mixed: Tensor = self.outputs[stage](averages).flatten(1)
        return self.scale[stage] * mixed

    def maps(self, images: Tensor, before: int) -> Tensor:
        """What the stage of this number looks at, of prepared images."""
        maps = images
        for stage, link in zip(self.stages[:before], self.links, strict=False):
            maps = link(stage(maps))
        return maps

    def _averages(self, images: Tensor) -> list[Tensor]:
        maps, found = images, []
        for number, stage in enumerate(self.stages):
            answers = stage(maps)
            found.append(F.adaptive_avg_pool2d(answers, self.parts).to(images.dtype))
            if number + 1 < len(self.stages):
                maps = self.links[number](answers)
        return found


def prepared_sides(height: int, width: int) -> tuple[int, int]:
    """The sides of an image once it is prepared."""
    a, b = (own if _SMALL <= own <= _LARGE else _USUAL for own in (height, width))
    return a, b


def prepared(images: Tensor) -> Tensor:
    """Images in three colours, of mean 0 and variance 1 each, and of about 32 pixels a side."""
    height, width = prepared_sides(*images.shape[2:])
    if (height, width) != tuple(images.shape[2:]):
        images = F.interpolate(
            images, (height, width), mode="bilinear", align_corners=False, antialias=True
        )
    centred = images - images.mean((1, 2, 3), keepdim=True)
    deviation = centred.square().mean((1, 2, 3), keepdim=True).sqrt()
    alike = centred / (deviation + _FLAT)
    return alike.expand(-1, COLOURS, -1, -1) if alike.shape[1] == 1 else alike


def _product_type(maps: Tensor) -> torch.dtype:
    """What filters are multiplied in: bfloat16 where it is quick and nothing is trained."""
    is_exported = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    if is_exported or torch.is_grad_enabled() or maps.dtype != torch.float32:
        return maps.dtype
    if maps.is_cuda or (maps.device.type == "cpu" and _has_bfloat16()):
        return torch.bfloat16
    return maps.dtype


def _has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16 itself; otherwise it is slower than float32."""
    asked = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return asked is not None and bool(asked())
