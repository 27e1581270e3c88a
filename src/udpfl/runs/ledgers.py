"""Where the ledger of a run folder lies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from udpfl.errors import InvalidInput


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


def ledger_at(path: Path) -> Path:
    """The file of that name, or the ledger of that run's folder; it exists."""
    file = of_run(path) if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput("ledger", f"there is no ledger {str(file)!r}")
    return file


def of_run(folder: Path) -> Path:
    """The ledger that a run charged: its own, or the shared one it names."""
    try:
        identity = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError):
        identity = {}
    return ledger_of(folder, identity)
