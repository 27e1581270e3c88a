"""The options of a table, checked against its columns: they become a `Schema`."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from udpfl.data.columns import MARKS, Categorical, Column, Missing, Numeric, Schema, toml_key
from udpfl.data.csv_files import PATH, Dialect, Table, listed
from udpfl.data.options import alternatives
from udpfl.data.records import Array, Task
from udpfl.errors import InvalidInput


def dialect_of(options: Mapping[str, Any]) -> Dialect:
    """How the files are written."""
    keys = ("delimiter", "decimal", "encoding")
    return Dialect(**{key: options[key] for key in keys if options.get(key) is not None})


def schema_of(options: Mapping[str, Any], table: Table, dialect: Dialect) -> Schema:
    """What becomes of the columns.

    Nothing is learned from the records but, without `labels`, which labels occur.
    """
    target = named_columns("target", options.get("target"), table)
    if not target:
        raise InvalidInput(
            "data.options.target", "is needed: give the name of the column to predict"
        )
    task: Task = options.get("task") or "classification"
    if task not in get_args(Task):
        raise InvalidInput(
            "data.options.task", f"must be classification or regression, got {task!r}"
        )
    used = feature_names(options, table, target)
    if not used:
        raise InvalidInput(PATH, "there is no column to predict from")
    categories = _categories(options.get("categories"), used)
    numeric = [name for name in used if name not in categories]
    is_regression = task == "regression"
    bounds = _bounds(
        options.get("scale"),
        [*numeric, *(target if is_regression else [])],
        "" if is_regression else target[0],
    )
    features: list[Column] = [
        Categorical(name, categories[name]) if name in categories else Numeric(name, bounds[name])
        for name in used
    ]
    missing = _missing(options.get("missing"), [*used, *target], dialect)
    if is_regression:
        regressed = tuple(Numeric(name, bounds[name]) for name in target)
        return Schema(tuple(features), task, regressed, missing=missing, dialect=dialect)
    if len(target) != 1:
        raise InvalidInput(
            "data.options.target", f"classification has one target column, got {target}"
        )
    labels = _labels(options.get("labels"), target[0], table, missing)
    return Schema(
        tuple(features), task, label=target[0], labels=labels, missing=missing, dialect=dialect
    )


def feature_names(options: Mapping[str, Any], table: Table, target: Sequence[str]) -> list[str]:
    """Every column that nothing else is done with."""
    elsewhere = {
        *target,
        *named_columns("by", options.get("by"), table),
        *named_columns("ignore", options.get("ignore"), table),
        *named_columns("person", options.get("person"), table),
    }
    return [name for name in table.columns if name not in elsewhere]


def named_columns(option: str, names: Any, table: Table) -> list[str]:
    """The columns that an option names, which have to be there."""
    chosen = [names] if isinstance(names, str) else list(names or ())
    for name in chosen:
        if name not in table.columns:
            raise InvalidInput(
                "data.person" if option == "person" else f"data.options.{option}",
                f"no column {name!r}; {alternatives(str(name), table.columns)}",
            )
    if len(set(chosen)) != len(chosen):
        raise InvalidInput(f"data.options.{option}", f"names a column twice: {chosen}")
    return chosen


def _mapping(option: str, given: Any, columns: Sequence[str], kind: str) -> Mapping[str, Any]:
    """An option that says something of each column by its name."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise InvalidInput(f"data.options.{option}", f"must name columns, got {given!r}")
    for name in given:
        if name not in columns:
            raise InvalidInput(
                f"data.options.{option}.{name}",
                f"is not {kind}; {alternatives(name, columns)}",
            )
    return given


def _categories(given: Any, features: Sequence[str]) -> dict[str, tuple[str, ...]]:
    given = _mapping("categories", given, features, "a column of features")
    found = {}
    for name, several in given.items():
        values = [_word(one) for one in several] if isinstance(several, list | tuple) else []
        if len(values) < 2 or len(set(values)) != len(values):
            raise InvalidInput(
                f"data.options.categories.{name}",
                f"must list at least two different categories, got {several!r}",
            )
        found[name] = tuple(values)
    return found


def _word(value: Any) -> str:
    """A category as a table has it: 1.0 is written 1."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _bounds(
    scale: Any, numeric: Sequence[str], label: str = ""
) -> dict[str, tuple[float, float] | None]:
    """Public bounds of every numeric column; None where the owner says that none are needed."""
    if scale == "none":
        return dict.fromkeys(numeric)
    if isinstance(scale, Mapping) and label in scale:
        raise InvalidInput(
            f"data.options.scale.{label}",
            "is the target of a classification, which has labels and no bounds; for numbers set "
            'data.options.task = "regression"',
        )
    scale = _mapping("scale", scale, numeric, "a numeric column")
    undeclared = [name for name in numeric if name not in scale]
    if undeclared:
        syntax = ", ".join(f"{toml_key(name)} = [LOW, HIGH]" for name in undeclared[:4])
        more = ", …" if len(undeclared) > 4 else ""
        raise InvalidInput(
            "data.options.scale",
            f"no public bounds for {', '.join(undeclared)}: write scale = {{ {syntax}{more} }} "
            'with numbers that everybody may know, such as limits of a measurement; "none" in '
            "place of the bounds is your word that a column lies in [-1, 1] already. A column of "
            "text needs categories, and data.options.ignore leaves a column out, such as a date. "
            "`udpfl data describe FILE` shows what is in the columns",
        )
    bounds = {name: _pair(scale[name]) for name in numeric}
    wrong = [name for name, pair in bounds.items() if pair is _NOT_BOUNDS]
    if wrong:
        several = "" if len(wrong) == 1 else f"; likewise {', '.join(wrong[1:])}"
        raise InvalidInput(
            f"data.options.scale.{wrong[0]}",
            f'must be [LOW, HIGH], two numbers with LOW < HIGH, or "none", got '
            f"{scale[wrong[0]]!r}{several}",
        )
    return bounds


def check_bounds(options: Mapping[str, Any]) -> None:
    """Refuse bounds that are none, before a file is read."""
    scale = options.get("scale")
    if isinstance(scale, Mapping):
        _bounds(scale, list(scale))


_NOT_BOUNDS = (math.nan, math.nan)


def _pair(bounds: Any) -> tuple[float, float] | None:
    if bounds == "none":
        return None
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        return _NOT_BOUNDS
    return (low, high) if low < high and math.isfinite(high - low) else _NOT_BOUNDS


def _missing(given: Any, columns: Sequence[str], dialect: Dialect) -> Missing:
    if given is None or given in ("error", "drop"):
        return "error" if given is None else given
    if isinstance(given, str):
        raise InvalidInput(
            "data.options.missing",
            f'must be "error", "drop" or constants by column, got {given!r}',
        )
    constants = _mapping("missing", given, columns, "a column of features or targets")
    return {
        name: value if isinstance(value, str) else str(value).replace(".", dialect.decimal)
        for name, value in constants.items()
    }


def _labels(given: Any, column: str, table: Table, missing: Missing) -> tuple[str, ...]:
    """Every class label: declared ones as they are, else those that occur, in order."""
    if given is not None:
        labels = [_word(one) for one in given] if isinstance(given, list | tuple) else []
        if len(labels) < 2 or len(set(labels)) != len(labels):
            raise InvalidInput(
                "data.options.labels", f"must list at least two different labels, got {given!r}"
            )
        return tuple(labels)
    found = {cell for cell in table.columns[column] if cell not in MARKS}
    if isinstance(missing, Mapping) and column in missing:
        found.add(missing[column])
    return tuple(map(str, sorted_values(np.array(sorted(found)))))


def sorted_values(values: Array) -> Array:
    """Distinct values in order: as whole numbers where all of them are, so that 10 follows 9."""
    try:
        return np.array(sorted(values, key=int))
    except (ValueError, OverflowError):
        return np.array(sorted(values))


def named_values(column: str, table: Table, marks: Sequence[str] = ("",)) -> Array:
    """Values that clients or persons are named after, each as it is written: "01" is not 1.

    Whole numbers where every value is one and is written like one, so that 10 sorts after 9. What
    looks the same is the same text, however its accents are coded.
    """
    texts = [unicodedata.normalize("NFC", value) for value in table.columns[column]]
    nameless = [row for row, text in enumerate(texts) if text in marks]
    if nameless:
        words = [f"{table.place(row)}, column {column}: the value is missing" for row in nameless]
        raise InvalidInput(PATH, listed(words, table.name))
    try:
        numbers = np.array([int(text) for text in texts], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(texts)
    return numbers if list(map(str, numbers)) == texts else np.array(texts)
