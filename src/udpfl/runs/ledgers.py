"""Where the ledger of a run folder lies."""

from __future__ import annotations

from pathlib import Path

from udpfl.errors import InvalidInput
from udpfl.runs import names
from udpfl.runs.files import has_begun, read_identity
from udpfl.runs.schema import Identity, NewerFolder


def ledger_of(folder: Path, identity: Identity) -> Path:
    """The file that a run charged: its own, or the shared one that `identity` (run.json) names.

    A folder that was mailed together with a shared ledger finds it by the way from one to the
    other. To read only: a run goes on with the ledger that it was begun with, not with a copy.
    """
    shared = identity.ledger
    if not shared:
        return folder / names.LEDGER
    nearby = identity.ledger_from_here
    if not Path(shared).is_file() and nearby and (folder / nearby).is_file():
        return folder / nearby
    return Path(shared)


def ledger_at(path: Path) -> Path:
    """The file of that name, or the ledger of that run's folder; it exists."""
    file = of_run(path) if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput("ledger", f"there is no ledger {str(file)!r}")
    return file


def of_run(folder: Path) -> Path:
    """The ledger that a run charged: its own, or the shared one it names."""
    own = folder / names.LEDGER
    try:
        return ledger_of(folder, read_identity(folder, "ledger")) if has_begun(folder) else own
    except NewerFolder:
        raise
    except InvalidInput:  # a run.json that is broken names no other
        return own
