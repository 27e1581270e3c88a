"""Tables as text: the columns of one or several CSV files, and where each row comes from."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from udpfl.data.records import Indices
from udpfl.data.splits import spans
from udpfl.errors import InvalidInput

PATH = "data.options.path"
"""What an error about a file is about."""


@dataclass(frozen=True)
class Dialect:
    """How files are written."""

    delimiter: str = ","
    """Between the cells of a row: a single character."""
    decimal: str = "."
    """Between whole and fraction: a point or a comma."""
    encoding: str = "utf-8"
    """Of the text."""

    def __post_init__(self) -> None:
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1:
            raise InvalidInput(
                "data.options.delimiter", f"must be a single character, got {self.delimiter!r}"
            )
        if self.decimal not in (".", ","):
            raise InvalidInput("data.options.decimal", f'must be "." or ",", got {self.decimal!r}')
        if self.decimal == self.delimiter:
            raise InvalidInput(
                "data.options.decimal",
                f"is {self.decimal!r}, and so is data.options.delimiter: a cell could not be read",
            )
        try:
            "".encode(self.encoding)
        except (LookupError, TypeError):
            raise InvalidInput(
                "data.options.encoding", f"there is no encoding {self.encoding!r}; try latin-1"
            ) from None


@dataclass(frozen=True)
class Table:
    """Columns of text by their names, and the files that the rows are from."""

    columns: Mapping[str, Sequence[str]]
    """Cells without surrounding blanks; an empty one is missing."""
    files: tuple[tuple[str, int], ...]
    """The name and the number of rows of each file, in the order of the rows."""

    def __len__(self) -> int:
        return sum(rows for _, rows in self.files)

    @property
    def name(self) -> str:
        """That of its file, or how many there are."""
        return self.files[0][0] if len(self.files) == 1 else f"{len(self.files)} files"

    def place(self, row: int) -> str:
        """Where a row stands, for people: the first below the header is row 1."""
        for name, rows in self.files:
            if row < rows:
                return f"{name} row {row + 1}" if len(self.files) > 1 else f"row {row + 1}"
            row -= rows
        raise IndexError(row)

    @property
    def rows_by_file(self) -> list[Indices]:
        """The positions of each file's rows."""
        return spans(rows for _, rows in self.files)


def find_files(path: Any, directory: Path | None) -> list[Path]:
    """The files that a path, a pattern such as "sites/*.csv", or a list of them stands for.

    A relative one is looked for in the data directory first, then where the process is.
    """
    patterns = [path] if isinstance(path, str | Path) else path
    if not isinstance(patterns, Sequence) or not patterns or not all(map(_is_path, patterns)):
        raise InvalidInput(
            PATH, f"must name a CSV file, a pattern such as sites/*.csv, or a list, got {path!r}"
        )
    found = [file for pattern in patterns for file in _matching(str(pattern), directory)]
    twice = {file for file in found if found.count(file) > 1}
    if twice:
        raise InvalidInput(PATH, f"{sorted(map(str, twice))[0]} is named twice")
    return found


def _is_path(path: Any) -> bool:
    return isinstance(path, str | Path) and bool(str(path))


def _matching(pattern: str, directory: Path | None) -> list[Path]:
    places = [Path(pattern)] if directory is None else [Path(directory) / pattern, Path(pattern)]
    for place in places:
        if place.is_file():
            return [place]
        if place.is_dir():
            raise InvalidInput(PATH, f"{place} is a folder: name its files, as {place}/*.csv")
        if files := sorted(Path(name) for name in glob(str(place)) if Path(name).is_file()):
            return files
    looked = " nor ".join(dict.fromkeys(map(str, places)))
    raise InvalidInput(PATH, f"there is no file {looked}")


def read_files(files: Sequence[Path], dialect: Dialect) -> Table:
    """The rows of all files, which need the same columns; their order may differ."""
    tables = [_read(file, dialect) for file in files]
    first = tables[0]
    for file, table in zip(files, tables, strict=True):
        if table.keys() != first.keys():
            missing = ", ".join(sorted(first.keys() - table.keys())) or "none"
            more = ", ".join(sorted(table.keys() - first.keys())) or "none"
            raise InvalidInput(
                PATH,
                f"{file} has other columns than {files[0]}: missing: {missing}; additional: {more}",
            )
    columns = {name: [cell for table in tables for cell in table[name]] for name in first}
    names = _short_names(files)
    sizes = [len(next(iter(table.values()))) for table in tables]
    return Table(columns, tuple(zip(names, sizes, strict=True)))


def _short_names(files: Sequence[Path]) -> list[str]:
    """File names without folders where these are distinct."""
    names = [file.name for file in files]
    return names if len(set(names)) == len(names) else [str(file) for file in files]


def _read(path: Path, dialect: Dialect) -> dict[str, list[str]]:
    encoding = "utf-8-sig" if dialect.encoding.lower() in ("utf-8", "utf8") else dialect.encoding
    try:
        with path.open(newline="", encoding=encoding) as file:
            lines = csv.reader(file, delimiter=dialect.delimiter)
            rows = [[cell.strip() for cell in row] for row in lines if row]
    except UnicodeDecodeError as error:
        raise InvalidInput(
            PATH,
            f"{path} is not {dialect.encoding} text ({error.reason} at byte {error.start}): set "
            'data.options.encoding, for example "latin-1" or "cp1252"',
        ) from None
    except (OSError, csv.Error) as error:
        raise InvalidInput(PATH, f"cannot read {path}: {error}") from None
    if not rows:
        raise InvalidInput(PATH, f"{path} is empty")
    header, *rows = rows
    _check_header(path, header, dialect)
    if not rows:
        raise InvalidInput(PATH, f"{path} has a header, but no rows")
    uneven = [
        f"row {number} has {len(row)} values for {len(header)} columns"
        for number, row in enumerate(rows, 1)
        if len(row) != len(header)
    ]
    if uneven:
        raise InvalidInput(PATH, listed(uneven, str(path)))
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _check_header(path: Path, header: Sequence[str], dialect: Dialect) -> None:
    if len(header) == 1:
        others = [mark for mark in ";\t|," if mark in header[0]]
        if others:
            raise InvalidInput(
                "data.options.delimiter",
                f"{path} has a single column {header[0]!r} when cells are separated by "
                f"{dialect.delimiter!r}: delimiter = {_in_toml(others[0])} may be right",
            )
    if len(set(header)) != len(header) or "" in header:
        raise InvalidInput(PATH, f"{path} needs a header of distinct column names")


def _in_toml(character: str) -> str:
    return '"\\t"' if character == "\t" else f'"{character}"'


def listed(problems: Iterable[str], where: str, most: int = 10) -> str:
    """The first problems, each on its own line, and how many more there are."""
    problems = list(problems)
    if len(problems) == 1:
        return f"{where}: {problems[0]}"
    more = len(problems) - most
    shown = [*problems[:most], *([f"and {more:,} more"] if more > 0 else [])]
    return f"{len(problems):,} problems in {where}" + "".join(f"\n  {own}" for own in shown)
