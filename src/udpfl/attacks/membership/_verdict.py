"""From scores to the result of a membership attack: figures, curve, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from udpfl.accounting import PrivacyStatement
from udpfl.accounting.statement import shown
from udpfl.attacks.base import Figure, Findings
from udpfl.attacks.membership._evidence import Evidence
from udpfl.attacks.membership.statistics import AUC, LOW_RATES, Cap, Scores, figures, name_at
from udpfl.mechanisms.arrays import Floats

_FINDS = "finds {{}} of the members in {} where it wrongly accuses 1 % of the others"
ONE_TRAINING = (
    "Intervals treat records as if each was scored by itself; here all scores come from one model, "
    "so they say how well this model is attacked, not every model that such a run may give."
)


def findings(
    name: str,
    view: str,
    records: str,
    privacy: PrivacyStatement,
    scores: Scores,
    *,
    seed: int,
    notes: Sequence[str] = (),
    more: Sequence[Figure] = (),
    cap: Cap | None = None,
    said: str | None = None,
) -> Findings:
    """What a membership attack came to.

    Args:
        name: Of the attack.
        view: What the attacker saw, for people.
        records: On which records the attack was tried, for people.
        privacy: What the run states.
        scores: Of every record that was tried.
        seed: Of the resampling behind some intervals.
        notes: What is to be known of it.
        more: Further figures.
        cap: The most that is allowed; by the statement of the whole run if left out.
        said: What it finds, with a place for the share, where its records are no members.
    """
    said = said or _FINDS.format(view)
    cap = cap or Cap.of(privacy)
    found = (*figures(scores, cap, seed), *more)
    exceeded = any(own.exceeds for own in found)
    chance = (
        Figure(f"{AUC} of guesses", 0.5),
        *(Figure(f"{name_at(rate)} of guesses", rate) for rate in LOW_RATES),
    )
    return Findings(
        view,
        records,
        found,
        chance,
        verdict(name, said, found, privacy, cap, exceeded),
        exceeded,
        (*notes, *_remarks(found, scores)),
        (scores.curve(name, cap),),
    )


def verdict(
    name: str,
    said: str,
    found: Sequence[Figure],
    privacy: PrivacyStatement,
    cap: Cap | None,
    exceeded: bool,
) -> str:
    """One sentence in plain words."""
    rate = next(own for own in found if own.name == name_at(LOW_RATES[0]))
    area = next(own for own in found if own.name == AUC)
    told = f"{name} {said.format(f'{100 * rate.value:.3g} %')} (AUC {area.value:.3f})"
    learns = area.low is not None and area.low > 0.5
    if cap is None:
        chance = "more than chance" if learns else "not surely more than chance"
        return (
            f"{told}: {chance}; the run claims no privacy, so nothing limits what an attack may "
            "find."
        )
    allowed = f"ε ≤ {shown(cap.epsilon)} at δ = {cap.delta:.3g}"
    if exceeded:
        worst = next(own for own in found if own.exceeds)
        if privacy.kind == "nominal":
            return (
                f"{told}: more than the nominal {allowed} would allow ({worst.name}: "
                f"{worst.value:.3g}, cap {worst.cap:.3g}). A nominal number is no guarantee."
            )
        return (
            f"{told}: MORE THAN THE CLAIM {allowed} ALLOWS ({worst.name}: {worst.value:.3g}, cap "
            f"{worst.cap:.3g}). The noise or its accounting is wrong; `udpfl audit run` looks "
            "closer."
        )
    what = "more than chance, and no more than" if learns else "not surely more than chance;"
    end = "allows" if learns else "would allow more"
    claim = "the nominal" if privacy.kind == "nominal" else "the claim"
    return f"{told}: {what} {claim} {allowed} {end}."


def _remarks(found: Sequence[Figure], scores: Scores) -> Iterator[str]:
    """What is to be known of rates that few records cannot show, and of caps."""
    few = [rate for rate in LOW_RATES if rate * scores.others < 1]
    if few:
        which = " and ".join(f"{100 * rate:g} %" for rate in few)
        yield (
            f"With {scores.others:,} on the other side there is no false positive rate of {which} "
            "but 0: that is where the true one stands."
        )
    if any(own.cap is not None and own.value > own.cap and not own.exceeds for own in found):
        yield (
            "A figure above its cap exceeds it only where chance does not explain that: where the "
            "lower end of its interval lies above the cap at the upper end of the interval of the "
            "false positive rate."
        )


def left_out_figures(
    evidence: Evidence, score: Callable[[Evidence], Floats], fewest: int
) -> tuple[Figure, ...]:
    """How each shadow is attacked with all pairs but its own.

    Args:
        evidence: Of all shadows.
        score: One number for each record, from such evidence.
        fewest: Shadows below which too few are left; there are no figures then.

    Returns:
        Means over the shadows, with a range of two standard errors on either side.
    """
    count = len(evidence.keep)
    if count < fewest:
        return ()
    each = [Scores(score(evidence.without_pair(k)), evidence.keep[k]) for k in range(count)]
    found = []
    for name, values in (
        (AUC, [own.auc for own in each]),
        (name_at(LOW_RATES[0]), [own.at(LOW_RATES[0])[1] / own.members for own in each]),
    ):
        mean = float(np.mean(values))
        margin = 2 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        said = f"{name}, mean over {len(each)} shadows as targets"
        found.append(Figure(said, mean, mean - margin, mean + margin))
    return tuple(found)
