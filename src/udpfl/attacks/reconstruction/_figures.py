"""From reconstructions to figures: each attack's result beside those who learned nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from udpfl.attacks.base import Figure, Findings, Picture
from udpfl.attacks.reconstruction.metrics import Floats, mae, mse, psnr, ssim

PSNR = "median PSNR"
NOISE_ALONE = "same attack on noise alone"
MEAN, RANDOM = "mean picture", "random picture"
RECOGNISED = 0.3
"""The structural similarity above which a reconstruction counts as similar."""
_CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class Quality:
    """How alike reconstructions are to their originals, one number each."""

    psnr: Floats
    ssim: Floats
    mse: Floats
    mae: Floats

    @classmethod
    def of(cls, found: Floats, originals: Floats) -> Quality:
        """Of pictures from 0 to 1, each held against the original of the same number."""
        return cls(*(figure(found, originals) for figure in (psnr, ssim, mse, mae)))

    def figures(self) -> tuple[Figure, ...]:
        """The median of the signal-to-noise ratio first, with its interval."""
        low, high = median_interval(self.psnr)
        similar = float(np.mean(self.ssim > RECOGNISED))
        return (
            Figure(PSNR, float(np.median(self.psnr)), low, high, _CONFIDENCE, unit="dB"),
            Figure("best PSNR", float(self.psnr.max()), unit="dB"),
            Figure("mean PSNR", float(self.psnr.mean()), unit="dB"),
            Figure("mean SSIM", float(self.ssim.mean())),
            Figure(f"share with SSIM above {RECOGNISED:g}", similar),
            Figure("mean MSE", float(self.mse.mean())),
            Figure("mean MAE", float(self.mae.mean())),
        )

    def baseline(self, whose: str) -> tuple[Figure, ...]:
        """The same of somebody who learned nothing."""
        kept = [own for own in self.figures() if own.name.startswith(("median", "mean"))]
        return tuple(
            Figure(f"{own.name}, {whose}", own.value, own.low, own.high, unit=own.unit)
            for own in kept
        )


def beside(originals: Floats, others: Mapping[str, Floats]) -> tuple[Figure, ...]:
    """Figures of those who learned nothing: by name, what they hold against the originals."""
    return tuple(
        figure
        for whose, pictures in others.items()
        for figure in Quality.of(np.broadcast_to(pictures, originals.shape), originals).baseline(
            whose
        )
    )


def findings(
    view: str,
    records: str,
    own: Sequence[Figure],
    baselines: Sequence[Figure],
    *,
    said: str,
    notes: Sequence[str],
    picture: Picture,
) -> Findings:
    """What an attack came to that looks for pictures.

    Args:
        view: What the attacker saw, for people.
        records: On which records the attack was tried, for people.
        own: The figures of its pictures, the median PSNR first.
        baselines: The same of those who learned nothing.
        said: The attack and what it was on, with which the verdict begins.
        notes: What is to be known of these figures.
        picture: What it found, for the page.
    """
    verdict = f"{said}: {in_words(own, baselines)}; {learned(own, baselines)}."
    return Findings(
        view, records, tuple(own), tuple(baselines), verdict,
        notes=tuple(notes), pictures=(picture,),
    )  # fmt: skip


def median_interval(values: Floats) -> tuple[float, float] | tuple[None, None]:
    """An interval for the median from order statistics, at least as certain as 95 %.

    The number of values below the median is binomial, whatever their distribution. Fewer than six
    values have no such interval.
    """
    ordered, count = np.sort(values), len(values)
    below = int(binom.ppf((1 - _CONFIDENCE) / 2, count, 0.5))
    if below == 0:
        return None, None
    return float(ordered[below - 1]), float(ordered[count - below])


def above(attack: Quality, control: Quality) -> Figure:
    """By how many dB the median is above that of the same attack on noise alone."""
    return Figure(
        "median PSNR above noise alone",
        float(np.median(attack.psnr) - np.median(control.psnr)),
        unit="dB",
    )


def in_words(own: Sequence[Figure], baselines: Sequence[Figure]) -> str:
    """The median and what it is held against, in one sentence without its end."""
    first = own[0]
    beside = [b for b in baselines if b.name.startswith(PSNR)]
    said = ", ".join(f"{b.name.removeprefix(PSNR + ', ')} {b.value:.1f} dB" for b in beside)
    return f"median PSNR {first.value:.1f} dB ({said})"


def learned(own: Sequence[Figure], baselines: Sequence[Figure]) -> str:
    """Whether the median is above those of all baselines by more than its interval."""
    first = own[0]
    best = max(b.value for b in baselines if b.name.startswith(PSNR))
    if first.value <= best or (first.low is not None and first.low <= best):
        return "not surely closer than pictures that need no signal"
    if first.low is None:
        return "closer than pictures that need no signal, on too few to be sure"
    return "closer than any picture that needs no signal"
