"""What a run that has not finished has spent so far: read from its ledger, which never lags.

The metrics know an epsilon of evaluated rounds only, and charges are made in every round. So the
ledger is asked, or no number is stated at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from udpfl.accounting.statement import PrivacyStatement, largest
from udpfl.errors import LedgerError
from udpfl.ledger.accounts import Account
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.spending import accounted

Row = Mapping[str, Any]


def spent_so_far(
    path: Path, run: str, people: Sequence[Row], metrics: Iterable[Row], nominal: bool
) -> dict[str, PrivacyStatement]:
    """What each client has spent, in all runs on this ledger; raises where it does not say.

    `people` is participants.json. A nominal run has its own number in front of what is guaranteed.
    """
    if not people:
        raise LedgerError("the clients of this run are not known")
    with Ledger(path, read_only=True) as ledger:
        accounts = ledger.accounts()
        charged = {found.id: ledger.rounds_charged(run, found.id) for found in accounts}
        answers = sum(int(row.get("participants") or 0) for row in metrics)
        if sum(charged.values()) < answers:  # an older copy, or another ledger
            raise LedgerError(
                f"{path} holds {sum(charged.values())} of the {answers} answers of this run"
            )
        own_run = run if nominal else None
        return {
            person["name"]: _of_client(ledger, own_run, person, _held(accounts, charged, person))
            for person in people
        }


def _held(accounts: Sequence[Account], charged: Mapping[int, int], person: Row) -> list[int]:
    """The client's account. Before its first charge any of its name may be it: then all count."""
    own = [found.id for found in accounts if found.client == person["name"]]
    return [id_ for id_ in own if charged[id_]] or own


def _of_client(
    ledger: Ledger, nominal_run: str | None, person: Row, held: Sequence[int]
) -> PrivacyStatement:
    if not held:  # the run never came to open its account
        return accounted({}, _delta(person))
    return largest(_of_account(ledger, nominal_run, person, id_) for id_ in held)


def _of_account(ledger: Ledger, nominal_run: str | None, person: Row, id_: int) -> PrivacyStatement:
    budget = ledger.budget(id_)
    return ledger.statement(id_, budget.delta if budget else _delta(person), nominal_run)


def _delta(person: Row) -> float:
    """That of the budget, or the client's own where the method's noise could keep none."""
    return float(person["budget"][1] if person["budget"] else person["delta"])
