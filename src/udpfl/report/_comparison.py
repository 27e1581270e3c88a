"""Several runs in the same charts: a line for each, dashed if nominal, dotted if not private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from udpfl.accounting.events import Unit
from udpfl.accounting.statement import Kind
from udpfl.report.charts import (
    DASHES,
    NOMINAL,
    Chart,
    Series,
    clip_title,
    marks_of,
    run_charts,
    shows_something,
    signal_note,
)
from udpfl.report.read import RunRecord
from udpfl.report.words import UNITS, WHOSE, no_number, small, trusts_server

_COLOURS = 8
_LEFT_OUT = "nominal runs are left out"
_OTHER_KIND = (
    "The ε of a nominal run is of another kind: the first table shows it, together with the ε that "
    "is guaranteed."
)
_OTHER_UNIT = (
    "Numbers ε for different units (a record, a person, a whole client) cannot be compared: each "
    "unit has its own chart."
)
_OTHER_DELTA = (
    "The runs have different δ: of two runs with the same ε, the one with the smaller δ has the "
    "stronger guarantee."
)
_COLUMNS = {
    "accuracy": ("accuracy",),
    "rmse": ("rmse",),
    "mae": ("mae",),
    "loss": ("loss",),
    "epsilon": ("epsilon", "max"),
    "noise": ("noise_std", "max"),
    "signal": ("simulation_only", "signal_to_noise"),
    "clip": ("simulation_only", "clip_fraction"),
}


def unique_names(runs: Sequence[RunRecord]) -> list[str]:
    """Folder names, told apart by a number where two are the same."""
    names: list[str] = []
    for run in runs:
        name, number = run.name, 2
        while name in names:
            name, number = f"{run.name} ({number})", number + 1
        names.append(name)
    return names


def units_of(runs: Sequence[RunRecord]) -> list[Unit]:
    """Whose privacy the epsilons of these runs are about, each unit once, records first."""
    there = {run.unit for run in runs if run.kind != "none"}
    return [unit for unit in UNITS if unit in there]


def comparison_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """Every chart by round that some run has, with the lines of all runs that have it.

    An axis of epsilon has one kind of epsilon about one unit: charts of those are drawn by unit.
    """
    single: dict[str, Chart] = {}
    for run in runs:
        for chart in run_charts(run):
            single.setdefault(chart.id, chart)
    charts = []
    for id_, keys in _COLUMNS.items():
        if (like := single.get(id_)) is None:
            continue
        if id_ == "epsilon":
            charts += [_spent(like, runs, unit) for unit in units_of(runs)]
            continue
        evaluated = keys[0] not in ("noise_std", "simulation_only")
        lines = _lines(runs, _labels(runs), keys, evaluated=evaluated)
        marks = marks_of(runs, id_)
        charts.append(_worded(replace(like, series=lines, bands=(), marks=marks), runs))
    charts += [_trade(runs, unit) for unit in units_of(runs)]
    return [replace(chart, legend=True) for chart in charts if shows_something(chart)]


def _worded(chart: Chart, runs: Sequence[RunRecord]) -> Chart:
    """With words that are right for all of these runs."""
    clipped = {run.clipped for run in runs if run.kind != "none"}
    if chart.id == "clip":
        return replace(chart, title=clip_title(clipped))
    if chart.id == "noise":
        return replace(chart, note="Largest of any client, on a clipped sum, as it was charged.")
    return replace(chart, note=signal_note(clipped)) if chart.id == "signal" else chart


def _lines(
    runs: Sequence[RunRecord], labels: Sequence[str], keys: tuple[str, ...], evaluated: bool = True
) -> tuple[Series, ...]:
    """One for every run that has a label."""
    lines = []
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        x, y = run.column(*keys, evaluated=evaluated)
        if label and any(value is not None for value in y):
            lines.append(Series(label, x, y, f"run-{i % _COLOURS}", DASHES[run.kind]))
    return tuple(lines)


@dataclass(frozen=True)
class _Axis:
    """An axis of epsilon: one kind of number about one unit, and what is to be said of it."""

    kind: Kind
    name: str
    of: str
    """What sets the titles and names of its charts apart from those of the other unit."""
    suffix: str
    warning: str
    note: str
    labels: list[str]
    """Of every run, in their order; empty where it has no place on this axis."""


def _axis(runs: Sequence[RunRecord], unit: Unit) -> _Axis:
    units = units_of(runs)
    several, plain = len(units) > 1, units == ["record"]
    own = [run for run in runs if run.kind != "none" and run.unit == unit]
    # Guaranteed, unless all are nominal.
    kind: Kind = "guarantee" if any(run.kind == "guarantee" for run in own) else "nominal"
    left_out = kind == "guarantee" and any(run.kind == "nominal" for run in own)
    said = "nominal ε" if kind == "nominal" else "ε"
    deltas = {run.statement.delta for run in own if run.kind == kind}
    labels = [
        f"{label[:-1]}, δ = {small(run.statement.delta)})" if len(deltas) > 1 else label
        for run, label in zip(runs, _labels(runs), strict=True)
    ]
    notes = [_OTHER_KIND] * left_out + [_OTHER_DELTA] * (len(deltas) > 1)
    return _Axis(
        kind=kind,
        name=said if plain else f"{said} for {UNITS[unit]}",
        of="" if plain else f", {WHOSE[unit]}",
        suffix=f"-{unit}" if several else "",
        warning=NOMINAL if kind == "nominal" else _LEFT_OUT if left_out else "",
        note=" ".join([*notes, *([_OTHER_UNIT] if several else [])]),
        labels=[
            label if run.kind == kind and run.unit == unit else ""
            for run, label in zip(runs, labels, strict=True)
        ],
    )


def _spent(like: Chart, runs: Sequence[RunRecord], unit: Unit) -> Chart:
    """What each run of this unit had spent after every round."""
    axis = _axis(runs, unit)
    return replace(
        like,
        id=f"epsilon{axis.suffix}",
        title=f"Privacy spent by round{axis.of}",
        y=f"{'nominal ε' if axis.kind == 'nominal' else 'ε'}, largest of any client",
        series=_lines(runs, axis.labels, ("epsilon", "max")),
        bands=(),
        marks=(),
        log=False,
        warning=axis.warning,
        note=axis.note,
    )


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    """Name and kind of every run, and whose privacy it is where that is not always a record's."""
    kinds = {"guarantee": "guarantee", "nominal": NOMINAL, "none": "not private"}
    plain = units_of(runs) in ([], ["record"])
    labels = []
    for run, name in zip(runs, unique_names(runs), strict=True):
        unit = "" if plain or run.kind == "none" else f", {WHOSE[run.unit]}"
        unit += ", trusted server" if trusts_server(run.statement) else ""
        kind = no_number(run) if run.unread or run.contradicted else kinds[run.kind]
        labels.append(f"{name} ({kind}{unit})")
    return labels


def _trade(runs: Sequence[RunRecord], unit: Unit) -> Chart:
    """What was reached for what was spent: the foremost figure against epsilon."""
    key = runs[0].quality[0]
    name = key if key == "accuracy" else key.upper()
    axis = _axis(runs, unit)
    lines = []
    for i, (run, label) in enumerate(zip(runs, axis.labels, strict=True)):
        _, spent = run.column("epsilon", "max")
        _, reached = run.column(key)
        pairs = [(e, q) for e, q in zip(spent, reached, strict=True) if e is not None]
        if label and pairs:
            x, y = zip(*pairs, strict=True)
            colour = f"run-{i % _COLOURS}"
            lines.append(Series(label, x, list(y), colour, DASHES[run.kind]))
    return Chart(
        id=f"trade{axis.suffix}",
        title=f"{name[0].upper()}{name[1:]} against privacy spent{axis.of}",
        x=axis.name,
        y=f"test {name}",
        format="percent" if key == "accuracy" else "number",
        series=tuple(lines),
        note=f"What each run had reached when it had spent this ε. {axis.note}".strip(),
        warning=axis.warning,
    )
