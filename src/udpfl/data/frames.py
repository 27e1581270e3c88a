"""Tables that the user brings in Python: data frames, dicts of columns, and rows that are dicts.

They are recognised by their manners: neither pandas nor another library is imported.

a data frame          has `columns`, and a column under each of their names (pandas, polars)
a dict of columns     names to sequences of the same length
rows                  a list or a map-style data set whose items are dicts (Hugging Face datasets)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from udpfl.data.csv_files import Table
from udpfl.errors import InvalidInput


def is_table(data: Any) -> bool:
    """Whether this is a table of named columns, of any of these kinds."""
    return is_frame(data) or is_columns(data) or is_rows(data)


def is_frame(data: Any) -> bool:
    """Whether this behaves like a data frame."""
    return (
        hasattr(data, "columns") and hasattr(data, "__getitem__") and not isinstance(data, Mapping)
    )


def is_columns(data: Any) -> bool:
    """Whether this is a dict of columns: every value is a sequence, all of the same length."""
    if not isinstance(data, Mapping) or not data:
        return False
    values = list(data.values())
    return all(map(_is_column, values)) and len({len(value) for value in values}) == 1


def _is_column(values: Any) -> bool:
    if isinstance(values, str | bytes | Mapping):
        return False
    return hasattr(values, "__len__") and hasattr(values, "__getitem__")


def is_rows(data: Any) -> bool:
    """Whether the items of this are dicts."""
    if isinstance(data, str | bytes | Mapping | tuple) or is_frame(data):
        return False
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")) or not len(data):
        return False
    try:
        first = data[0]
    except Exception:  # whatever a data set of one's own raises
        return False
    return isinstance(first, Mapping) and not is_columns(first)


def columns_of(data: Any) -> dict[str, list[Any]]:
    """The columns by name, as Python objects."""
    columns = {name: _objects(values) for name, values in _named(data).items()}
    if not columns or not len(next(iter(columns.values()))):
        raise InvalidInput("data", "at least one record is needed, got an empty table")
    return columns


def _named(data: Any) -> dict[str, Any]:
    """The columns by name, as they come."""
    if is_frame(data):
        names = [str(name) for name in data.columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInput("data", f"there are two columns called {twice[0]!r}")
        return {str(name): data[name] for name in data.columns}
    if isinstance(data, Mapping):
        return {str(name): values for name, values in data.items()}
    return _from_rows(data)


def _from_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    items = [rows[i] for i in range(len(rows))]
    names = list(items[0])
    for number, item in enumerate(items):
        if set(item) != set(names):
            raise InvalidInput(
                "data", f"record {number} has the fields {sorted(item)}, others {sorted(names)}"
            )
    return {str(name): [item[name] for item in items] for name in names}


def _objects(values: Any) -> list[Any]:
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    return list(values.tolist() if hasattr(values, "tolist") else values)


def has_arrays(data: Any) -> bool:
    """Whether some column of a table holds arrays, such as images, and not single values."""
    first = data[0].values() if is_rows(data) else map(_first, _named(data).values())
    return any(map(_is_array, first))


def _first(values: Any) -> Any:
    return next(iter(values), None)


def _is_array(value: Any) -> bool:
    if isinstance(value, str | bytes):
        return False
    return hasattr(value, "__len__") or bool(getattr(value, "shape", ()))


def as_pair(data: Any, target: Any) -> tuple[Any, Any]:
    """Inputs and targets of rows that hold arrays, such as images, beside a label."""
    columns = columns_of(data)
    others = [name for name in columns if name != target]
    if target not in columns or len(others) != 1:
        raise InvalidInput(
            "data.options.target",
            "rows that hold arrays need one field of inputs and one target: the fields are "
            f"{', '.join(columns)}, and the target is {target!r}",
        )
    try:
        return np.stack([np.asarray(own) for own in columns[others[0]]]), columns[target]
    except ValueError:
        raise InvalidInput("data.inputs", f"every {others[0]} must have the same shape") from None


def text_of(columns: Mapping[str, Sequence[Any]], name: str, decimal: str = ".") -> Table:
    """The same as a table of text; numbers are written so that they read back the same."""
    texts = {key: [_text(value, decimal) for value in values] for key, values in columns.items()}
    return Table(texts, ((name, len(next(iter(texts.values())))),))


def _text(value: Any, decimal: str) -> str:
    if value is None or str(value) in ("<NA>", "NaT"):
        return ""
    if isinstance(value, bool | np.bool_ | str):
        return str(value).strip()
    if isinstance(value, float | np.floating):
        number = float(value)
        if np.isnan(number):
            return ""
        whole = number.is_integer() and abs(number) < 2**53
        return str(int(number)) if whole else repr(number).replace(".", decimal)
    return str(value)


def joined(tables: Sequence[Table]) -> Table:
    """Tables of several clients, one after the other."""
    first = tables[0].columns
    for number, table in enumerate(tables):
        if table.columns.keys() != first.keys():
            raise InvalidInput(
                "data",
                f"client {number} has the columns {sorted(table.columns)}, others {sorted(first)}",
            )
    columns = {name: [cell for own in tables for cell in own.columns[name]] for name in first}
    return Table(columns, tuple(file for own in tables for file in own.files))
