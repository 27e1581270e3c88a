"""What a data set is: parallel arrays of inputs and targets, checked once when they are built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from udpfl.errors import InvalidInput

if TYPE_CHECKING:
    from udpfl.data.columns import Schema

Array = NDArray[Any]
Indices = NDArray[np.int64]
Task = Literal["classification", "regression"]


@dataclass(frozen=True, eq=False)
class Records:
    """Records 0..n-1: `inputs[i]` belongs to `targets[i]`.

    Inputs [n, ...] become float32, and integers other than bytes stay token ids, as int64; a plain
    list of numbers becomes [n, 1]. Integer targets are class labels [n], any others are values to
    regress on [n, k].

    Raises:
        InvalidInput: Lengths differ, there is no record, or a number is not finite.

    Example:
        >>> from udpfl.data import Records
        >>> len(Records(inputs=[[0.5, 1.0], [2.0, 3.0]], targets=[0, 1]))
        2
    """

    inputs: Array
    """[n, ...]."""
    targets: Array
    """[n] or [n, k]."""
    positions: Indices | None = None
    """Where the records stood in their source, if they are a part of it."""

    def __post_init__(self) -> None:
        inputs, targets = _inputs(self.inputs), _targets(self.targets)
        if len(inputs) != len(targets):
            raise InvalidInput(
                "data.targets",
                f"{len(inputs)} inputs need the same number of targets, got {len(targets)}",
            )
        if not len(inputs):
            raise InvalidInput("data.inputs", "at least one record is needed, got none")
        _finite("data.inputs", inputs)
        _finite("data.targets", targets)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "targets", targets)

    def __len__(self) -> int:
        return len(self.inputs)

    def subset(self, indices: ArrayLike) -> Records:
        """The records at these positions, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        source = chosen if self.positions is None else self.positions[chosen]
        return type(self)(self.inputs[chosen], self.targets[chosen], source)

    @property
    def rows(self) -> Records:
        """Every row by itself; a record is one, unless it is all rows of a person."""
        return self

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of the input of one row."""
        return tuple(self.inputs.shape[1:])

    def single_rows(self, indices: ArrayLike) -> tuple[Records, Indices]:
        """The rows of the chosen records: where they are, and their positions there."""
        return self, np.asarray(indices, dtype=np.int64)

    def fingerprint(self, indices: ArrayLike | None = None) -> str:
        """32 hexadecimal digits that name the chosen records (all by default), in any order.

        Each record is hashed with its target and the hashes are sorted: the same people in another
        order are the same data, which is what a privacy budget has to be charged to.
        """
        return fingerprint_of([(self, np.arange(len(self)) if indices is None else indices)])


def record_digests(records: Records, rows: ArrayLike) -> Iterator[bytes]:
    """What names each of these records: its input and its target."""
    for i in np.asarray(rows, dtype=np.int64):
        yield blake2b(records.inputs[i].tobytes() + records.targets[i].tobytes()).digest()


Digests = Callable[[Records, ArrayLike], Iterable[bytes]]
"""What names each of some records: `record_digests`, or what remembers it."""


@dataclass(frozen=True, eq=False)
class KnownDigests:
    """The digests of records that are asked for again and again, computed once.

    Only for as long as nobody can change the records: within one call.
    """

    records: Records

    @cached_property
    def _all(self) -> list[bytes]:
        return list(record_digests(self.records, np.arange(len(self.records))))

    def __call__(self, records: Records, rows: ArrayLike) -> Iterable[bytes]:
        """Those of these rows; of any other records they are computed."""
        if records is not self.records:
            return record_digests(records, rows)
        return (self._all[i] for i in np.asarray(rows, dtype=np.int64))


def fingerprint_of(
    parts: Sequence[tuple[Records, ArrayLike]], digests_of: Digests = record_digests
) -> str:
    """32 hexadecimal digits that name these records of all parts together, in any order."""
    chosen = [records.single_rows(rows) for records, rows in parts]
    digests = sorted(own for records, rows in chosen for own in digests_of(records, rows))
    first = chosen[0][0]
    whole = blake2b(digest_size=16)
    for array in (first.inputs, first.targets):
        whole.update(f"{array.dtype.str} {(len(digests), *array.shape[1:])};".encode())
    whole.update(b"".join(digests))
    return whole.hexdigest()


@dataclass(frozen=True, eq=False)
class DataSet:
    """Records to train on and records to test on, for one task.

    Raises:
        InvalidInput: The parts do not fit together: shapes, labels, names, columns or owners.

    Example:
        >>> from udpfl.data import DataSet, Records
        >>> train, test = Records([[0.0], [1.0]], [0, 1]), Records([[0.5]], [1])
        >>> DataSet("two", "classification", train, test, classes=2).input_shape
        (1,)
    """

    name: str
    """For people and files."""
    task: Task
    """Either "classification" or "regression"."""
    train: Records
    """The records that clients hold."""
    test: Records
    """The records that models are evaluated on."""
    classes: int | None
    """How many labels there are; None for regression."""
    columns: Mapping[str, Array] = field(default_factory=dict)
    """Further columns aligned with `train`, to partition by."""
    owners: tuple[Indices, ...] | None = None
    """Positions in `train` per client, when the data came client by client."""
    test_columns: Mapping[str, Array] = field(default_factory=dict)
    """The same columns aligned with `test`, where its records were held out of the same source."""
    test_owners: tuple[Indices, ...] | None = None
    """Positions in `test` of what was held out of each client's records."""
    class_names: tuple[str, ...] | None = None
    """What the labels 0, 1, ... are called, for people."""
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Published forecasts on the same test records: name to figures such as mae and mse."""
    schema: Schema | None = None
    """How the cells of a table became these numbers, if they were one."""
    owner_names: tuple[str, ...] | None = None
    """What the clients of `owners` are called, where the data says it."""
    labels_found: bool = False
    """Whether nobody has stated the labels, so that they are those which occur in the records."""

    def __post_init__(self) -> None:
        if self.task not in get_args(Task):
            raise InvalidInput(
                "data.task", f"must be classification or regression, got {self.task!r}"
            )
        if self.test.inputs.shape[1:] != self.input_shape:
            raise InvalidInput(
                "data.test",
                f"test inputs must have the shape {self.input_shape} of the training inputs, "
                f"got {self.test.inputs.shape[1:]}",
            )
        if self.train.inputs.dtype != self.test.inputs.dtype:
            raise InvalidInput(
                "data.test",
                f"test inputs must be {self.train.inputs.dtype} like the training inputs, "
                f"got {self.test.inputs.dtype}",
            )
        for records in (self.train, self.test):
            self._check_targets(records.rows.targets)
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise InvalidInput(
                "data.class_names",
                f"needs one name for each of {self.classes} classes, got {len(self.class_names)}",
            )
        for name, column in self.columns.items():
            if len(column) != len(self.train):
                raise InvalidInput(
                    f"data.columns.{name}",
                    f"needs one value for each of {len(self.train)} records, got {len(column)}",
                )
        if self.owners is not None:
            _check_owners(self.owners, len(self.train))
        for name, column in self.test_columns.items():
            if name not in self.columns or len(column) != len(self.test):
                raise InvalidInput(
                    f"data.test_columns.{name}",
                    f"needs one value for each of {len(self.test)} test records, got {len(column)}",
                )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.train.row_shape

    @property
    def outputs(self) -> int:
        """How many numbers a model answers with: one per class, or one per regressed value."""
        return self._width if self.classes is None else self.classes

    @property
    def _width(self) -> int:
        """Values that are regressed on."""
        return int(self.train.targets.shape[-1])

    def _check_targets(self, targets: Array) -> None:
        labels = targets.ndim == 1
        if labels != (self.task == "classification"):
            found = "class labels" if labels else "numbers to predict (regression)"
            raise InvalidInput("data.task", f"is {self.task}, but the targets are {found}")
        if labels != (self.classes is not None):
            wanted = "the number of classes" if labels else "None"
            raise InvalidInput(
                "data.classes", f"must be {wanted} for {self.task}, got {self.classes}"
            )
        if self.classes is None:
            if targets.shape[1] != self._width:
                raise InvalidInput(
                    "data.test",
                    f"test targets must have {self._width} values each, got {targets.shape[1]}",
                )
            return
        wrong = np.flatnonzero((targets < 0) | (targets >= self.classes))
        if len(wrong):
            raise InvalidInput(
                "data.targets",
                f"labels must lie in 0..{self.classes - 1}, "
                f"got {targets[wrong[0]]} in record {wrong[0]}",
            )


def _inputs(values: ArrayLike) -> Array:
    array = np.asarray(values)
    if array.ndim == 0 or 0 in array.shape[1:]:
        raise InvalidInput(
            "data.inputs", f"must be an array of records, got an array of shape {array.shape}"
        )
    if array.ndim == 1:
        array = array[:, None]
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        return array.astype(np.int64, copy=False)
    return _float32("data.inputs", array)


def _targets(values: ArrayLike) -> Array:
    array = np.asarray(values)
    if array.ndim not in (1, 2) or 0 in array.shape[1:]:
        raise InvalidInput("data.targets", f"must have shape [n] or [n, k], got {array.shape}")
    if array.dtype.kind in "iub":
        if array.ndim == 2 and array.shape[1] != 1:
            raise InvalidInput(
                "data.targets", f"must hold one class label per record, got {array.shape}"
            )
        return array.reshape(-1).astype(np.int64, copy=False)
    return _float32("data.targets", array[:, None] if array.ndim == 1 else array)


def _float32(parameter: str, array: Array) -> Array:
    if array.dtype.kind not in "fub":
        raise InvalidInput(parameter, f"must hold real numbers, got dtype {array.dtype}")
    with np.errstate(over="ignore"):  # what overflows is infinite, and refused below as such
        return array.astype(np.float32, copy=False)


def _finite(parameter: str, array: Array) -> None:
    finite = np.isfinite(array)
    if not finite.all():
        record = int(np.argwhere(~finite)[0][0])
        raise InvalidInput(parameter, f"must be finite 32-bit numbers, but record {record} is not")


def _check_owners(owners: tuple[Indices, ...], records: int) -> None:
    if not owners or not all(len(own) for own in owners):
        raise InvalidInput("data.owners", "every client needs at least one record")
    everything = np.concatenate(owners)
    if everything.min() < 0 or everything.max() >= records:
        raise InvalidInput("data.owners", f"positions must lie in 0..{records - 1}")
    if len(np.unique(everything)) != len(everything):
        raise InvalidInput("data.owners", "a record must belong to only one client")
