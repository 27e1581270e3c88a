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
from udpfl.accounting.statement import shown
from udpfl.config import Config, PrivacyConfig, per_client
from udpfl.errors import (
    BudgetExceeded,
    Infeasible,
    InvalidInput,
    LedgerError,
    UdpflError,
    Unsupported,
)
from udpfl.federation.participants import Participant, Past
from udpfl.federation.rounds import listed
from udpfl.federation.terms import require_same_unit, tell_of_deltas
from udpfl.ledger.divisions import Takeover
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import digests
from udpfl.runs.folder import RunFolder
from udpfl.runs.names import BEGUN_WITH

log = logging.getLogger(__name__)

_MOST_NOISE = 10
"""So many times the planned noise is not worth an offer."""

Schedule = Sequence[Sequence[int]]
Plan = Callable[[Schedule, Mapping[str, Past]], list[Participant]]
"""The participants of a schedule; of clients with a past, by the rule and for the rest of it."""


@dataclass(frozen=True)
class Holding:
    """Which records the clients of a run hold."""

    names: Sequence[str]
    fingerprints: Sequence[str]
    sizes: Sequence[int]
    pool: str = ""
    """The fingerprint of the data set that was divided among them, so that another seed moves
    records about; empty where every client brought its own."""
    block: str = ""

    @property
    def parts(self) -> dict[str, str]:
        """The fingerprint of every client's records."""
        return dict(zip(self.names, self.fingerprints, strict=True))

    def require_accounts(self, ledger: Ledger) -> None:
        """Refuse clients, blocks and records that would get a second budget in this ledger."""
        ledger.require_own_accounts(self.parts, self.block)
        if self.pool:
            ledger.require_one_block(self.pool, self.block)
        elif ledger.division(self.block) is None:  # else they take over what was spent
            ledger.require_known(self.names, self.block)

    def taken_over(self, ledger: Ledger) -> Takeover | None:
        """What clients take over where records may have moved.

        Also where the data is not divided now: its records may come out of a set that was.
        """
        if not self.pool and ledger.division(self.block) is None:
            return None
        return ledger.taken_over(self.parts, self.block)


def plan_within(settings: Config, holding: Holding, schedule: Schedule, plan: Plan) -> list[
    Participant
]:  # fmt: skip
    """The participants of a run that its clients' budgets hold; raises where they do not.

    Nothing is written. Clients that are left out are asked in no round.
    """
    privacy = settings.privacy
    if privacy.ledger is None:
        return plan(schedule, {})
    _require_apart(holding)
    known = _read_pasts(privacy, Path(privacy.ledger), holding)
    pasts = known.pasts
    require_same_unit(privacy, pasts)
    tell_of_deltas(privacy, pasts)
    unspent = {name: replace(past, held=None) for name, past in pasts.items()}
    people = plan(schedule, unspent)
    if privacy.accounting == "vector":  # a client without a budget gets that of the run
        pasts = {
            own.name: replace(pasts[own.name], budget=pasts[own.name].budget or own.budget)
            for own in people
        }
    short = {own.name for own in people if not _fits(own, pasts[own.name])}
    if short and privacy.exhausted == "refuse":
        raise BudgetExceeded(
            _refusal(privacy, people, replace(known, pasts=pasts), short, schedule, plan)
        )
    if short and privacy.exhausted == "fit":
        people = _with_more_noise(people, pasts, unspent, short, schedule, plan)
    elif short:
        people = _without(people, unspent, short, schedule, plan)
    if known.have_moved:
        _require_alike(people)
    return people


@dataclass(frozen=True)
class _Known:
    """What a ledger knows of the clients of a run."""

    pasts: Mapping[str, Past]
    have_moved: bool = False
    """Whether records may have moved among them, so that all take over the largest spending."""
    unfinished: Sequence[str] = ()
    """Folders of runs that hold reservations which they have not used up."""


def _read_pasts(privacy: PrivacyConfig, path: Path, holding: Holding) -> _Known:
    clients = len(holding.names)
    epsilons, deltas = per_client(privacy.epsilon, clients), per_client(privacy.delta, clients)
    pasts = {
        name: Past(Filter.planned(epsilon, delta), None)
        for name, epsilon, delta in zip(holding.names, epsilons, deltas, strict=True)
    }
    if not path.is_file():
        if holding.block:
            raise InvalidInput("data.block", f"there is no ledger {str(path)!r} that knows blocks")
        return _Known(pasts)
    unfinished: dict[str, None] = {}
    with Ledger(path, read_only=True) as ledger:
        if problems := ledger.verify():
            raise LedgerError(f"the ledger is not sound, nothing is charged to it: {problems[0]}")
        holding.require_accounts(ledger)
        for name in holding.names:
            if (known := ledger.account_of(name, holding.block)) is not None:
                rule = ledger.filter(known)
                if rule is None:
                    raise LedgerError(
                        f"{path} is the ledger of one run and not for others: let privacy.ledger "
                        "name a file that does not exist yet, or a ledger that runs share"
                    )
                unfinished |= dict.fromkeys(ledger.unfinished(known))
                budget, held = ledger.budget(known), ledger.held(known)
                if budget is not None or held is not None:  # else its orders are not fixed yet
                    pasts[name] = Past(rule, budget, held)
        taken, folders = holding.taken_over(ledger), ledger.folders()
    runs = [folders.get(run, run) for run in unfinished]
    if taken is None:
        return _Known(pasts, unfinished=runs)
    rule = taken.rule
    assert rule is not None, "the accounts of a shared ledger have a filter"
    moved = {name: replace(past, rule=rule, held=taken.event) for name, past in pasts.items()}
    return _Known(moved, have_moved=True, unfinished=runs)


def _require_apart(holding: Holding) -> None:
    """Refuse clients that hold the very same records: these would get several budgets."""
    holders: dict[str, str] = {}
    for name, fingerprint, size in zip(
        holding.names, holding.fingerprints, holding.sizes, strict=True
    ):
        if size and (other := holders.setdefault(fingerprint, name)) != name:
            raise InvalidInput("data", f"{other} and {name} hold the very same records")


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
    try:
        return not would_exceed(past.history, event, past.budget, past.rule)
    except Unsupported as error:
        raise Unsupported(
            f"{own.name}: {error}. Its budget in the ledger is at δ = {past.budget.delta:g}, "
            "whatever privacy.delta says: choose noise that keeps such a budget, or name another "
            "ledger"
        ) from None


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
        raise BudgetExceeded(
            f"no client has enough left for this run: {listed(sorted(short))}; `udpfl budget show` "
            "says what was spent, `udpfl budget set` raises a budget"
        )
    log.warning("without %s: the budget does not hold this run", listed(sorted(short)))
    numbers = {number for number, own in enumerate(people) if own.name in short}
    rest = [tuple(client for client in chosen if client not in numbers) for chosen in schedule]
    return plan(rest, unspent)


def _refusal(
    privacy: PrivacyConfig,
    people: Sequence[Participant],
    known: _Known,
    short: set[str],
    schedule: Schedule,
    plan: Plan,
) -> str:
    """Who cannot pay for the run, why, and what all of them could pay for."""
    pasts = known.pasts
    own = next(person for person in people if person.name in short)
    past = pasts[own.name]
    budget = past.budget
    assert budget is not None
    offers = []
    if privacy.accounting == "vector":
        offers = [
            *_fewer_rounds([person for person in people if person.name in short], pasts),
            *_more_noise(own, pasts, short, schedule, plan),
        ]
    spent = account(past.held, budget.delta, past.rule).epsilon if past.held else 0.0
    said = [
        f"{listed(sorted(short))}: the budget in {privacy.ledger} does not hold this run; nothing "
        f"was trained. {own.name} has ε = {budget.epsilon:g} at δ = {budget.delta:g}, of which "
        f"ε = {shown(spent)} is spent{' or reserved' if known.unfinished else ''}",
        f"{' or '.join(offers)} would fit" if offers else "nothing of it would fit",
        "`udpfl budget set` raises a budget, with a reason on record",
    ]
    if known.have_moved:
        said.insert(
            1,
            "records may have moved between clients (another seed or partition), so every client "
            "goes on with the largest spending among them",
        )
    if known.unfinished:
        said.append(
            f"{', '.join(known.unfinished)} may still spend what it reserved: go on with it "
            "(--resume), or give it back (`udpfl budget free`)"
        )
    return "; ".join(said)


def _fewer_rounds(short: Sequence[Participant], pasts: Mapping[str, Past]) -> list[str]:
    """How many rounds all could pay for, where they are to pay alike and in every round alike."""
    events = {person.round_event for person in short}
    if len(events) > 1 or short[0].factors:
        return []
    (event,), rounds = events, max(person.rounds for person in short)
    assert event is not None
    past = min((pasts[person.name] for person in short), key=lambda own: _left(own, event))
    if not (left := _left(past, event)):
        return []
    assert past.budget is not None
    cost = account(Repeated(event, left), past.budget.delta, past.rule).epsilon
    epsilon = math.floor(1e4 * cost) / 1e4  # with which the same noise is planned
    return [f"{left} of {rounds} rounds (with privacy.epsilon = {epsilon:g})"]


def _left(past: Past, event: Event) -> int:
    assert past.budget is not None
    return rounds_left(past.history, event, past.budget, past.rule)


def _more_noise(
    own: Participant,
    pasts: Mapping[str, Past],
    short: set[str],
    schedule: Schedule,
    plan: Plan,
) -> list[str]:
    """The noise of this client with which all could pay for the whole run."""
    try:
        fitted = plan(schedule, {name: pasts[name] for name in pasts if name in short})
    except UdpflError:
        return []
    noisier = next(person for person in fitted if person.name == own.name)
    assert noisier.release is not None
    # A method that brings its own noise along does not fit whatever is planned.
    if not all(_fits(person, pasts[person.name]) for person in fitted if person.name in short):
        return []
    assert own.release is not None
    wanted, needed = own.release.mechanism.noise_std, noisier.release.mechanism.noise_std
    if needed > _MOST_NOISE * wanted:  # nothing would be learned
        return []
    return [
        f"{own.rounds} rounds at noise {needed:.3g} in place of {wanted:.3g} "
        '(privacy.exhausted = "fit")'
    ]


def require_charges(
    path: Path, folder: RunFolder, run: str, fingerprints: Mapping[str, str], block: str
) -> None:
    """Refuse to go on where the ledger does not hold what a run has released, or is not sound.

    `fingerprints` are of the records that the run would go on with, by client.
    """
    checkpoint, last = folder.read_checkpoint(), folder.last_charge()
    if checkpoint is None and last[0] == 0:  # it never got to begin
        return
    if not path.is_file():
        raise LedgerError(f"{path}, the ledger of {folder.path}, is not there: it cannot go on")
    with Ledger(path, read_only=True) as ledger:
        for number, chain in {last, *(() if checkpoint is None else (checkpoint.head,))}:
            if not ledger.holds(number, chain):
                raise LedgerError(
                    f"charge {number}, which {folder.path} ended with, is not in its ledger: this "
                    "is another ledger, or one that was restored from a backup. What was charged "
                    "since is missing, so the run cannot go on"
                )
        if problems := ledger.verify(events=False):
            raise LedgerError(f"the ledger is not sound, nothing is charged to it: {problems[0]}")
        sealed = ledger.sealed(run).begun_with or {}  # earlier versions sealed nothing
        found = digests(folder.path, sealed)
        for name in sealed:
            if found.get(name) != sealed[name]:
                raise InvalidInput(
                    "resume",
                    f"{name} is not the file that the run began with: a run goes on as it was "
                    "begun, or a new one is begun",
                )
        charged = ledger.data_of(run)
        for name, fingerprint in fingerprints.items():
            account = ledger.account_of(name, block)
            if account is not None and charged.get(account, fingerprint) != fingerprint:
                raise InvalidInput(
                    "resume", f"the records of {name} are not those that the run was charged for"
                )


def admit(
    settings: Config,
    ledger: Ledger,
    run: str,
    folder: Path,
    holding: Holding,
    people: Sequence[Participant],
    claimed: bool,
) -> list[int]:
    """Open every client's account and reserve what the run will cost it; the accounts.

    All of it or nothing: a run that is refused leaves the ledger as it was. The files in its folder
    that the run begins with are sealed. A run that claims nothing gets no budgets and reserves
    nothing: it could not keep any.
    """
    with ledger.transaction():
        _begin(settings, ledger, run, folder)
        return _reserved(settings, ledger, run, holding, people, claimed)


def _begin(settings: Config, ledger: Ledger, run: str, folder: Path) -> None:
    privacy = settings.privacy
    ledger.begin_run(
        run,
        randomness=privacy.randomness,
        accounting=privacy.accounting,
        description={
            "data": settings.data.name,
            "algorithm": settings.training.algorithm,
            "folder": folder.name,
        },
        files=digests(folder, BEGUN_WITH),
    )


def _reserved(
    settings: Config,
    ledger: Ledger,
    run: str,
    holding: Holding,
    people: Sequence[Participant],
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
        for person, number in zip(people, accounts, strict=True):
            if person.budget and ledger.budget(number) is None:
                ledger.set_budget(number, person.budget)
    if is_shared and (holding.pool or ledger.division(holding.block) is not None):
        if holding.taken_over(ledger) is not None:
            _require_alike(people)
        ledger.divide(holding.parts, holding.block, holding.pool)
    if claimed and privacy.enabled:
        rests = [
            own.rest_event(ledger.rounds_charged(run, number))
            for own, number in zip(people, accounts, strict=True)
        ]
        plans = {number: rest for number, rest in zip(accounts, rests, strict=True) if rest}
        ledger.reserve(run, plans)
    return accounts
