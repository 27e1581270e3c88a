"""Inverting gradients: pictures whose gradient points where the one that was sent points.

The search minimises one less the cosine between the two gradients, over all parameters together,
plus a small weight times the total variation of the picture, by signed Adam within black and white.
A clip does not change the direction of one record's gradient: only noise, and other records, do.
For several local steps the attack takes them itself, differentiates through all of them, and
compares updates.

References: Geiping, Bauermeister, Dröge, Moeller, "Inverting Gradients - How easy is it to break
privacy in federated learning?", NeurIPS 2020.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from udpfl.attacks.base import Attack, AttackResult, Figure, Picture, Progress, silent
from udpfl.attacks.reconstruction._figures import Quality, above, in_words
from udpfl.attacks.reconstruction._observed import GradientOptions, Observed, observe
from udpfl.attacks.reconstruction._pictures import Scale, grid
from udpfl.attacks.reconstruction._search import Descent, match
from udpfl.attacks.reconstruction.metrics import Floats, pair
from udpfl.attacks.target import Target
from udpfl.config.section import Count, Positive

NOISE_ALONE = "same attack on noise alone"
MEAN, RANDOM = "mean picture", "random picture"


class InvertingOptions(GradientOptions):
    """Settings of the search."""

    iterations: Count = Field(default=2400, description="Steps of the search.")
    restarts: Count = Field(
        default=1, description="Searches for each gradient, of which the closest counts."
    )
    learning_rate: Positive = Field(
        default=0.1, description="Of signed Adam, in inputs of the network; a tenth at 3/8, 5/8, 7/8."
    )
    total_variation: float = Field(
        default=1e-2, ge=0, description="Weight of the total variation of the picture."
    )


class InvertingGradients(Attack):
    """Searches for pictures whose gradient has the direction of the one that was sent."""

    name = "inverting-gradients"
    kind = "reconstruction"
    what = "searches for the pictures whose gradient points where the one that was sent points"
    needs = "a client's update, and the model that the client received"
    paper = "Geiping et al., Inverting Gradients, 2020"
    options_type = InvertingOptions

    def run(self, target: Target, progress: Progress = silent) -> AttackResult:
        began = time.perf_counter()
        scale = Scale.of(target, self.name)
        assert isinstance(self.options, InvertingOptions)
        seen = observe(target, self.options, self.seed)
        found = self.search(seen, seen.signals, scale, progress, "reconstructing")
        control = None
        if seen.noise is not None:
            control = self.search(seen, seen.noise, scale, progress, NOISE_ALONE)
        return judged(self, target, seen, scale, found, control, time.perf_counter() - began)

    def search(
        self, seen: Observed, signals: Tensor, scale: Scale, progress: Progress, stage: str
    ) -> Tensor:
        """The closest of all restarts for each signal [T, n, ...]."""
        options = self.options
        assert isinstance(options, InvertingOptions)
        generator = torch.Generator().manual_seed(self.seed)
        shape = (options.restarts, *seen.labels.shape, *seen.originals.shape[2:])
        start = torch.randn(shape, generator=generator).flatten(0, 1).to(signals.device)
        inputs, distances = match(
            seen.client,
            signals.repeat(options.restarts, 1),
            seen.labels.repeat(options.restarts, 1),
            start,
            Descent(
                options.iterations, options.learning_rate, options.total_variation,
                scale.low, scale.high,
            ),
            lambda done, total: progress(stage, done, total),
        )  # fmt: skip
        best = distances.view(options.restarts, -1).nan_to_num(torch.inf).argmin(0)
        return inputs.view(shape)[best, torch.arange(len(signals), device=best.device)]


def judged(
    attack: Attack,
    target: Target,
    seen: Observed,
    scale: Scale,
    found: Tensor,
    control: Tensor | None,
    seconds: float,
) -> AttackResult:
    """Reconstructions beside their originals and beside what needs no signal at all."""
    originals = scale.pixels(seen.originals)
    pictures, chosen = _paired(scale.pixels(found), originals)
    quality = Quality.of(pictures, chosen)
    mean = scale.pixels(target.setup.data.train.inputs.mean(0))
    drawn = np.random.default_rng([*b"random picture", attack.seed]).random(chosen.shape)
    rows = [("original", chosen), ("reconstruction", pictures)]
    baselines = [
        *Quality.of(np.broadcast_to(mean, chosen.shape), chosen).baseline(MEAN),
        *Quality.of(*_paired(drawn.reshape(*found.shape), originals)).baseline(RANDOM),
    ]
    figures: list[Figure] = list(quality.figures())
    if control is not None:
        from_noise, beside = _paired(scale.pixels(control), originals)
        other = Quality.of(from_noise, beside)
        figures.insert(1, above(quality, other))
        baselines[:0] = other.baseline(NOISE_ALONE)
        rows.append(("from noise alone", from_noise))
    rows.append((MEAN, mean[None]))
    count = f"{len(pictures)} records behind {len(seen.signals)} of these"
    said = in_words(figures, baselines)
    return AttackResult(
        attack.name,
        "reconstruction",
        target.described(seen.view, count),
        target.privacy,
        tuple(figures),
        tuple(baselines),
        f"{attack.name} on {seen.view}: {said}; {_learned(figures, baselines)}.",
        False,
        attack.options.model_dump(mode="json"),
        attack.seed,
        round(seconds, 3),
        (*seen.notes, *_notes(target, seen)),
        pictures=(_grid(rows),),
    )


def _paired(found: Floats, originals: Floats) -> tuple[Floats, Floats]:
    """Reconstructions [T, n, ...] and the original of each, all in one row."""
    chosen = np.stack([own[pair(a, own)] for a, own in zip(found, originals, strict=True)])
    return found.reshape(-1, *found.shape[2:]), chosen.reshape(-1, *found.shape[2:])


def _learned(figures: list[Figure], baselines: list[Figure]) -> str:
    """Whether the median is above all baselines by more than its interval."""
    first = figures[0]
    names = (MEAN, RANDOM, NOISE_ALONE)
    best = max(
        own.value for own in baselines if own.name in {f"{first.name}, {name}" for name in names}
    )
    low = first.value if first.low is None else first.low
    if low > best:
        return "the pictures are closer than any that needs no signal"
    return "no closer than pictures that need no signal"


def _grid(rows: list[tuple[str, Floats]]) -> Picture:
    return grid("Originals and reconstructions", rows)


def _notes(target: Target, seen: Observed) -> list[str]:
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
