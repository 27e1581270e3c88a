"""The parts of the page, as HTML. Every text that comes from a run goes through `text`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from udpfl.accounting.statement import shown
from udpfl.report.charts import class_names
from udpfl.report.read import RunRecord, Tone
from udpfl.report.verification import State
from udpfl.report.words import UNITS, counted, explain, label, no_number, small
from udpfl.runs.targets import size_of

_MATRIX_LIMIT = 40
NOTHING_TRAINED = "Nothing was trained, so there is no model."
_LOOKS: dict[State, Tone] = {
    "verified": "guarantee",
    "not verified": "unverified",
    "contradicted": "none",
}


def text(value: object) -> str:
    """Anything at all as text that a browser only shows."""
    return escape(str(value), quote=True)


def prose(value: object) -> str:
    """A sentence as text: commands in backticks set as code, no line break inside `δ = 1`."""
    plain = re.sub("([εδ]) ([=≤≥]) ", "\\1\u00a0\\2\u00a0", text(value))
    return re.sub("`([^`]+)`", r"<code>\1</code>", plain)


def scrolling(table: str, about: str) -> str:
    """A table in a frame that scrolls sideways where it is too wide, with keys as well."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{text(about)}">{table}</div>'


def figure(value: Any, percent: bool = False) -> str:
    """A figure of the model for people."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–" if value is None else text(value)
    return f"{100 * value:.1f} %" if percent else f"{value:.4f}"


def privacy_badge(run: RunRecord, state: State | None = None) -> str:
    """The kind of privacy in colour, pattern and words, and whether the ledger says the same.

    A `state` is that of all runs for which this one speaks.
    """
    state = state or run.verification.state
    tone = run.tone if state == "verified" or run.kind != "guarantee" else "unverified"
    kind = f'<span class="badge {tone}">{text(label(run))}</span>'
    if run.kind == "none":  # claims nothing that could be verified
        return kind
    return f'{kind} <span class="badge {_LOOKS[state]}">{state.capitalize()}</span>'


def header(run: RunRecord) -> str:
    """Title and state of the run."""
    config = run.config
    return (
        f'<header><p class="eyebrow">UDP-FL run report</p><h1>{text(run.name)}</h1>'
        f"<p>{text(config.data.name)}, {text(config.model.name)}, "
        f"{text(config.training.algorithm)}.</p>{state(run)}</header>"
    )


def tiles(run: RunRecord) -> str:
    """The figures everybody looks for."""
    config = run.config
    tiles = []
    for key in run.quality:
        name = "accuracy" if key == "accuracy" else key.upper()
        tiles.append((figure(run.last.get(key), key == "accuracy"), f"test {name}"))
    if run.kind == "none":
        tiles.append((no_number(run), "privacy"))
    else:
        tiles.append((shown(run.statement.epsilon), _about_epsilon(run)))
    for number, noun, said in (
        (config.training.rounds, "round", f"{run.rounds} of "),
        (config.data.clients, "client", ""),
    ):
        count, _, name = counted(number, noun).partition(" ")
        tiles.append((said + count, name))
    cells = "".join(f"<div><dt>{prose(k)}</dt><dd>{text(v)}</dd></div>" for v, k in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _about_epsilon(run: RunRecord) -> str:
    """Whose the number in the header is, and at which delta."""
    spent = {shown(client.statement.epsilon) for client in run.clients if client.statement}
    kind = "nominal ε" if run.kind == "nominal" else "ε"
    said = f"largest {kind}" if len(spent) > 1 else kind
    whole = "" if run.unit == "record" else f" for {UNITS[run.unit]}"
    return f"{said}{whole}, at δ = {small(run.statement.delta)}"


def state(run: RunRecord) -> str:
    """A word on runs that did not go to their end."""
    if not run.finished:
        ledger = (
            "; ε comes from the ledger, and <code>udpfl budget show</code> lists it for each client"
            if run.kind != "none"
            else ""
        )
        return (
            '<p class="state"><strong>Not finished.</strong> This page shows the run up to '
            f"round {run.rounds} of {run.config.training.rounds}. The charts by round end at "
            f"the last evaluated round{ledger}.</p>"
        )
    trained = "" if run.metrics else f" {NOTHING_TRAINED}"
    if run.stopped:
        return f'<p class="state"><strong>Ended early.</strong> {prose(run.stopped)}.{trained}</p>'
    return f'<p class="state">{trained.strip()}</p>' if trained else ""


def privacy(run: RunRecord) -> str:
    """The statement in plain words."""
    said = explain(run)
    beliefs = "".join(
        f'<tr><th scope="row">{text(b.before)}</th><td>{text(b.at_least)}</td>'
        f"<td>{text(b.at_most)}</td></tr>"
        for b in said.beliefs
    )
    table = (
        f'<table><caption>{prose(said.belief)}</caption><thead><tr><th scope="col">before</th>'
        '<th scope="col">after, at least</th><th scope="col">after, at most</th></tr>'
        f"</thead><tbody>{beliefs}</tbody></table>"
        if beliefs
        else ""
    )
    notes = f"<h3>What it rests on</h3>{_listed(said.notes)}" if said.notes else ""
    parts = [
        f"<div><h3>What it means</h3>{paragraphs(said.meaning)}{table}</div>",
        f"<div><h3>For whom</h3>{_listed(said.whom)}{notes}</div>",
    ]
    if said.limits:
        parts.append(f"<div><h3>What it does not cover</h3>{_listed(said.limits)}</div>")
    return (
        f'<section class="privacy {run.tone}" aria-labelledby="privacy">'
        f'<h2 id="privacy">Privacy in plain words</h2><p class="headline">'
        f'{prose(said.headline)}</p><div class="columns">{"".join(parts)}</div></section>'
    )


def paragraphs(lines: Iterable[str]) -> str:
    """Sentences of plain words, each by itself."""
    return "".join(f"<p>{prose(line).replace('e^ε', 'e<sup>ε</sup>')}</p>" for line in lines)


def _listed(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{prose(line)}</li>' for line in lines)}</ul>"


def confusion(run: RunRecord, beside: str) -> str:
    """The confusion matrix as a table whose cells are shaded by their share of the row."""
    if not run.evaluation or not run.confusion:
        return ""
    matrix, names = run.confusion, class_names(run)
    tested = counted(run.evaluation.test_records or 0, "test record")
    return (
        '<section class="screen" aria-labelledby="confusion"><h2 id="confusion">Class by class</h2>'
        f"<p>Final model, {tested}. {_worst(matrix, names)}</p>"
        f'<div class="cards"><div><h3>Confusion matrix</h3>{_matrix(matrix, names)}</div>{beside}'
        "</div></section>"
    )


def _worst(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    wrong = sorted(
        ((n, i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n),
        key=lambda found: -found[0],
    )
    if not wrong:
        return "Every test record was recognised."
    pairs = [f"{text(names[i])} taken for {text(names[j])} ({n})" for n, i, j in wrong[:3]]
    return "Most often confused: " + "; ".join(pairs) + "."


def _matrix(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    if len(names) > _MATRIX_LIMIT:
        return f"<p>With {len(names)} classes the matrix is in <code>evaluation.json</code>.</p>"
    size = "few" if len(names) <= 3 else "small" if len(names) <= 12 else "dense"
    size += " named" if len(names) > 3 and max(map(len, names)) > 3 else ""
    head = "".join(f'<th scope="col"><span>{text(name)}</span></th>' for name in names)
    rows = []
    for i, row in enumerate(matrix):
        total = sum(row) or 1
        cells = "".join(
            f'<td class="h{math.ceil(10 * n / total)}{" right" if i == j else ""}">{n}</td>'
            for j, n in enumerate(row)
        )
        rows.append(f'<tr><th scope="row">{text(names[i])}</th>{cells}</tr>')
    scale = "".join(f'<span class="h{step}"></span>' for step in range(11))
    return (
        scrolling(
            f'<table class="matrix {size}" id="matrix"><caption>Rows: the true class. Columns: '
            "what the model said. Shade: share of the row.</caption><thead><tr><td></td>"
            f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>",
            "Confusion matrix",
        )
        + f'<p class="scale">0 % {scale} 100 % <output id="cell"></output></p>'
    )


def references(run: RunRecord) -> str:
    """Published figures beside the model's own."""
    known = run.references
    if not run.evaluation or not known:
        return ""
    keys = [k for k in ("rmse", "mae", "mse", "accuracy") if any(k in r for r in known.values())]
    rows = [("this model", run.evaluation.figures), *known.items()]
    body = "".join(
        f'<tr><th scope="row">{text(name)}</th>'
        + "".join(f"<td>{figure(r.get(k), k == 'accuracy')}</td>" for k in keys)
        + "</tr>"
        for name, r in rows
    )
    head = "".join(f'<th scope="col">{k if k == "accuracy" else k.upper()}</th>' for k in keys)
    return (
        '<section class="screen" aria-labelledby="references"><h2 id="references">'
        "Compared with other forecasts</h2>"
        "<table><caption>On the same test records; smaller is better</caption><thead><tr><td></td>"
        f"{head}</tr></thead><tbody>{body}</tbody></table></section>"
    )


def facts(run: RunRecord) -> str:
    """When, where, how long, how much was sent."""
    summary, identity = run.summary, run.identity
    size = summary and summary.parameters
    seconds = sum(row.seconds for row in run.metrics)
    private = run.config.privacy.enabled
    rows = [
        *_about_target(run),
        ("started", identity.started or "–"),
        ("rounds", f"{run.rounds} of {run.config.training.rounds}"),
        ("time in rounds", f"{seconds:,.1f} s"),
        ("device", (summary and summary.device) or "–"),
        ("parameters", "–" if size is None else f"{size:,}"),
        ("sent by clients", size_of(sum(row.bytes_up for row in run.metrics))),
        ("sent by the server", size_of(sum(row.bytes_down for row in run.metrics))),
        ("ledger", "shared with other runs" if run.shared_ledger else "this run only"),
        ("checked against it", run.verification.state),
        ("last charge at the end", _charge(run)),
        ("accountant", run.statement.accountant if private else "–"),
        ("version", f"udpfl {identity.udpfl or '–'}, torch {identity.torch or '–'}"),
        ("run id", identity.id),
    ]
    repeated = ("checked against it", "last charge at the end")  # on paper, they are at the top
    body = "".join(
        f'<tr{" class=screen" if k in repeated else ""}><th scope="row">{k}</th><td>{text(v)}</td>'
        "</tr>"
        for k, v in rows
    )
    return (
        '<section aria-labelledby="facts"><h2 id="facts">Run</h2>'
        f'<table class="keys facts"><tbody>{body}</tbody></table></section>'
    )


def _about_target(run: RunRecord) -> list[tuple[str, str]]:
    if run.target is None:
        return []
    if run.reached is not None:
        return [("target", f"{run.target}: reached in {run.reached}")]
    return [("target", f"{run.target}: not reached{'' if run.finished else ' yet'}")]


def _charge(run: RunRecord) -> str:
    """The head of the chain: by it an older copy of the ledger can be told."""
    head = run.verification.head
    return "–" if head is None else f"{head[0]}: {head[1]}" if head[0] else "none"
