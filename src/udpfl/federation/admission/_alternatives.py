"""Why a budget does not hold a run, and which other plans it would hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from udpfl.accounting.accountant import account
from udpfl.accounting.budget import rounds_left, would_exceed
from udpfl.accounting.events import Event, Release, Repeated
from udpfl.accounting.statement import shown
from udpfl.config import PrivacyConfig
from udpfl.errors import (
    UdpflError,
    Unsupported,
)
from udpfl.federation._calibration import MakePlans
from udpfl.federation.admission.holding import Known
from udpfl.federation.plan import Past, ReleasePlan
from udpfl.federation.selection import Schedule, list_names

_MOST_NOISE = 10
"""So many times the planned noise is not worth an offer."""


def fits_budget(own: ReleasePlan, past: Past) -> bool:
    """Whether what is left of the client's budget holds the plan."""
    event = own.rest_event()
    if event is None or past.budget is None:
        return True
    try:
        return not would_exceed(past.history, event, past.budget, past.rule)
    except Unsupported as error:
        raise Unsupported(
            f"{own.name}: {error}. Its budget in the ledger is at δ = {past.budget.delta:g}, "
            "and privacy.delta does not change that: choose noise that can keep such a budget, or "
            "another ledger"
        ) from None


def explain_refusal(
    privacy: PrivacyConfig,
    plans: Sequence[ReleasePlan],
    known: Known,
    short: set[str],
    schedule: Schedule,
    make_plans: MakePlans,
) -> str:
    """Who cannot pay for the run, why, and what all of them could pay for."""
    pasts = known.pasts
    own = next(plan for plan in plans if plan.name in short)
    past = pasts[own.name]
    budget = past.budget
    assert budget is not None
    offers = []
    if privacy.accounting == "vector":
        offers = [
            *_fewer_rounds(privacy, [plan for plan in plans if plan.name in short], pasts),
            *_more_noise(own, pasts, short, schedule, make_plans),
        ]
    spent = account(past.held, budget.delta, past.rule).epsilon if past.held else 0.0
    said = [
        f"{list_names(sorted(short))}: the budget in {privacy.ledger} is too small for this run; "
        f"nothing was trained. {own.name} has ε = {budget.epsilon:g} at δ = {budget.delta:g}, of "
        f"which ε = {shown(spent)} is spent{' or reserved' if known.unfinished else ''}",
        f"{' or '.join(offers)} would fit" if offers else "no part of this run would fit",
        "`udpfl budget set` raises a budget, with a reason on record",
    ]
    if known.have_moved:
        said.insert(
            1,
            "records may have moved between clients (another seed or partition), so every client "
            "continues with the largest spending of all clients",
        )
    if known.new:
        one = known.new[0]
        said.append(
            f"{list_names(known.new)} {'is' if len(known.new) == 1 else 'are'} new in this ledger: "
            "dividing the same records among more clients gives nobody a second budget; a client "
            "with records of other people joins by "
            f"`udpfl budget client add {privacy.ledger} {one} --disjoint --reason ...`"
        )
    if known.unfinished:
        said.append(
            f"{', '.join(known.unfinished)} may still spend what it reserved: continue it "
            "(--resume), or free the reservation (`udpfl budget free`)"
        )
    return "; ".join(said)


def _fewer_rounds(
    privacy: PrivacyConfig, short: Sequence[ReleasePlan], pasts: Mapping[str, Past]
) -> list[str]:
    """How many rounds all could pay for, where they are to pay alike and in every round alike."""
    events = {plan.round_event(1) for plan in short}
    is_matched = privacy.harmonize == "match"
    if len(events) > 1 or short[0].factors or (is_matched and privacy.reference is None):
        return []  # a reference that the budget decides would be another one for fewer rounds
    (event,), rounds = events, max(plan.rounds for plan in short)
    assert event is not None
    past = min((pasts[plan.name] for plan in short), key=lambda own: _left(own, event))
    if not (left := _left(past, event)):
        return []
    if is_matched:
        return [f"{left} of {rounds} rounds"]
    assert past.budget is not None
    cost = account(Repeated(event, left), past.budget.delta, past.rule).epsilon
    epsilon = math.floor(1e4 * cost) / 1e4  # with which the same noise is planned
    return [f"{left} of {rounds} rounds (with privacy.epsilon = {epsilon:g})"]


def _left(past: Past, event: Event) -> int:
    assert past.budget is not None
    return rounds_left(past.history, event, past.budget, past.rule)


def _more_noise(
    own: ReleasePlan,
    pasts: Mapping[str, Past],
    short: set[str],
    schedule: Schedule,
    make_plans: MakePlans,
) -> list[str]:
    """The noise of this client with which all could pay for the whole run."""
    try:
        fitted = make_plans(schedule, {name: pasts[name] for name in pasts if name in short})
    except UdpflError:
        return []
    # A method that brings its own noise along does not fit whatever is planned.
    if not all(fits_budget(plan, pasts[plan.name]) for plan in fitted if plan.name in short):
        return []
    noisier = next(plan for plan in fitted if plan.name == own.name)
    assert isinstance(noisier.release, Release)
    assert isinstance(own.release, Release)
    wanted, needed = own.release.mechanism.noise_std, noisier.release.mechanism.noise_std
    if needed > _MOST_NOISE * wanted:  # nothing would be learned
        return []
    return [
        f"{own.rounds} rounds with noise {needed:.3g} instead of {wanted:.3g} "
        '(privacy.exhausted = "fit")'
    ]
