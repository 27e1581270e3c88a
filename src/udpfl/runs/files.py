"""The files of a run folder as they are, read without torch; nothing in them is believed here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from udpfl.errors import InvalidInput
from udpfl.ledger.chain import Head

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """What the files of one run folder say. One that a crash left out is not there yet."""

    path: Path
    identity: Row
    """run.json."""
    people: Sequence[Row]
    """participants.json."""
    metrics: Sequence[Row]
    summary: Row | None
    evaluation: Row | None

    @classmethod
    def read(cls, path: Path) -> RunFiles:
        """Read a folder that a run has begun."""
        return cls(
            path,
            identity=_json(path / "run.json") or {},
            people=_json(path / "participants.json") or (),
            metrics=_rows(path / "metrics.jsonl"),
            summary=_json(path / "summary.json"),
            evaluation=_json(path / "evaluation.json"),
        )

    @property
    def run(self) -> str:
        """The id of the run."""
        return str(self.identity.get("id"))

    @property
    def answers(self) -> int:
        """How many answers clients gave, by the metrics."""
        return sum(int(row.get("participants") or 0) for row in self.metrics)

    @property
    def model(self) -> Path:
        """The final model."""
        return self.path / "model.safetensors"

    @property
    def head(self) -> Head | None:
        """The last charge when the run ended, by the summary; None where it does not say."""
        return head_in(self.summary, "head")

    @property
    def decided(self) -> Head | None:
        """The last decision when the run ended, by the summary."""
        return head_in(self.summary, "decided")

    @property
    def stamp(self) -> Row | None:
        """What the header of the model says, read without torch; None where there is no model."""
        try:
            with self.model.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > self.model.stat().st_size:
                    raise ValueError("its header is cut off")
                header = json.loads(file.read(length)).get("__metadata__", {})
            stamp = json.loads(header.get("udpfl", "{}"))
            if not isinstance(stamp, dict):
                raise ValueError("its header is not an object")
            return stamp
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError) as error:
            raise InvalidInput("model", f"cannot read {self.model}: {error}") from None


def head_in(written: Row | None, key: str) -> Head | None:
    """The last row of a chain that a summary or the header of a model names; None in older ones."""
    if written is None or written.get(key) is None:
        return None
    try:
        number, chain = written[key]
        return Head(int(number), str(chain))
    except (TypeError, ValueError):
        raise InvalidInput(key, f"must be a number and a hash, got {written[key]!r}") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput("run", f"cannot read {path}: {error}") from None


def _rows(path: Path) -> list[Row]:
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:  # a line that a crash cut short
            continue
    return rows
