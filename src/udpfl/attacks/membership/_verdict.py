"""From scores to the result of a membership attack: figures, curve, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from udpfl.accounting import PrivacyStatement
from udpfl.accounting.statement import shown
from udpfl.attacks.base import Attack, Attacked, AttackResult, Curve, Figure
from udpfl.attacks.membership.statistics import AUC, LOW_RATES, Cap, Scores, figures, name_at

_FINDS = "finds {{}} of the members in {} where it wrongly accuses 1 % of the others"
ONE_TRAINING = (
    "Intervals treat records as if each was scored by itself; here all scores come from one model, "
    "so they say how well this model is attacked, not every model that such a run may give."
)


def result_of(
    attack: Attack,
    attacked: Attacked,
    privacy: PrivacyStatement,
    scores: Scores,
    *,
    seconds: float,
    notes: Sequence[str] = (),
    more: Sequence[Figure] = (),
    curves: Sequence[Curve] = (),
    cap: Cap | None = None,
    said: str | None = None,
) -> AttackResult:
    """What a membership attack came to.

    Args:
        attack: That ran.
        attacked: Which run, from where, on which records.
        privacy: What the run states.
        scores: Of every record that was tried.
        seconds: How long it took.
        notes: What is to be known of it.
        more: Further figures.
        curves: Further lines to draw.
        cap: The most that is allowed; by the statement of the whole run if left out.
        said: What it finds, with a place for the share, where its records are no members.
    """
    said = said or _FINDS.format(attacked.view)
    cap = cap or Cap.of(privacy)
    found = (*figures(scores, cap, attack.seed), *more)
    notes = (*notes, *_remarks(found, scores))
    exceeded = any(own.exceeds for own in found)
    options: dict[str, Any] = attack.options.model_dump(mode="json")
    chance = (
        Figure(f"{AUC} of guesses", 0.5),
        *(Figure(f"{name_at(rate)} of guesses", rate) for rate in LOW_RATES),
    )
    return AttackResult(
        attack.name,
        "membership",
        attacked,
        privacy,
        found,
        chance,
        verdict(attack.name, said, found, privacy, cap, exceeded),
        exceeded,
        options,
        attack.seed,
        round(seconds, 3),
        notes,
        (scores.curve(attack.name, cap), *curves),
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


def left_out_figures(each: Sequence[Scores]) -> tuple[Figure, ...]:
    """Mean and range of two standard errors of the attack on every shadow in turn."""
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
