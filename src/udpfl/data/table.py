"""A table in a CSV file with a header: one record per row, numeric features, any labels.

Options:
  path    the file; a relative one is looked for in the data directory, then where you are
  target  the column to predict; for regression also a list of columns
  task    "classification" (default) or "regression"
  by      a column, or a list of them, kept for partitioning and not used as a feature
  labels  every class label there may be; without it, those that occur, in sorted order
  scale   column -> [low, high]: public bounds that are mapped to [-1, 1], values beyond clamped

Nothing is learned from the records but, without `labels`, which labels occur: scaling by observed
means or extremes would release them unaccounted.
"""

from __future__ import annotations

import csv
import math
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from udpfl.data.formats import Source, described_by
from udpfl.data.options import alternatives, known
from udpfl.data.records import Array, DataSet, Records, Task
from udpfl.data.splits import hold_out
from udpfl.errors import InvalidInput

OPTIONS = ("path", "target", "task", "by", "labels", "scale")
Table = dict[str, list[str]]
_NOT_A_NUMBER = (
    "{!r} is not a number; a column of text can make the clients "
    '(data.partition = "column", data.by) or be left out (data.options.by)'
)

SOURCE = Source(
    name="table",
    title="a table of your own in a CSV file",
    samples="one record a row, seeded split",
    licence="",
    homepage="",
    citation="",
    anywhere="wherever data.options.path says",
    is_own=True,
    takes=("by", "task"),
    by_hand=(
        "Name your CSV file in the configuration: data.options.path, with data.options.target for "
        "the column to predict.",
    ),
)


@described_by(SOURCE)
def load(*, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]) -> DataSet:
    """The table at `options["path"]`, with `test` of its rows held out."""
    known("table", options, OPTIONS)
    path = _find(options.get("path"), directory)
    table = _read(path)
    target = _columns("target", options.get("target"), table)
    by = _columns("by", options.get("by") or [], table)
    if not target:
        raise InvalidInput(
            "data.options.target", "is needed: give the name of the column to predict"
        )
    task: Task = options.get("task") or "classification"
    if task not in get_args(Task):
        raise InvalidInput(
            "data.options.task", f"must be classification or regression, got {task!r}"
        )
    classify = task == "classification"
    features = [name for name in table if name not in (*target, *by)]
    if not features:
        raise InvalidInput("data.options.path", f"{path} has no column to predict from")
    scale = _scale(options.get("scale"), features if classify else [*features, *target])

    def numeric(names: Sequence[str]) -> Array:
        return np.stack([_bounded(n, _numbers(n, table[n]), scale.get(n)) for n in names], axis=1)

    classes: int | None = None
    if classify:
        targets, classes = _classes(target, table, options.get("labels"))
    else:
        targets = numeric(target)
    records = Records(numeric(features), targets)
    columns = {name: _names(name, table[name]) for name in by}
    kept, held_out = hold_out(len(records), test, seed, targets if classify else None)
    return DataSet(
        name=path.stem,
        task=task,
        train=records.subset(kept),
        test=records.subset(held_out),
        classes=classes,
        columns={name: column[kept] for name, column in columns.items()},
        test_columns={name: column[held_out] for name, column in columns.items()},
    )


def _find(path: Any, directory: Path | None) -> Path:
    if not isinstance(path, (str, Path)) or not str(path):
        raise InvalidInput("data.options.path", f"must name a CSV file, got {path!r}")
    places = [Path(path)] if directory is None else [Path(directory) / path, Path(path)]
    for place in places:
        if place.is_file():
            return place
    looked = " nor ".join(dict.fromkeys(map(str, places)))
    raise InvalidInput("data.options.path", f"there is no file {looked}")


def _read(path: Path) -> Table:
    """The columns by name, as text without surrounding blanks."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput("data.options.path", f"cannot read {path}: {error}") from None
    except ValueError:  # nothing to unpack
        raise InvalidInput("data.options.path", f"{path} is empty") from None
    if len(set(header)) != len(header) or "" in header:
        raise InvalidInput("data.options.path", f"{path} needs a header of distinct column names")
    if not rows:
        raise InvalidInput("data.options.path", f"{path} has a header, but no rows")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InvalidInput(
                "data.options.path",
                f"{path}: row {number} has {len(row)} values for {len(header)} columns",
            )
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _columns(option: str, names: Any, table: Table) -> list[str]:
    chosen = [names] if isinstance(names, str) else list(names or ())
    for name in chosen:
        if name not in table:
            raise InvalidInput(
                f"data.options.{option}", f"no column {name!r}; {alternatives(str(name), table)}"
            )
    if len(set(chosen)) != len(chosen):
        raise InvalidInput(f"data.options.{option}", f"names a column twice: {chosen}")
    return chosen


def _numbers(column: str, values: Sequence[str]) -> Array:
    numbers = np.empty(len(values))
    for row, text in enumerate(values):
        try:
            number = float(text)
        except ValueError:
            reason = _NOT_A_NUMBER.format(text) if text else "the value is missing"
        else:
            numbers[row] = number
            if math.isfinite(number):
                continue
            reason = f"{text!r} is missing or not finite"
        raise InvalidInput(f"data.columns.{column}", f"row {row + 1}: {reason}")
    return numbers


def _scale(scale: Any, numeric: Sequence[str]) -> Mapping[str, Any]:
    scale = scale or {}
    if not isinstance(scale, Mapping):
        raise InvalidInput("data.options.scale", f"must map columns to bounds, got {scale!r}")
    for name in scale:
        if name not in numeric:
            raise InvalidInput(
                f"data.options.scale.{name}",
                f"is not a numeric column; {alternatives(name, numeric)}",
            )
    return scale


def _bounded(column: str, numbers: Array, bounds: Any) -> Array:
    if bounds is None:
        return numbers
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (low < high and math.isfinite(high - low)):
        raise InvalidInput(
            f"data.options.scale.{column}", f"must be [low, high] with low < high, got {bounds!r}"
        )
    result: Array = np.clip(2 * (numbers - low) / (high - low) - 1, -1, 1)
    return result


def _names(column: str, values: Sequence[str]) -> Array:
    """Values that clients are named after, each as it is written: "01" is not 1.

    Whole numbers where every value is one and is written like one, so that 10 sorts after 9. What
    looks the same is the same text, however its accents are coded.
    """
    texts = [unicodedata.normalize("NFC", value) for value in values]
    numbers = _labels(column, texts)
    return numbers if list(map(str, numbers)) == texts else np.array(texts)


def _labels(column: str, values: Sequence[str]) -> Array:
    """Whole numbers where every value is one, else text: so that 10 sorts after 9."""
    if "" in values:
        row = values.index("") + 1
        raise InvalidInput(f"data.columns.{column}", f"row {row}: the value is missing")
    try:
        return np.array([int(value) for value in values], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(values)


def _classes(target: Sequence[str], table: Table, labels: Any) -> tuple[Array, int]:
    """Each row's label as its position among the labels, and how many labels there are."""
    if len(target) != 1:
        raise InvalidInput(
            "data.options.target", f"classification has one target column, got {list(target)}"
        )
    found = _labels(target[0], table[target[0]])
    if labels is None:
        distinct, positions = np.unique(found, return_inverse=True)
        return positions.astype(np.int64), len(distinct)
    names = {str(label): position for position, label in enumerate(labels)}
    for row, value in enumerate(map(str, found)):
        if value not in names:
            raise InvalidInput(
                "data.options.labels",
                f"column {target[0]!r}, row {row + 1}: {value!r} is not one of {list(labels)}",
            )
    return np.array([names[str(value)] for value in found], dtype=np.int64), len(names)
