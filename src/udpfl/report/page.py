"""One self-contained HTML file: no request leaves it, and its own policy forbids any.

Scripts and styles are allowed by their hash, so nothing that a client's name smuggles in can run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from udpfl._version import __version__
from udpfl.report import _sections
from udpfl.report._attacks import attacks
from udpfl.report._client_table import clients
from udpfl.report._configuration import configuration
from udpfl.report._sections import text
from udpfl.report._signing import on_paper, signature, summary
from udpfl.report.charts import Chart, run_charts
from udpfl.report.read import RunRecord


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
        summary(run),
        _sections.tiles(run),
        _charts([c for c in charts if c.id != "classes"]),
        _sections.references(run),
        _sections.confusion(run, "".join(_card(c) for c in charts if c.id == "classes")),
        _sections.privacy(run),
        attacks(run),
        clients(run),
        configuration(run.config),
        on_paper(run),
        _sections.facts(run),
        signature(run),
    ]
    return document(f"{run.name}: run report", "".join(body), charts)


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
        f'</summary><div class="scroll" tabindex="0" role="group" aria-label="Table: '
        f'{text(chart.title)}"></div></details></figure>'
    )


@cache
def asset(name: str) -> str:
    """A style or a script of the pages."""
    return (files("udpfl.report") / name).read_text(encoding="utf-8")


def source_hash(source: str) -> str:
    """What a policy calls a style or a script that may be used."""
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def document(
    title: str,
    body: str,
    charts: Sequence[Chart],
    *,
    styles: Sequence[str] = ("style.css", "print.css"),
    scripts: Sequence[str] = ("elements.js", "charts.js"),
    data: str = "",
) -> str:
    """A page with its styles and scripts inside; `data` is JSON for the scripts, as an element."""
    style = "\n".join(map(asset, styles))
    sources = [asset(name) for name in scripts]
    allowed = " ".join(f"'sha256-{source_hash(source)}'" for source in sources)
    policy = (
        f"default-src 'none'; style-src 'sha256-{source_hash(style)}'; "
        f"script-src {allowed}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{style}</style></head>\n<body><main>{body}</main>"
        f"<footer>Made by udpfl {text(__version__)}. This file needs no network.</footer>\n"
        '<script type="application/json" id="report-data">'
        f"{embedded([chart.to_dict() for chart in charts])}</script>\n{data}"
        f"{''.join(f'<script>{source}</script>' for source in sources)}</body></html>\n"
    )
