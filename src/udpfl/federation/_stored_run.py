"""A run as its folder stores it: its plans, its id and its ledger, new or resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from udpfl.errors import InvalidInput
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.selection import list_names
from udpfl.runs.folder import RunFolder


@dataclass(frozen=True)
class StoredRun:
    """What a run folder says of its run. A resumed run is held to it."""

    folder: RunFolder
    plans: Sequence[ReleasePlan]
    run: str
    ledger: Path
    has_shared_ledger: bool

    @classmethod
    def read(cls, folder: RunFolder, dimension: int, fingerprints: Sequence[str]) -> StoredRun:
        """Read a folder; refuse to go on with another model or with other records."""
        plans = [ReleasePlan.from_row(row) for row in folder.clients]
        identity = folder.identity
        _require_same_model(plans, dimension)
        began_with = fingerprints if identity.fingerprints is None else identity.fingerprints
        _require_same_data(plans, began_with, fingerprints)
        shared = identity.ledger
        path = Path(shared) if shared else folder.ledger
        return cls(folder, plans, identity.id, path, bool(shared))


def _require_same_model(plans: Sequence[ReleasePlan], dimension: int) -> None:
    for plan in plans:
        planned = plan.release and plan.release.sensitivity.dimension
        if planned not in (None, dimension):
            raise InvalidInput(
                "resume",
                f"the run was planned for {planned} parameters, but the model has {dimension}",
            )


def _require_same_data(
    plans: Sequence[ReleasePlan], began_with: Sequence[str], found: Sequence[str]
) -> None:
    """Refuse to go on with other records than those that were charged."""
    pairs = zip(plans, began_with, found, strict=True)
    changed = [plan.name for plan, before, now in pairs if before != now]
    if changed:
        raise InvalidInput(
            "resume",
            f"the records of {list_names(changed)} are not those that the run began with: resume "
            f"it with the same data, or begin a new run",
        )
