"""What the clients of an unfinished run have spent, read from its ledger.

The ledger is up to date in every round; the metrics have an epsilon for evaluated rounds only. If
the ledger cannot answer, no number is stated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from udpfl.accounting.statement import PrivacyStatement, largest
from udpfl.errors import LedgerError
from udpfl.ledger.accounts import Account
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.spending import accounted
from udpfl.runs.schema import ClientRow, RoundRow


def spent_by_unfinished(
    path: Path,
    run: str,
    clients: Sequence[ClientRow],
    metrics: Iterable[RoundRow],
    nominal: bool,
) -> dict[str, PrivacyStatement]:
    """What each client has spent, in all runs on this ledger; raises where it does not say.

    A nominal run has its own number in front of what is guaranteed.
    """
    if not clients:
        raise LedgerError("the clients of this run are not known")
    with Ledger(path, read_only=True) as ledger, ledger.snapshot():
        accounts = ledger.accounts()
        charged = {found.id: ledger.rounds_charged(run, found.id) for found in accounts}
        answers = sum(row.participants for row in metrics)
        if sum(charged.values()) < answers:  # an older copy, or another ledger
            raise LedgerError(
                f"{path} holds {sum(charged.values())} of the {answers} answers of this run"
            )
        own_run = run if nominal else None
        return {
            client.name: _of_client(ledger, own_run, client, _held(accounts, charged, client))
            for client in clients
        }


def _held(accounts: Sequence[Account], charged: Mapping[int, int], client: ClientRow) -> list[int]:
    """The client's account. Before its first charge any of its name may be it: then all count."""
    own = [found.id for found in accounts if found.client == client.name]
    return [id_ for id_ in own if charged[id_]] or own


def _of_client(
    ledger: Ledger, nominal_run: str | None, client: ClientRow, held: Sequence[int]
) -> PrivacyStatement:
    if not held:  # the run never came to open its account
        return accounted({}, _delta(client))
    return largest(_of_account(ledger, nominal_run, client, id_) for id_ in held)


def _of_account(
    ledger: Ledger, nominal_run: str | None, client: ClientRow, id_: int
) -> PrivacyStatement:
    budget = ledger.budget(id_)
    return ledger.statement(id_, budget.delta if budget else _delta(client), nominal_run)


def _delta(client: ClientRow) -> float:
    if (delta := client.stated_delta) is None:
        raise LedgerError(f"{client.name} has no delta, so its spending cannot be stated")
    return float(delta)
