"""The table of a comparison: one row for each setting, and below it the single runs.

Every setting is a `tbody` of its own, so that the script of the page can sort settings and fold
their runs. Without a script everything is unfolded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from udpfl.accounting.statement import shown
from udpfl.report._curves import colour_of
from udpfl.report._sections import figure, privacy_badge, prose, text
from udpfl.report.read import RunRecord
from udpfl.report.settings import Setting, final_figure
from udpfl.report.spread import Spread
from udpfl.report.words import counted, label, no_number, small, unit_of
from udpfl.runs.targets import Reached, Target

_NONE = "–"
_REPORT = "report.html"


@dataclass(frozen=True)
class Sorted:
    """A cell: what it shows, as HTML, and by what it is sorted; None comes last."""

    shown: str
    key: float | str | None = None


@dataclass(frozen=True)
class Column:
    """What a column is called, its cell for a setting, and for a single run."""

    head: str
    cell: Callable[[Setting], Sorted]
    of_run: Callable[[RunRecord], str] = lambda run: ""
    style: str = ""


def table(settings: Sequence[Setting], target: Target | None, folder: Path | None) -> str:
    """All settings with their runs. Links lead from the page's folder to the report of each run."""
    columns = list(_columns(settings, target))
    head = "".join(f'<th scope="col"{_class(c.style)}>{text(c.head)}</th>' for c in columns)
    bodies = "".join(
        _body(setting, number, columns, folder) for number, setting in enumerate(settings)
    )
    keyed = " keyed" if any(own.values for own in settings) else ""
    return (
        '<div class="scroll settings" tabindex="0" role="region" aria-labelledby="figures">'
        f'<table class="compared{keyed}"><thead><tr><th scope="col">setting</th>{head}</tr></thead>'
        f"{bodies}</table></div>"
    )


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""


def _body(setting: Setting, number: int, columns: Sequence[Column], folder: Path | None) -> str:
    cells = []
    for column in columns:
        cell = column.cell(setting)
        key = "" if cell.key is None else f' data-sort="{text(cell.key)}"'
        cells.append(f"<td{_class(column.style)}{key}>{cell.shown}</td>")
    rows = [
        f'<tr class="setting"><th scope="row" data-sort="{number}"><span class="swatch '
        f'{colour_of(number)}"></span> <span class="name">{text(setting.name)}</span></th>'
        f"{''.join(cells)}</tr>"
    ]
    seen = {run.config.seed for run in setting.runs}
    rows += [_run(run, setting, columns, folder) for run in setting.runs]
    rows += [
        f'<tr class="run failed"><th scope="row">seed {seed}</th>'
        f'<td colspan="{len(columns)}">Failed: {prose(reason)}</td></tr>'
        for seed, reason in setting.failed.items()
        if seed not in seen
    ]
    return f"<tbody>{''.join(rows)}</tbody>"


def _run(run: RunRecord, setting: Setting, columns: Sequence[Column], folder: Path | None) -> str:
    name = f"seed {run.config.seed}"
    if run.name != setting.name and not setting.values:
        name = f"{run.name}, {name}"
    cells = "".join(f"<td{_class(c.style)}>{c.of_run(run)}</td>" for c in columns)
    return f'<tr class="run"><th scope="row">{_linked(run, name, folder)}</th>{cells}</tr>'


def _linked(run: RunRecord, name: str, folder: Path | None) -> str:
    page = run.path / _REPORT
    if folder is None or not page.is_file():
        return text(name)
    way = Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix()
    return f'<a href="{text(quote(way))}">{text(name)}</a>'


def _columns(settings: Sequence[Setting], target: Target | None) -> Iterator[Column]:
    """Columns that would say the same of every setting, or nothing, are left out."""
    for key in dict.fromkeys(key for own in settings for key in own.values):
        yield Column(key, _value(key), style="key")
    for name in dict.fromkeys(key for own in settings for key in own.quality):
        yield _figure(name)
    if any(len(own.counted) > 1 for own in settings):
        yield Column("min to max", _range, style="number")
    if any(own.total > 1 for own in settings):
        yield Column(_counted_head(settings), _counted)
    yield from _privacy(settings)
    yield Column("rounds", _rounds, _rounds_of)
    if target is not None or any(run.target for own in settings for run in own.runs):
        yield from _to_target(target)
    yield Column("seconds", _seconds, lambda run: f"{_time(run):,.1f}", "number")


def _value(key: str) -> Callable[[Setting], Sorted]:
    return lambda own: Sorted(text(own.values.get(key, _NONE)), own.values.get(key))


def _figure(name: str) -> Column:
    percent = name == "accuracy"

    def cell(setting: Setting) -> Sorted:
        spread = setting.spread(name)
        return Sorted(_NONE) if spread is None else Sorted(_with_sd(spread, percent), spread.mean)

    return Column(
        name if percent else name.upper(),
        cell,
        lambda run: figure(final_figure(run, name), percent),
        "number best" if percent or name == "rmse" else "number",
    )


def _with_sd(spread: Spread, percent: bool) -> str:
    """Mean and standard deviation, for people."""
    if not math.isfinite(spread.mean):
        return text(spread.mean)
    scale, form = (100, ".2f") if percent else (1, ".4f")
    unit = " %" if percent else ""
    mean = f"<strong>{scale * spread.mean:{form}}{unit}</strong>"
    return mean if spread.sd is None else f"{mean} ± {scale * spread.sd:{form}}"


def _range(setting: Setting) -> Sorted:
    spread = setting.spread(setting.quality[0]) if setting.quality else None
    if spread is None or len(spread.values) < 2:
        return Sorted(_NONE)
    low, high = min(spread.values), max(spread.values)
    if setting.quality[0] == "accuracy":
        return Sorted(f"{100 * low:.2f} to {100 * high:.2f} %", low)
    return Sorted(f"{low:.4f} to {high:.4f}", low)


def _counted_head(settings: Sequence[Setting]) -> str:
    """Seeds, unless somebody gave folders of which two have the same."""
    alike = any(len({run.config.seed for run in own.runs}) < len(own.runs) for own in settings)
    return "runs" if alike else "seeds"


def _counted(setting: Setting) -> Sorted:
    # Where no run came to its end, those that are shown are no full ones.
    done, total = len(setting.counted), setting.total
    return Sorted(str(done) if done == total else f"{done} of {total}", done)


def _privacy(settings: Sequence[Setting]) -> Iterator[Column]:
    private = [own.statement for own in settings if own.statement and own.kind != "none"]
    yield Column("ε", _epsilon, _epsilon_of, "number")
    if any(statement.kind == "nominal" for statement in private):
        yield Column("nominal ε", _nominal, style="number")
    varied = any("δ" in own.values for own in settings)  # then it has a column already
    if len({statement.delta for statement in private}) > 1 and not varied:
        yield Column("δ", lambda own: _stated(own, lambda run: small(run.statement.delta)))
    if any(own.unit not in (None, "record") for own in settings):
        yield Column("unit", lambda own: _stated(own, unit_of))
    yield Column("privacy", _badge, privacy_badge)


def _stated(setting: Setting, words: Callable[[RunRecord], str]) -> Sorted:
    run = setting.costliest
    said = _NONE if run is None or run.kind == "none" else words(run)
    return Sorted(said, said)


def _epsilon(setting: Setting) -> Sorted:
    run, said = setting.costliest, setting.statement
    if run is None or said is None:
        return Sorted(_NONE)
    if said.kind == "none":
        return Sorted(no_number(run), math.inf)
    return Sorted(shown(said.vector_epsilon), said.vector_epsilon)


def _epsilon_of(run: RunRecord) -> str:
    return no_number(run) if run.kind == "none" else shown(run.statement.vector_epsilon)


def _nominal(setting: Setting) -> Sorted:
    said = setting.statement
    if said is None or said.kind != "nominal":
        return Sorted(_NONE)
    return Sorted(shown(said.epsilon), said.epsilon)


def _badge(setting: Setting) -> Sorted:
    run = setting.costliest
    if run is None:
        return Sorted('<span class="badge none">Failed</span>', "failed")
    failed = ' <span class="badge none">Some failed</span>' if setting.failed else ""
    if setting.failed and not any(run.finished and not run.stopped for run in setting.runs):
        failed = ' <span class="badge none">Failed</span>'
    return Sorted(privacy_badge(run, setting.state) + failed, label(run))


def _rounds(setting: Setting) -> Sorted:
    found = sorted({run.rounds for run in setting.runs})
    if not found:
        return Sorted(_NONE)
    said = str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
    states = dict.fromkeys(state for run in setting.runs if (state := _state(run)))
    return Sorted(", ".join([said, *states]), found[-1])


def _rounds_of(run: RunRecord) -> str:
    return ", ".join([str(run.rounds), *([_state(run)] if _state(run) else [])])


def _state(run: RunRecord) -> str:
    return "ended early" if run.stopped else "" if run.finished else "not finished"


def _to_target(target: Target | None) -> Iterator[Column]:
    """What it took to reach the target: that of the comparison, or of each run."""

    def reached(run: RunRecord) -> Reached | None:
        return run.reached if target is None else target.first_reached(run.metrics)

    def aim(run: RunRecord) -> str:
        goal = target or run.target
        return _NONE if goal is None else text(f"{goal}: {reached(run) or 'not reached'}")

    def cell(setting: Setting) -> Sorted:
        runs = [run for run in setting.counted if target or run.target]
        there = [found.round for run in runs if (found := reached(run))]
        if not runs:
            return Sorted(_NONE)
        if len(runs) == 1:
            return Sorted(aim(runs[0]), there[0] if there else None)
        if not there:
            return Sorted("not reached")
        spread = Spread(there)
        sd = "" if spread.sd is None else f" ± {spread.sd:.1f}"
        some = f" ({len(there)} of {len(runs)} runs)" if len(there) < len(runs) else ""
        return Sorted(f"round {spread.mean:.1f}{sd}{some}", spread.mean)

    yield Column(f"to {target}" if target else "target", cell, aim)


def _time(run: RunRecord) -> float:
    return run.summary.seconds if run.summary else sum(row.seconds for row in run.metrics)


def _seconds(setting: Setting) -> Sorted:
    if not (runs := setting.counted):
        return Sorted(_NONE)
    mean = Spread([_time(run) for run in runs]).mean
    return Sorted(f"{mean:,.1f}", mean)


def failures(settings: Sequence[Setting]) -> str:
    """Every reason once, with the settings and seeds that it kept from a result."""
    about: dict[str, list[str]] = {}
    for setting in settings:
        reasons: dict[str, list[int]] = {}
        for seed, reason in setting.failed.items():
            reasons.setdefault(reason, []).append(seed)
        for reason, seeds in reasons.items():
            which = f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"
            about.setdefault(reason, []).append(f"{setting.name} ({which})")
    if not about:
        return ""
    items = "".join(
        f"<li><strong>{text('; '.join(names))}</strong>: {prose(reason)}</li>"
        for reason, names in about.items()
    )
    count = counted(sum(len(own.failed) for own in settings), "run")
    return (
        '<section aria-labelledby="failed"><h2 id="failed">What failed, and why</h2>'
        f"<p>{count} without a result. Means are over the other seeds.</p>"
        f'<ul class="failed">{items}</ul></section>'
    )
