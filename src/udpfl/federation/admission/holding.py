"""Which records the clients of a run hold, and what a shared ledger knows of those clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from udpfl.accounting.filter import Filter
from udpfl.accounting.serial import event_to_json
from udpfl.config import PrivacyConfig, per_client
from udpfl.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerError,
)
from udpfl.federation.plan import Past, ReleasePlan
from udpfl.ledger.divisions import Takeover
from udpfl.ledger.ledger import Ledger


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
    person: str = ""
    """The column that says whose a row is; empty where the unit is no person."""

    @property
    def parts(self) -> dict[str, str]:
        """The fingerprint of every client's records."""
        return dict(zip(self.names, self.fingerprints, strict=True))

    def require_accounts(self, ledger: Ledger) -> None:
        """Refuse clients, blocks and records that would get a second budget in this ledger."""
        ledger.require_own_accounts(self.parts, self.block)
        others = sorted(ledger.persons() - {self.person})
        if self.person and others:
            raise InvalidInput(
                "data.person",
                f"is {self.person!r}, but earlier runs on this ledger took persons from "
                f"{others[0]!r}: what they spent is not what these persons spent. Use the same "
                "column, or another ledger",
            )
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


@dataclass(frozen=True)
class Known:
    """What a ledger knows of the clients of a run."""

    pasts: Mapping[str, Past]
    have_moved: bool = False
    """Whether records may have moved among them, so that all take over the largest spending."""
    unfinished: Sequence[str] = ()
    """Folders of runs that hold reservations which they have not used up."""
    new: Sequence[str] = ()
    """Clients that the ledger has no account of, where it has accounts of others."""


def read_pasts(privacy: PrivacyConfig, path: Path, holding: Holding) -> Known:
    """What the ledger at this path knows; raises where it is not sound, or for other runs."""
    clients = len(holding.names)
    epsilons, deltas = per_client(privacy.epsilon, clients), per_client(privacy.delta, clients)
    pasts = {
        name: Past(Filter.planned(epsilon, delta), None)
        for name, epsilon, delta in zip(holding.names, epsilons, deltas, strict=True)
    }
    if not path.is_file():
        if holding.block:
            raise InvalidInput(
                "data.block",
                f"there is no ledger {str(path)!r}: a block is added to an existing ledger",
            )
        return Known(pasts)
    unfinished: dict[str, None] = {}
    with Ledger(path, read_only=True) as ledger, ledger.snapshot():
        if problems := ledger.verify():
            raise LedgerError(f"the ledger is not sound, so nothing was charged: {problems[0]}")
        holding.require_accounts(ledger)
        for name in holding.names:
            if (known := ledger.account_of(name, holding.block)) is not None:
                rule = ledger.filter(known)
                if rule is None:
                    raise LedgerError(
                        f"{path} belongs to one run and cannot be shared: set privacy.ledger to a "
                        f"file that does not exist yet, or to a shared ledger"
                    )
                unfinished |= dict.fromkeys(ledger.unfinished(known))
                budget, held = ledger.budget(known), ledger.held(known)
                if budget is not None or held is not None:  # else its orders are not fixed yet
                    pasts[name] = Past(rule, budget, held)
        taken, folders = holding.taken_over(ledger), ledger.folders()
        is_new = [ledger.account_of(name, holding.block) is None for name in holding.names]
    new = [] if all(is_new) else [n for n, own in zip(holding.names, is_new, strict=True) if own]
    runs = [folders.get(run, run) for run in unfinished]
    if taken is None:
        return Known(pasts, unfinished=runs, new=new)
    rule = taken.rule
    assert rule is not None, "the accounts of a shared ledger have a filter"
    moved = {name: replace(past, rule=rule, held=taken.event) for name, past in pasts.items()}
    return Known(moved, have_moved=True, unfinished=runs, new=new)


def require_apart(holding: Holding) -> None:
    """Refuse clients that hold the very same records: these would get several budgets."""
    holders: dict[str, str] = {}
    for name, fingerprint, size in zip(
        holding.names, holding.fingerprints, holding.sizes, strict=True
    ):
        if size and (other := holders.setdefault(fingerprint, name)) != name:
            raise InvalidInput("data", f"{other} and {name} hold exactly the same records")


def require_alike(plans: Sequence[ReleasePlan]) -> None:
    """Refuse different plans where records may have moved from client to client."""
    if any(own.levels for own in plans):
        raise BudgetExceeded(
            "records of this data set may be at other clients than in earlier runs on this ledger "
            "(another seed or partition). All clients then have to pay the same in every round, "
            'which privacy.pace = "plateau" does not promise: choose another pace; nothing was '
            "trained"
        )
    events = [own.rest_event() for own in plans]
    if len({event and event_to_json(event) for event in events}) > 1:
        raise BudgetExceeded(
            "records of this data set may be at other clients than in earlier runs on this ledger "
            "(another seed or partition). Every client then takes over the largest spending of all "
            "clients and pays for the largest plan of this run, so all clients need the same plan, "
            "but their plans differ; nothing was trained"
        )
