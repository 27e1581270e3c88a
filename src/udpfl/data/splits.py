"""Records set aside at random: for testing, or as public data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral, Real

import numpy as np

from udpfl.data.records import Array, Indices
from udpfl.errors import InvalidInput


def split(
    records: int,
    size: float,
    rng: np.random.Generator,
    targets: Array | None = None,
    *,
    parameter: str = "data.test",
) -> tuple[Indices, Indices]:
    """Positions to keep and positions held out, both sorted.

    Args:
        records: How many there are.
        size: How many to hold out: a fraction in [0, 1) when it is a float, a count when it is an
            int.
        rng: Chooses them.
        targets: With class labels [n] every class gives its share, rounded so that the total is
            exact.
        parameter: What an error message calls `size`.

    Returns:
        Positions to keep, and positions held out.

    Raises:
        InvalidInput: `size` is out of range, or leaves nothing to keep.

    Example:
        >>> import numpy as np
        >>> from udpfl.data import split
        >>> kept, held_out = split(10, 0.2, np.random.default_rng(0))
        >>> len(kept), len(held_out)
        (8, 2)
    """
    count = _count(records, size, parameter)
    order = rng.permutation(records)
    if targets is None or targets.ndim != 1:
        held_out = order[:count]
    else:
        _, label, sizes = np.unique(targets[order], return_inverse=True, return_counts=True)
        # Whole numbers throughout: a float could tip a share of exactly one half either way.
        shares, remainders = np.divmod(count * sizes, records)
        leftover = count - int(shares.sum())
        shares[np.argsort(-remainders, kind="stable")[:leftover]] += 1
        by_class = order[np.argsort(label, kind="stable")]
        starts = np.cumsum(sizes) - sizes
        held_out = np.concatenate(
            [by_class[start : start + share] for start, share in zip(starts, shares, strict=True)]
        )
    chosen = np.zeros(records, dtype=bool)
    chosen[held_out] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def stream(seed: int, *client: int) -> np.random.Generator:
    """The random numbers that choose test records, apart from every other use of the seed."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InvalidInput("seed", f"must be a whole number >= 0, got {seed!r}")
    return np.random.default_rng([*b"data.test", int(seed), *client])


def hold_out(
    records: int, size: float, seed: int, targets: Array | None = None
) -> tuple[Indices, Indices]:
    """The split into training and test records that `seed` decides; neither part is empty."""
    kept, held_out = split(records, size, stream(seed), targets)
    if not len(held_out):
        raise InvalidInput("data.test", f"{size} of {records} records leaves none to test on")
    return kept, held_out


def hold_out_groups(
    groups: Sequence[Indices],
    size: float,
    seed: int,
    targets: Array | None = None,
    persons: Array | None = None,
) -> tuple[list[Indices], list[Indices]]:
    """The same for rows that belong to several clients, of each its share.

    `targets` and `persons` are of all rows. A person's rows of a client stay together; a client
    with few of them may test none.
    """
    kept: list[Indices] = []
    held_out: list[Indices] = []
    for client, rows in enumerate(groups):
        units = None if persons is None else rows_by_person(rows, persons)
        firsts = rows if units is None else np.array([own[0] for own in units])
        label = None if targets is None else targets[firsts]
        place = (client,) if len(groups) > 1 else ()
        drawn = split(len(firsts), size, stream(seed, *place), label)
        for parts, which in zip((kept, held_out), drawn, strict=True):
            parts.append(rows[which] if units is None else _joined([units[i] for i in which]))
    if persons is not None:  # who tests at one client trains at none
        testing = np.unique(persons[np.concatenate(held_out)])
        is_testing = [np.isin(persons[rows], testing) for rows in groups]
        kept = [rows[~own] for rows, own in zip(groups, is_testing, strict=True)]
        held_out = [rows[own] for rows, own in zip(groups, is_testing, strict=True)]
        if empty := [client for client, rows in enumerate(kept) if not len(rows)]:
            raise InvalidInput(
                "data.test", f"{size} of the persons leaves client {empty[0]} none to train on"
            )
    if not any(map(len, held_out)):
        count = sum(map(len, groups))
        raise InvalidInput("data.test", f"{size} of {count} records leaves none to test on")
    return kept, held_out


def spans(sizes: Iterable[int]) -> list[Indices]:
    """Where parts of these sizes lie when they are put one after the other."""
    ends = np.cumsum(list(sizes))
    return np.split(np.arange(ends[-1]), ends[:-1])


def rows_by_person(rows: Indices, persons: Array) -> list[Indices]:
    """The rows of each person, in the order of their first rows."""
    _, first, person, sizes = np.unique(
        persons[rows], return_index=True, return_inverse=True, return_counts=True
    )
    ordered = np.split(rows[np.argsort(person, kind="stable")], np.cumsum(sizes)[:-1])
    return [ordered[own] for own in np.argsort(first)]


def _joined(parts: Sequence[Indices]) -> Indices:
    return np.sort(np.concatenate(parts)) if parts else np.arange(0)


def _count(records: int, size: float, parameter: str) -> int:
    if isinstance(size, bool) or not isinstance(size, Real):
        raise InvalidInput(parameter, f"must be a fraction or a whole number, got {size!r}")
    if isinstance(size, Integral):
        if not 0 <= size < records:
            raise InvalidInput(
                parameter, f"must be a count from 0 to {records - 1} of {records}, got {size}"
            )
        return int(size)
    if not 0 <= size < 1:
        raise InvalidInput(parameter, f"must be a fraction in [0, 1), got {size}")
    count = round(size * records)
    if count == records:
        raise InvalidInput(parameter, f"{size} of {records} records leaves none to train on")
    return count
