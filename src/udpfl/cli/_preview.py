"""What a run would do and cost, for `udpfl run --dry-run` and `udpfl plan CONFIG`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from udpfl.accounting.described import counted
from udpfl.accounting.statement import shown

if TYPE_CHECKING:
    from udpfl.federation.preview import ClientPreview, Preview

_MOST = 12
"""Clients that get a line of their own."""


def show_preview(config: Path | None, overrides: Sequence[str], as_json: bool) -> None:
    """Plan a run and print it; nothing is trained for anyone, written or charged."""
    from udpfl.config import load
    from udpfl.federation.preview import preview

    found = preview(load(config, overrides=overrides))
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
        return
    console = Console(emoji=False, highlight=False)
    console.print(_overview(found), soft_wrap=True)
    console.print(_clients(found.clients))
    console.print("nothing was trained for anyone, written or charged", style="dim")


def _overview(found: Preview) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, words in _lines(found):
        table.add_row(name, escape(words))
    return table


def _lines(found: Preview) -> list[tuple[str, str]]:
    config, data, training = found.config, found.data, found.config.training
    unit = f"{data['unit']}s"
    labels = data["class_names"] or ([f"{data['classes']} classes"] if data["classes"] else [])
    shape = "×".join(map(str, data["input_shape"]))
    about = f", {', '.join(labels[:8])}" + (", …" if len(labels) > 8 else "") if labels else ""
    aside = f", {data['public_records']:,} public" if data["public_records"] else ""
    lines = [
        (
            "data",
            f"{data['name']}: {data['training_records']:,} {unit} to train on, "
            f"{data['test_records']:,} rows to test on{aside}; {shape} inputs; "
            f"{data['task']}{about}",
        ),
        ("model", f"{config.model.name}, {found.parameters:,} parameters"),
        ("method", _method(found)),
        ("time", _time(found)),
    ]
    up = found.bytes_up * (training.clients_per_round or config.data.clients) * training.rounds
    lines.append(("traffic", f"{_size(up)} from all clients in all rounds"))
    lines += [("public", words) for words in found.public]
    lines += [("assumed", words.removeprefix("assumes that ")) for words in found.assumptions]
    where = f"the shared ledger {found.ledger}" if found.ledger else "a ledger in its own folder"
    is_private = any(client.statement.kind != "none" for client in found.clients)
    lines.append(("charged", f"to {where}" if is_private else "nothing: the run is not private"))
    return _once(lines)


def _once(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each name only in its first line."""
    return [
        (name if i == 0 or lines[i - 1][0] != name else "", words)
        for i, (name, words) in enumerate(lines)
    ]


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _method(found: Preview) -> str:
    training, privacy = found.config.training, found.config.privacy
    picked = training.clients_per_round or found.config.data.clients
    steps = (
        f"{training.local_epochs} local epochs"
        if training.local_epochs
        else counted(training.local_steps, "local step")
    )
    noise = f"accounting {privacy.accounting}" if privacy.enabled else "no privacy"
    return (
        f"{training.algorithm}, {training.rounds} rounds of {picked} clients, {steps}, sampling "
        f"rate {training.sampling_rate:g}; {noise}"
    )


def _time(found: Preview) -> str:
    if found.seconds is None:
        return "not tried"
    seconds = found.seconds
    words = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"about {words} on this machine, from one round that was tried and thrown away"


def _clients(clients: Sequence[ClientPreview]) -> Table:
    """A line for each client; those that are alike share one where there are many."""
    table = Table(
        "client", "declared size", "releases", "noise", "clip", "would be charged", "budget"
    )
    for column in (1, 2):
        table.columns[column].justify = "right"
    groups: dict[tuple[str, ...], list[str]] = {}
    for client in clients:
        groups.setdefault(_cells(client), []).append(client.plan.name)
    if len(clients) <= _MOST:
        for client in clients:
            table.add_row(*map(escape, (client.plan.name, *_cells(client))))
        return table
    for cells, names in list(groups.items())[:_MOST]:
        name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} alike"
        table.add_row(*map(escape, (name, *cells)))
    if len(groups) > _MOST:
        table.add_row(f"and {len(groups) - _MOST} more", *[""] * 6)
    return table


def _cells(client: ClientPreview) -> tuple[str, ...]:
    from udpfl.report.protection import clip_of, noise_of

    row: Any = client.plan.to_row()
    statement, budget = client.statement, client.plan.budget
    if statement.kind == "none":
        charged = "nothing"
    else:
        kind = "" if statement.kind == "guarantee" else "nominal "
        charged = f"{kind}ε {shown(statement.epsilon)} at δ {statement.delta:g}"
    return (
        f"{client.plan.declared_size:,}",
        f"{client.releases:,}",
        noise_of(row),
        clip_of(row, ()),
        charged,
        "none" if budget is None else f"ε {budget.epsilon:g}",
    )
