"""One self-contained HTML file: no request leaves it, and its own policy forbids any.

Scripts and styles are allowed by their hash, so nothing that a client's name smuggles in can run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from udpfl._version import __version__
from udpfl.accounting.statement import shown
from udpfl.report import _sections
from udpfl.report._client_table import clients
from udpfl.report._comparison import comparison_charts, unique_names, units_of
from udpfl.report._sections import figure, privacy_badge, prose, text
from udpfl.report.charts import Chart, run_charts
from udpfl.report.read import RunRecord
from udpfl.report.selection import RunSelection, selection_of
from udpfl.report.words import UNITS, counted, explain, no_number, small, unit_of


def run_page(run: RunRecord) -> str:
    """The report of one run.

    Args:
        run: What `read_run` returned.

    Returns:
        An HTML document that needs no other file.

    Example:
        >>> import numpy as np
        >>> import udpfl
        >>> from udpfl.report import read_run, run_page
        >>> own = {"data": (np.eye(20), np.arange(20) % 2), "model": "logistic", "threads": 1}
        >>> done = udpfl.run({"data": {"clients": 2}, "training": {"rounds": 1}}, **own)
        >>> run_page(read_run(done.folder))[:15]
        '<!DOCTYPE html>'
    """
    charts = run_charts(run)
    body = [
        _sections.header(run),
        _sections.banner(run),
        _charts([c for c in charts if c.id != "classes"]),
        _sections.references(run),
        _sections.confusion(run, "".join(_card(c) for c in charts if c.id == "classes")),
        _sections.privacy(run),
        clients(run),
        _sections.configuration(run.config),
        _sections.facts(run),
    ]
    return _document(f"{run.name}: run report", "".join(body), charts)


def comparison_page(
    runs: Sequence[RunRecord],
    selection: RunSelection | None = None,
    failed: Mapping[str, str] | None = None,
) -> str:
    """Several runs side by side, and by their names why others failed.

    Args:
        runs: What `read_run` returned for each run, at least one.
        selection: What a choice leaves out; that among these runs, unless there are more to choose
            from.
        failed: Why other runs failed, by their names.

    Returns:
        An HTML document that needs no other file.

    Example:
        >>> import numpy as np
        >>> import udpfl
        >>> from udpfl.report import comparison_page, read_run
        >>> own = {"data": (np.eye(20), np.arange(20) % 2), "model": "logistic", "threads": 1}
        >>> done = udpfl.run({"data": {"clients": 2}, "training": {"rounds": 1}}, **own)
        >>> comparison_page([read_run(done.folder)])[:15]
        '<!DOCTYPE html>'
    """
    names = unique_names(runs)
    selection = selection or selection_of(runs)
    title = f"{counted(len(runs), 'run')} compared"
    charts = comparison_charts(runs)
    body = (
        '<header><p class="eyebrow">UDP-FL comparison</p>'
        f"<h1>{title}</h1></header>"
        f"{_figures(runs, names, selection, failed or {})}{_privacy_of_each(runs, names)}"
        f"{_charts(charts)}{_differences(runs, names)}"
    )
    return _document(title, body, charts)


def embedded(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    plain = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return plain


def _charts(charts: Sequence[Chart]) -> str:
    if not charts:
        return "<section><h2>Charts</h2><p>No round was evaluated.</p></section>"
    cards = "".join(_card(chart) for chart in charts)
    return (
        '<section aria-labelledby="charts"><h2 id="charts">Charts</h2><noscript><p>The charts need '
        "JavaScript; <code>metrics.jsonl</code> holds the same numbers.</p></noscript>"
        f'<div class="cards">{cards}</div></section>'
    )


def _card(chart: Chart) -> str:
    """The frame of a chart, by its id; the script draws into it."""
    warning = f'<p class="warning">{text(chart.warning)}</p>' if chart.warning else ""
    note = f'<p class="note">{text(chart.note)}</p>' if chart.note else ""
    return (
        f'<figure class="card" data-chart="{text(chart.id)}"><figcaption><h3>{text(chart.title)}'
        f'</h3>{warning}</figcaption><div class="plot"></div><output class="readout"></output>'
        f'<div class="legend"></div>{note}<details class="data"><summary>Table of these numbers'
        '</summary><div class="scroll"></div></details></figure>'
    )


def _figures(
    runs: Sequence[RunRecord],
    names: Sequence[str],
    selection: RunSelection | None,
    failed: Mapping[str, str],
) -> str:
    quality = list(dict.fromkeys(key for run in runs for key in run.quality))
    head = "".join(f"<th>{text(k if k == 'accuracy' else k.upper())}</th>" for k in quality)
    private = [run for run in runs if run.kind != "none"]
    # Columns that would say the same of every run, or nothing but the usual, are left out.
    deltas = len({run.statement.delta for run in private}) > 1
    units = any(run.unit != "record" for run in private)
    about = f"{'<th>δ</th>' if deltas else ''}{'<th>unit</th>' if units else ''}"
    aims = any(run.target is not None for run in runs)
    rows = []
    for run, name in zip(runs, names, strict=True):
        cells = "".join(f"<td>{figure(run.last.get(k), k == 'accuracy')}</td>" for k in quality)
        epsilon = no_number(run) if run.kind == "none" else shown(run.statement.epsilon)
        if run.kind == "nominal":
            epsilon += f" nominal, {shown(run.statement.vector_epsilon)} guaranteed"
        if deltas:
            epsilon += f"</td><td>{'–' if run.kind == 'none' else small(run.statement.delta)}"
        if units:
            epsilon += f"</td><td>{unit_of(run)}"
        state = "" if run.finished and not run.stopped else ", not finished"
        state = ", ended early" if run.stopped else state
        aim = f"<td>{_aim(run)}</td>" if aims else ""
        rows.append(
            f'<tr><th scope="row">{text(name)}</th>{cells}<td>{epsilon}</td>'
            f"<td>{privacy_badge(run)}</td><td>{run.rounds}{state}</td>{aim}</tr>"
        )
    chosen = "" if selection is None else f'<p class="state">{text(selection.sentence)}</p>'
    width = len(quality) + 3 + deltas + units + aims
    rows += [
        f'<tr class="failed"><th scope="row">{text(name)}</th>'
        f'<td colspan="{width}">Failed: {prose(reason)}</td></tr>'
        for name, reason in failed.items()
    ]
    head += f"<th>ε</th>{about}<th>privacy</th><th>rounds</th>{'<th>target</th>' if aims else ''}"
    return (
        '<section aria-labelledby="figures"><h2 id="figures">Final figures</h2><div class="scroll">'
        f"<table><thead><tr><th>run</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"</div>{chosen}</section>"
    )


def _aim(run: RunRecord) -> str:
    """The target of a run, and what it took to reach it."""
    if run.target is None:
        return "–"
    return text(f"{run.target}: {run.reached or 'not reached'}")


def _privacy_of_each(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    rows = "".join(
        f'<li class="{run.tone}">{privacy_badge(run)} <strong>{text(name)}</strong>: '
        f"{text(explain(run).headline)}</li>"
        for run, name in zip(runs, names, strict=True)
    )
    units = units_of(runs)
    other = (
        f", and an ε for {' cannot be compared with an ε for '.join(UNITS[own] for own in units)}"
        if len(units) > 1
        else ""
    )
    pays = " or ".join(units) or "record"
    return (
        '<section aria-labelledby="privacy"><h2 id="privacy">Privacy of each run</h2>'
        f'<ul class="statements">{rows}</ul><p>An ε of one kind cannot be compared with an ε of '
        f"another{other}. If runs used the same records, each {pays} is charged in every run.</p>"
        "</section>"
    )


def _differences(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    settings = [_flat(run.config.model_dump(exclude={"out"})) for run in runs]
    for own in settings:
        own.setdefault("privacy", "on")
    keys = dict.fromkeys(key for own in settings for key in own)
    changed = [key for key in sorted(keys) if _differs(key, settings)]
    rows = "".join(
        f'<tr><th scope="row">{text(key)}</th>'
        + "".join(f"<td>{text(_said(own.get(key)))}</td>" for own in settings)
        + "</tr>"
        for key in changed
    )
    head = "".join(f"<th>{text(name)}</th>" for name in names)
    table = (
        f'<div class="scroll"><table><thead><tr><th>key</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        if changed
        else "<p>All runs have the same settings.</p>"
    )
    return (
        '<section aria-labelledby="settings"><h2 id="settings">Settings that differ</h2>'
        f"{table}</section>"
    )


def _differs(key: str, settings: Sequence[dict[str, Any]]) -> bool:
    """Whether the runs disagree; of privacy, only runs that have some are asked for the rest."""
    asked = [s for s in settings if s["privacy"] == "on" or not key.startswith("privacy.")]
    return len({repr(own.get(key)) for own in asked}) > 1


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _said(value: Any) -> str:
    return "–" if value is None else str(value)


@cache
def _asset(name: str) -> str:
    return (files("udpfl.report") / name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _document(title: str, body: str, charts: Sequence[Chart]) -> str:
    style, script = _asset("style.css"), _asset("charts.js")
    policy = (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; "
        f"script-src 'sha256-{_hash(script)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{style}</style></head>\n<body><main>{body}</main>"
        f"<footer>Made by udpfl {text(__version__)}. This file needs no network.</footer>\n"
        '<script type="application/json" id="report-data">'
        f"{embedded([chart.to_dict() for chart in charts])}</script>\n"
        f"<script>{script}</script></body></html>\n"
    )
