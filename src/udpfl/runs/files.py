"""The one reader of run folders: every file as its type in `runs.schema`, without torch.

A file that is broken is refused by its name, and so is the folder of a newer version. Nothing that
the files say is believed here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from udpfl.errors import InvalidInput
from udpfl.runs import names
from udpfl.runs._version1 import as_version_2
from udpfl.runs.preprocessing import Preprocessing
from udpfl.runs.schema import (
    VERSION,
    ClientRow,
    FinalEvaluation,
    Identity,
    NewerFolder,
    RoundRow,
    Stamp,
    Summary,
    version_of,
)

T = TypeVar("T")


def has_begun(folder: Path) -> bool:
    """Whether there is a run in this folder; run.json is the last file that a beginning writes."""
    return (folder / names.IDENTITY).is_file()


def has_ended(folder: Path) -> bool:
    """Whether its run is over; summary.json is the last file of all."""
    return (folder / names.SUMMARY).is_file()


def read_identity(folder: Path, parameter: str = "run") -> Identity:
    """Which run this is. `parameter` is what a refusal is about, here and below."""

    def parse(plain: Any) -> Identity:
        if isinstance(plain, dict) and (version := version_of(plain)) > VERSION:
            raise NewerFolder(
                parameter,
                f"{str(folder)!r} was written by a newer version of udpfl: upgrade udpfl to read "
                f"it (it has version {version} of the run folder, and this udpfl knows {VERSION})",
            )
        if isinstance(plain, dict) and version == 1:
            plain = as_version_2(folder, plain)
        return Identity.from_dict(plain)

    found = _read(folder / names.IDENTITY, parse, parameter)
    if found is None:
        raise InvalidInput(
            parameter, f"{str(folder)!r} is not a run folder: it has no {names.IDENTITY}"
        )
    return found


def read_clients(folder: Path, parameter: str = "run") -> tuple[ClientRow, ...]:
    """What each client declares, its noise and its budget."""

    def parse(plain: Any) -> tuple[ClientRow, ...]:
        if not isinstance(plain, list):
            raise InvalidInput("clients", f"must be a list, got {plain!r}")
        return tuple(map(ClientRow.from_dict, plain))

    return _read(folder / names.CLIENTS, parse, parameter) or ()


def read_metrics(folder: Path, parameter: str = "run") -> tuple[RoundRow, ...]:
    """A row for each round so far; a line that a crash cut short is left out."""
    path, rows = folder / names.METRICS, []
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for line in lines:
            try:
                plain = json.loads(line)
            except ValueError:
                continue
            rows.append(RoundRow.from_dict(plain))
    except (OSError, ValueError) as error:
        raise InvalidInput(parameter, f"cannot read {path}: {error}") from None
    return tuple(rows)


def read_preprocessing(folder: Path, parameter: str = "run") -> Preprocessing | None:
    """What new records need before the model; None in a folder of an older version."""
    return _read(folder / names.PREPROCESSING, Preprocessing.from_dict, parameter)


def read_summary(folder: Path, parameter: str = "run") -> Summary | None:
    """What a run came to; None before its end."""
    return _read(folder / names.SUMMARY, Summary.from_dict, parameter)


@dataclass(frozen=True)
class RunFiles:
    """What the files of one run folder say. One that a crash left out is not there yet."""

    path: Path
    identity: Identity
    clients: Sequence[ClientRow]
    metrics: Sequence[RoundRow]
    summary: Summary | None
    evaluation: FinalEvaluation | None

    @classmethod
    def read(cls, path: Path) -> RunFiles:
        """Read a folder that a run has begun."""
        return cls(
            path,
            identity=read_identity(path),
            clients=read_clients(path),
            metrics=read_metrics(path),
            summary=read_summary(path),
            evaluation=_read(path / names.EVALUATION, FinalEvaluation.from_dict, "run"),
        )

    @property
    def run(self) -> str:
        """The id of the run."""
        return self.identity.id

    @property
    def answers(self) -> int:
        """How many answers clients gave, by the metrics."""
        return sum(row.participants for row in self.metrics)

    @property
    def model(self) -> Path:
        """The final model."""
        return self.path / names.MODEL

    @cached_property
    def stamp(self) -> Stamp | None:
        """What the header of the model says, read without torch; None where there is no model."""
        try:
            with self.model.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > self.model.stat().st_size:
                    raise ValueError("its header is cut off")
                header = json.loads(file.read(length)).get("__metadata__", {})
            return Stamp.from_dict(json.loads(header.get("udpfl", "{}")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError) as error:
            raise InvalidInput("model", f"cannot read {self.model}: {error}") from None


def _read(path: Path, parse: Callable[[Any], T], parameter: str) -> T | None:
    """The content of a JSON file as its type; None where the file is not there."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except NewerFolder:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(parameter, f"cannot read {path}: {error}") from None
