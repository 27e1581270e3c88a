"""`udpfl init`: a commented configuration to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from udpfl.errors import InvalidInput


def init(
    csv: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CSV]...",
            help="Your table: a file, a pattern such as 'sites/*.csv', or one file for each "
            "client. If not given, the built-in data set.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The column to predict; by default a guess.", show_default=False),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="The column whose values are the clients.", show_default=False),
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="The column that says whose a row is, if a person may have several.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=LOW,HIGH",
            help="Public bounds of a column of numbers, or COLUMN=none where it lies in [-1, 1] "
            "already. May be repeated.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("udpfl.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a commented configuration for your table.

    It names the columns and leaves open what only you can know: public bounds of every number,
    instead of the range in the file, which is private. Delimiter, decimal mark and encoding are
    read off the file.

    Examples:

    udpfl init patients.csv --target outcome --by hospital

    udpfl init patients.csv --target ill --scale age=0,110 --scale pressure=60,200

    udpfl init 'sites/*.csv'
    """
    if out.exists() and not force:
        raise InvalidInput("out", f"{out} exists; --force overwrites it")
    said = (target, by, person, scale or ())
    text = _for_table(csv, *said) if csv else _for_default(*said)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput("out", f"cannot write {out}: {error.strerror}") from None
    todo = sum("TODO" in line or '"LOW"' in line for line in text.splitlines())
    left = f"; look at the {todo} lines with TODO, LOW or HIGH" if csv and todo else ""
    typer.echo(f"wrote {out}{left}\nnext: udpfl run {out} --dry-run")


def _for_table(
    csv: list[str],
    target: str | None,
    by: str | None,
    person: str | None,
    scale: Sequence[str],
) -> str:
    from udpfl.data.beginning import Choices, beginning
    from udpfl.data.csv_files import find_files, read_files
    from udpfl.data.describing import describe, guess_dialect

    files = find_files(csv, None)
    dialect = guess_dialect(files[0])
    columns = describe(read_files(files, dialect), dialect)
    return beginning(files, dialect, columns, Choices.of(columns, target, by, person, scale))


def _for_default(*said: object) -> str:
    from udpfl.config.documents import example

    if any(said):
        raise InvalidInput("csv", "is needed for --target, --by, --person and --scale")
    return example()
