"""RMIA: how many other records does a record beat in what the model gained on it?

A record x has the ratio r(x) = p(x) / p̄(x): how probable the model finds its label, over how
probable the average model does. The score is the share of the population with a smaller ratio. The
average is that over shadows with and without the record (online), or over those without it, which
stand for both: p̄ = ½ ((1 + a) p_out + (1 - a)) (offline). The shadows themselves are attacked to
choose a. The population is all records that are attacked: nobody has to know who was in.

Reference: Zarifzadeh, Liu, Shokri, "Low-Cost High-Power Membership Inference Attacks", ICML 2024,
Section 3 and Appendix B.2.2.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from udpfl.attacks.base import Progress
from udpfl.attacks.membership._evidence import Evidence
from udpfl.attacks.membership._frame import Scored, ShadowAttack
from udpfl.attacks.membership._options import QueryOptions
from udpfl.attacks.membership._verdict import left_out_figures
from udpfl.attacks.membership.statistics import Bools, Scores
from udpfl.config.section import Count, Positive
from udpfl.mechanisms.arrays import Floats

_GRID = tuple(step / 10 for step in range(11))
_LEAST = 1e-30
"""A probability, so that a ratio of two exists."""


class RmiaOptions(QueryOptions):
    """Settings of RMIA."""

    shadows: Count = Field(default=4, description="Shadow models, an even number: 2 are enough.")
    a: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="offline: how much the average model resembles one without the record; if not "
        "set, the best on the shadows themselves.",
    )
    gamma: Positive = Field(
        default=1.0, description="A record counts as beaten if the ratio is so many times as large."
    )
    temperature: Positive = Field(
        default=2.0,
        description="The scores of a model are divided by it: with 1, the probabilities of all "
        "that was learned lie so near 1 that they hardly differ.",
    )


class Rmia(ShadowAttack[RmiaOptions]):
    """The share of other records whose likelihood rose less."""

    name = "rmia"
    what = "compares how much likelier the model finds a record with how much likelier others are"
    needs = "the final model, the method and its settings, similar records; few shadow models do"
    paper = "Zarifzadeh et al., Low-Cost High-Power Membership Inference Attacks, 2024"
    options_type = RmiaOptions

    def compared(self, evidence: Evidence, progress: Progress) -> Scored:
        own = self.options
        a = (
            chosen_a(evidence, own.temperature, own.gamma)
            if own.mode == "offline" and own.a is None
            else own.a
        )
        how = own.mode if own.mode == "online" else f"offline, a = {a:g}"
        return Scored(
            self.score(evidence, a),
            0.5,
            (f"{own.shadows} shadow models, {how}.",),
            left_out_figures(evidence, lambda rest: self.score(rest, a), fewest=4),
        )

    def score(self, evidence: Evidence, a: float | None) -> Floats:
        """One number for each record."""
        own = self.options
        shadows, seen = evidence.probabilities(own.temperature)
        a = None if own.mode == "online" else a
        return rmia_scores(shadows, evidence.keep, seen, a, own.gamma)


def rmia_scores(
    shadows: Floats, keep: Bools, seen: Floats, a: float | None, gamma: float = 1.0
) -> Floats:
    """The share of the population that each record beats [n].

    Args:
        shadows: Probability of the label by every shadow [K, n].
        keep: Whether a record was in a shadow [K, n].
        seen: The same by the target [n].
        a: For the offline attack; None for the online one.
        gamma: How many times as large the ratio has to be.
    """
    inside, outside = _mean(shadows, keep), _mean(shadows, ~keep)
    average = (inside + outside) / 2 if a is None else ((1 + a) * outside + (1 - a)) / 2
    ratios = np.maximum(seen, _LEAST) / np.maximum(average, _LEAST)
    order = np.sort(ratios)
    # z is beaten where r(x) / r(z) > γ: strictly, so that a record never beats itself.
    beaten = np.searchsorted(order, ratios / gamma, side="left")
    found: Floats = beaten / len(ratios)
    return found


def chosen_a(evidence: Evidence, temperature: float, gamma: float) -> float:
    """The value with the largest AUC where shadows are attacked, whose members are known."""
    mean, _ = evidence.probabilities(temperature)
    best = [0.0] * len(_GRID)
    for place, a in enumerate(_GRID):
        for k in range(len(mean)):
            rest = [other for other in range(len(mean)) if other // 2 != k // 2] or [k ^ 1]
            keep = evidence.keep[rest]
            scores = rmia_scores(mean[rest], keep, mean[k], a, gamma)
            best[place] += Scores(scores, evidence.keep[k]).auc
    return _GRID[int(np.argmax(best))]


def _mean(shadows: Floats, there: Bools) -> Floats:
    """Over the shadows that count for each record [n]; 1 where there are none."""
    count = there.sum(axis=0)
    total = np.where(there, shadows, 0.0).sum(axis=0)
    found: Floats = np.where(count > 0, total / np.maximum(count, 1), 1.0)
    return found
