"""Several runs in the same charts: a line for each, dashed if nominal, dotted if not private."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from udpfl.accounting.statement import Kind
from udpfl.report.charts import DASHES, NOMINAL, Chart, Series, run_charts, shows_something
from udpfl.report.read import RunRecord

_COLOURS = 8
_LEFT_OUT = "nominal runs are left out"
_OTHER_KIND = (
    "The ε of a nominal run is of another kind: the first table has it, and the ε that is "
    "guaranteed instead."
)
_COLUMNS = {
    "accuracy": ("accuracy",),
    "rmse": ("rmse",),
    "mae": ("mae",),
    "loss": ("loss",),
    "epsilon": ("epsilon", "max"),
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


def comparison_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """Every chart by round that some run has, with the lines of all runs that have it."""
    single: dict[str, Chart] = {}
    for run in runs:
        for chart in run_charts(run):
            single.setdefault(chart.id, chart)
    charts = []
    for id_, keys in _COLUMNS.items():
        if (like := single.get(id_)) is not None:
            kinds = {_drawn_kind(runs)} if id_ == "epsilon" else set(DASHES)
            lines = _lines(runs, keys, kinds, evaluated=keys[0] != "simulation_only")
            marks = like.marks if id_ in ("rmse", "mae") else ()
            charts.append(replace(like, series=lines, bands=(), marks=marks))
    charts = [_of_all_clients(chart, runs) if chart.id == "epsilon" else chart for chart in charts]
    return [chart for chart in [*charts, _trade(runs)] if shows_something(chart)]


def _drawn_kind(runs: Sequence[RunRecord]) -> Kind:
    """The one kind of epsilon that a common axis shows: guaranteed, unless all are nominal."""
    return "guarantee" if any(run.kind == "guarantee" for run in runs) else "nominal"


def _about_epsilon(runs: Sequence[RunRecord]) -> tuple[str, str, str]:
    """What the drawn epsilon is called, and the warning and the note that go with it."""
    if _drawn_kind(runs) == "nominal":
        return "nominal ε", NOMINAL, ""
    mixed = any(run.kind == "nominal" for run in runs)
    return ("ε", _LEFT_OUT, _OTHER_KIND) if mixed else ("ε", "", "")


def _lines(
    runs: Sequence[RunRecord], keys: tuple[str, ...], kinds: Collection[Kind], evaluated: bool
) -> tuple[Series, ...]:
    lines = []
    for i, (run, name) in enumerate(zip(runs, _labels(runs), strict=True)):
        x, y = run.column(*keys, evaluated=evaluated)
        if run.kind in kinds and any(value is not None for value in y):
            lines.append(Series(name, x, y, f"run-{i % _COLOURS}", DASHES[run.kind]))
    return tuple(lines)


def _of_all_clients(chart: Chart, runs: Sequence[RunRecord]) -> Chart:
    said, warning, note = _about_epsilon(runs)
    return replace(
        chart,
        title="Privacy spent by round",
        y=f"{said}, largest of any client",
        log=False,
        warning=warning,
        note=note,
    )


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    kinds = {"guarantee": "guarantee", "nominal": NOMINAL, "none": "not private"}
    return [
        f"{name} ({'not known' if run.unread else kinds[run.kind]})"
        for run, name in zip(runs, unique_names(runs), strict=True)
    ]


def _trade(runs: Sequence[RunRecord]) -> Chart:
    """What was reached for what was spent: the foremost figure against epsilon."""
    key = runs[0].quality[0]
    name = key if key == "accuracy" else key.upper()
    said, warning, note = _about_epsilon(runs)
    lines = []
    for i, (run, label) in enumerate(zip(runs, _labels(runs), strict=True)):
        _, spent = run.column("epsilon", "max")
        _, reached = run.column(key)
        pairs = [(e, q) for e, q in zip(spent, reached, strict=True) if e is not None]
        if run.kind == _drawn_kind(runs) and pairs:
            x, y = zip(*pairs, strict=True)
            colour = f"run-{i % _COLOURS}"
            lines.append(Series(label, x, list(y), colour, DASHES[run.kind]))
    return Chart(
        id="trade",
        title=f"{name[0].upper()}{name[1:]} against privacy spent",
        x=said,
        y=f"test {name}",
        format="percent" if key == "accuracy" else "number",
        series=tuple(lines),
        note=f"What each run had reached when it had spent this much. {note}".strip(),
        warning=warning,
    )
