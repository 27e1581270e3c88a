"""Every client of a run in one table, and what its columns mean in this run."""

from __future__ import annotations

from udpfl.accounting.statement import shown
from udpfl.report._sections import paragraphs, text
from udpfl.report.read import Client, RunRecord
from udpfl.report.words import counted, small

_OPEN_CLIENTS = 20


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
            f"<td>{_budget(client)}</td>"
            f'<td class="wide">{"–" if delta is None else small(delta)}</td>'
            f"<td>{client.declared_size:,}</td>"
            f'<td class="wide">{text(client.noise)}</td><td class="wide">{text(client.clip)}</td>'
            f'<td class="wide">{client.rounds}</td></tr>'
        )
    spent = "<th>nominal ε</th><th>guaranteed ε</th>" if nominal else "<th>spent ε</th>"
    noise = "noise of the server, on the sum" if run.server_adds else "noise"
    table = (
        '<div class="scroll"><table class="clients"><thead><tr><th>client</th>'
        f'{spent}<th>{run.budget_name} ε</th><th class="wide">δ</th><th>declared records</th>'
        f'<th class="wide">{noise}</th><th class="wide">clip</th>'
        '<th class="wide">rounds asked</th>'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    opened = " open" if len(rows) <= _OPEN_CLIENTS else ""
    about = paragraphs(run.protection)
    return (
        '<section aria-labelledby="clients-table"><h2 id="clients-table">Clients</h2>'
        f"<details{opened}><summary>{counted(len(rows), 'client')}</summary>{table}</details>"
        f"{about}</section>"
    )


def _budget(client: Client) -> str:
    if client.budget is None:
        return "–"
    said = f"{client.budget[0]:g}"
    if client.configured is None or client.configured[0] == client.budget[0]:
        return said
    return f'{said} <small class="wide">(configured {client.configured[0]:g})</small>'
