"""Persons with several rows: one record then holds all rows of a person at a client.

Whatever is drawn, clipped, declared or charged by the record is so by the person: partition,
sampling, clipping and fingerprints need not know the difference.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from udpfl.data.options import alternatives
from udpfl.data.records import Array, DataSet, Indices, Records
from udpfl.errors import InvalidInput

log = logging.getLogger(__name__)

NO_LABEL = -1
"""The label of a row that is not there; a number to regress on is nan."""


@dataclass(frozen=True, eq=False)
class PersonRecords(Records):
    """Persons 0..n-1, each with up to m rows: inputs [n, m, ...], targets [n, m] or [n, m, k].

    A person with fewer rows repeats its first one, with a target that says that it is not there.
    `positions` [n, m] are those of the rows, -1 for one that is not there. `group_by_person` makes
    them.
    """

    def __post_init__(self) -> None:
        """The rows were checked before they were put together."""

    @property
    def is_there(self) -> Array:
        """Which of the rows are there [n, m]."""
        if self.targets.ndim == 2:
            return np.asarray(self.targets != NO_LABEL)
        return np.asarray(~np.isnan(self.targets).any(axis=2))

    @property
    def rows(self) -> Records:
        """Every row by itself."""
        there = self.is_there
        return Records(self.inputs[there], self.targets[there])

    @property
    def row_shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[2:])

    def single_rows(self, indices: ArrayLike) -> tuple[Records, Indices]:
        rows = self.subset(indices).rows
        return rows, np.arange(len(rows))


def group_by_person(data: DataSet, person: str, by: str | None, most: int | None) -> DataSet:
    """The data with a record for each person and client.

    The same name at two clients is two records: each client hides what it holds of a person.

    Args:
        data: Rows, with whose they are in the column `person`.
        person: The column.
        by: The column that makes the clients, if there is one.
        most: Rows of a person that are used; all of them if None.

    Raises:
        InvalidInput: There is no such column.
    """
    if isinstance(data.train, PersonRecords):
        return data
    if person not in data.columns:
        raise InvalidInput(
            "data.person", f"there is no column {person!r}; {alternatives(person, data.columns)}"
        )
    client = _clients(data, by)
    owned = np.flatnonzero(client >= 0)
    _refuse_both_sides(data, person)
    _warn_of_several_clients(data.columns[person][owned], client[owned])
    rows = data.train.subset(owned)
    train, firsts = _group(rows, data.columns[person][owned], client[owned], most)
    firsts = owned[firsts]
    owners = None
    if data.owners is not None:
        owners = tuple(np.flatnonzero(client[firsts] == i) for i in range(len(data.owners)))
    columns = {name: column[firsts] for name, column in data.columns.items()}
    return replace(data, train=train, columns=columns, owners=owners)


def require_one_record_each(data: DataSet, person: str, parts: Sequence[Indices]) -> None:
    """Refuse a division in which a client holds several records of one person.

    So it would be where several values of the column `data.by` make one client.
    """
    for part in parts:
        names, counts = np.unique(data.columns[person][part], return_counts=True)
        if len(names) and counts.max() > 1:
            raise InvalidInput(
                "data.clients",
                "several values of data.by would make one client, which would then hold several "
                f"records of {str(names[counts.argmax()])!r}: set data.clients to the number of "
                "values of data.by",
            )


def _refuse_both_sides(data: DataSet, person: str) -> None:
    """Refuse rows of a person to train on beside rows of the same person to test on."""
    if person not in data.test_columns:
        return
    both = np.intersect1d(data.columns[person], data.test_columns[person])
    if len(both):
        raise InvalidInput(
            "data.person",
            f"{len(both):,} persons have rows to train on and rows to test on, {str(both[0])!r} "
            "among them: hold out whole persons, as tables do",
        )


def _warn_of_several_clients(person: Array, client: Indices) -> None:
    pairs = np.unique(np.stack([np.unique(person, return_inverse=True)[1], client]), axis=1)
    several = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
    if several:
        log.warning(
            "%s persons have rows at several clients: each client hides what it holds of them, and "
            "k clients together cost such a person k times (this line is about private records: "
            "it is for whoever holds them)", f"{several:,}"
        )  # fmt: skip


def test_persons(data: DataSet, person: str) -> PersonRecords:
    """The test rows as persons of the same size, to try a model on."""
    rows = int(data.train.targets.shape[1])
    everyone = np.arange(len(data.test))
    whose = data.test_columns.get(person, everyone)
    return _group(data.test, whose, np.zeros_like(everyone), rows, is_quiet=True)[0]


def _clients(data: DataSet, by: str | None) -> Indices:
    """A number for each row that says which client holds it, as far as the data says it."""
    if data.owners is not None:
        client = np.full(len(data.train), -1, dtype=np.int64)  # rows may be nobody's
        for number, rows in enumerate(data.owners):
            client[rows] = number
        return client
    if by is not None and by in data.columns:
        return np.unique(data.columns[by], return_inverse=True)[1].astype(np.int64)
    return np.zeros(len(data.train), dtype=np.int64)


def _group(
    records: Records, person: Array, client: Indices, most: int | None, is_quiet: bool = False
) -> tuple[PersonRecords, Indices]:
    """Persons in the order of their first rows, and where these stand."""
    whose = np.unique(person, return_inverse=True)[1].astype(np.int64)
    pair = client * (whose.max() + 1) + whose
    _, first, group, counts = np.unique(
        pair, return_index=True, return_inverse=True, return_counts=True
    )
    width = int(counts.max()) if most is None else most  # not what anybody has, where it is public
    _tell_of_left_out(counts, width, is_quiet)
    rank = np.argsort(np.argsort(first))  # persons by their first rows
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(counts) - counts
    place = np.empty(len(pair), dtype=np.int64)
    place[order] = np.arange(len(pair)) - np.repeat(starts, counts)
    used = np.flatnonzero(place < width)
    index = np.repeat(np.sort(first)[:, None], width, axis=1)
    there = np.zeros(index.shape, dtype=bool)
    index[rank[group[used]], place[used]] = used
    there[rank[group[used]], place[used]] = True
    targets = records.targets[index]
    targets[~there] = NO_LABEL if records.targets.ndim == 1 else np.nan
    source = records.positions
    positions = None if source is None else np.where(there, source[index], -1)
    return PersonRecords(records.inputs[index], targets, positions), np.sort(first)


def _tell_of_left_out(counts: Indices, width: int, is_quiet: bool) -> None:
    cut = int(np.maximum(counts - width, 0).sum())
    if cut and not is_quiet:
        log.warning(
            "%s rows are left out: persons have more than data.rows_per_person = %d (this line is "
            "about private records: it is for whoever holds them)", f"{cut:,}", width
        )  # fmt: skip
