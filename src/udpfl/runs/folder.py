"""The one writer of run folders: what a run leaves behind, so that a crash never corrupts it.

config.toml          the resolved configuration
run.json             version, identity, and whether the run is private
participants.json    what each client declares, and its noise
preprocessing.json   columns, scale, categories and labels: what new records need
proposal.json        what the server proposed, in the folder of one site of a deployment
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
audits/              what later audits found, a file each, see `runs.audits`; nothing seals them
attacks/             what attacks found, see `runs.attacks`; shadow models of an attacker
"""

from __future__ import annotations

import fcntl
import io
import json
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
from udpfl.runs import names
from udpfl.runs.files import has_begun, read_clients, read_identity, read_metrics, read_summary
from udpfl.runs.preprocessing import Preprocessing
from udpfl.runs.schema import ClientRow, FinalEvaluation, Identity, RoundRow, Stamp, Summary
from udpfl.writing import append_line, explained, write_json, write_whole

_KEPT = 2
_HASH = 64
"""Characters of a hash in the ledger's chain."""


class Checkpoint(NamedTuple):
    """What the server had after a round."""

    round: int
    tensors: Tensors
    head: tuple[int, str]
    """The number and the hash of the last charge in the ledger then."""
    sites: Mapping[str, tuple[int, str]] = {}
    """In a deployment, the last charge in the ledger of every site."""


class RunFolder:
    """Writes one run folder, and reads what the run itself needs of it.

    Args:
        path: The folder. `create` makes a new one, and `open` checks that a run was begun there.

    Example:
        >>> from pathlib import Path
        >>> from udpfl.federation import RunFolder
        >>> RunFolder.create(Path("runs/first")).config.name
        'config.toml'
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new, empty run folder."""
        if path.exists() and not _free(path):
            raise InvalidInput(
                "out", f"{str(path)!r} exists and is not empty; use --resume to continue a run"
            )
        try:
            (path / names.CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput("out", f"cannot create {str(path)!r}: {error.strerror}") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path, parameter: str = "resume") -> RunFolder:
        """A folder that a run has begun; `parameter` is what a refusal is about."""
        folder = cls(path)
        if not folder.config.is_file() or not has_begun(path):
            what = "is not a run folder" if path.exists() else "does not exist"
            raise InvalidInput(parameter, f"{str(path)!r} {what}")
        read_identity(path, parameter)  # refuses the folder of a newer version
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of the folder; a crash leaves no lock behind."""
        path = self.path / names.LOCK
        with explained(path):
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
        return self.path / names.CONFIG

    @property
    def ledger(self) -> Path:
        """The run's own ledger."""
        return self.path / names.LEDGER

    @property
    def model(self) -> Path:
        """The final model."""
        return self.path / names.MODEL

    @property
    def metrics(self) -> Path:
        """One JSON line per round."""
        return self.path / names.METRICS

    @property
    def identity(self) -> Identity:
        """Which run this is, as it was begun."""
        return read_identity(self.path, "resume")

    @property
    def clients(self) -> tuple[ClientRow, ...]:
        """What each client declares, its noise and its budget, as the run was begun."""
        if not (rows := read_clients(self.path, "resume")):
            raise InvalidInput("resume", f"{str(self.path)!r} names no clients")
        return rows

    def write_config(self, text: str) -> None:
        """The resolved configuration, as TOML."""
        write_whole(self.config, text.encode())

    def write_identity(self, identity: Identity) -> None:
        """Last of what a run begins with: from then on the folder can be resumed."""
        write_json(self.path / names.IDENTITY, identity.to_dict())

    def write_clients(self, clients: Sequence[ClientRow]) -> None:
        """Those of a run that begins, in their order."""
        write_json(self.path / names.CLIENTS, [row.to_dict() for row in clients])

    def write_preprocessing(self, preprocessing: Preprocessing) -> None:
        """What new records need before the model."""
        write_json(self.path / names.PREPROCESSING, preprocessing.to_dict())

    def write_proposal(self, text: str) -> None:
        """What a server proposed to a site, as JSON."""
        write_whole(self.path / names.PROPOSAL, text.encode())

    def write_evaluation(self, evaluation: FinalEvaluation) -> None:
        """The final model on the test split."""
        write_json(self.path / names.EVALUATION, evaluation.to_dict())

    def write_summary(self, summary: Summary) -> None:
        """Last of all: with it the run is over."""
        write_json(self.path / names.SUMMARY, summary.to_dict())

    def drop_summary(self) -> float:
        """Remove the summary of a run that goes on; the seconds that it says the run had taken.

        What it says is no longer so once there are new results beside it.
        """
        path = self.path / names.SUMMARY
        try:
            summary = read_summary(self.path)
        except InvalidInput:
            summary = None
        with explained(path):
            path.unlink(missing_ok=True)
        return 0.0 if summary is None else summary.seconds

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
        write_whole(self.path / names.RECORDS, buffer.getvalue())

    def write_checkpoint(
        self,
        round_: int,
        server: Tensors,
        head: tuple[int, str] = (0, ""),
        sites: Mapping[str, tuple[int, str]] | None = None,
    ) -> None:
        """The server's state after a round, and the last charge in the ledger, or in each one.

        The two latest are kept.
        """
        header: dict[str, Any] = {"round": round_, "head": list(head)}
        if sites is not None:
            header["sites"] = {name: list(own) for name, own in sites.items()}
        data = tensors_to_bytes(server, header)
        write_whole(self._checkpoint(round_), data)
        cut_short = (self.path / names.CHECKPOINTS).glob(".round-*")  # by a crash
        for old in (*self._checkpoints()[:-_KEPT], *cut_short):
            old.unlink(missing_ok=True)

    def read_checkpoint(self) -> Checkpoint | None:
        """The latest readable one."""
        for path in reversed(self._checkpoints()):
            try:
                tensors, header = tensors_from_bytes(path.read_bytes())
                number, chain = header.get("head", (0, ""))  # an older one knows of none
                head = int(number), str(chain)
                sites = {
                    name: (int(own[0]), str(own[1]))
                    for name, own in header.get("sites", {}).items()
                }
                return Checkpoint(int(header["round"]), tensors, head, sites)
            except (UdpflError, OSError, KeyError, TypeError, ValueError):
                continue
        return None

    def note_charge(self, number: int, chain: str) -> None:
        """The ledger's last charge, on disk before anybody sees what was charged."""
        append_line(self._charged, f"{number} {chain}")

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
        return self.path / names.CHARGED

    def _checkpoint(self, round_: int) -> Path:
        return self.path / names.CHECKPOINTS / _name_of(round_)

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / names.CHECKPOINTS).glob("round-*.safetensors"))

    def write_aggregate(self, round_: int, data: bytes) -> None:
        """What a trusted server lets out in a round, kept as long as the round may run again."""
        folder = self.path / names.AGGREGATES
        with explained(folder):
            folder.mkdir(exist_ok=True)
        write_whole(folder / _name_of(round_), data)
        oldest = min((int(p.stem[-6:]) for p in self._checkpoints()), default=0)
        for old in folder.glob("round-*.safetensors"):
            if int(old.stem[-6:]) <= oldest:
                old.unlink(missing_ok=True)

    def read_aggregate(self, round_: int) -> bytes | None:
        """The same; None where nothing was let out in that round."""
        path = self.path / names.AGGREGATES / _name_of(round_)
        return path.read_bytes() if path.is_file() else None

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One more line."""
        append_line(self.metrics, _line(row))

    def read_metrics(self, up_to: int | None = None) -> list[dict[str, Any]]:
        """The rows of the rounds so far; a line that a crash cut short is left out."""
        rows = read_metrics(self.path, "resume")
        return [row.to_dict() for row in rows if up_to is None or row.round <= up_to]

    def rewrite_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Drop the rows of rounds that will run again."""
        write_whole(self.metrics, "".join(_line(row) + "\n" for row in rows).encode())

    def write_update(self, round_: int, client: str, data: bytes) -> None:
        """Keep a released message for analysis."""
        folder = self.path / names.UPDATES
        with explained(folder):
            folder.mkdir(exist_ok=True)
        write_whole(folder / f"round-{round_:06d}-{_plain(client)}.safetensors", data)

    def write_model(self, tensors: Tensors, stamp: Stamp) -> None:
        """The final model under the user's own parameter names; what it cost is in its header."""
        write_whole(self.model, tensors_to_bytes(tensors, stamp.to_dict()))


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(RoundRow.from_dict(row).to_dict())


def _plain(client: str) -> str:
    """A client's name as part of a file name; no two names give the same one."""
    return re.sub(r"[^\w.=-]", lambda found: quote(found[0], safe=""), client)


def _free(path: Path) -> bool:
    """Whether a run may begin here: an empty folder, or one whose run never got to begin."""
    if not path.is_dir():
        return False
    found = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    return found <= {
        names.CONFIG,
        names.CLIENTS,
        names.RECORDS,
        names.PREPROCESSING,
        names.PROPOSAL,
        names.CHECKPOINTS,
    }


def _name_of(round_: int) -> str:
    """The file of a round; names sort as rounds do."""
    return f"round-{round_:06d}.safetensors"
