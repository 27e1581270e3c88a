"""What audits of a run found: one file each in `audits/`, beside the files that the run sealed.

An audit adds a file and changes none. All of them are read again, so that an audit that refuted
the claim is not forgotten because a later one did not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from udpfl._version import __version__
from udpfl.errors import InvalidInput
from udpfl.runs import names
from udpfl.writing import explained, write_json


@dataclass(frozen=True)
class AuditRecord:
    """One audit of a finished run."""

    run: str
    """The id of the run."""
    model: str
    """SHA-256 of the model that was audited, in hex."""
    made: str
    """When, in ISO 8601."""
    udpfl: str
    """The version that audited."""
    trials: int
    """Replays in each world."""
    canaries: int | None
    """As asked for; None where the audit chose their number itself."""
    result: Mapping[str, Any]
    """What `udpfl audit run --json` prints."""

    @property
    def conclusion(self) -> str:
        """The audit in one sentence."""
        return str(self.result["conclusion"])

    @property
    def refuted(self) -> bool:
        """Whether it refuted the claim."""
        return bool(self.result["refuted"])

    @classmethod
    def from_dict(cls, plain: Any) -> AuditRecord:
        """The inverse of `dataclasses.asdict`; what is missing is never guessed."""
        wanted = {own.name for own in fields(cls)}
        if not isinstance(plain, Mapping) or plain.keys() != wanted:
            raise InvalidInput("audit", f"must have the fields {sorted(wanted)}")
        result = plain["result"]
        if not isinstance(result, Mapping) or not isinstance(result.get("conclusion"), str):
            raise InvalidInput("audit.result", "must have a conclusion")
        if not isinstance(result.get("refuted"), bool):
            raise InvalidInput("audit.result", "must say whether the claim was refuted")
        if not all(isinstance(plain[name], str) for name in ("run", "model", "made", "udpfl")):
            raise InvalidInput("audit", "run, model, made and udpfl must be texts")
        return cls(**plain)


def write_audit(
    folder: Path, run: str, result: Mapping[str, Any], trials: int, canaries: int | None
) -> Path:
    """Keep what an audit of a finished run found.

    Args:
        folder: The run folder.
        run: The id of its run.
        result: What the audit says, as plain data.
        trials: Replays in each world.
        canaries: As asked for.

    Returns:
        The new file in the folder's `audits/`.

    Raises:
        UdpflError: The folder cannot be written to.

    Example:
        >>> from pathlib import Path
        >>> from udpfl.runs.audits import read_audits, write_audit
        >>> _ = Path("model.safetensors").write_bytes(b"weights")
        >>> found = {"conclusion": "The claim was not refuted.", "refuted": False}
        >>> path = write_audit(Path(), "run-1", found, trials=100, canaries=0)
        >>> [record.conclusion for record in read_audits(Path())]
        ['The claim was not refuted.']
    """
    made = datetime.now(UTC)
    record = AuditRecord(
        run, model_digest(folder), made.isoformat(timespec="seconds"), __version__, trials,
        canaries, dict(result),
    )  # fmt: skip
    place = folder / names.AUDITS
    with explained(place):
        place.mkdir(exist_ok=True)
    path = place / f"{made:%Y%m%dT%H%M%S.%f}Z.json"
    write_json(path, asdict(record))
    return path


def read_audits(folder: Path) -> tuple[AuditRecord, ...]:
    """Every audit of a run folder, oldest first; a broken file is refused by its name."""
    found = []
    for path in sorted((folder / names.AUDITS).glob("*.json")):
        try:
            found.append(AuditRecord.from_dict(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            raise InvalidInput("run", f"cannot read {path}: {error}") from None
    return tuple(found)


def model_digest(folder: Path) -> str:
    """SHA-256 of the final model in hex; empty where there is none."""
    try:
        with (folder / names.MODEL).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
