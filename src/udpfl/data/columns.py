"""How the cells of a table become numbers: by public constants alone, and the same way ever after.

A schema is made when a run begins, travels in its folder, and reads new rows for the trained model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from udpfl.data.csv_files import PATH, Dialect, Table, listed
from udpfl.data.records import Array, Task
from udpfl.errors import InvalidInput

MARKS = ("", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "NULL", "null", "None", "?")
"""Cells that count as missing, unless a column declares one of them as a category or label."""
Missing = Literal["error", "drop"] | Mapping[str, str]
"""What to do about missing cells: refuse them, leave the row out, or a constant by column."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DATE = re.compile(r"\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_DATE_HINT = (
    "a date is not a number: write it as one, for example as days since a fixed public day, or "
    "leave the column out with data.options.ignore"
)
_TEXT_HINT = (
    "a column of text needs its categories, data.options.categories = { {column} = [...] }, "
    "can make the clients (data.by), or is left out with data.options.ignore"
)
_MISSING_HINT = (
    'data.options.missing says what to do about missing cells: "drop" leaves such rows out, '
    "{ {column} = CONSTANT } puts a public constant in their place"
)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, mapped from public bounds to [-1, 1]; values beyond are clamped."""

    name: str
    bounds: tuple[float, float] | None = None
    """None where the owner of the data says that it lies in [-1, 1] already."""

    @property
    def width(self) -> int:
        """How many inputs it makes."""
        return 1

    def scaled(self, numbers: Array) -> Array:
        """From the units of the column to those of the model."""
        if self.bounds is None:
            return numbers
        low, high = self.bounds
        mapped: Array = np.clip(2 * (numbers - low) / (high - low) - 1, -1, 1)
        return mapped

    def unscaled(self, numbers: Array) -> Array:
        """From the units of the model to those of the column."""
        if self.bounds is None:
            return numbers
        low, high = self.bounds
        return low + (numbers + 1) * (high - low) / 2

    @property
    def width_in_units(self) -> float:
        """What a difference of 1 between scaled numbers is in the units of the column."""
        return 1.0 if self.bounds is None else (self.bounds[1] - self.bounds[0]) / 2

    def outside(self, numbers: Array) -> Array:
        """How far numbers lie outside of the bounds, in widths of the bounds."""
        low, high = self.bounds or (-1.0, 1.0)
        return np.maximum(np.maximum(low - numbers, numbers - high), 0) / (high - low)


@dataclass(frozen=True)
class Categorical:
    """A column of declared categories: one input for each, 1 for the row's own and 0 elsewhere."""

    name: str
    categories: tuple[str, ...]

    @property
    def width(self) -> int:
        """How many inputs it makes."""
        return len(self.categories)


Column = Numeric | Categorical


@dataclass(frozen=True)
class Encoded:
    """The rows of a table as numbers."""

    inputs: Array
    """[n, k]."""
    targets: Array | None
    """Class labels [n], or numbers [n, t]; None where they were not asked for."""
    present: Array
    """[n] bool: False for a row that is left out because a cell is missing."""
    raw: Mapping[str, Array]
    """Numeric columns in their own units, to compare with the bounds."""


@dataclass(frozen=True)
class Schema:
    """The columns of a table and what becomes of them; all of it is public."""

    features: tuple[Column, ...]
    """In the order of the model's inputs."""
    task: Task
    targets: tuple[Numeric, ...] = ()
    """What is regressed on; empty for classification."""
    label: str = ""
    """The column of class labels; empty for regression."""
    labels: tuple[str, ...] = ()
    """Every class label there may be, in the order of the model's outputs."""
    missing: Missing = "error"
    dialect: Dialect = field(default_factory=Dialect)

    @property
    def width(self) -> int:
        """How many inputs a row makes."""
        return sum(column.width for column in self.features)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The columns that are predicted."""
        return (self.label,) if self.label else tuple(column.name for column in self.targets)

    def encode(self, table: Table, *, with_targets: bool = True, parameter: str = PATH) -> Encoded:
        """The rows as numbers.

        Raises:
            InvalidInput: A column is missing, or cells cannot be read: all of them in one error,
                the first ten by row and column. `parameter` is what it is about.
        """
        wanted = [column.name for column in self.features]
        wanted += self.target_names if with_targets else ()
        if absent := [name for name in wanted if name not in table.columns]:
            raise InvalidInput(parameter, f"there is no column {', '.join(map(repr, absent))}")
        reading = _Reading(self, table)
        raw: dict[str, Array] = {}
        parts = []
        for column in self.features:
            if isinstance(column, Numeric):
                raw[column.name] = reading.numbers(column.name)
                parts.append(column.scaled(raw[column.name])[:, None])
            else:
                chosen = reading.positions(column.name, column.categories, "categories")
                parts.append(np.eye(column.width)[chosen])
        targets: Array | None = None
        if with_targets and self.label:
            targets = reading.positions(self.label, self.labels, "labels")
        elif with_targets:
            for column in self.targets:
                raw[column.name] = reading.numbers(column.name)
            targets = np.stack([own.scaled(raw[own.name]) for own in self.targets], axis=1)
        reading.require_no_problems(parameter)
        return Encoded(np.concatenate(parts, axis=1), targets, reading.present, raw)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        features = [
            {"name": own.name, "categories": list(own.categories)}
            if isinstance(own, Categorical)
            else _numeric_to_dict(own)
            for own in self.features
        ]
        return {
            "features": features,
            "task": self.task,
            "targets": [_numeric_to_dict(own) for own in self.targets],
            "label": self.label,
            "labels": list(self.labels),
            "missing": self.missing if isinstance(self.missing, str) else dict(self.missing),
            "delimiter": self.dialect.delimiter,
            "decimal": self.dialect.decimal,
            "encoding": self.dialect.encoding,
        }

    @classmethod
    def from_dict(cls, plain: Any) -> Schema:
        """The inverse of `to_dict`."""
        try:
            features = tuple(
                Categorical(own["name"], tuple(own["categories"]))
                if "categories" in own
                else _numeric_from_dict(own)
                for own in plain["features"]
            )
            return cls(
                features=features,
                task=plain["task"],
                targets=tuple(_numeric_from_dict(own) for own in plain["targets"]),
                label=plain["label"],
                labels=tuple(plain["labels"]),
                missing=plain["missing"],
                dialect=Dialect(plain["delimiter"], plain["decimal"], plain["encoding"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput("preprocessing", f"does not describe a table: {error!r}") from None


def _numeric_to_dict(column: Numeric) -> dict[str, Any]:
    bounds = "none" if column.bounds is None else list(column.bounds)
    return {"name": column.name, "bounds": bounds}


def _numeric_from_dict(plain: Mapping[str, Any]) -> Numeric:
    if plain["bounds"] == "none":
        return Numeric(plain["name"])
    low, high = plain["bounds"]
    return Numeric(plain["name"], (float(low), float(high)))


class _Reading:
    """Reads cells and collects what is wrong with them."""

    def __init__(self, schema: Schema, table: Table) -> None:
        self._missing, self._decimal, self._table = schema.missing, schema.dialect.decimal, table
        self.present = np.ones(len(table), dtype=bool)
        self._problems: list[tuple[int, str, str]] = []
        self._hints: dict[str, None] = {}

    def numbers(self, column: str) -> Array:
        """A column of finite numbers; 0 where there is none."""
        numbers = np.zeros(len(self._table))
        for row, text in enumerate(self._cells(column)):
            if text is None:
                continue
            number = parse_number(text, self._decimal)
            if number is not None:
                numbers[row] = number
            elif _DATE.match(text):
                self._note(row, column, f"{text!r} is a date", _DATE_HINT)
            elif self._decimal == "." and parse_number(text, ",") is not None:
                hint = 'data.options.decimal = "," reads decimal commas'
                self._note(row, column, f"{text!r} is not a number", hint)
            else:
                self._note(row, column, f"{text!r} is not a number", _TEXT_HINT)
        return numbers

    def positions(self, column: str, choices: Sequence[str], option: str) -> Array:
        """Where each cell stands among what was declared; 0 where there is none."""
        places = {choice: place for place, choice in enumerate(choices)}
        found = np.zeros(len(self._table), dtype=np.int64)
        for row, text in enumerate(self._cells(column, choices)):
            if text is None:
                continue
            if text in places:
                found[row] = places[text]
            else:
                hint = f"data.options.{option} lists every value there may be in {column!r}"
                shown = ", ".join(map(repr, choices[:6])) + (", …" if len(choices) > 6 else "")
                self._note(row, column, f"{text!r} is not one of {shown}", hint)
        return found

    def _cells(self, column: str, declared: Sequence[str] = ()) -> list[str | None]:
        """The cells; None for a missing one that leaves its row out, or is a problem."""
        constant = self._missing.get(column) if isinstance(self._missing, Mapping) else None
        marks = set(MARKS) - set(declared)
        cells: list[str | None] = list(self._table.columns[column])
        for row, text in enumerate(cells):
            if text not in marks:
                continue
            cells[row] = constant
            if constant is not None:
                continue
            if self._missing == "drop":
                self.present[row] = False
            else:
                self._note(row, column, "the value is missing", _MISSING_HINT)
        return cells

    def _note(self, row: int, column: str, problem: str, hint: str) -> None:
        self._problems.append((row, column, problem))
        self._hints.setdefault(hint.replace("{column}", toml_key(column)))

    def require_no_problems(self, parameter: str) -> None:
        """Raise all problems in one error, with hints."""
        if not self._problems:
            return
        by_row = sorted(self._problems, key=lambda own: own[0])
        words = [f"{self._table.place(row)}, column {name}: {why}" for row, name, why in by_row]
        # Who reads new rows for a trained model cannot change its options any more.
        useful = list(self._hints)[:3] if parameter == PATH else []
        hints = "".join(f"\n  hint: {hint}" for hint in useful)
        raise InvalidInput(parameter, listed(words, self._table.name) + hints)


def parse_number(text: str, decimal: str = ".") -> float | None:
    """A finite number; None where it is something else."""
    if decimal == ",":
        if "." in text:  # 1.234,5 or 1.5: nobody should guess
            return None
        text = text.replace(",", ".")
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def is_date(text: str) -> bool:
    """Whether a cell looks like a date."""
    return _DATE.match(text) is not None


def toml_key(name: str) -> str:
    """A column as a key in TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else '"' + name.replace('"', '\\"') + '"'
