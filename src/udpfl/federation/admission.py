"""May this run begin? What budgets have left is looked at before anything is trained or written.

A shared ledger knows what clients have spent and reserved. The run is planned by the way in which
it adds things up, and a plan that does not fit is refused, or made to fit, as `privacy.exhausted`
says. Then accounts are opened and the plan is reserved.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from udpfl.accounting.accountant import account
from udpfl.accounting.budget import rounds_left, would_exceed
from udpfl.accounting.events import Event, Repeated
from udpfl.accounting.filter import Filter
from udpfl.accounting.serial import event_to_json
from udpfl.config import Config, PrivacyConfig, per_client
from udpfl.errors import BudgetExceeded, Infeasible, InvalidInput, LedgerError, UdpflError
from udpfl.federation.folder import RunFolder
from udpfl.federation.participants import Participant, Past
from udpfl.federation.rounds import listed
from udpfl.ledger.divisions import Takeover
from udpfl.ledger.ledger import Ledger

log = logging.getLogger(__name__)

Schedule = Sequence[Sequence[int]]
Plan = Callable[[Schedule, Mapping[str, Past]], list[Participant]]
"""The participants of a schedule; of clients with a past, by the rule and for the rest of it."""


@dataclass(frozen=True)
class Holding:
    """Which records the clients of a run hold."""

    names: Sequence[str]
    fingerprints: Sequence[str]
    sizes: Sequence[int]
    is_divided: bool
    """Whether one data set was divided among them, so that another seed moves records about."""
    block: str = ""

    @property
    def parts(self) -> dict[str, str]:
        """The fingerprint of every client's records."""
        return dict(zip(self.names, self.fingerprints, strict=True))


def plan_within(settings: Config, holding: Holding, schedule: Schedule, plan: Plan) -> list[
    Participant
]:  # fmt: skip
    """The participants of a run that its clients' budgets hold; raises where they do not.

    Nothing is written. Clients that are left out are asked in no round.
    """
    privacy = settings.privacy
    if not isinstance(privacy, PrivacyConfig) or privacy.ledger is None:
        return plan(schedule, {})
    _require_apart(holding)
    pasts, moved = _read_pasts(privacy, Path(privacy.ledger), holding)
    unspent = {name: replace(past, held=None) for name, past in pasts.items()}
    people = plan(schedule, unspent)
    if privacy.accounting == "vector":  # a client without a budget gets that of the run
        pasts = {
            own.name: replace(pasts[own.name], budget=pasts[own.name].budget or own.budget)
            for own in people
        }
    short = {own.name for own in people if not _fits(own, pasts[own.name])}
    if short and privacy.exhausted == "refuse":
        raise BudgetExceeded(_refusal(settings, people, pasts, short, schedule, plan))
    if short and privacy.exhausted == "fit":
        people = _with_more_noise(people, pasts, unspent, short, schedule, plan)
    elif short:
        people = _without(people, unspent, short, schedule, plan)
    if moved:
        _require_alike(people)
    return people


def _read_pasts(
    privacy: PrivacyConfig, path: Path, holding: Holding
) -> tuple[dict[str, Past], bool]:
    """What the ledger knows of every client, and whether records may have moved among them."""
    clients = len(holding.names)
    epsilons, deltas = per_client(privacy.epsilon, clients), per_client(privacy.delta, clients)
    pasts = {
        name: Past(Filter.planned(epsilon, delta), None)
        for name, epsilon, delta in zip(holding.names, epsilons, deltas, strict=True)
    }
    if not path.is_file():
        if holding.block:
            raise InvalidInput("data.block", f"there is no ledger {str(path)!r} that knows blocks")
        return pasts, False
    with Ledger(path, read_only=True) as ledger:
        if problems := ledger.verify():
            raise LedgerError(f"the ledger is not sound, nothing is charged to it: {problems[0]}")
        for name, fingerprint in holding.parts.items():
            ledger.require_own_account(name, fingerprint, holding.block)
            if (known := ledger.account_of(name, holding.block)) is not None:
                rule = ledger.filter(known)
                if rule is None:
                    raise LedgerError(f"{path} is the ledger of one run and not for others")
                budget, held = ledger.budget(known), ledger.held(known)
                if budget is not None or held is not None:  # else its orders are not fixed yet
                    pasts[name] = Past(rule, budget, held)
        taken = _taken_over(ledger, holding)
    if taken is None:
        return pasts, False
    rule = taken.rule
    assert rule is not None, "the accounts of a shared ledger have a filter"
    return {name: replace(past, rule=rule, held=taken.event) for name, past in pasts.items()}, True


def _require_apart(holding: Holding) -> None:
    """Refuse clients that hold the very same records: these would get several budgets."""
    holders: dict[str, str] = {}
    for name, fingerprint, size in zip(
        holding.names, holding.fingerprints, holding.sizes, strict=True
    ):
        if size and (other := holders.setdefault(fingerprint, name)) != name:
            raise InvalidInput("data", f"{other} and {name} hold the very same records")


def _taken_over(ledger: Ledger, holding: Holding) -> Takeover | None:
    """What clients take over where records may have moved.

    Also where the data is not divided now: its records may come out of a set that was.
    """
    if not holding.is_divided and ledger.division(holding.block) is None:
        return None
    return ledger.taken_over(holding.parts, holding.block)


def _require_alike(people: Sequence[Participant]) -> None:
    plans = [own.rest_event(0) for own in people]
    if len({plan and event_to_json(plan) for plan in plans}) > 1:
        raise BudgetExceeded(
            "records of this data set may be at other clients than in earlier runs on this ledger "
            "(another seed or partition): every client takes over the largest spending among them "
            "and pays the largest plan of this run, so all have to have the same plan, and here "
            "they differ; nothing was trained"
        )


def _fits(own: Participant, past: Past) -> bool:
    event = own.rest_event(0)
    if event is None or past.budget is None:
        return True
    return not would_exceed(past.history, event, past.budget, past.rule)


def _with_more_noise(
    people: Sequence[Participant],
    pasts: Mapping[str, Past],
    unspent: Mapping[str, Past],
    short: set[str],
    schedule: Schedule,
    plan: Plan,
) -> list[Participant]:
    try:
        fitted = plan(schedule, {**unspent, **{name: pasts[name] for name in short}})
    except Infeasible as error:
        raise BudgetExceeded(
            f"{listed(sorted(short))}: no noise makes this run fit what is left ({error}); "
            "nothing was trained"
        ) from None
    if still := [own.name for own in fitted if not _fits(own, pasts[own.name])]:
        raise BudgetExceeded(
            f"{listed(sorted(still))}: the budget does not hold this run, whose noise is not "
            "planned for a guarantee; nothing was trained"
        )
    log.warning(
        "%s: more noise, so that the run fits what is left of the budget", listed(sorted(short))
    )
    return fitted


def _without(
    people: Sequence[Participant],
    unspent: Mapping[str, Past],
    short: set[str],
    schedule: Schedule,
    plan: Plan,
) -> list[Participant]:
    if short == {own.name for own in people if own.rounds}:
        raise BudgetExceeded(f"no client has enough left for this run: {listed(sorted(short))}")
    log.warning("without %s: the budget does not hold this run", listed(sorted(short)))
    numbers = {number for number, own in enumerate(people) if own.name in short}
    rest = [tuple(client for client in chosen if client not in numbers) for chosen in schedule]
    return plan(rest, unspent)


def _refusal(
    settings: Config,
    people: Sequence[Participant],
    pasts: Mapping[str, Past],
    short: set[str],
    schedule: Schedule,
    plan: Plan,
) -> str:
    """Who cannot pay for the run, and what the first of them could pay for."""
    own = next(person for person in people if person.name in short)
    past, rounds = pasts[own.name], own.rounds
    event, offers = own.round_event, []
    assert past.budget is not None
    assert event is not None
    if not own.factors and (left := rounds_left(past.history, event, past.budget, past.rule)):
        cost = account(Repeated(event, left), past.budget.delta, past.rule).epsilon
        less = math.floor(1e4 * cost) / 1e4
        offers.append(f"{left} of {rounds} rounds (with privacy.epsilon = {less:g})")
    try:
        fitted = plan(schedule, {name: pasts[name] for name in pasts if name in short})
        noisier = next(person for person in fitted if person.name == own.name)
        assert noisier.release is not None
        if _fits(noisier, past):  # not where a method brings its own noise along
            offers.append(f"{rounds} rounds at noise {noisier.release.mechanism.noise_std:.3g}")
    except UdpflError:
        pass
    fits = f"{' or '.join(offers)} would fit" if offers else "nothing of it would fit"
    return (
        f"{listed(sorted(short))}: the budget in {settings.privacy.ledger} does not hold this run; "  # type: ignore[union-attr]
        f"nothing was trained. {own.name} has ε = {past.budget.epsilon:g} at δ = "
        f'{past.budget.delta:g} in all: {fits} (privacy.exhausted = "fit" adds noise, "skip" '
        "leaves such clients out)"
    )


def require_charges(ledger: Ledger, folder: RunFolder) -> None:
    """Refuse to go on, and to reserve, where the ledger does not hold what a run has released."""
    found = folder.read_checkpoint()
    if found is not None and not ledger.holds(*found.head):
        raise LedgerError(
            f"charge {found.head[0]}, which {folder.path} ended with, is not in its ledger: this "
            "is another ledger, or one that was restored from a backup. What was charged since is "
            "missing, so the run cannot go on"
        )


def admit(
    settings: Config,
    ledger: Ledger,
    run: str,
    folder: str,
    holding: Holding,
    people: Sequence[Participant],
    claimed: bool,
) -> list[int]:
    """Open every client's account and reserve what the run will cost it; the accounts.

    A run that claims nothing gets no budgets and reserves nothing: it could not keep any.
    """
    privacy = settings.privacy
    private = isinstance(privacy, PrivacyConfig)
    shared = isinstance(privacy, PrivacyConfig) and privacy.ledger is not None
    ledger.begin_run(
        run,
        randomness=privacy.randomness if isinstance(privacy, PrivacyConfig) else "entropy",
        accounting=privacy.accounting if isinstance(privacy, PrivacyConfig) else "vector",
        description={
            "data": settings.data.name,
            "algorithm": settings.training.algorithm,
            "folder": folder,
        },
    )
    guaranteed = claimed and isinstance(privacy, PrivacyConfig) and privacy.accounting == "vector"
    accounts = ledger.open_accounts(
        holding.parts, block=holding.block, runs="many" if shared else "one"
    )
    for person, number in zip(people, accounts, strict=True):
        if person.budget and guaranteed and ledger.budget(number) is None:
            ledger.set_budget(number, person.budget)
    if shared and (holding.is_divided or ledger.division(holding.block) is not None):
        if _taken_over(ledger, holding) is not None:
            _require_alike(people)
        ledger.divide(holding.parts, holding.block)
    if private and claimed:
        plans: dict[int, Event] = {}
        for person, number in zip(people, accounts, strict=True):
            event = person.rest_event(ledger.rounds_charged(run, number))
            if event is not None:
                plans[number] = event
        ledger.reserve(run, plans)
    return accounts
