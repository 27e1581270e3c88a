"""`udpfl runs`: which runs there are, and what came of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from udpfl.accounting.statement import shown
from udpfl.runs.listing import ListedRun, list_runs

_COLOURS = {
    "finished": "green", "running": "cyan", "stopped": "yellow", "interrupted": "yellow",
    "broken": "bold red",
}  # fmt: skip


def runs(
    folder: Annotated[
        Path, typer.Argument(help="Folder with runs, or with folders of runs.")
    ] = Path("runs"),
    json_: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """List the runs in a folder: data, method, accuracy, epsilon and state.

    The newest run is the last one. A run is finished, stopped (it ended before its last round),
    interrupted (it can be resumed), running, or broken (its files cannot be read).

    Examples:

    udpfl runs

    udpfl runs results/seeds --json
    """
    if folder == Path("runs") and not folder.exists():
        folder = Path()  # runs that were given a folder of their own
    found = list_runs(folder)
    if json_:
        typer.echo(json.dumps([run.to_dict() for run in found], indent=2, ensure_ascii=False))
        return
    if not found:
        typer.echo(f"no runs in {folder}")
        return
    console = Console(emoji=False)
    console.print(_table(found, folder), highlight=False)
    for run in found:
        if run.why:
            console.print(Text(f"{_name(run, folder)}: {run.why}"), soft_wrap=True)
    waiting = next((run for run in found if run.state == "interrupted"), None)
    if waiting is not None:
        console.print(Text(f"to go on: udpfl run --resume {waiting.folder}"), soft_wrap=True)


def _table(found: list[ListedRun], folder: Path) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for head in ("data", "method"):
        table.add_column(head, overflow="fold")
    for head in ("result", "ε", "rounds"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("started", no_wrap=True)
    for run in found:
        done = (
            f"{run.rounds}" if run.planned in (None, run.rounds) else f"{run.rounds}/{run.planned}"
        )
        table.add_row(
            Text(_name(run, folder)), Text(run.data), Text(run.method), _result(run),
            _epsilon(run), done, Text(run.state, style=_COLOURS[run.state]),
            run.started[:16].replace("T", " "),
        )  # fmt: skip
    return table


def _name(run: ListedRun, folder: Path) -> str:
    path = Path(run.folder)
    return path.name if path == folder else str(path.relative_to(folder))


def _result(run: ListedRun) -> str:
    for name, value in (("", run.accuracy), ("loss ", run.loss)):
        if value is not None:
            return f"{name}{value if isinstance(value, str) else format(value, '.4f')}"
    return "–"


def _epsilon(run: ListedRun) -> str:
    if run.privacy == "none":
        return "none"
    if run.epsilon is None:
        return "–"
    said = run.epsilon if isinstance(run.epsilon, str) else shown(run.epsilon)
    return said if run.privacy == "guarantee" else f"{said} nominal"
