"""Where the ledger of a run folder lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def ledger_of(folder: Path, identity: Mapping[str, Any]) -> Path:
    """The file that a run charged: its own, or the shared one that `identity` (run.json) names.

    A folder that was mailed together with a shared ledger finds it by the way from one to the
    other. To read only: a run goes on with the ledger that it was begun with, not with a copy.
    """
    shared = identity.get("ledger")
    if not shared:
        return folder / "ledger.sqlite"
    nearby = identity.get("ledger_from_here")
    if not Path(shared).is_file() and nearby and (folder / str(nearby)).is_file():
        return folder / str(nearby)
    return Path(shared)
