"""What a run that goes on is held to: its ledger, its files and its records."""

from __future__ import annotations

from udpfl.errors import (
    InvalidInput,
    LedgerError,
)
from udpfl.federation._stored_run import StoredRun
from udpfl.federation.admission.holding import Holding
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import digests


def require_charges(stored: StoredRun, holding: Holding) -> None:
    """Refuse to go on where the ledger does not hold what a run has released, or is not sound.

    `holding` is about the records that the run would go on with.
    """
    folder, path = stored.folder, stored.ledger
    checkpoint, last = folder.read_checkpoint(), folder.last_charge()
    if checkpoint is None and last[0] == 0:  # it never got to begin
        return
    if not path.is_file():
        raise LedgerError(
            f"{path}, the ledger of {folder.path}, is missing: the run cannot be resumed"
        )
    with Ledger(path, read_only=True) as ledger, ledger.snapshot():
        for number, chain in {last, *(() if checkpoint is None else (checkpoint.head,))}:
            if not ledger.holds(number, chain):
                raise LedgerError(
                    f"charge {number}, the last one of {folder.path}, is not in its ledger: this "
                    f"is another ledger, or one that was restored from a backup. Later charges are "
                    f"missing, so the run cannot be resumed"
                )
        if problems := ledger.verify(events=False):
            raise LedgerError(f"the ledger is not sound, so nothing was charged: {problems[0]}")
        sealed = ledger.sealed(stored.run).begun_with or {}  # earlier versions sealed nothing
        found = digests(folder.path, sealed)
        for name in sealed:
            if found.get(name) != sealed[name]:
                raise InvalidInput(
                    "resume",
                    f"{name} is not the file that the run began with: restore that file, or begin "
                    "a new run",
                )
        charged = ledger.data_of(stored.run)
        for name, fingerprint in holding.parts.items():
            account = ledger.account_of(name, holding.block)
            if account is not None and charged.get(account, fingerprint) != fingerprint:
                raise InvalidInput(
                    "resume", f"the records of {name} are not those for which the run was charged"
                )
