"""What is in the columns of a table: for its owner alone, to turn into public bounds."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from udpfl.data.columns import MARKS, is_date, parse_number
from udpfl.data.csv_files import PATH, Dialect, Table
from udpfl.errors import InvalidInput

Kind = Literal["number", "category", "date", "text", "empty"]
PRIVATE = (
    "these are statistics of private records: keep them where the records are. Bounds, categories "
    "and labels in a configuration are published with the results: write down what everybody may "
    "know, such as the limits of a measurement, not what was found here"
)
_FEW = 20
"""Different values up to which text counts as categories."""
_REPEATED = 5
"""Rows for each different value from which on it counts as a category."""
_ODD = 0.1
"""Share of different cells that may be odd in a column of numbers."""
_LINES = 50
"""Lines of a file that its dialect is guessed from."""


@dataclass(frozen=True)
class ColumnSummary:
    """What one column holds. Private."""

    name: str
    kind: Kind
    rows: int
    missing: int
    distinct: int
    low: float | None = None
    """The smallest number; None where there are no numbers."""
    high: float | None = None
    values: tuple[str, ...] = ()
    """All different values, where they are few and repeat."""
    odd: int = 0
    """Different cells of a column of numbers that are not numbers."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "values": list(self.values)}


def describe(table: Table, dialect: Dialect) -> list[ColumnSummary]:
    """Kind, range and number of missing cells of every column.

    Args:
        table: The rows.
        dialect: How numbers are written.

    Returns:
        A summary of each column, for whoever holds the rows.

    Example:
        >>> from udpfl.data.csv_files import Dialect, Table
        >>> from udpfl.data.describing import describe
        >>> table = Table({"age": ["30", "", "41.5"]}, (("people.csv", 3),))
        >>> [(own.kind, own.missing, own.low, own.high) for own in describe(table, Dialect())]
        [('number', 1, 30.0, 41.5)]
    """
    return [_summary(name, cells, dialect) for name, cells in table.columns.items()]


def _summary(name: str, cells: Sequence[str], dialect: Dialect) -> ColumnSummary:
    there = [cell for cell in cells if cell not in MARKS]
    distinct = sorted(set(there))
    missing = len(cells) - len(there)
    # Values that hardly repeat may name people: they are not for a configuration.
    few = (
        tuple(distinct) if len(distinct) <= _FEW and len(there) >= _REPEATED * len(distinct) else ()
    )
    if not there:
        return ColumnSummary(name, "empty", len(cells), missing, 0)
    numbers = [parse_number(cell, dialect.decimal) for cell in distinct]
    found = [number for number in numbers if number is not None]
    odd = len(numbers) - len(found)
    if odd <= _ODD * len(numbers):  # a slip of the pen does not make a column of text
        low, high = min(found), max(found)
        return ColumnSummary(
            name, "number", len(cells), missing, len(distinct), low, high, few, odd
        )
    kind: Kind = "category" if few else "text"
    if all(map(is_date, distinct)):
        kind = "date"
    return ColumnSummary(name, kind, len(cells), missing, len(distinct), values=few)


def guess_dialect(path: Path) -> Dialect:
    """How a file is written, as far as its first lines tell."""
    for encoding in ("utf-8-sig", "cp1252", "latin-1"):
        try:
            with path.open(encoding=encoding, newline="") as file:
                lines = [line for _, line in zip(range(_LINES), file, strict=False)]
            break
        except UnicodeDecodeError:
            continue
        except OSError as error:
            raise InvalidInput(PATH, f"cannot read {path}: {error.strerror}") from None
    delimiter = max(",;\t|", key=lambda mark: _fits(lines, mark))
    cells = [cell.strip() for row in csv.reader(lines, delimiter=delimiter) for cell in row]
    has_commas = delimiter != "," and any(
        "," in cell and parse_number(cell, ",") is not None for cell in cells
    )
    return Dialect(delimiter, "," if has_commas else ".", encoding.removesuffix("-sig"))


def _fits(lines: Sequence[str], delimiter: str) -> int:
    """How many columns there are, if every line has as many; less than that if not."""
    widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
    if not widths:
        return 0
    return widths[0] if len(set(widths)) == 1 else min(widths) - 1
