"""Every client of a run in one table, and what its columns mean in this run."""

from __future__ import annotations

import math

from udpfl.accounting.statement import shown
from udpfl.report._sections import paragraphs, scrolling, text
from udpfl.report.read import Client, RunRecord
from udpfl.report.words import counted, small

_OPEN_CLIENTS = 20
_ON_PAPER = 12
"""Clients of which a table fits on the page that is signed."""


def clients(run: RunRecord) -> str:
    """Every client: what it declares, its noise, what it spent of its budget."""
    nominal = run.kind == "nominal"
    rows = []
    for client in run.clients:
        statement, budget = client.statement, client.budget
        claimed = statement if statement is not None and statement.kind != "none" else None
        # Where the method's noise could keep no budget, its releases are stated at a delta yet.
        delta = budget[1] if budget else claimed.delta if claimed else None
        proved = f"<td>{shown(claimed.vector_epsilon) if claimed else '–'}</td>" if nominal else ""
        rows.append(
            f'<tr><th scope="row">{text(client.name)}</th>'
            f"<td>{shown(claimed.epsilon) if claimed else '–'}</td>{proved}"
            f"<td>{_budget(client)}</td><td>{_left(client)}</td>"
            f"<td>{'–' if delta is None else small(delta)}</td>"
            f"<td>{client.declared_size:,}</td><td>{text(client.noise)}</td>"
            f"<td>{text(client.clip)}</td><td>{client.rounds}</td></tr>"
        )
    columns = [
        "client",
        *(("nominal ε", "guaranteed ε") if nominal else ("spent ε",)),
        f"{run.budget_name} ε", "left", "δ", "declared records",
        "noise of the server, on the sum" if run.server_adds else "noise", "clip", "rounds asked",
    ]  # fmt: skip
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    table = scrolling(
        f'<table class="clients"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table>",
        "Clients",
    )
    opened = " open" if len(rows) <= _OPEN_CLIENTS else ""
    many = len(rows) > _ON_PAPER
    paper = "screen" if many else "on-paper"
    about = (f'<p class="paper">{_in_short(run)}</p>' if many else "") + paragraphs(run.protection)
    return (
        '<section aria-labelledby="clients-table"><h2 id="clients-table">Clients</h2>'
        f'<details class="{paper}"{opened}><summary>{counted(len(rows), "client")}</summary>{table}'
        f"</details>{about}</section>"
    )


def _in_short(run: RunRecord) -> str:
    """What stands for the table on paper where it would be too long."""
    spent = [c.statement.epsilon for c in run.clients if c.statement and c.statement.kind != "none"]
    low, high = (shown(end(spent)) for end in (min, max)) if spent else ("", "")
    kind = "nominal ε" if run.kind == "nominal" else "spent ε"
    said = f": {kind} {low if low == high else f'from {low} to {high}'}" if spent else ""
    return f"{counted(len(run.clients), 'client')}{said}. The table of all is in report.html."


def _left(client: Client) -> str:
    """How much of its budget is left, rounded down."""
    if client.budget is None or client.statement is None or client.statement.kind == "none":
        return "–"
    if client.has_used_up:
        return '<span class="spent">used up</span>'
    left = 1 - client.statement.epsilon / client.budget[0]
    return f"{math.floor(100 * max(0.0, left))} %"


def _budget(client: Client) -> str:
    if client.budget is None:
        return "–"
    said = f"{client.budget[0]:g}"
    if client.configured is None or client.configured[0] == client.budget[0]:
        return said
    return f"{said} <small>(configured {client.configured[0]:g})</small>"
