"""`udpfl methods`: which federated methods there are, and what each one promises."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from udpfl.cli._paper_table import TARGETS, in_words, stored
from udpfl.cli._paper_table import table as paper_table
from udpfl.errors import UdpflError
from udpfl.plugins import offered, resolve

_SHOWN = ("paper", "releases", "unit", "guarantee", "options", "from", "problem")
_UNITS = {
    "record": 'one record; with privacy.unit = "client", a whole client',
    "client": "a whole client",
}


def methods(
    table_: Annotated[
        bool,
        typer.Option(
            "--table",
            help="Print the comparison table of the UDP-FL paper, and below each row what was "
            "measured here.",
        ),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """List every method for training.algorithm: its paper, what it releases and guarantees.

    The list includes methods of installed packages.

    Examples:

    udpfl methods

    udpfl methods --table

    udpfl run --set training.algorithm=scaffold --set training.local_steps=5
    """
    if table_:
        _print_paper_table(json_)
        return
    rows = list(known())
    if json_:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for row in rows:
        name = row["name"]
        for key in _SHOWN:
            if row[key]:
                said = _UNITS.get(row[key], row[key]) if key == "unit" else _in_words(row[key])
                table.add_row(escape(name), key, escape(said))
                name = ""
        table.add_row()
    Console(emoji=False).print(table, highlight=False)


def _print_paper_table(json_: bool) -> None:
    """The paper's table, with what was measured."""
    rows = list(paper_table(stored()))
    if json_:
        typer.echo(json.dumps([row.to_dict() for row in rows], indent=2, ensure_ascii=False))
        return
    shown = Table(title="The comparison table of the UDP-FL paper", pad_edge=False)
    for head in ("Method", "Noise", "Accuracy", "Privacy", "Conv."):
        shown.add_column(head, overflow="fold")
    for row in rows:
        shown.add_row(*row.printed, style="bold")
        for own in row.here:
            shown.add_row(*(escape(cell) for cell in in_words(own)))
        shown.add_section()
    console = Console(emoji=False)
    console.print(shown, highlight=False)
    targets = ", ".join(f"{target:g} on {data}" for data, target in TARGETS.items())
    typer.echo(
        "Bold: the paper's words. Below: measured here; test accuracy, what is guaranteed for all "
        f"releases of a client, and rounds to an accuracy of {targets}."
    )


def known() -> Iterator[dict[str, Any]]:
    """The facts of every method as plain data: built in, then those of installed packages."""
    from udpfl.algorithms import BUILT_IN

    for name, method in BUILT_IN.items():
        yield _row(name, method, "")
    for name, points in sorted(offered("algorithms").items()):
        if name in BUILT_IN:
            continue  # the built-in one is what the name stands for
        place = ", ".join(point.value for point in points)
        try:
            method = resolve("algorithms", name, BUILT_IN)
        except UdpflError as reason:  # one broken package must not hide the others
            yield _row(name, None, place) | {"problem": str(reason)}
        else:
            yield _row(name, method, place)


def _row(name: str, method: Any, place: str) -> dict[str, Any]:
    facts = {
        key: str(getattr(method, key, "")) for key in ("paper", "releases", "unit", "guarantee")
    }
    return {"name": name, **facts, "options": _options(method), "from": place, "problem": ""}


def _options(method: Any) -> dict[str, Any]:
    """What `training.options` may hold, with the defaults; None where there is none."""
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # nothing to call, or nothing that tells
        return {}
    open_ended = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    after_server = [each for each in parameters[1:] if each.kind not in open_ended]
    return {
        each.name: None if each.default is each.empty else each.default for each in after_server
    }


def _in_words(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(name if own is None else f"{name} = {own}" for name, own in value.items())
