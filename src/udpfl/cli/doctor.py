"""`udpfl doctor`: whether everything that a run needs is in order."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from udpfl.cli._checks import every_check
from udpfl.cli._options import DataDir

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    ledgers: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[LEDGER]...",
            help="Ledgers or run folders to check; by default the ledgers in the current folder.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check what is installed, the device, the data folder and the ledgers.

    Each line is ok, a warning or a problem, and says what to do. Exit code 1 if there is a problem.
    Nothing is changed.

    Examples:

    udpfl doctor

    udpfl doctor site.sqlite --data-dir DATA
    """
    named = data_dir or os.environ.get("UDPFL_DATA_DIR")
    checks = list(every_check(Path(named) if named else None, ledgers or []))
    if json_:
        typer.echo(json.dumps([check.to_dict() for check in checks], indent=2, ensure_ascii=False))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(style="bold", overflow="fold")
        table.add_column(overflow="fold")
        for check in checks:
            said = Text(check.said)
            if check.do:
                said.append(f"\n→ {check.do}", style="italic")
            table.add_row(Text(check.status, style=_COLOURS[check.status]), check.name, said)
        Console(emoji=False).print(table, highlight=False)
    if any(check.status == "problem" for check in checks):
        raise typer.Exit(1)
