"""Data that the user brings: arrays, tensors, map-style data sets, or one of them per client.

(inputs, targets)     a tuple of exactly two arrays or tensors, or a dict of these two: one data set
a map-style data set  has a length, and item i is a pair (input, target)
a table               a data frame, a dict of columns, or rows that are dicts (`udpfl.data.frames`)
"table.csv"           a path, or a pattern; tables take the options of `udpfl.data.table`
[client, client, …]   a list of any of these is one entry per client; a list of dicts is one table
a DataSet             is taken as it is

Class labels may be text: their order is alphabetical, or that of the option `labels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from udpfl.data import frames, table
from udpfl.data._schema_options import dialect_of, sorted_values
from udpfl.data.csv_files import Dialect, Table, find_files, read_files
from udpfl.data.records import Array, DataSet, Indices, Records, Task
from udpfl.data.splits import hold_out_groups, spans
from udpfl.errors import InvalidInput

Pair = tuple[Array, Array]


def as_dataset(
    data: Any,
    test: Any = None,
    *,
    task: Task | None = None,
    name: str = "own",
    classes: int | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> DataSet:
    """Make a `DataSet` of what the user has; the module says which kinds there are.

    Args:
        data: Arrays, tensors, a map-style data set, a table or its path, a list with one of these
            per client, or a `DataSet`, which is returned as it is.
        test: Test data of any of these kinds, or how much to hold out of each client's records: a
            fraction (0.2 if left out) or a count.
        task: "classification" or "regression". If left out, integer targets are class labels and
            others are regressed on.
        name: What the data set is called.
        classes: Number of labels, the largest one plus one if left out; state it when that should
            not be read off the data.
        columns: Further columns, aligned with `data`, to partition by.
        seed: Chooses the records that are held out.
        options: For a table, see `udpfl.data.table`; arrays take `labels`, the names of classes.

    Returns:
        The data set, checked.

    Raises:
        InvalidInput: The data is of no such kind, or its parts do not fit together.

    Example:
        >>> import numpy as np
        >>> from udpfl.data import as_dataset
        >>> data = as_dataset((np.eye(4), np.arange(4)), test=1)
        >>> len(data.train), len(data.test), data.classes
        (3, 1, 4)
    """
    if isinstance(data, DataSet):
        if test is not None:
            raise InvalidInput("data.test", "must not be set: a DataSet has its own test records")
        return data
    amount = 0.2 if test is None else test
    options = dict(options or {})
    if is_tabular(data):
        if columns or classes is not None:
            raise InvalidInput(
                "data.options", "a table names its columns in `by`, and its `labels`"
            )
        return _from_tables(data, amount, name, seed, {"task": task, **options})
    if frames.is_rows(data):
        data = frames.as_pair(data, options.pop("target", None))
    if unknown := sorted(options.keys() - {"labels"}):
        raise InvalidInput(f"data.options.{unknown[0]}", "is an option of tables only")
    labels = options.get("labels")
    return _from_arrays(data, amount, task, name, classes, columns or {}, seed, labels)


def is_tabular(data: Any) -> bool:
    """Whether this is a table or a file, or one for each client."""
    if isinstance(data, list) and data and not frames.is_rows(data):
        return all(map(_is_one_table, data))
    return _is_one_table(data)


def _is_one_table(data: Any) -> bool:
    if isinstance(data, str | Path):
        return True
    if not frames.is_table(data) or _is_pair_by_name(data):
        return False
    return not frames.has_arrays(data)


def _is_pair_by_name(data: Any) -> bool:
    return isinstance(data, Mapping) and data.keys() == {"inputs", "targets"}


def _from_tables(
    data: Any, amount: Any, name: str, seed: int, options: Mapping[str, Any]
) -> DataSet:
    """A data set of tables or files, one of them or one per client."""
    dialect = dialect_of(options)
    tested = amount if _is_amount(amount) else _joined_tables(amount, dialect)
    whole = _joined_tables(data, dialect)
    return table.build(whole, name, seed=seed, test=tested, options=options, dialect=dialect)


def _joined_tables(data: Any, dialect: Dialect) -> Table:
    """One table of all that was given, each client's part as a file of its own."""
    if not is_tabular(data):
        raise InvalidInput("data.test", "must be a fraction, a number of rows, or a table as well")
    entries = data if isinstance(data, list) and not frames.is_rows(data) else [data]
    if all(isinstance(own, str | Path) for own in entries):
        return read_files(find_files(entries, None), dialect)
    named = [
        frames.text_of(frames.columns_of(own), f"client-{i}", dialect.decimal)
        for i, own in enumerate(entries)
    ]
    return frames.joined(named)


def _from_arrays(
    data: Any,
    amount: Any,
    task: Task | None,
    name: str,
    classes: int | None,
    columns: Mapping[str, ArrayLike],
    seed: int,
    labels: Any = None,
) -> DataSet:
    """A data set of arrays, tensors or map-style data sets, one of them or one per client."""
    is_by_client, splitting = isinstance(data, list), _is_amount(amount)
    if columns and is_by_client:
        raise InvalidInput(
            "data.columns", "data with one entry per client is not partitioned again"
        )
    pairs = _clients(data)
    tests = [] if splitting else _clients(amount)
    pairs, tests, names = _numbered(pairs, tests, labels)
    labels_found = labels is None and classes is None
    if names is not None:
        if classes not in (None, len(names)):
            raise InvalidInput("data.classes", f"is {classes}, but there are {len(names)} labels")
        task, classes = task or "classification", len(names)
    if task is None:
        task = _task_of([*pairs, *tests])
    records = _records(pairs, task)
    test_records: list[Records | None] = [*_records(tests, task)]
    extra = _aligned(columns, len(records[0]))
    test_extra: dict[str, Array] = {}
    if splitting:
        records, test_records, extra, test_extra = _held_out(records, amount, seed, task, extra)
    train, tested = _together(records), _together(test_records)
    if task == "classification" and classes is None:
        classes = 1 + int(max(train.targets.max(), tested.targets.max()))
    return DataSet(
        name=name,
        task=task,
        train=train,
        test=tested,
        classes=classes,
        columns=extra,
        owners=_positions(records) if is_by_client else None,
        test_columns=test_extra,
        test_owners=_positions(test_records) if is_by_client and splitting else None,
        class_names=names,
        labels_found=labels_found and task == "classification",
    )


def _numbered(
    pairs: list[Pair], tests: list[Pair], labels: Any
) -> tuple[list[Pair], list[Pair], tuple[str, ...] | None]:
    """Labels that are text as their positions, and what the positions are called."""
    everyone = [*pairs, *tests]
    if labels is None and not any(targets.dtype.kind == "U" for _, targets in everyone):
        return pairs, tests, None
    texts = [targets.reshape(-1).astype(str) for _, targets in everyone]
    names = sorted_values(np.unique(np.concatenate(texts))) if labels is None else labels
    names = tuple(map(str, names))
    known = {name: place for place, name in enumerate(names)}
    for text in texts:
        if unknown := [own for own in text if own not in known]:
            raise InvalidInput(
                "data.options.labels", f"{str(unknown[0])!r} is not one of {list(names)}"
            )
    numbers = [np.array([known[own] for own in text], dtype=np.int64) for text in texts]
    numbered = [(x, y) for (x, _), y in zip(everyone, numbers, strict=True)]
    return numbered[: len(pairs)], numbered[len(pairs) :], names


def _is_amount(test: Any) -> bool:
    """Whether this says how much to hold out, and is not test data itself."""
    return isinstance(test, Real)


def _task_of(pairs: Sequence[Pair]) -> Task:
    """Classification where all targets are integers."""
    has_labels = all(targets.dtype.kind in "iub" for _, targets in pairs)
    return "classification" if has_labels else "regression"


def _records(pairs: Sequence[Pair], task: Task) -> list[Records]:
    return [Records(inputs, _for_task(targets, task)) for inputs, targets in pairs]


def _aligned(columns: Mapping[str, ArrayLike], records: int) -> dict[str, Array]:
    """Further columns as arrays, each with one value for every record."""
    arrays = {key: np.asarray(column) for key, column in columns.items()}
    for key, column in arrays.items():
        if len(column) != records:
            raise InvalidInput(
                f"data.columns.{key}",
                f"needs one value for each of {records} records, got {len(column)}",
            )
    return arrays


def _positions(parts: Sequence[Records | None]) -> tuple[Indices, ...]:
    """Where each part lies when all are put together."""
    return tuple(spans(0 if own is None else len(own) for own in parts))


def _clients(data: Any) -> list[Pair]:
    """One pair of arrays per client; data that is not a list is a single client's."""
    if not isinstance(data, list):
        return [_pair(data)]
    if not data:
        raise InvalidInput("data", "the list of clients is empty")
    if any(_is_array(entry) for entry in data):
        raise InvalidInput(
            "data", "a list holds one entry per client; write one data set as (inputs, targets)"
        )
    return [_pair(entry) for entry in data]


def _pair(data: Any) -> Pair:
    if isinstance(data, Records):
        return data.inputs, data.targets
    if isinstance(data, tuple):
        if len(data) != 2:
            raise InvalidInput(
                "data", f"a tuple must be (inputs, targets), got {len(data)} entries"
            )
        return _array(data[0], "inputs"), _array(data[1], "targets")
    if _is_pair_by_name(data):
        return _array(data["inputs"], "inputs"), _array(data["targets"], "targets")
    _refuse_batches(data)
    mapping = isinstance(data, (Mapping, str, bytes)) or _is_array(data)
    if mapping or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise InvalidInput(
            "data",
            "must be (inputs, targets), a map-style data set, a data frame or another table, the "
            f"path of a CSV file, or a list with one of them per client, got {type(data).__name__}",
        )
    if not len(data):
        raise InvalidInput("data", "at least one record is needed, got an empty data set")
    items = [_item(data[i], i) for i in range(len(data))]
    return _stacked([x for x, _ in items], "inputs"), _stacked([y for _, y in items], "targets")


def _refuse_batches(data: Any) -> None:
    """Loaders and streams, recognised by their manners as tensors are, with what to bring instead.

    Every accountant here assumes that each record is drawn independently in every step (Poisson
    sampling), so the drawing cannot be left to anyone else.
    """
    rate = getattr(data, "sample_rate", None)
    streams = hasattr(data, "__iter__") and not isinstance(data, (str, bytes, Mapping))
    if hasattr(data, "dataset") and hasattr(data, "batch_sampler"):
        if isinstance(rate, Real):  # Opacus' DPDataLoader draws as it should, but out of our sight
            reason = (
                "draws batches itself, but only batches drawn by udpfl can be accounted: hand over "
                f"loader.dataset and set training.sampling_rate to {rate:g}"
            )
        else:
            reason = (
                "deals shuffled batches of a fixed size, and the accountant assumes Poisson "
                "sampling, in which each record is drawn independently in every step: hand over "
                "loader.dataset and say in training.sampling_rate how much of it a step takes"
            )
        raise InvalidInput("data", f"a {type(data).__name__} {reason}")
    kinds = {kind.__name__ for kind in type(data).__mro__}
    if "IterableDataset" in kinds or (streams and not hasattr(data, "__getitem__")):
        raise InvalidInput(
            "data",
            f"a {type(data).__name__} is a stream, from which records cannot be drawn at random: "
            "pass the records themselves, as (inputs, targets) or a map-style data set",
        )


def _item(item: Any, record: int) -> Pair:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise InvalidInput(
            "data", f"record {record} must be a pair (input, target), got {type(item).__name__}"
        )
    return _array(item[0], "inputs"), _array(item[1], "targets")


def _stacked(arrays: list[Array], part: str) -> Array:
    for record, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise InvalidInput(
                f"data.{part}",
                f"every record must have the shape {arrays[0].shape} of the first, "
                f"record {record} has {array.shape}",
            )
    return np.stack(arrays)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _array(values: Any, part: str) -> Array:
    try:
        # A tensor, recognised by its manners: torch need not be installed to use arrays.
        tensor = hasattr(values, "detach")
        array = np.asarray(values.detach().cpu().numpy() if tensor else values)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"data.{part}", f"cannot be converted to an array: {error}") from None
    if part == "targets" and _is_text(array):
        return array.astype(str)
    if array.dtype.kind not in "iubf":
        raise InvalidInput(
            f"data.{part}", f"must be an array of real numbers, got dtype {array.dtype}"
        )
    return array


def _is_text(array: Array) -> bool:
    """Whether these are class labels in words."""
    return array.dtype.kind in "UT" or (
        array.dtype.kind == "O" and all(isinstance(own, str) for own in array.flat)
    )


def _for_task(targets: Array, task: str) -> Array:
    if task == "regression":
        return targets.astype(np.float32) if targets.dtype.kind in "iub" else targets
    if task == "classification" and targets.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(targets) | (targets != np.floor(targets)))
        if len(wrong):
            raise InvalidInput(
                "data.targets",
                f"class labels must be whole numbers, got {targets.reshape(-1)[wrong[0]]}",
            )
        return targets.astype(np.int64)
    return targets


def _held_out(
    records: list[Records], size: float, seed: int, task: str, extra: Mapping[str, Array]
) -> tuple[list[Records], list[Records | None], dict[str, Array], dict[str, Array]]:
    """Training and test records of every client, and further columns of both.

    A client with few records may test none.
    """
    everyone = spans(map(len, records))
    labels = np.concatenate([own.targets for own in records]) if task == "classification" else None
    kept, held_out = hold_out_groups(everyone, size, seed, labels)
    trains = [own.subset(k - r[0]) for own, r, k in zip(records, everyone, kept, strict=True)]
    tests = [
        own.subset(h - r[0]) if len(h) else None
        for own, r, h in zip(records, everyone, held_out, strict=True)
    ]
    columns, tested_columns = (
        {key: column[rows[0]] for key, column in extra.items()} for rows in (kept, held_out)
    )
    return trains, tests, columns, tested_columns


def _together(several: Sequence[Records | None]) -> Records:
    parts = [part for part in several if part is not None]
    first = parts[0]
    for client, part in enumerate(parts):
        shapes = (part.inputs.shape[1:], part.targets.shape[1:])
        if shapes != (first.inputs.shape[1:], first.targets.shape[1:]):
            raise InvalidInput(
                "data",
                f"client {client} has records of shape {shapes[0]} and {shapes[1]}, "
                f"others {first.inputs.shape[1:]} and {first.targets.shape[1:]}",
            )
    if len(parts) == 1:
        return first
    inputs = np.concatenate([part.inputs for part in parts])
    targets = np.concatenate([part.targets for part in parts])
    split = [part.positions for part in parts if part.positions is not None]
    positions = np.concatenate(split) if len(split) == len(parts) else None
    return Records(inputs, targets, positions)
