"""A table in CSV files with a header: one record per row, numbers and categories, any labels.

Options:
  path        a file, a pattern such as "sites/*.csv", or a list; several files are one client each;
              a relative path is looked for in the data directory, then where you are
  target      the column to predict; for regression also a list of columns
  task        "classification" (default) or "regression"
  labels      every class label there may be; without it, those that occur, in order
  scale       column -> [low, high]: public bounds, mapped to [-1, 1], values beyond clamped;
              "none" is your word that a column, or every column, lies in [-1, 1] already
  categories  column -> every category there may be: one input for each of them
  missing     "error" (default), "drop" (leave such rows out), or column -> a public constant
  ignore      columns that are not used
  by          further columns to partition by, which are not used as features; data.by is one
  delimiter, decimal, encoding    how the files are written: ",", "." and "utf-8" by default

Nothing is learned from the records but, without `labels`, which labels occur: scaling by observed
means or extremes would release them unaccounted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.data._schema_options import (
    check_bounds,
    dialect_of,
    named_columns,
    named_values,
    schema_of,
)
from udpfl.data.columns import MARKS, Encoded, Numeric, Schema
from udpfl.data.csv_files import Dialect, Table, find_files, read_files
from udpfl.data.formats import Source, described_by
from udpfl.data.options import known
from udpfl.data.records import Array, DataSet, Indices, Records
from udpfl.data.splits import hold_out_groups, spans
from udpfl.errors import InvalidInput

log = logging.getLogger(__name__)

OPTIONS = (
    "path",
    "target",
    "task",
    "labels",
    "scale",
    "categories",
    "missing",
    "ignore",
    "by",
    "person",
    "delimiter",
    "decimal",
    "encoding",
)
_FAR = 1.0
"""Widths of its bounds by which a value has to lie outside to be warned about."""
_MANY = 0.01
"""The share of values outside of their bounds from which on it is warned about."""

SOURCE = Source(
    name="table",
    title="a table of your own in CSV files",
    samples="one record a row, seeded split",
    licence="",
    homepage="",
    citation="",
    anywhere="wherever data.options.path says",
    is_own=True,
    takes=("by", "task", "person"),
    options=OPTIONS,
    needs=("path", "target"),
    by_hand=(
        "Name your CSV file in the configuration: data.options.path, with data.options.target for "
        "the column to predict. `udpfl init FILE` writes a configuration for it.",
    ),
)


@described_by(SOURCE)
def load(*, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]) -> DataSet:
    """The table at `options["path"]`, with `test` of its rows held out."""
    known("table", options, OPTIONS)
    files = find_files(options.get("path"), directory)
    dialect = dialect_of(options)
    table = read_files(files, dialect)
    name = files[0].stem if len(files) == 1 else files[0].parent.name or "tables"
    return build(table, name, seed=seed, test=test, options=options, dialect=dialect)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that are wrong whatever is in the files."""
    known("table", options, OPTIONS)
    check_bounds(options)
    dialect_of(options)


def build(
    table: Table,
    name: str,
    *,
    seed: int,
    test: float | Table,
    options: Mapping[str, Any],
    dialect: Dialect | None = None,
) -> DataSet:
    """The data set that the options make of a table.

    `test` says how much of its rows, or of each client's, to hold out; or it is a table itself.
    """
    known("table", options, OPTIONS)
    schema = schema_of(options, table, dialect or Dialect())
    encoded, records = _encoded(schema, table)
    _warn_of_far_values(schema, encoded)
    rows = np.flatnonzero(encoded.present)
    if left_out := len(encoded.present) - len(rows):
        log.warning(
            "%s of %s rows have a missing cell and are left out (this line is about private "
            "records: it is for whoever holds them)", f"{left_out:,}", f"{len(table):,}"
        )  # fmt: skip
    columns = _kept_columns(options, table)
    clients = _clients(table, rows, options)
    groups = clients or [rows]
    held_out: list[Indices] = []
    if isinstance(test, Table):
        given, other = _encoded(schema, test)
        tested = other.subset(np.flatnonzero(given.present))
        tested = replace(tested, positions=None)
    else:
        labels = records.targets if schema.label else None
        groups, held_out = hold_out_groups(
            groups, test, seed, labels, columns.get(options.get("person") or "")
        )
        tested = records.subset(np.concatenate(held_out))
    train = np.concatenate(groups)
    return DataSet(
        name=name,
        task=schema.task,
        train=records.subset(train),
        test=tested,
        classes=len(schema.labels) or None,
        columns={own: column[train] for own, column in columns.items()},
        owners=tuple(spans(map(len, groups))) if clients else None,
        test_columns={own: column[np.concatenate(held_out)] for own, column in columns.items()}
        if held_out
        else {},
        test_owners=tuple(spans(map(len, held_out))) if clients and held_out else None,
        class_names=schema.labels or None,
        labels_found=bool(schema.labels) and options.get("labels") is None,
        schema=schema,
        owner_names=tuple(Path(file).stem for file, _ in table.files) if clients else None,
    )


def _encoded(schema: Schema, table: Table) -> tuple[Encoded, Records]:
    """The rows as numbers; those with missing cells are among them, and are told apart."""
    encoded = schema.encode(table)
    assert encoded.targets is not None
    if not encoded.present.any():
        raise InvalidInput("data.options.missing", "every row has a missing cell: none is left")
    return encoded, Records(encoded.inputs, encoded.targets)


def _kept_columns(options: Mapping[str, Any], table: Table) -> dict[str, Array]:
    """Columns that are no features but say who holds a row, or whose it is."""
    found = {
        name: named_values(name, table) for name in named_columns("by", options.get("by"), table)
    }
    for name in named_columns("person", options.get("person"), table):
        found[name] = named_values(name, table, MARKS)
    return found


def _clients(table: Table, rows: Indices, options: Mapping[str, Any]) -> list[Indices] | None:
    """The rows of each file, where files are clients: there are several, and no column is."""
    if len(table.files) == 1 or options.get("by"):
        return None
    found = [own[np.isin(own, rows)] for own in table.rows_by_file]
    for (file, _), own in zip(table.files, found, strict=True):
        if not len(own):
            raise InvalidInput(
                "data.options.missing", f"every row of {file} has a missing cell: none is left"
            )
    return found


def _warn_of_far_values(schema: Schema, encoded: Encoded) -> None:
    """Say which columns do not fit their bounds: to whoever holds the data, and nobody else."""
    numeric = [own for own in (*schema.features, *schema.targets) if isinstance(own, Numeric)]
    for column in numeric:
        outside = column.outside(encoded.raw[column.name][encoded.present])
        count = int((outside > 0).sum())
        if not count or (outside.max() <= _FAR and count <= _MANY * len(outside)):
            continue
        low, high = column.bounds or (-1.0, 1.0)
        cure = "they are clamped" if column.bounds else 'although its scale is "none"'
        log.warning(
            "column %s: %s of %s values lie outside of the declared [%g, %g]; %s (this line is "
            "about private records: it is for whoever holds them)",
            column.name, f"{count:,}", f"{len(outside):,}", low, high, cure,
        )  # fmt: skip
