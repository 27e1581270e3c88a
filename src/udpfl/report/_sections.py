"""The parts of the page, as HTML. Every text that comes from a run goes through `text`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from udpfl.accounting.statement import shown
from udpfl.config import Config
from udpfl.config.documents import known_keys
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
    """A sentence as text, with a command in backticks set as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", text(value))


def figure(value: Any, percent: bool = False) -> str:
    """A figure of the model for people."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–" if value is None else text(value)
    return f"{100 * value:.1f} %" if percent else f"{value:.4f}"


def privacy_badge(run: RunRecord) -> str:
    """The kind of privacy in colour, pattern and words, and whether the ledger says the same."""
    kind = f'<span class="badge {run.tone}">{text(label(run))}</span>'
    if run.kind == "none":  # claims nothing that could be verified
        return kind
    state = run.verification.state
    return f'{kind} <span class="badge {_LOOKS[state]}">{state.capitalize()}</span>'


def header(run: RunRecord) -> str:
    """Title, the figures everybody looks for, and the state of the run."""
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
    cells = "".join(f"<div><dd>{text(v)}</dd><dt>{text(k)}</dt></div>" for v, k in tiles)
    return (
        f'<header><p class="eyebrow">UDP-FL run report</p><h1>{text(run.name)}</h1>'
        f"<p>{text(config.data.name)}, {text(config.model.name)}, "
        f"{text(config.training.algorithm)}. {privacy_badge(run)}</p>"
        f'{state(run)}<dl class="tiles">{cells}</dl></header>'
    )


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
        f"<table><caption>{text(said.belief)}</caption><thead><tr><th>before</th>"
        "<th>after, at least</th><th>after, at most</th></tr>"
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
        f'{text(said.headline)}</p><div class="columns">{"".join(parts)}</div></section>'
    )


def banner(run: RunRecord) -> str:
    """The statement in one line, in the colour and the pattern of its kind."""
    return (
        f'<section class="privacy banner {run.tone}" aria-label="Privacy statement">'
        f'<p class="headline">{privacy_badge(run)} {text(explain(run).headline)}</p>'
        f"{_checked(run)}"
        '<p><a href="#privacy">What this means, for whom, and what it does not cover</a></p>'
        "</section>"
    )


def _checked(run: RunRecord) -> str:
    """What the number was compared with, or why it could not be."""
    if run.kind == "none":
        return ""
    if run.verification.state == "verified":
        said = (
            "Verified: every client’s ε was recomputed from the ledger when this page was made. "
            "The chain of the ledger is sound, it holds all charges of this run, and the settings, "
            "noise, figures and model are those that the run sealed in it. The quality of the "
            "model was measured by the run and not checked here."
        )
    else:
        said = f"Not verified: {'; '.join(run.verification.reasons)}."
    return f'<p class="checked">{prose(said)}</p>'


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
        '<section aria-labelledby="confusion"><h2 id="confusion">Class by class</h2>'
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
    size = "small" if len(names) <= 12 else "dense"
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
        f'<div class="scroll"><table class="matrix {size}" id="matrix"><caption>Rows: the true '
        f"class. Columns: what the model said. Shade: share of the row.</caption><thead><tr>"
        f"<td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<p class="scale">0 % {scale} 100 % <output id="cell"></output></p>'
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
    head = "".join(f"<th>{k if k == 'accuracy' else k.upper()}</th>" for k in keys)
    return (
        '<section aria-labelledby="references"><h2 id="references">'
        "Compared with other forecasts</h2>"
        "<table><caption>On the same test records; smaller is better</caption><thead><tr><td></td>"
        f"{head}</tr></thead><tbody>{body}</tbody></table></section>"
    )


def configuration(config: Config) -> str:
    """Every key by section; what is at its default is dimmed."""
    plain = config.model_dump(exclude={"out"})
    defaults = Config().model_dump()
    about = known_keys()
    top = {k: v for k, v in plain.items() if k not in ("data", "model", "privacy", "training")}
    groups = [("run", "", top, defaults)]
    for name in ("data", "model", "privacy", "training"):
        if isinstance(plain[name], dict):
            groups.append((name, f"{name}.", plain[name], defaults[name]))
        else:
            groups.append((name, "", {name: plain[name]}, defaults))
    body = []
    for name, prefix, values, usual in groups:
        rows = []
        for key, value in values.items():
            default = key in usual and value == usual[key]
            shade = ' class="default"' if default else ""
            said = "not set" if value is None else str(value) if value != {} else "none"
            note = ' <small class="only">default</small>' if default else ""
            meaning = about.get(prefix + key, {}).get("description", "")
            rows.append(
                f'<tr{shade}><th scope="row">{text(key)}</th><td>{text(said)}{note}</td>'
                f'<td class="wide">{prose(meaning)}</td></tr>'
            )
        changed = sum('class="default"' not in row for row in rows)
        body.append(
            f"<details{' open' if changed else ''}><summary>{text(name)} <small>{changed} of "
            f'{len(rows)} changed</small></summary><table class="keys"><tbody>{"".join(rows)}'
            "</tbody></table></details>"
        )
    return (
        '<section aria-labelledby="configuration"><h2 id="configuration">Configuration</h2>'
        f"{''.join(body)}</section>"
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
    body = "".join(f'<tr><th scope="row">{k}</th><td>{text(v)}</td></tr>' for k, v in rows)
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
