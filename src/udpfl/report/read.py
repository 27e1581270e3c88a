"""A run folder as the report sees it: plain data, read without torch, finished or not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from udpfl.accounting.statement import Kind, PrivacyStatement, weakest_kind
from udpfl.config import Config, PrivacyConfig, load
from udpfl.errors import InvalidInput

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Client:
    """What is known of one client. `statement` is None until the run has finished."""

    name: str
    declared_size: int
    rounds: int
    noise: str
    clip: str
    budget: tuple[float, float] | None
    statement: PrivacyStatement | None


@dataclass(frozen=True)
class RunRecord:
    """Everything that one run folder says."""

    path: Path
    config: Config
    identity: Row
    metrics: Sequence[Row]
    clients: Sequence[Client]
    summary: Row | None
    evaluation: Row | None

    @property
    def name(self) -> str:
        """What the run is called: its folder."""
        return self.path.resolve().name

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, be it an early one."""
        return self.summary is not None

    @property
    def stopped(self) -> str | None:
        """Why it ended before its last round."""
        return self.summary.get("stopped") if self.summary else None

    @cached_property
    def measured(self) -> list[Row]:
        """The rounds that were evaluated."""
        return [row for row in self.metrics if row.get("loss") is not None]

    @property
    def rounds(self) -> int:
        """Rounds in which somebody trained, up to the last one."""
        return int(self.metrics[-1]["round"]) if self.metrics else 0

    @property
    def last(self) -> Row:
        """The latest evaluated round; empty where there is none."""
        return self.measured[-1] if self.measured else {}

    @property
    def task(self) -> str:
        """Classification or regression, as far as it is known."""
        if self.evaluation:
            return str(self.evaluation["task"])
        return "regression" if "mae" in self.last else "classification"

    @property
    def quality(self) -> tuple[str, ...]:
        """Names of the figures that say how good the model is, the first one foremost."""
        return ("rmse", "mae", "mse") if self.task == "regression" else ("accuracy",)

    @cached_property
    def kind(self) -> Kind:
        """What may be said of the whole run: the ledger's word, or what the run set out to be."""
        if self.summary:
            return weakest_kind([self.statement])
        if self.last:
            kind: Kind = self.last["privacy"]
            return kind
        stamp = str(self.identity.get("privacy", ""))
        starts: dict[str, Kind] = {"private": "guarantee", "nominal": "nominal"}
        return starts.get(stamp.partition(":")[0], "none")

    @cached_property
    def statement(self) -> PrivacyStatement:
        """The largest spending of any client; of a run under way, at its last evaluated round."""
        if self.summary:
            return _statement(self.summary["privacy"])
        privacy = self.config.privacy
        if self.kind == "none" or not isinstance(privacy, PrivacyConfig):
            stamp = str(self.identity.get("privacy", "")).partition(": ")[2]
            return PrivacyStatement.none(stamp or "privacy is turned off")
        spent = self.last.get("epsilon") or {"max": 0.0}
        proved = self.last.get("guaranteed_epsilon") or spent
        deltas = privacy.delta if isinstance(privacy.delta, list) else [privacy.delta]
        return PrivacyStatement(
            number(spent["max"]),
            max(deltas),
            self.kind,
            privacy.accountant,
            privacy.unit,
            vector_epsilon=number(proved["max"]),
        )

    @property
    def shared_ledger(self) -> bool:
        """Whether the spending includes other runs."""
        return bool(self.identity.get("ledger"))

    def column(self, *keys: str, evaluated: bool = True) -> tuple[list[int], list[float | None]]:
        """One figure by round: the rounds and the values, None where it is not a number."""
        rounds, values = [], []
        for row in self.measured if evaluated else self.metrics:
            value: Any = row
            for key in keys:
                value = value.get(key) if isinstance(value, Mapping) else None
            rounds.append(int(row["round"]))
            finite = isinstance(value, int | float) and math.isfinite(value)
            values.append(float(value) if finite else None)
        return rounds, values


def read_run(path: Path) -> RunRecord:
    """Read a run folder; a file that a crash left out is simply not there yet."""
    if not (path / "config.toml").is_file() or not (path / "run.json").is_file():
        raise InvalidInput("run", f"{str(path)!r} is not a run folder: it has no run.json")
    summary = _json(path / "summary.json")
    statements = {} if summary is None else summary.get("clients", {})
    return RunRecord(
        path=path,
        config=load(path / "config.toml"),
        identity=_json(path / "run.json") or {},
        metrics=_rows(path / "metrics.jsonl"),
        clients=[
            _client(row, statements.get(row["name"]))
            for row in _json(path / "participants.json") or ()
        ],
        summary=summary,
        evaluation=_json(path / "evaluation.json"),
    )


def number(value: float | str) -> float:
    """A number as JSON holds it here, where infinity is the word "inf"."""
    return float(value)


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


def _statement(data: Mapping[str, Any]) -> PrivacyStatement:
    plain = {**data, "notes": tuple(data["notes"])}
    for key in ("epsilon", "vector_epsilon"):
        plain[key] = number(plain[key])
    return PrivacyStatement(**plain)


def _client(row: Mapping[str, Any], statement: Mapping[str, Any] | None) -> Client:
    release = row["release"]
    noise, clip = "none", "none"
    if release is not None:
        mechanism, bound = release["mechanism"], release["sensitivity"]
        parameters = mechanism.get("parameters", {}).items()
        values = ", ".join(f"{k} {v:.4g}" for k, v in parameters if isinstance(v, int | float))
        noise = f"{mechanism['name']} ({values})" if values else str(mechanism["name"])
        clip = f"{bound['norm']} {bound['bound']:g}"
    return Client(
        name=str(row["name"]),
        declared_size=int(row["declared_size"]),
        rounds=int(row["rounds"]),
        noise=noise,
        clip=clip,
        budget=None if row["budget"] is None else (row["budget"][0], row["budget"][1]),
        statement=None if statement is None else _statement(statement),
    )
