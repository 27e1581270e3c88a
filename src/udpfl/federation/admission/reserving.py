"""May this run begin? Accounts are opened, and what the run will cost is reserved."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from udpfl.accounting.events import leaves
from udpfl.config import Config
from udpfl.federation._stored_run import StoredRun
from udpfl.federation.admission.holding import Holding, require_alike
from udpfl.federation.plan import ReleasePlan
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import digests
from udpfl.runs.names import BEGUN_WITH

log = logging.getLogger(__name__)


def admit(
    settings: Config, ledger: Ledger, stored: StoredRun, holding: Holding, claimed: bool
) -> list[int]:
    """Open every client's account and reserve what the run will cost it; the accounts.

    All of it or nothing: a run that is refused leaves the ledger as it was. The files in its folder
    that the run begins with are sealed. A run that claims nothing gets no budgets and reserves
    nothing: it could not keep any.
    """
    with ledger.transaction():
        _begin(settings, ledger, stored.run, stored.folder.path)
        accounts = _reserved(settings, ledger, stored.run, holding, stored.plans, claimed)
    if ledger.is_new and stored.has_shared_ledger:
        log.warning("charges go to the new ledger %s: no run has used it before", stored.ledger)
    return accounts


def _begin(settings: Config, ledger: Ledger, run: str, folder: Path) -> None:
    privacy = settings.privacy
    ledger.begin_run(
        run,
        randomness=privacy.randomness,
        accounting=privacy.accounting,
        accountant=privacy.accountant,
        description={
            "data": settings.data.name,
            "algorithm": settings.training.algorithm,
            "folder": folder.name,
            **({"person": settings.data.person} if settings.data.person else {}),
        },
        files=digests(folder, BEGUN_WITH),
    )


def _reserved(
    settings: Config,
    ledger: Ledger,
    run: str,
    holding: Holding,
    plans: Sequence[ReleasePlan],
    claimed: bool,
) -> list[int]:
    privacy = settings.privacy
    is_shared = privacy.ledger is not None
    if is_shared:
        holding.require_accounts(ledger)
    accounts = ledger.open_accounts(
        holding.parts, block=holding.block, runs="many" if is_shared else "one"
    )
    if claimed and privacy.enabled and privacy.accounting == "vector":
        for plan, number in zip(plans, accounts, strict=True):
            if plan.budget and ledger.budget(number) is None:
                ledger.set_budget(number, plan.budget)
    if is_shared and (holding.pool or ledger.division(holding.block) is not None):
        if holding.taken_over(ledger) is not None:
            require_alike(plans)
        ledger.divide(holding.parts, holding.block, holding.pool)
    if claimed and privacy.enabled:
        rests = [
            own.rest_event(ledger.rounds_charged(run, number), released_in(ledger, number, run))
            for own, number in zip(plans, accounts, strict=True)
        ]
        wanted = {
            number: rest
            for number, own, rest in zip(accounts, plans, rests, strict=True)
            # Where noise follows results, what is reserved has changed since the run began.
            if rest and not (own.levels and run in ledger.unfinished(number))
        }
        ledger.reserve(run, wanted)
    return accounts


def released_in(ledger: Ledger, account: int, run: str) -> int:
    """How many releases a run was charged for."""
    spent = ledger.spent(account, run)
    return 0 if spent is None else sum(leaves(spent).values())
