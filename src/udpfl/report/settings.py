"""The settings of a comparison: runs that differ in nothing but their seed belong together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from udpfl.accounting.events import Unit
from udpfl.accounting.statement import Kind, PrivacyStatement, largest
from udpfl.config import Config
from udpfl.report.read import RunRecord
from udpfl.report.spread import Spread
from udpfl.report.verification import State
from udpfl.report.words import UNITS

_WORST_FIRST: tuple[State, ...] = ("contradicted", "not verified", "verified")
_NO_MATTER = ("out", "seed", "threads", "device")
"""Keys in which runs of one setting may differ."""
_OWN = "own"  # the name of data that was handed over in Python


@dataclass(frozen=True)
class Setting:
    """One setting, and its runs with several seeds.

    Example:
        >>> from udpfl.report import Setting
        >>> setting = Setting("clip 1", {"clip": "1"}, (), {0: "there is no data"})
        >>> setting.total, setting.counted
        (1, [])
    """

    name: str
    """What it is called in legends."""
    values: Mapping[str, str]
    """What sets it apart, by plain names; empty for folders that no grid has made."""
    runs: tuple[RunRecord, ...]
    """All that have a folder which can be read, also where they ended early."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Why there is no result, by seed."""

    @property
    def counted(self) -> list[RunRecord]:
        """The runs whose figures count: those that came to their end, or all if none did."""
        ended = [
            run
            for run in self.runs
            if run.finished and not run.stopped and run.measured and not run.contradicted
        ]
        return ended or [run for run in self.runs if run.measured]

    @property
    def total(self) -> int:
        """How many runs there should be."""
        return len(self.runs) + len(self.failed.keys() - {run.config.seed for run in self.runs})

    def spread(self, name: str) -> Spread | None:
        """A figure of the final models; None where a run has none."""
        values = [final_figure(run, name) for run in self.counted]
        known = [value for value in values if value is not None]
        return Spread(known) if known and len(known) == len(values) else None

    @property
    def quality(self) -> tuple[str, ...]:
        """The figures that say how good the models are, the first one foremost."""
        return tuple(dict.fromkeys(key for run in self.runs for key in run.quality))

    @property
    def costliest(self) -> RunRecord | None:
        """The run with the largest number among those of the weakest kind."""
        said = self.statement
        alike = [run for run in self._stated if said is not None and run.kind == said.kind]
        return max(alike, key=lambda run: run.statement.epsilon, default=None)

    @property
    def statement(self) -> PrivacyStatement | None:
        """What holds for each of its runs alone; None without any run."""
        return largest(run.statement for run in self._stated) if self._stated else None

    @property
    def _stated(self) -> list[RunRecord]:
        return self.counted or list(self.runs)

    @property
    def kind(self) -> Kind:
        """What may be said of all its runs."""
        return "none" if self.statement is None else self.statement.kind

    @property
    def unit(self) -> Unit | None:
        """Whose privacy it is; nobody's where there is none."""
        said = self.statement
        return None if said is None or said.kind == "none" else said.unit

    @property
    def state(self) -> State:
        """What the ledgers say of all its runs: the worst."""
        states = [run.verification.state for run in self._stated]
        return min(states, key=_WORST_FIRST.index, default="not verified")


def final_figure(run: RunRecord, name: str) -> float | None:
    """A figure of the final model, or of the latest one that was evaluated."""
    ended = None if run.summary is None else run.summary.figure(name)
    value = run.last.get(name) if ended is None else ended
    return float(value) if isinstance(value, int | float) else None


def units_of(settings: Sequence[Setting]) -> list[Unit]:
    """Whose privacy the epsilons are about, each unit once, records first."""
    there = {setting.unit for setting in settings}
    return [unit for unit in UNITS if unit in there]


def settings_of(runs: Sequence[RunRecord]) -> list[Setting]:
    """Runs by their configuration; those of one setting may differ in their seed.

    Data that was handed over in Python has no name by which it is known again: such a run is a
    setting by itself.
    """
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(_identity(run), []).append(run)
    names = told_apart([_common_name([run.name for run in own]) for own in groups.values()])
    return [Setting(name, {}, tuple(own)) for name, own in zip(names, groups.values(), strict=True)]


def told_apart(names: Sequence[str]) -> list[str]:
    """The names, with a number where two are the same."""
    known: list[str] = []
    for wanted in names:
        name, number = wanted, 2
        while name in known:
            name, number = f"{wanted} ({number})", number + 1
        known.append(name)
    return known


def _identity(run: RunRecord) -> str:
    plain = decisive(run.config)
    if run.config.data.name == _OWN or run.config.model.name == _OWN:
        plain["path"] = str(run.path.resolve())
    return json.dumps(plain, sort_keys=True, default=str)


def decisive(config: Config) -> dict[str, object]:
    """All that makes a setting, as plain data."""
    plain = config.model_dump(exclude=set(_NO_MATTER))
    if isinstance(plain["privacy"], dict):
        plain["privacy"].pop("ledger", None)
    return plain


def _common_name(names: Sequence[str]) -> str:
    """What the folders of several seeds are called alike."""
    if len(names) == 1:
        return names[0]
    shared = {re.sub(r"[,_\- ]*seed[=_\- ]*\d+$", "", name) for name in names}
    return (len(shared) == 1 and shared.pop()) or f"{names[0]} and {len(names) - 1} more"
