"""`udpfl predict`: what the model of a run says of new records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from udpfl.cli._options import Trust, trust_all
from udpfl.cli._trained import (
    Decimal,
    Delimiter,
    Encoding,
    RunArgument,
    dialect_for,
    is_array,
    read_array,
)


def predict(
    run: RunArgument,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="A CSV file with the columns of the run, in any order; or a .npy file of inputs.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The CSV file to write; by default predictions are printed.", show_default=False
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column of the file to repeat beside the predictions. May be repeated.",
            show_default=False,
        ),
    ] = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    trust: Trust = None,
) -> None:
    """Predict new records with the model of a run.

    Cells become numbers as they did in the run: its scale, categories and column order are kept in
    the run folder. The result has a column `prediction` and the probability of every class under
    its name; for a regression, the predicted numbers in the units of their columns. A row with a
    missing cell has an empty prediction where the run left such rows out.

    Predictions cost no privacy.

    Example:

    udpfl predict RUN new-patients.csv --keep patient --out predictions.csv
    """
    from udpfl.trained import load

    trust_all(trust)
    trained = load(run)
    dialect = dialect_for(trained, delimiter, decimal, encoding)
    if is_array(data):
        found = trained.predict(read_array(data, "inputs"))
    else:
        found = trained.predict(data, keep=keep or (), dialect=dialect)
    if out is None:
        typer.echo(found.as_csv(dialect.delimiter, dialect.decimal), nl=False)
        return
    found.write(out, dialect.delimiter, dialect.decimal)
    empty = len(found) - int(found.used.sum())
    left_out = f"; {empty:,} have a missing cell and no prediction" if empty else ""
    typer.echo(f"wrote {len(found):,} rows to {out}{left_out}")
