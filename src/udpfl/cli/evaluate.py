"""`udpfl evaluate`: how good the model of a run is, on its test records or on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from udpfl.cli._options import DataDir, Trust, trust_all
from udpfl.cli._trained import (
    Decimal,
    Delimiter,
    Encoding,
    RunArgument,
    dialect_for,
    is_array,
    read_array,
)

_MOST = 12
"""Classes up to which a confusion matrix is printed."""


def evaluate(
    run: RunArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]",
            help="A CSV file with the target column, or a .npz file with `inputs` and `targets`; "
            "by default the test records of the run.",
            show_default=False,
        ),
    ] = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    data_dir: DataDir = None,
    trust: Trust = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Evaluate the model of a run on its test records, or on records of yours.

    Nothing is charged. Figures on records that are private are a release without noise: keep them
    where the records are.

    Examples:

    udpfl evaluate RUN

    udpfl evaluate RUN new-patients.csv
    """
    from udpfl.trained import load

    trust_all(trust)
    trained = load(run)
    if data is None:
        found = trained.evaluate(data_dir=data_dir)
    elif is_array(data):
        pair = read_array(Path(data), "inputs"), read_array(Path(data), "targets")
        found = trained.evaluate(pair)
    else:
        dialect = dialect_for(trained, delimiter, decimal, encoding)
        found = trained.evaluate(data, dialect=dialect)
    if json_:
        plain = {**found.to_dict(), "errors_in_units": trained.errors(found)}
        typer.echo(json.dumps(plain, indent=2, ensure_ascii=False))
        return
    _print(found, trained, "the test records of the run" if data is None else str(data))


def _print(found: Any, trained: Any, where: str) -> None:
    console = Console(emoji=False, highlight=False)
    console.print(f"{found.test_records:,} records: {escape(where)}")
    for name, value in found.figures.items():
        if isinstance(value, float | int):
            console.print(f"{name:>9}  {value:.4f}")
    for name, (mae, rmse) in trained.errors(found).items():
        console.print(
            f"{escape(name)}, in its units: mean absolute error {mae:.4g}, RMSE {rmse:.4g}"
        )
    if found.confusion and len(found.confusion) <= _MOST:
        console.print(_confusion(found))
    console.print(escape(f"the model: {trained.privacy}"), soft_wrap=True)


def _confusion(found: Any) -> Table:
    """Rows are true classes, columns what the model said."""
    names = found.class_names or [str(i) for i in range(len(found.confusion[0]))]
    names = [*names, *(str(i) for i in range(len(names), len(found.confusion[0])))]
    table = Table("true \\ predicted", *map(escape, names), title_justify="left")
    for name, row in zip(names, found.confusion, strict=False):
        table.add_row(escape(name), *(f"{count:,}" for count in row))
    return table
