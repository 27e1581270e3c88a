"""The run folder: everything a run leaves behind, written so that a crash never corrupts it.

config.toml          the resolved configuration
run.json             identity, version, and whether the run is private
participants.json    what each client declares, and its noise
records.npz          the record indices of each client, of the test and of the public split
metrics.jsonl        one line per round
charged.log          the ledger's last charge after every round, on disk before a message is used
checkpoints/         the server's state after the latest rounds
ledger.sqlite        charges and answers, unless the run uses a shared ledger
updates/             released messages of the rounds in `record_updates`
model.safetensors    the final global model, if one was trained, under its own parameter names
evaluation.json      the final model on the test split: confusion matrix, or errors by output
summary.json         what `udpfl run --json` prints, each client's statement, the last charge
report.html          all of it on one page, for people
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from udpfl.algorithms.message import Tensors, tensors_from_bytes, tensors_to_bytes
from udpfl.data.records import DataSet, Indices
from udpfl.errors import InvalidInput, UdpflError

_KEPT = 2
_HASH = 64
"""Characters of a hash in the ledger's chain."""


class Checkpoint(NamedTuple):
    """What the server had after a round."""

    round: int
    tensors: Tensors
    answered: dict[str, int]
    """Rounds that each client had answered."""
    head: tuple[int, str]
    """The number and the hash of the last charge in the ledger then."""


class RunFolder:
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new, empty run folder."""
        if path.exists() and not _free(path):
            raise InvalidInput(
                "out", f"{str(path)!r} exists and is not empty; --resume continues a run"
            )
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput("out", f"cannot create {str(path)!r}: {error.strerror}") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path, parameter: str = "resume") -> RunFolder:
        """A folder that a run has begun; `parameter` is what a refusal is about."""
        folder = cls(path)
        if not folder.config.is_file() or not (path / "run.json").is_file():
            raise InvalidInput(parameter, f"{str(path)!r} is not a run folder")
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of the folder; a crash leaves no lock behind."""
        path = self.path / ".lock"
        with _explained(path):
            file = path.open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InvalidInput(
                    "resume", f"another process is working in {str(self.path)!r}"
                ) from None
            yield

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.toml"

    @property
    def ledger(self) -> Path:
        """The run's own ledger."""
        return self.path / "ledger.sqlite"

    @property
    def model(self) -> Path:
        """The final model."""
        return self.path / "model.safetensors"

    @property
    def metrics(self) -> Path:
        """One JSON line per round."""
        return self.path / "metrics.jsonl"

    def write_json(self, name: str, value: Any) -> None:
        """A JSON file, whole or not at all."""
        self._write(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def read_json(self, name: str) -> Any:
        """A JSON file of this run."""
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise InvalidInput("resume", f"cannot read {self.path / name}: {error}") from None

    def drop_summary(self) -> float:
        """Remove the summary of a run that goes on; the seconds that it says the run had taken.

        What it says is no longer so once there are new results beside it.
        """
        try:
            seconds = float(self.read_json("summary.json")["seconds"])
        except (InvalidInput, KeyError, TypeError, ValueError):
            seconds = 0.0
        with _explained(self.path / "summary.json"):
            (self.path / "summary.json").unlink(missing_ok=True)
        return seconds

    def write_text(self, name: str, text: str) -> None:
        """A text file, whole or not at all."""
        self._write(self.path / name, text.encode())

    def write_records(self, parts: Sequence[Indices], public: Indices, data: DataSet) -> None:
        """Who held which records, as positions in the training set, in the order of the clients.

        Where the test split was made here, "train" and "test" are positions in the source (per
        client, where the data came client by client).
        """
        arrays = {f"client-{i}": part for i, part in enumerate(parts)}
        for name, records in (("train", data.train), ("test", data.test)):
            if records.positions is not None:
                arrays[name] = records.positions
        buffer = io.BytesIO()
        np.savez_compressed(buffer, public=public, **arrays)  # type: ignore[arg-type]
        self._write(self.path / "records.npz", buffer.getvalue())

    def write_checkpoint(
        self,
        round_: int,
        server: Tensors,
        answered: Mapping[str, int] | None = None,
        head: tuple[int, str] = (0, ""),
    ) -> None:
        """The server's state after a round, how many rounds each client had answered, and the last
        charge in the ledger.

        The two latest are kept.
        """
        header = {"round": round_, "answered": dict(answered or {}), "head": list(head)}
        data = tensors_to_bytes(server, header)
        self._write(self._checkpoint(round_), data)
        cut_short = (self.path / "checkpoints").glob(".round-*")  # by a crash
        for old in (*self._checkpoints()[:-_KEPT], *cut_short):
            old.unlink(missing_ok=True)

    def read_checkpoint(self) -> Checkpoint | None:
        """The latest readable one."""
        for path in reversed(self._checkpoints()):
            try:
                tensors, header = tensors_from_bytes(path.read_bytes())
                number, chain = header.get("head", (0, ""))  # an older one knows of none
                head = int(number), str(chain)
                return Checkpoint(int(header["round"]), tensors, dict(header["answered"]), head)
            except (UdpflError, OSError, KeyError, TypeError, ValueError):
                continue
        return None

    def note_charge(self, number: int, chain: str) -> None:
        """The ledger's last charge, on disk before anybody sees what was charged."""
        with _explained(self._charged), self._charged.open("a") as file:
            file.write(f"{number} {chain}\n")
            file.flush()
            os.fsync(file.fileno())

    def last_charge(self) -> tuple[int, str]:
        """The last charge that was noted; 0 and nothing before the first."""
        lines = self._charged.read_text().splitlines() if self._charged.exists() else []
        for line in reversed(lines):
            number, _, chain = line.partition(" ")
            if number.isdigit() and len(chain) == _HASH:  # a crash may have cut the last one short
                return int(number), chain
        return 0, ""

    @property
    def _charged(self) -> Path:
        return self.path / "charged.log"

    def _checkpoint(self, round_: int) -> Path:
        return self.path / "checkpoints" / f"round-{round_:06d}.safetensors"

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def write_aggregate(self, round_: int, data: bytes) -> None:
        """What a trusted server lets out in a round, kept as long as the round may run again."""
        folder = self.path / "aggregates"
        with _explained(folder):
            folder.mkdir(exist_ok=True)
        self._write(folder / f"round-{round_:06d}.safetensors", data)
        oldest = min((int(p.stem[-6:]) for p in self._checkpoints()), default=0)
        for old in folder.glob("round-*.safetensors"):
            if int(old.stem[-6:]) <= oldest:
                old.unlink(missing_ok=True)

    def read_aggregate(self, round_: int) -> bytes | None:
        """The same; None where nothing was let out in that round."""
        path = self.path / "aggregates" / f"round-{round_:06d}.safetensors"
        return path.read_bytes() if path.is_file() else None

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One more line."""
        with _explained(self.metrics), self.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_metrics(self, up_to: int | None = None) -> list[dict[str, Any]]:
        """The rows of the rounds so far; a line that a crash cut short is left out."""
        if not self.metrics.exists():
            return []
        rows = []
        for line in self.metrics.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if up_to is None or row["round"] <= up_to:
                rows.append(row)
        return rows

    def rewrite_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Drop the rows of rounds that will run again."""
        self._write(self.metrics, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def write_update(self, round_: int, client: str, data: bytes) -> None:
        """Keep a released message for analysis."""
        folder = self.path / "updates"
        with _explained(folder):
            folder.mkdir(exist_ok=True)
        self._write(folder / f"round-{round_:06d}-{_plain(client)}.safetensors", data)

    def write_model(self, tensors: Tensors, stamp: Mapping[str, Any]) -> None:
        """The final model under the user's own parameter names; what it cost is in its header."""
        self._write(self.model, tensors_to_bytes(tensors, stamp))

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        """Replace a file in one step, on disk before the call returns."""
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        with _explained(path):
            try:
                with partial.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except OSError:
                partial.unlink(missing_ok=True)
                raise
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _plain(client: str) -> str:
    """A client's name as part of a file name; no two names give the same one."""
    return re.sub(r"[^\w.=-]", lambda found: quote(found[0], safe=""), client)


def _free(path: Path) -> bool:
    """Whether a run may begin here: an empty folder, or one whose run never got to begin."""
    if not path.is_dir():
        return False
    found = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    return found <= {"config.toml", "participants.json", "records.npz", "checkpoints"}


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UdpflError(f"cannot write {path}: {error.strerror}") from None
