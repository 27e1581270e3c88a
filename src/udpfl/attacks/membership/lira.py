"""LiRA: how much more likely is what the model says of a record if it was trained on it?

The signal φ = log p_y - log (1 - p_y) is close to normal over trainings. Online, shadows with the
record and shadows without it give a normal distribution each, and the score is the logarithm of
their likelihood ratio. Offline, only shadows without it are used, and the score is how far φ lies
above them, in standard deviations: the one-sided test of the paper.

References: Carlini, Chien, Nasr, Song, Terzis, Tramèr, "Membership Inference Attacks From First
Principles", IEEE S&P 2022, Algorithm 1 and Section VI.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from udpfl.attacks.base import Progress
from udpfl.attacks.membership._evidence import Evidence
from udpfl.attacks.membership._frame import Scored, ShadowAttack
from udpfl.attacks.membership._options import QueryOptions
from udpfl.attacks.membership._verdict import left_out_figures
from udpfl.attacks.membership.statistics import Bools
from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats

_ENOUGH = 64
"""Shadows from which on every record has a variance of its own."""
FIVE_PERCENT = 1.6448536269514722
"""Standard deviations above which a normal lies with 5 %: the offline attack's own threshold."""


class LiraOptions(QueryOptions):
    """Settings of LiRA."""

    variance: Literal["auto", "global", "record"] = Field(
        default="auto",
        description="One variance for all records or one for each; auto: one for each from 64 "
        "shadows on.",
    )


class Lira(ShadowAttack[LiraOptions]):
    """The likelihood ratio of what shadows with and without a record say of it."""

    name = "lira"
    what = "compares the model with shadow models that were trained with and without each record"
    needs = "the final model, the method and its settings, and records like those it was trained on"
    paper = "Carlini et al., Membership Inference Attacks From First Principles, 2022"
    options_type = LiraOptions
    fewest_shadows = 4

    def compared(self, evidence: Evidence, progress: Progress) -> Scored:
        notes = (f"{self.options.shadows} shadow models, {self.options.mode}.",)
        others = left_out_figures(evidence, self.score, fewest=6)
        return Scored(self.score(evidence), self.threshold, notes, others)

    @property
    def threshold(self) -> float:
        """From which score on it says "member"."""
        return 0.0 if self.options.mode == "online" else FIVE_PERCENT

    def score(self, evidence: Evidence) -> Floats:
        """One number for each record."""
        own = self.options
        shadows, seen = evidence.log_odds()
        by_record = own.variance == "record" or (
            own.variance == "auto" and len(evidence.keep) >= _ENOUGH
        )
        if own.mode == "online":
            return online_scores(shadows, evidence.keep, seen, by_record=by_record)
        return offline_scores(shadows, evidence.keep, seen, by_record=by_record)


def online_scores(shadows: Floats, keep: Bools, seen: Floats, *, by_record: bool = False) -> Floats:
    """log N(φ; μ_in, σ_in) - log N(φ; μ_out, σ_out), the mean over queries [n].

    Args:
        shadows: φ of the shadows [K, Q, n].
        keep: Whether a record was in a shadow [K, n].
        seen: φ of the target [Q, n].
        by_record: Whether each record and query has its own variance, or all share one per side.
    """
    inside, outside = _sides(shadows, keep)
    ratio = _log_normal(seen, *_fit(inside, by_record)) - _log_normal(
        seen, *_fit(outside, by_record)
    )
    found: Floats = ratio.mean(axis=0)
    return found


def offline_scores(
    shadows: Floats, keep: Bools, seen: Floats, *, by_record: bool = False
) -> Floats:
    """(φ - μ_out) / σ_out, the mean over queries [n]; the arguments are those of the online one."""
    _, outside = _sides(shadows, keep)
    centre, spread = _fit(outside, by_record)
    found: Floats = ((seen - centre) / spread).mean(axis=0)
    return found


def _sides(shadows: Floats, keep: Bools) -> tuple[Floats, Floats]:
    """φ of the shadows with each record and of those without it, each [K/2, Q, n]."""
    there = keep.sum(axis=0)
    if len(set(there.tolist())) != 1:
        raise InvalidInput("keep", "every record must be in the same number of shadows")
    order = np.argsort(~keep, axis=0, kind="stable")  # [K, n], those with the record first
    rows: NDArray[np.intp] = order[:, None, :]
    sorted_ = np.take_along_axis(shadows, np.broadcast_to(rows, shadows.shape), axis=0)
    return sorted_[: there[0]], sorted_[there[0] :]


def _fit(values: Floats, by_record: bool) -> tuple[Floats, Floats]:
    """Median and standard deviation over shadows of each record and query [Q, n].

    The one that all records share is that of what is left when each record's own centre is taken
    away: with it, records that differ from each other would count as noise. One shadow is used up
    by the centre.
    """
    count = len(values)
    centre = np.median(values, axis=0)
    if by_record:
        spread = np.std(values, axis=0)
    else:
        left = (values - centre) ** 2
        spread = np.full_like(centre, np.sqrt(left.mean() * count / max(1, count - 1)))
    return centre, np.maximum(spread, 1e-12)


def _log_normal(x: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Logarithm of the density, without the constant that cancels."""
    found: Floats = -((x - mean) ** 2) / (2 * deviation**2) - np.log(deviation)
    return found
