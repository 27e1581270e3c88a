"""`udpfl data`: which data sets there are, whether their files are right, and how to get them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from udpfl.cli._completion import one_of
from udpfl.cli._options import DataDir, chosen_dialect
from udpfl.data import BUILT_IN, source_of, sources
from udpfl.data.checking import Finding, findings, presences
from udpfl.data.csv_files import Dialect, find_files, read_files
from udpfl.data.describing import PRIVATE, ColumnSummary, describe, guess_dialect
from udpfl.data.fetching import Progress as Report
from udpfl.data.fetching import fetch as download
from udpfl.data.formats import Source
from udpfl.errors import InvalidInput

data = typer.Typer(help="List the data sets, check their files, and download them.")

Json = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")]
_COLOURS = {"ok": "green", "changed": "bold red", "missing": "yellow"}


@data.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data.command("list")
def list_(data_dir: DataDir = None, json_: Json = False) -> None:
    """List every built-in data set: what it is, its licence and source, and whether it is here.

    Example:

    udpfl data list --data-dir DATA
    """
    directory = _directory(data_dir)
    rows = [_row(source, directory) for source in sources().values()]
    if json_:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(row["name"], "what", escape(row["title"]))
        for key in ("samples", "licence", "source"):
            if row[key]:
                table.add_row("", key, escape(row[key]))
        table.add_row("", "here", source_of(row["name"]).anywhere or "\n".join(_here(row)))
        table.add_row()
    console = Console(emoji=False)
    console.print(table, highlight=False)
    if directory is None:
        place = "no data folder was given: use --data-dir or UDPFL_DATA_DIR"
    else:
        place = f"looked in {directory}"
    console.print(escape(place), highlight=False, soft_wrap=True)


@data.command("describe")
def describe_(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="CSV files, or a pattern such as 'sites/*.csv'."),
    ],
    delimiter: Annotated[
        str | None,
        typer.Option(help="Between cells; by default read off the file.", show_default=False),
    ] = None,
    decimal: Annotated[
        str | None,
        typer.Option(help="Decimal mark; by default read off the file.", show_default=False),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="Of the text; by default read off the file.", show_default=False),
    ] = None,
    json_: Json = False,
) -> None:
    """Describe the columns of a table: kind, range, missing cells. For its owner alone.

    These are statistics of private records. They help to find public bounds; do not copy them into
    a configuration.

    Example:

    udpfl data describe patients.csv
    """
    found = find_files(files, None)
    guessed = guess_dialect(found[0])
    if delimiter and delimiter == guessed.decimal:  # what was read off has another delimiter
        decimal = decimal or "."
    dialect = chosen_dialect(guessed, delimiter, decimal, encoding)
    columns = describe(read_files(found, dialect), dialect)
    if json_:
        rows = [own.to_dict() for own in columns]
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print_columns(columns, dialect)
    typer.echo(f"note: {PRIVATE}", err=True)


def _print_columns(columns: Sequence[ColumnSummary], dialect: Dialect) -> None:
    table = Table("column", "kind", "missing", "distinct", "smallest", "largest", "values")
    for column in ("missing", "distinct", "smallest", "largest"):
        table.columns[[own.header for own in table.columns].index(column)].justify = "right"
    for own in columns:
        low, high = ("" if value is None else f"{value:g}" for value in (own.low, own.high))
        values = ", ".join(own.values) if own.kind == "category" else ""
        table.add_row(
            escape(own.name), own.kind, f"{own.missing:,}", f"{own.distinct:,}", low, high,
            escape(values),
        )  # fmt: skip
    console = Console(emoji=False, highlight=False)
    console.print(table)
    rows = columns[0].rows if columns else 0
    console.print(
        f"{rows:,} rows; delimiter {dialect.delimiter!r}, decimal mark {dialect.decimal!r}, "
        f"{dialect.encoding}"
    )


@data.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Only these data sets.",
            show_default=False,
            autocompletion=one_of(BUILT_IN),
        ),
    ] = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Compare the files that are here with their checksums.

    Exit code 1 if a file differs from the published one, or if a data set that you name is missing
    or incomplete.

    Example:

    udpfl data check mnist cifar10 --data-dir DATA
    """
    directory = _directory(data_dir)
    if directory is not None and not directory.is_dir():
        raise InvalidInput("data_dir", f"there is no folder {str(directory)!r}")
    wanted = [source_of(name) for name in names or BUILT_IN]
    rows = [row for source in wanted for row in _checked(source, directory)]
    absent = [source.name for source in wanted if not _usable(source, directory)]
    if json_:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print_checks(rows)
        if absent and names:
            typer.echo(f"missing or incomplete: {', '.join(absent)}")
        elif not rows:
            typer.echo("there are no data files here to check")
    if (absent and names) or any(row["status"] == "changed" for row in rows):
        raise typer.Exit(1)


@data.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the data set, as `udpfl data list` prints it.",
            autocompletion=one_of(BUILT_IN),
        ),
    ],
    data_dir: DataDir = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Web folder (URL) to download the same files from. The published checksums still "
            "apply.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Download a data set from its public source and verify its checksum.

    An interrupted download continues where it stopped. Files that are already here are not
    downloaded again.

    If a data set has no direct download, the command says what to do by hand. Exit code 2.

    Example:

    udpfl data fetch cifar10 --data-dir DATA
    """
    wanted = source_of(name)
    directory = _directory(data_dir)
    if not wanted.fetched and not _usable(wanted, directory):
        _explain(wanted, directory)
        raise typer.Exit(2)
    if directory is None and wanted.folder:
        raise InvalidInput(
            "data_dir", "is missing: give a folder for the files, or set UDPFL_DATA_DIR"
        )
    with _bars() as report:
        got = download(wanted, directory or Path(), base=source, progress=report)
    if got.downloaded:
        files = f"{len(got.downloaded)} file{'' if len(got.downloaded) == 1 else 's'}"
        typer.echo(f"{name}: downloaded {files}, checksums correct; {got.format} in {got.place}")
    else:
        typer.echo(f"{name}: already here, {got.format} in {got.place}")
    if wanted.folder:
        typer.echo(f"licence: {wanted.licence}; please cite {wanted.citation}")


def _directory(data_dir: Path | None) -> Path | None:
    named = data_dir or os.environ.get("UDPFL_DATA_DIR")
    return Path(named) if named else None


def _row(source: Source, directory: Path | None) -> dict[str, Any]:
    """What is known of a data set, as plain data."""
    found = presences(source, directory)
    return {
        "name": source.name,
        "title": source.title,
        "samples": source.samples,
        "licence": source.licence,
        "source": source.homepage,
        "citation": source.citation,
        "fetch": source.fetched is not None,
        "present": any(presence.complete for presence in found),
        "here": [
            {
                "format": presence.form.name,
                "place": str(presence.place),
                "missing": list(presence.missing),
            }
            for presence in found
        ],
    }


def _here(row: dict[str, Any]) -> Iterator[str]:
    for presence in row["here"]:
        where = escape(f"{presence['format']} in {presence['place']}")
        if presence["missing"]:
            yield f"[yellow]incomplete[/]: {where}, {len(presence['missing'])} missing"
        else:
            yield f"[green]yes[/]: {where}"
    if not row["here"]:
        verb = "gets" if row["fetch"] else "says how to get"
        yield f"[yellow]no[/]: `udpfl data fetch {row['name']} --data-dir DIR` {verb} it"


def _usable(source: Source, directory: Path | None) -> bool:
    return any(presence.complete for presence in presences(source, directory))


def _checked(source: Source, directory: Path | None) -> Iterator[dict[str, Any]]:
    for presence in presences(source, directory):
        found = findings(presence.form, presence.place)
        if source.package:
            found = [Finding(source.package, "no published checksum")]
        for finding in found:
            yield {"data": source.name, "format": presence.form.name, **asdict(finding)}


def _print_checks(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table("data set", "file", "status")
    for row in rows:
        status = f"[{_COLOURS.get(row['status'], 'dim')}]{row['status']}[/]"
        table.add_row(row["data"], escape(row["name"] or "*.jpg"), status)
    console = Console(emoji=False)
    console.print(table, highlight=False)
    for row in rows:
        if row["detail"]:
            line = f"{row['data']}: {row['name'] or '*.jpg'} {row['status']}: {row['detail']}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _explain(source: Source, directory: Path | None) -> None:
    """What to do where nothing can be downloaded."""
    folder = (directory or Path("DATA")) / source.folder
    typer.echo(f"udpfl: error: {source.name} has no direct download. Do this by hand:", err=True)
    for number, step in enumerate(source.by_hand, 1):
        typer.echo(f"{number}. {step.replace('{folder}', str(folder))}", err=True)
    if source.folder:
        typer.echo(f"Licence: {source.licence}. Please cite {source.citation}.", err=True)


@contextmanager
def _bars() -> Iterator[Report | None]:
    """A bar for every file on a terminal, nothing elsewhere."""
    console = Console(stderr=True, emoji=False)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as progress:

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(escape(name), total=total)
            progress.update(tasks[name], completed=done, total=total)

        yield report
