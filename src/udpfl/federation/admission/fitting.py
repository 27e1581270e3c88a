"""Plans that fit what budgets have left: looked at before anything is trained or written.

A shared ledger knows what clients have spent and reserved. The run is planned by the way in which
it adds things up, and a plan that does not fit is refused, or made to fit, as `privacy.exhausted`
says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from udpfl.config import Config
from udpfl.errors import (
    BudgetExceeded,
    Infeasible,
)
from udpfl.federation._calibration import MakePlans
from udpfl.federation.admission._account_terms import require_same_unit, tell_of_deltas
from udpfl.federation.admission._alternatives import explain_refusal, fits_budget
from udpfl.federation.admission.holding import Holding, read_pasts, require_alike, require_apart
from udpfl.federation.plan import Past, ReleasePlan
from udpfl.federation.selection import Schedule, list_names

log = logging.getLogger(__name__)


def plan_within(
    settings: Config, holding: Holding, schedule: Schedule, make_plans: MakePlans
) -> list[ReleasePlan]:
    """The plans of a run, each within its client's budget; raises where one does not fit.

    Nothing is written. Clients that are left out are asked in no round.
    """
    privacy = settings.privacy
    if privacy.ledger is None:
        return make_plans(schedule, {})
    require_apart(holding)
    known = read_pasts(privacy, Path(privacy.ledger), holding)
    pasts = known.pasts
    require_same_unit(privacy, pasts)
    tell_of_deltas(privacy, pasts)
    unspent = {name: replace(past, held=None) for name, past in pasts.items()}
    plans = make_plans(schedule, unspent)
    if privacy.accounting == "vector":  # a client without a budget gets that of the run
        pasts = {
            own.name: replace(pasts[own.name], budget=pasts[own.name].budget or own.budget)
            for own in plans
        }
    short = {own.name for own in plans if not fits_budget(own, pasts[own.name])}
    if short and privacy.exhausted == "refuse":
        raise BudgetExceeded(
            explain_refusal(
                privacy, plans, replace(known, pasts=pasts), short, schedule, make_plans
            )
        )
    if short and privacy.exhausted == "fit":
        plans = _plan_with_more_noise(pasts, unspent, short, schedule, make_plans)
    elif short:
        plans = _plan_without(plans, unspent, short, schedule, make_plans)
    if known.have_moved:
        require_alike(plans)
    return plans


def past_of_client(settings: Config, holding: Holding) -> Past | None:
    """What a shared ledger knows of the only client; None where the run has its own ledger.

    Raises:
        InvalidInput: Releases of this run cannot be added to those that were charged before.
    """
    if settings.privacy.ledger is None:
        return None
    pasts = read_pasts(settings.privacy, Path(settings.privacy.ledger), holding).pasts
    require_same_unit(settings.privacy, pasts)
    ((_, past),) = pasts.items()
    return past


def _plan_with_more_noise(
    pasts: Mapping[str, Past],
    unspent: Mapping[str, Past],
    short: set[str],
    schedule: Schedule,
    make_plans: MakePlans,
) -> list[ReleasePlan]:
    try:
        fitted = make_plans(schedule, {**unspent, **{name: pasts[name] for name in short}})
    except Infeasible as error:
        raise BudgetExceeded(
            f"{list_names(sorted(short))}: no noise makes this run fit the rest of the budget "
            f"({error}); nothing was trained"
        ) from None
    if still := [own.name for own in fitted if not fits_budget(own, pasts[own.name])]:
        raise BudgetExceeded(
            f"{list_names(sorted(still))}: the budget is too small for this run, and its noise is "
            f"not planned for a guarantee, so it cannot be fitted; nothing was trained"
        )
    log.warning(
        "%s: trains with more noise, so that the run fits the rest of the budget",
        list_names(sorted(short)),
    )
    return fitted


def _plan_without(
    plans: Sequence[ReleasePlan],
    unspent: Mapping[str, Past],
    short: set[str],
    schedule: Schedule,
    make_plans: MakePlans,
) -> list[ReleasePlan]:
    if short == {own.name for own in plans if own.rounds}:
        raise BudgetExceeded(
            f"no client has enough budget left for this run: {list_names(sorted(short))}; `udpfl "
            "budget show` prints what was spent, `udpfl budget set` raises a budget"
        )
    log.warning(
        "the run begins without %s: the budget is too small for it", list_names(sorted(short))
    )
    numbers = {number for number, own in enumerate(plans) if own.name in short}
    rest = [tuple(client for client in chosen if client not in numbers) for chosen in schedule]
    return make_plans(rest, unspent)
