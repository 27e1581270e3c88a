"""Who holds which records, and which sizes everyone may know."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from udpfl.algorithms import Algorithm
from udpfl.config import Config, load
from udpfl.data import DataSet, partition, sizes_are_public, sources, split
from udpfl.data.persons import PersonRecords
from udpfl.data.records import Indices, fingerprint_of
from udpfl.errors import InvalidInput

log = logging.getLogger(__name__)


def fit_client_count(config: Config, data: DataSet) -> Config:
    """The configuration with as many clients as the data comes with, where it does."""
    if data.owners is None or len(data.owners) == config.data.clients:
        return config
    return load(config, {"data": {"clients": len(data.owners)}})


def divide_records(config: Config, data: DataSet) -> tuple[list[Indices], Indices]:
    """Each client's records, and the public ones that no client holds."""
    everything = np.arange(len(data.train))
    if data.owners is not None:
        if config.data.public:
            raise InvalidInput("data.public", "needs one data set, not one per client")
        return list(data.owners), everything[:0]
    rng = np.random.default_rng([*b"partition", config.seed])
    targets = data.train.targets
    if isinstance(data.train, PersonRecords):
        targets = targets[:, 0]  # of the first row, which everybody has
    kept, public = split(len(everything), config.data.public, rng, targets, parameter="data.public")
    parts = partition(
        config.data.partition,
        config.data.clients,
        rng,
        targets=targets[kept],
        classes=data.classes,
        columns={name: column[kept] for name, column in data.columns.items()},
        alpha=config.data.alpha,
        shards=config.data.shards,
        by=config.data.by,
        exponent=config.data.exponent,
    )
    return [kept[part] for part in parts], public


def require_public(method: Algorithm, public: Indices) -> None:
    """Refuse a method that learns from public records where none were set aside."""
    if method.needs_public and not len(public):
        raise InvalidInput(
            "data.public",
            f"{method.name} learns from public records, but there are none: give a fraction or a "
            "number, for example 0.05",
        )


def client_names(config: Config, data: DataSet, parts: Sequence[Indices]) -> list[str]:
    """The value of the column that made the client, where there is one; else client-0, client-1."""
    named = _named_by_column(config, data, parts) or data.owner_names
    return list(named or [f"client-{i}" for i in range(len(parts))])


def _named_by_column(config: Config, data: DataSet, parts: Sequence[Indices]) -> list[str] | None:
    if config.data.by is not None and data.owners is None:
        column = data.columns[config.data.by]
        values = [np.unique(column[part]) for part in parts]
        if all(len(own) == 1 for own in values):
            return [str(own[0]) for own in values]
    return None


def fingerprint_clients(config: Config, data: DataSet, parts: Sequence[Indices]) -> list[str]:
    """What names the records of each client.

    All that it brought, whatever was held out for testing: another test split is not another set of
    people. Where one data set is divided by chance, the client's part of it.
    """
    if data.owners is not None:
        tests = data.test_owners or [np.arange(0)] * len(parts)
        pairs = list(zip(data.owners, tests, strict=True))
    elif (names := _named_by_column(config, data, parts)) is not None:
        by = str(config.data.by)
        held_out = data.test_columns.get(by, np.empty(0, dtype=str)).astype(str)
        own = data.columns[by].astype(str)
        pairs = [(np.flatnonzero(own == n), np.flatnonzero(held_out == n)) for n in names]
    else:
        pairs = [(part, np.arange(0)) for part in parts]
    return [fingerprint_of([(data.train, kept), (data.test, held)]) for kept, held in pairs]


def pool_fingerprint(data: DataSet) -> str:
    """What names all records of a data set, those that were held out of it for testing included."""
    is_part = data.test.positions is not None
    test = np.arange(len(data.test) if is_part else 0)
    return fingerprint_of([(data.train, np.arange(len(data.train))), (data.test, test)])


def is_divided(config: Config, data: DataSet, parts: Sequence[Indices]) -> bool:
    """Whether chance, or an order of records, decides which client holds which record.

    Then the same client has other records after another seed, and another client has its own.
    """
    return data.owners is None and _named_by_column(config, data, parts) is None


def declared_sizes(config: Config, data: DataSet, parts: Sequence[Indices]) -> list[int]:
    """The public constants that stand for the clients' sizes.

    Whoever declares them says that they are public, or would be the same without any one record.
    "auto" takes the real sizes where they follow from the number of records alone, and elsewhere
    the mean for everyone: fine for a public benchmark, an assumption for data of one's own (see
    `assumptions`).
    """
    declared = config.data.declared_sizes
    if isinstance(declared, list):
        return declared
    if isinstance(declared, int):
        return [declared] * len(parts)
    if declared == "partition" or (data.owners is None and sizes_are_public(config.data.partition)):
        return [len(part) for part in parts]
    mean = max(1, round(sum(len(part) for part in parts) / len(parts)))
    log.warning(
        "client sizes depend on the data, so every client declares the mean, %d; set "
        "data.declared_sizes to public numbers, or to 'partition' if the true sizes are", mean
    )  # fmt: skip
    return [mean] * len(parts)


def assumptions(
    config: Config, data: DataSet, given: object, method: Algorithm, public: Indices
) -> tuple[str, ...]:
    """What was read off the records and is used as if everyone knew it.

    Little for the built-in benchmarks, whose sizes and labels are in every textbook.
    """
    found = []
    if method.needs_public:
        found.append(
            f"assumes that the {len(public)} public records (data.public) need no protection"
        )
    is_tested_on_clients = data.test.positions is not None and config.privacy.ledger is not None
    if is_tested_on_clients:
        found.append(
            "assumes that the records of the test split are public: scores on them are published "
            "without noise, and after another seed or split they are records that clients trained "
            "on in other runs of this ledger"
        )
    source = sources().get(config.data.name) if given is None else None
    if source is not None and source.is_benchmark:
        return tuple(found)
    if config.data.declared_sizes in ("auto", "partition"):
        found.append("assumes that the sizes of the clients' data are public (data.declared_sizes)")
    is_own = given is not None or (source is not None and source.is_own)
    stated = not is_own or isinstance(given, DataSet) or "labels" in config.data.options
    if data.classes is not None and not stated:
        found.append("assumes that the set of labels is public")
    if is_own and not is_tested_on_clients:
        found.append("assumes that the records of the test split are public")
    if config.data.person is not None and config.data.rows_per_person is None:
        found.append("assumes that the most rows of a person are public (data.rows_per_person)")
    if data.schema is not None and config.data.person is None and config.privacy.unit == "record":
        found.append(
            "assumes that one row is all that there is about a person (data.person names whose a "
            "row is)"
        )
    return tuple(found)
