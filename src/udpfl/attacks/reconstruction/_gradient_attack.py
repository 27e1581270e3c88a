"""What attacks on gradients share: what they see, and how their pictures are judged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from torch import Tensor

from udpfl.attacks.base import Attack, Figure, Findings, Progress
from udpfl.attacks.reconstruction._figures import (
    MEAN,
    NOISE_ALONE,
    RANDOM,
    Quality,
    above,
    beside,
    findings,
)
from udpfl.attacks.reconstruction._observed import GradientOptions, Observed, observe
from udpfl.attacks.reconstruction._pictures import Scale, grid
from udpfl.attacks.reconstruction.metrics import Floats, pair
from udpfl.attacks.target import Target

Options = TypeVar("Options", bound=GradientOptions)
Told = Callable[[int, int], None]
"""Called with how much is done, and how much there is."""


class GradientAttack(Attack[Options]):
    """Looks for the pictures behind what a client sent."""

    kind = "reconstruction"
    needs = "a client's update, and the model that the client received"

    def find(self, target: Target, progress: Progress) -> Findings:
        scale = Scale.of(target, self.name)
        seen = observe(target, self.options, self.seed)

        def searched(signals: Tensor, stage: str) -> Tensor:
            return self.search(
                seen, signals, scale, lambda done, total: progress(stage, done, total)
            )

        found = searched(seen.signals, "reconstructing")
        control = None if seen.noise is None else searched(seen.noise, NOISE_ALONE)
        rng = np.random.default_rng([*b"random picture", self.seed])
        return judged(self.name, target, seen, scale, found, control, rng)

    @abstractmethod
    def search(self, seen: Observed, signals: Tensor, scale: Scale, told: Told) -> Tensor:
        """Pictures, as inputs of the network, for each signal [T, n, ...]."""


def judged(
    attack: str,
    target: Target,
    seen: Observed,
    scale: Scale,
    found: Tensor,
    control: Tensor | None,
    rng: np.random.Generator,
) -> Findings:
    """Reconstructions beside their originals and beside what needs no signal at all."""
    originals = scale.pixels(seen.originals)
    pictures, chosen = _paired(scale.pixels(found), originals)
    quality = Quality.of(pictures, chosen)
    mean = scale.pixels(target.setup.data.train.inputs.mean(0))
    drawn = rng.random(chosen.shape)
    rows = [("original", chosen), ("reconstruction", pictures)]
    baselines = [
        *beside(chosen, {MEAN: mean}),
        *Quality.of(*_paired(drawn.reshape(*found.shape), originals)).baseline(RANDOM),
    ]
    figures: list[Figure] = list(quality.figures())
    if control is not None:
        from_noise, same = _paired(scale.pixels(control), originals)
        other = Quality.of(from_noise, same)
        figures.insert(1, above(quality, other))
        baselines[:0] = other.baseline(NOISE_ALONE)
        rows.append(("from noise alone", from_noise))
    rows.append((MEAN, mean[None]))
    count = f"{len(pictures)} records" if len(pictures) > 1 else "one record"
    return findings(
        seen.view,
        count,
        figures,
        baselines,
        said=f"{attack} on {seen.view}",
        notes=(*seen.notes, *_notes(seen)),
        picture=grid("Originals and reconstructions", rows),
    )


def _paired(found: Floats, originals: Floats) -> tuple[Floats, Floats]:
    """Reconstructions [T, n, ...] and the original of each, all in one row."""
    chosen = np.stack([own[pair(a, own)] for a, own in zip(found, originals, strict=True)])
    return found.reshape(-1, *found.shape[2:]), chosen.reshape(-1, *found.shape[2:])


def _notes(seen: Observed) -> list[str]:
    notes = [
        "PSNR and SSIM are of pixels from 0 to 1, each picture by itself; SSIM with a uniform "
        "window of 7 pixels. They measure likeness, not what a person would recognise.",
        "A privacy statement bounds no PSNR by itself; noise alone shows what this attack makes of "
        "nothing.",
    ]
    if seen.batch > 1:
        notes.append(
            "Reconstructions of a batch are paired with its records so that the errors add up to "
            "as little as possible."
        )
    return notes
