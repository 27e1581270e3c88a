"""A run as it was begun: what a folder says of it, and what a run that goes on is held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from udpfl.errors import InvalidInput
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.selection import list_names
from udpfl.runs.folder import RunFolder


@dataclass(frozen=True)
class Begun:
    """A run folder as it was begun, new or not."""

    folder: RunFolder
    plans: Sequence[ReleasePlan]
    run: str
    ledger: Path
    has_shared_ledger: bool

    @classmethod
    def read(cls, folder: RunFolder, dimension: int, fingerprints: Sequence[str]) -> Begun:
        """Read a folder; refuse to go on with another model or with other records."""
        plans = [ReleasePlan.from_row(row) for row in folder.clients]
        identity = folder.identity
        _require_same_model(plans, dimension)
        begun = fingerprints if identity.fingerprints is None else identity.fingerprints
        _require_same_data(plans, begun, fingerprints)
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
    plans: Sequence[ReleasePlan], begun: Sequence[str], found: Sequence[str]
) -> None:
    """Refuse to go on with other records than those that were charged."""
    pairs = zip(plans, begun, found, strict=True)
    changed = [plan.name for plan, before, now in pairs if before != now]
    if changed:
        raise InvalidInput(
            "resume",
            f"the records of {list_names(changed)} are not those that the run began with: resume "
            f"it with the same data, or begin a new run",
        )
