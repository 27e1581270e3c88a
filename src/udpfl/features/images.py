"""Random images: pictures that show nothing real, drawn from a seed.

An encoder that is trained on them has seen no record of anybody, so it costs no privacy and may be
given away.

- `leaves`: overlapping opaque shapes in a few related colours, with shading and texture.
- `networks`: what untrained convolutional networks make of noise.
- `spectra`: noise whose amplitude falls with frequency, as in photographs.
- `mixed`: four of ten images are leaves, four come from networks, two are spectra.

References: Lee, Mumford, Huang, "Occlusion models for natural images", IJCV 2001 (leaves).
Baradad, Wulff, Wang, Isola, Torralba, "Learning to See by Looking at Noise", NeurIPS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from udpfl.errors import InvalidInput

COLOURS = 3
_FINER = 2
"""Pixels are drawn so many times smaller along each side, and averaged: edges get soft."""
_LEAVES = 60
_SHARES = {"leaves": 0.4, "networks": 0.4, "spectra": 0.2}
Family = Callable[[int, int, torch.Generator], Tensor]


def random_images(
    family: str, count: int, *, size: int = 32, seed: int = 0, device: str | torch.device = "cpu"
) -> Tensor:
    """Images of a family, the same for the same seed and device.

    Args:
        family: One of `FAMILIES`.
        count: How many.
        size: Pixels along a side, from 8 to 64.
        seed: Decides the images.
        device: Where they are drawn.

    Returns:
        Colours between 0 and 1 [count, 3, size, size].

    Raises:
        InvalidInput: There is no such family, or a number is out of range.

    Example:
        >>> from udpfl.features import random_images
        >>> random_images("leaves", 2, size=16).shape
        torch.Size([2, 3, 16, 16])
    """
    if family not in FAMILIES:
        raise InvalidInput("family", f"must be one of {', '.join(FAMILIES)}, got {family!r}")
    if not 8 <= size <= 64:
        raise InvalidInput("size", f"must be from 8 to 64, got {size}")
    if count < 1:
        raise InvalidInput("count", f"must be above 0, got {count}")
    generator = torch.Generator(device).manual_seed(seed)
    return FAMILIES[family](count, size, generator)


def leaves(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Shapes that hide one another, from the nearest to the farthest."""
    side = size * _FINER
    draw = _Draw(count, generator)
    places = (torch.arange(side, device=generator.device) + 0.5) / side
    y, x = torch.meshgrid(places, places, indexing="ij")
    light, contrast = draw.between(0.1, 0.9), draw.between(0.08, 0.33)
    colourful = 0.02 + 0.16 * draw.uniform() ** 2
    hue = 0.7 * colourful * draw.normal(COLOURS)
    smallest = 0.03 + 0.12 * draw.uniform() ** 1.5
    largest, falls = draw.between(0.35, 0.95), draw.between(0.6, 2.2)
    grain = _spectrum(draw, side, 1, 0.3, 1.5)
    colour_grain = _spectrum(draw, side, COLOURS, 0.6, 1.8)
    image = torch.zeros(count, COLOURS, side, side, device=generator.device)
    seen = torch.ones(count, 1, side, side, device=generator.device)
    for _ in range(_LEAVES):
        from_ = smallest**-falls
        radius = (from_ + (largest**-falls - from_) * draw.uniform()) ** (-1 / falls)
        inside, across, along = _shape(draw, x, y, radius)
        colour = light + contrast * draw.normal() + hue + 0.7 * colourful * draw.normal(COLOURS)
        slope = 0.125 * draw.uniform()
        shade = (across * draw.normal() + along * draw.normal()).clamp(-3, 3) * slope
        grains = 0.12 * draw.uniform() ** 3 * grain + 0.1 * draw.uniform() ** 3 * colour_grain
        is_glass = (draw.uniform() < 0.25).float()
        hidden = seen * inside * (1 - 0.6 * draw.uniform() * is_glass)
        image += (colour + shade + grains) * hidden
        seen = seen - hidden
    behind = light + contrast * draw.normal() + hue + 0.1 * draw.uniform() * grain
    image += behind * seen
    image *= 1 + 0.15 * draw.uniform() * _spectrum(draw, side, 1, 2.2, 2.2)
    return _photographed(draw, image)


def networks(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Noise that went through convolutions with random filters, another network for every image."""
    draw, channels = _Draw(count, generator), 12
    side = size * _FINER
    field = draw.grid(channels, 4)
    for level in range(5):
        small = min(side, 8 * 2**level)
        field = F.interpolate(field, size=(small, small), mode="bilinear", align_corners=False)
        new = 0.5 * draw.uniform() ** 2 / (1 + level)  # less of what is finer
        field = field + new * draw.grid(channels, small)
        field = _random_layer(draw, field, channels)
        sharp = torch.tanh(field * draw.between(0.5, 8.0))  # from waves to plates with edges
        folded = field.abs() - 0.8
        field = torch.where(draw.uniform() < 0.6, sharp, folded)
        if small == side:
            break
    field = F.interpolate(field, size=(side, side), mode="bilinear", align_corners=False)
    grey = _random_layer(draw, field, 1)
    tints = _random_layer(draw, field, COLOURS) * (0.05 + 0.5 * draw.uniform() ** 2)
    return _photographed(draw, grey + tints)


def spectra(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Noise of one light and weaker colours, each with amplitudes 1/f^a."""
    draw, side = _Draw(count, generator), size * _FINER
    light = _spectrum(draw, side, 1, 0.8, 2.0)
    colours = _spectrum(draw, side, COLOURS, 0.8, 2.0)
    return _photographed(draw, light + colours * (0.05 + 0.5 * draw.uniform() ** 2))


def mixed(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Some of every family, in random order."""
    counts = {name: int(share * count) for name, share in _SHARES.items()}
    counts["leaves"] += count - sum(counts.values())
    parts = [FAMILIES[name](own, size, generator) for name, own in counts.items() if own]
    order = torch.randperm(count, generator=generator, device=generator.device)
    return torch.cat(parts)[order]


FAMILIES: dict[str, Family] = {
    "leaves": leaves,
    "networks": networks,
    "spectra": spectra,
    "mixed": mixed,
}
"""Kinds of random images."""


class _Draw:
    """Random numbers for each of some images, shaped to be multiplied with maps."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count, self.generator = count, generator

    def uniform(self) -> Tensor:
        shape = (self.count, 1, 1, 1)
        return torch.rand(shape, generator=self.generator, device=self.generator.device)

    def between(self, least: float, most: float) -> Tensor:
        return least + (most - least) * self.uniform()

    def normal(self, channels: int = 1) -> Tensor:
        return self.grid(channels, 1)

    def grid(self, channels: int, side: int) -> Tensor:
        shape = (self.count, channels, side, side)
        return torch.randn(shape, generator=self.generator, device=self.generator.device)


def _shape(draw: _Draw, x: Tensor, y: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where a turned ellipse, rectangle or triangle is, and coordinates within it."""
    right, down = x - draw.between(-0.15, 1.15), y - draw.between(-0.15, 1.15)
    turn, longer = 2 * math.pi * draw.uniform(), torch.exp(draw.between(-0.55, 0.55))
    across = (right * turn.cos() + down * turn.sin()) / (radius * longer)
    along = (down * turn.cos() - right * turn.sin()) / (radius / longer)
    kind = draw.uniform()
    ellipse = (across.square() + along.square()).sqrt()
    rectangle = torch.maximum(across.abs(), along.abs())
    slanted = torch.maximum(across + 1.7 * along, along * -1.5)
    triangle = torch.maximum(slanted, along - 1.7 * across)
    distance = torch.where(kind < 0.45, ellipse, torch.where(kind < 0.75, rectangle, triangle))
    return (distance < 1).float(), across, along


def _spectrum(draw: _Draw, side: int, channels: int, least: float, most: float) -> Tensor:
    """Noise with amplitudes 1/f^a, of mean 0 and variance 1 over an image."""
    generator = draw.generator
    rows = torch.fft.fftfreq(side, device=generator.device)[:, None]
    columns = torch.fft.rfftfreq(side, device=generator.device)
    frequency = (rows.square() + columns.square()).sqrt().clamp(min=1 / side)
    waves = torch.fft.rfft2(draw.grid(channels, side)) * frequency ** -draw.between(least, most)
    waves[..., 0, 0] = 0
    noise = torch.fft.irfft2(waves, s=(side, side))
    even: Tensor = noise / noise.std((1, 2, 3), keepdim=True)
    return even


def _random_layer(draw: _Draw, field: Tensor, out: int) -> Tensor:
    """A 3×3 convolution with filters of its own for every image, brought to variance 1."""
    count, channels, height, width = field.shape
    filters = torch.randn(
        (count * out, channels, 3, 3), generator=draw.generator, device=field.device
    )
    alone = F.pad(field, (1, 1, 1, 1), mode="reflect").view(1, -1, height + 2, width + 2)
    found = F.conv2d(alone, filters, groups=count).view(count, out, height, width)
    found = found - found.mean((2, 3), keepdim=True)
    return found / (found.std((2, 3), keepdim=True) + 1e-3)


def _photographed(draw: _Draw, image: Tensor) -> Tensor:
    """Light, contrast and blur as of photographs, at the size that was asked for."""
    centred = image - image.mean((1, 2, 3), keepdim=True)
    spread = centred.std((1, 2, 3), keepdim=True) + 1e-3
    exposed = centred / spread * draw.between(0.08, 0.28) + draw.between(0.25, 0.7)
    soft = torch.sigmoid((exposed - 0.5) * 4.6)  # light and dark end softly
    small = F.avg_pool2d(soft, _FINER)
    blurred = F.avg_pool2d(F.pad(small, (1, 1, 1, 1), mode="reflect"), 3, 1)
    blur = 0.7 * draw.uniform()
    mixed_ = small * (1 - blur) + blurred * blur
    grain = 0.015 * draw.uniform() * draw.grid(COLOURS, mixed_.shape[-1])
    return (mixed_ + grain).clamp(0, 1)
