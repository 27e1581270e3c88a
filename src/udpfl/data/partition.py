"""Who holds which records. Every partitioner is seeded, and every record has one owner.

iid        shuffled and dealt out evenly
dirichlet  each class spread over the clients in Dirichlet(alpha) proportions
shards     records sorted by label and cut into pieces, some pieces for each client
column     clients are the distinct values of a column
power-law  shuffled, the k-th client's share proportional to k^-exponent
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from udpfl.data.options import alternatives
from udpfl.data.records import Array, Indices
from udpfl.errors import InvalidInput

log = logging.getLogger(__name__)

Partition = Literal["iid", "dirichlet", "shards", "column", "power-law"]
_DRAWS = 100


def partition(
    kind: Partition,
    clients: int,
    rng: np.random.Generator,
    *,
    targets: Array,
    classes: int | None = None,
    columns: Mapping[str, Array] | None = None,
    alpha: float = 0.5,
    shards: int = 2,
    by: str | None = None,
    exponent: float = 1.5,
) -> list[Indices]:
    """Sorted positions per client: disjoint, nonempty, and together everything.

    Args:
        kind: "iid", "dirichlet", "shards", "column" or "power-law"; the module says what each does.
        clients: How many there are.
        rng: All randomness comes from it.
        targets: Class labels [n], or values [n, k].
        classes: Number of labels; needed for "dirichlet" and "shards".
        columns: Further columns [n] by name; needed for "column".
        alpha: For "dirichlet": the smaller, the more uneven.
        shards: For "shards": pieces for each client.
        by: For "column": which one.
        exponent: For "power-law": the k-th client's share is proportional to k^-exponent.

    Returns:
        The positions of each client's records.

    Raises:
        InvalidInput: A value is out of range, there are too few records, or what the kind needs is
            missing.

    Example:
        >>> import numpy as np
        >>> from udpfl.data import partition
        >>> parts = partition("iid", 2, np.random.default_rng(0), targets=np.arange(6))
        >>> [len(part) for part in parts]
        [3, 3]
    """
    _check_kind(kind)
    records = len(targets)
    if kind == "iid":
        return iid(records, clients, rng)
    if kind == "power-law":
        return power_law(records, clients, rng, exponent)
    if kind == "column":
        columns = columns or {}
        if by is None or by not in columns:
            hint = alternatives(str(by), sorted(columns))
            raise InvalidInput("data.by", f"must name a column of the data, got {by!r}; {hint}")
        return column(columns[by], clients)
    if targets.ndim != 1 or classes is None:
        raise InvalidInput(
            "data.partition", f"{kind} needs class labels: use iid, power-law or column"
        )
    if kind == "shards":
        return by_shards(targets, clients, rng, shards)
    return dirichlet(targets, clients, rng, alpha)


def sizes_are_public(kind: Partition) -> bool:
    """Whether client sizes follow from the number of records, the clients and the seed alone.

    Where they do not, a size says something about labels or columns, and must not be used as if
    it were known.

    Args:
        kind: Of the partition.

    Returns:
        True for "iid", "power-law" and "shards".

    Raises:
        InvalidInput: There is no such partition.

    Example:
        >>> from udpfl.data import sizes_are_public
        >>> sizes_are_public("iid"), sizes_are_public("dirichlet")
        (True, False)
    """
    _check_kind(kind)
    return kind in ("iid", "power-law", "shards")


def iid(records: int, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Shuffled, in parts whose sizes differ by at most one."""
    _enough(records, clients)
    return _sorted(np.array_split(rng.permutation(records), clients))


def dirichlet(
    targets: Array, clients: int, rng: np.random.Generator, alpha: float
) -> list[Indices]:
    """Every class spread in proportions of its own: the smaller alpha, the more uneven.

    Drawn again until every client has a record, which conditions the proportions on that.
    """
    _enough(len(targets), clients)
    if not (np.isfinite(alpha) and alpha > 0):
        raise InvalidInput("data.alpha", f"must be a finite number above 0, got {alpha!r}")
    members = [np.flatnonzero(targets == label) for label in np.unique(targets)]
    for _ in range(_DRAWS):
        owner = np.empty(len(targets), dtype=np.int64)
        for own in members:
            shares = rng.dirichlet(np.full(clients, alpha))
            # The j-th cut is where the first j clients' shares end, rounded.
            cuts = np.rint(np.cumsum(shares)[:-1] * len(own)).astype(np.int64)
            owner[rng.permutation(own)] = np.searchsorted(cuts, np.arange(len(own)), "right")
        if len(np.unique(owner)) == clients:
            return _grouped(owner)
    raise InvalidInput(
        "data.alpha",
        f"{alpha} left some of {clients} clients without records in {_DRAWS} draws: "
        "use a larger alpha or fewer clients",
    )


def by_shards(targets: Array, clients: int, rng: np.random.Generator, shards: int) -> list[Indices]:
    """`shards` pieces of the label-sorted records for each client, so few labels for each."""
    _whole("data.shards", shards)
    _enough(len(targets), clients)
    if len(targets) < clients * shards:
        raise InvalidInput(
            "data.shards",
            f"{clients} clients with {shards} shards each need {clients * shards} records, "
            f"but there are {len(targets)}",
        )
    # Shuffled first, so that records of one label are cut at random.
    order = rng.permutation(len(targets))
    order = order[np.argsort(targets[order], kind="stable")]
    pieces = np.array_split(order, clients * shards)
    dealt = rng.permutation(clients * shards).reshape(clients, shards)
    return _sorted([np.concatenate([pieces[piece] for piece in own]) for own in dealt])


def column(values: Array, clients: int) -> list[Indices]:
    """One client per distinct value in sorted order; with fewer clients, dealt out in turn."""
    _enough(len(values), clients)
    distinct, code = np.unique(values, return_inverse=True)
    if clients > len(distinct):
        raise InvalidInput(
            "data.clients",
            f"the column has {len(distinct)} distinct values, too few for {clients} clients",
        )
    if clients < len(distinct):
        log.warning(
            "the column has %d distinct values for %d clients, so some clients hold several values",
            len(distinct),
            clients,
        )
    return _grouped(code % clients)


def power_law(
    records: int, clients: int, rng: np.random.Generator, exponent: float
) -> list[Indices]:
    """Sizes proportional to rank^-exponent, at least one record each, shuffled."""
    _enough(records, clients)
    if not (np.isfinite(exponent) and exponent >= 0):
        raise InvalidInput("data.exponent", f"must be a finite number from 0, got {exponent!r}")
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    shares = records * weights / weights.sum()
    sizes = np.maximum(1, np.floor(shares)).astype(np.int64)
    missing = records - int(sizes.sum())
    if missing > 0:
        sizes[np.argsort(sizes - shares, kind="stable")[:missing]] += 1
    for _ in range(-missing):
        # What the smallest were given beyond their share, the largest give up; the last of equals
        # first, so that sizes still never grow with rank.
        sizes[np.flatnonzero(sizes == sizes.max())[-1]] -= 1
    return _sorted(np.split(rng.permutation(records), np.cumsum(sizes)[:-1]))


def _grouped(owner: Indices) -> list[Indices]:
    """The positions of each owner; all owners from 0 up have some."""
    order = np.argsort(owner, kind="stable").astype(np.int64, copy=False)
    return np.split(order, np.cumsum(np.bincount(owner))[:-1])


def _sorted(parts: list[Array]) -> list[Indices]:
    return [np.sort(part).astype(np.int64, copy=False) for part in parts]


def _whole(parameter: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InvalidInput(parameter, f"must be a whole number from 1, got {value!r}")


def _enough(records: int, clients: int) -> None:
    _whole("data.clients", clients)
    if clients > records:
        raise InvalidInput(
            "data.clients",
            f"{clients} clients need at least one record each, but there are {records}",
        )


def _check_kind(kind: str) -> None:
    if kind not in get_args(Partition):
        raise InvalidInput(
            "data.partition",
            f"unknown partition {kind!r}; {alternatives(str(kind), get_args(Partition))}",
        )
