"""The page that compares: a row for every setting, charts of their means, what failed and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from udpfl.report import _settings_table
from udpfl.report._curves import chart_data
from udpfl.report._sections import privacy_badge, text
from udpfl.report.page import document, embedded
from udpfl.report.read import RunRecord
from udpfl.report.selection import RunSelection, selection_of
from udpfl.report.settings import Setting, decisive, settings_of, units_of
from udpfl.report.words import UNITS, counted, explain
from udpfl.runs.targets import Target


def comparison_page(runs: Sequence[RunRecord], folder: Path | None = None) -> str:
    """Several runs side by side; those that differ in their seed only are one setting.

    Args:
        runs: What `read_run` returned for each run, at least one.
        folder: Where the page will be; without it, there are no links to the reports of the runs.

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
    return settings_page(settings_of(runs), selection_of(runs), folder=folder)


def settings_page(
    settings: Sequence[Setting],
    selection: RunSelection | None = None,
    *,
    varied: Collection[str] = (),
    goal: Target | None = None,
    folder: Path | None = None,
) -> str:
    """Several settings side by side.

    Args:
        settings: Each with its runs, and why others failed.
        selection: What a choice among the runs leaves out; None where there is nothing to choose.
        varied: The keys of the grid, in full: the table has them, so that they need no other place.
        goal: The figure whose rounds are compared as well; without it, that of each run.
        folder: Where the page will be; without it, there are no links to the reports of the runs.

    Returns:
        An HTML document that needs no other file.

    Example:
        >>> from udpfl.report import Setting, settings_page
        >>> page = settings_page([Setting("clip 1", {"clip": "1"}, (), {0: "there is no data"})])
        >>> "there is no data" in page
        True
    """
    title = _title(settings)
    charts = chart_data(settings)
    body = (
        f'<header><p class="eyebrow">UDP-FL comparison</p><h1>{text(title)}</h1>'
        f"<p>{text(_about(settings))}</p></header>"
        f"{_figures(settings, selection, goal, folder)}{_settings_table.failures(settings)}"
        f"{_charts(charts, settings)}{_privacy(settings)}{_differences(settings, varied)}"
    )
    data = (
        f'<script type="application/json" id="comparison-data">{embedded(charts)}</script>\n'
        if charts
        else ""
    )
    return document(
        title,
        body,
        (),
        styles=("style.css", "print.css", "comparison.css"),
        scripts=("elements.js", "charts.js", "comparison.js"),
        data=data,
    )


def _title(settings: Sequence[Setting]) -> str:
    runs = sum(own.total for own in settings)
    if runs == len(settings) and not any(own.values for own in settings):
        return f"{counted(runs, 'run')} compared"
    several = f", {counted(runs, 'run')}" if runs > len(settings) else ""
    failed = sum(len(own.failed) for own in settings)
    lost = f", {failed} failed" if failed else ""
    return f"{counted(len(settings), 'setting')} compared{several}{lost}"


def _about(settings: Sequence[Setting]) -> str:
    """What all runs have in common, and what the numbers are."""
    configs = [run.config for own in settings for run in own.runs]
    common = []
    for values in (
        [config.data.name for config in configs],
        [config.model.name for config in configs],
        [config.training.algorithm for config in configs],
    ):
        if len(set(values)) == 1:
            common.append(values[0])
    about = f"{', '.join(common)}. " if common else ""
    if all(len(own.counted) <= 1 for own in settings):
        return f"{about}One run of each setting: the spread over seeds is not known."
    seeds = {tuple(run.config.seed for run in own.counted) for own in settings if own.runs}
    each = "the runs of each setting"
    if len(seeds) == 1 and len(set(same := seeds.pop())) == len(same):
        each = f"{len(same)} seeds ({', '.join(map(str, same))})"
    return f"{about}Mean ± sample standard deviation over {each}."


def _figures(
    settings: Sequence[Setting],
    selection: RunSelection | None,
    goal: Target | None,
    folder: Path | None,
) -> str:
    chosen = "" if selection is None else f'<p class="state">{text(selection.sentence)}</p>'
    return (
        '<section aria-labelledby="figures"><h2 id="figures">Final figures</h2>'
        '<p class="note script">Press a heading to sort, and a setting to see its runs. '
        '<button type="button" id="unfold" aria-pressed="false">Show all runs</button></p>'
        f"{_settings_table.table(settings, goal, folder)}"
        '<p class="note">Accuracy and errors are those of the final models on the test records.'
        f"</p>{chosen}</section>"
    )


def _charts(charts: dict[str, Any] | None, settings: Sequence[Setting]) -> str:
    """The frames of the charts; the script draws into them what the menus say."""
    if charts is None:
        return "<section><h2>Charts</h2><p>No round was evaluated.</p></section>"
    many = charts["many"]
    first = charts["first"][:1] if many else charts["first"]
    cards = "".join(_card(number, y, x, charts) for number, (y, x) in enumerate(first))
    how = (
        "Each setting has its own chart, on the same axes; the others are drawn in grey."
        if many
        else "A name switches its line off and on, in all charts."
    )
    band = any(len(own.counted) > 1 for own in settings)
    bands = " Bands: ± one standard deviation over the seeds." if band else ""
    kinds = {own.kind for own in settings if own.counted}
    dashes = " Dashed lines: nominal, not a guarantee." * ("nominal" in kinds)
    dashes += " Dotted lines: not private." * ("none" in kinds)
    return (
        '<section aria-labelledby="charts"><h2 id="charts">Charts</h2><noscript><p>The charts need '
        "JavaScript; <code>metrics.jsonl</code> of each run has the same numbers.</p></noscript>"
        f'<p class="note">{how}{bands}{dashes}</p>'
        '<div class="legend shared" role="group" aria-label="Settings in the charts"></div>'
        f'<div class="{"alone" if many or len(first) == 1 else "cards"}">{cards}</div></section>'
    )


def _card(number: int, y: str, x: str, charts: dict[str, Any]) -> str:
    menus = "".join(
        f'<label>{words} <select data-axis="{axis}">'
        + "".join(
            f'<option value="{text(own["id"])}"{" selected" if own["id"] == chosen else ""}>'
            f"{text(own['name'])}</option>"
            for own in charts["quantities"]
            if own[axis]
        )
        + "</select></label>"
        for axis, chosen, words in (("y", y, "Show"), ("x", x, "by"))
    )
    return (
        f'<figure class="card" data-compare="{number}"><figcaption><h3></h3><div class="menus">'
        f'{menus}</div><p class="warning" hidden></p></figcaption><div class="panels"></div>'
        '<p class="note"></p><details class="data"><summary>Table '
        'of these numbers</summary><div class="scroll" tabindex="0" role="region" '
        'aria-label="Numbers of the chart"></div></details></figure>'
    )


def _privacy(settings: Sequence[Setting]) -> str:
    rows = "".join(
        f'<li class="{run.tone}">{privacy_badge(run, own.state)} '
        f"<strong>{text(own.name)}</strong>: {text(explain(run).headline)}</li>"
        for own in settings
        if (run := own.costliest) is not None
    )
    if not rows:
        return ""
    units = units_of(settings)
    other = (
        f", and an ε for {' cannot be compared with an ε for '.join(UNITS[own] for own in units)}"
        if len(units) > 1
        else ""
    )
    pays = " or ".join(units) or "record"
    return (
        '<section aria-labelledby="privacy"><h2 id="privacy">Privacy of each run</h2><p>What holds '
        "for each run of a setting alone: the largest ε among its runs.</p>"
        f'<ul class="statements">{rows}</ul><p>An ε of one kind cannot be compared with an ε of '
        f"another{other}. If runs used the same records, each {pays} is charged in every run.</p>"
        "</section>"
    )


def _differences(settings: Sequence[Setting], varied: Collection[str]) -> str:
    """The keys in which settings differ, other than those that the grid varies."""
    there = [own for own in settings if own.runs]
    flat = [_flat(decisive(own.runs[0].config)) for own in there]
    for own in flat:
        own.setdefault("privacy", "on")
    keys = dict.fromkeys(key for own in flat for key in own)
    known = {*varied, *(["privacy"] if "privacy.mechanism" in varied else [])}
    changed = [key for key in sorted(keys) if key not in known and _differs(key, flat)]
    if not changed and varied:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{text(key)}</th>'
        + "".join(f"<td>{text(_said(own.get(key)))}</td>" for own in flat)
        + "</tr>"
        for key in changed
    )
    head = "".join(f'<th scope="col">{text(own.name)}</th>' for own in there)
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="differ"><table><thead>'
        f'<tr><th scope="col">key</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        if changed
        else "<p>All runs have the same settings.</p>"
    )
    which = "Other settings that differ" if varied else "Settings that differ"
    return f'<section aria-labelledby="differ"><h2 id="differ">{which}</h2>{table}</section>'


def _differs(key: str, flat: Sequence[dict[str, Any]]) -> bool:
    """Whether the runs disagree; of privacy, only runs that have some are asked for the rest."""
    asked = [own for own in flat if own["privacy"] == "on" or not key.startswith("privacy.")]
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
