"""What attacks on a run found: one file each in `attacks/`, beside the files that the run sealed.

An attack adds files and changes none. All of them are read again, so that an attack that got past
what was claimed is not forgotten because a later one did not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from udpfl._version import __version__
from udpfl.errors import InvalidInput
from udpfl.runs import names
from udpfl.writing import explained, write_json

_TEXTS = ("attack", "kind", "verdict")


@dataclass(frozen=True)
class AttackRecord:
    """One attack on a finished run."""

    made: str
    """When, in ISO 8601."""
    udpfl: str
    """The version that attacked."""
    result: Mapping[str, Any]
    """What `udpfl attack NAME RUN --json --full` prints, but for the name of the file."""
    path: Path
    """The file; a page of the same name lies beside it."""

    @property
    def attack(self) -> str:
        """The name of the attack."""
        return str(self.result["attack"])

    @property
    def verdict(self) -> str:
        """The attack in one sentence."""
        return str(self.result["verdict"])

    @property
    def exceeded(self) -> bool:
        """Whether it got past what the privacy statement allows."""
        return bool(self.result["exceeded"])

    @property
    def page(self) -> Path:
        """The page about it, for people."""
        return self.path.with_suffix(".html")

    @classmethod
    def read(cls, path: Path) -> AttackRecord:
        """One file; a broken one is refused by its name."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            result = plain["result"]
            if not all(isinstance(result[name], str) for name in _TEXTS):
                raise ValueError("attack, kind and verdict must be texts")
            if not isinstance(result["exceeded"], bool):
                raise ValueError("it must say whether a cap was exceeded")
            attacked = result["attacked"]
            if not all(isinstance(attacked[name], str) for name in ("run", "model")):
                raise ValueError("it must say which run and which model were attacked")
            return cls(str(plain["made"]), str(plain["udpfl"]), result, path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput("run", f"cannot read {path}: {error}") from None


def write_attack(folder: Path, result: Mapping[str, Any]) -> Path:
    """Keep what an attack on a finished run found.

    Args:
        folder: The run folder.
        result: What the attack says, as plain data.

    Returns:
        The new file in the folder's `attacks/`, named after the attack and the time.

    Raises:
        UdpflError: The folder cannot be written to.

    Example:
        >>> from pathlib import Path
        >>> from udpfl.runs.attacks import read_attacks, write_attack
        >>> found = {"attack": "lira", "kind": "membership", "verdict": "Nothing learned."}
        >>> found |= {"exceeded": False, "attacked": {"run": "run-1", "model": ""}}
        >>> path = write_attack(Path(), found)
        >>> [record.verdict for record in read_attacks(Path())]
        ['Nothing learned.']
    """
    made = datetime.now(UTC)
    place = folder / names.ATTACKS
    with explained(place):
        place.mkdir(exist_ok=True)
    path = place / f"{result['attack']}-{made:%Y%m%dT%H%M%S.%f}Z.json"
    write_json(
        path,
        {
            "made": made.isoformat(timespec="seconds"),
            "udpfl": __version__,
            "result": dict(result),
        },
    )
    return path


def read_attacks(folder: Path) -> tuple[AttackRecord, ...]:
    """Every attack on a run, oldest first; a broken file is refused by its name."""
    found = [AttackRecord.read(path) for path in (folder / names.ATTACKS).glob("*.json")]
    return tuple(sorted(found, key=lambda own: own.path.stem.rpartition("-")[2]))
