"""Who holds which records, and which sizes everyone may know."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.algorithms import Algorithm
from udpfl.config import Config, DataConfig, load, read
from udpfl.data import DataSet, partition, sizes_are_public, sources, split
from udpfl.data.persons import PersonRecords
from udpfl.data.records import Digests, Indices, fingerprint_of, record_digests
from udpfl.errors import InvalidInput

log = logging.getLogger(__name__)

_NAMED_PAIRS = 3


def fit_client_count(config: Config, data: DataSet) -> Config:
    """The configuration with as many clients as the data comes with, where it does.

    Refuses another number that somebody has set.
    """
    if data.owners is None or len(data.owners) == config.data.clients:
        return config
    require_client_count(stated_clients(config), len(data.owners))
    return load(config, {"data": {"clients": len(data.owners)}})


def stated_clients(settings: Config | Mapping[str, Any] | str | Path | None) -> int | None:
    """The number of clients that somebody has set; None where the default fills in."""
    match settings:
        case Config():  # may have been read from a file that spells out every default
            own = settings.data
            standard = DataConfig.model_fields["clients"].default
            return own.clients if own.clients != standard else None
        case str() | Path():
            settings = read(settings)
    section = settings.get("data") if isinstance(settings, Mapping) else None
    if isinstance(section, DataConfig):
        return section.clients if "clients" in section.model_fields_set else None
    found = section.get("clients") if isinstance(section, Mapping) else None
    return found if isinstance(found, int) else None


def require_client_count(stated: int | None, found: int) -> None:
    """Refuse a number of clients that is not the one that the data comes with."""
    if stated is not None and stated != found:
        brings = "1 client" if found == 1 else f"{found} clients"
        raise InvalidInput(
            "data.clients",
            f"is {stated}, but the data comes divided among {brings}: leave it out, or give data "
            f"for {stated}",
        )


def warn_of_shared_records(data: DataSet, parts: Sequence[Indices], names: Sequence[str]) -> None:
    """Say where clients that bring their own records hold equal ones.

    Each client pays for what it releases of its own records. A person whose record two clients
    hold is in the releases of both, so that what is stated for one client does not hold for that
    person. Only a simulation sees the records of all clients; nothing of this is stored.
    """
    if data.owners is None:
        return
    holders: dict[bytes, set[int]] = {}
    for client, part in enumerate(parts):
        for own in record_digests(*data.train.single_rows(part)):
            holders.setdefault(own, set()).add(client)
    together = Counter(
        pair
        for clients in holders.values()
        if len(clients) > 1
        for pair in itertools.combinations(sorted(clients), 2)
    )
    for (one, other), count in together.most_common(_NAMED_PAIRS):
        log.warning(
            "%s and %s hold %s: whoever is at both is in the releases of both, and the privacy "
            "statements count those of one client only",
            *(
                names[one],
                names[other],
                "1 equal record" if count == 1 else f"{count} equal records",
            ),
        )
    if len(together) > _NAMED_PAIRS:
        log.warning("%d more pairs of clients hold equal records", len(together) - _NAMED_PAIRS)


def divide_records(
    config: Config, data: DataSet, among: Indices | None = None
) -> tuple[list[Indices], Indices]:
    """Each client's records, and the public ones that no client holds.

    `among` are the records that are divided; others are nobody's.
    """
    everything = np.arange(len(data.train))
    if among is not None:
        if data.owners is not None or config.data.person is not None:
            raise InvalidInput("records", "cannot be chosen where clients or persons have theirs")
        if not 0 <= among.min() <= among.max() < len(everything):
            raise InvalidInput("records", f"must lie between 0 and {len(everything) - 1}")
        everything = among
    if data.owners is not None:
        if config.data.public:
            raise InvalidInput("data.public", "needs one data set, not one per client")
        return list(data.owners), everything[:0]
    rng = np.random.default_rng([*b"partition", config.seed])
    targets = data.train.targets
    if isinstance(data.train, PersonRecords):
        targets = targets[:, 0]  # of the first row, which everybody has
    share, labels = config.data.public, targets[everything]
    parts_of_all = split(len(everything), share, rng, labels, parameter="data.public")
    kept, public = (everything[own] for own in parts_of_all)
    if config.data.person is not None and len(public):  # who is public is so at every client
        person = data.columns[config.data.person]
        is_public = np.isin(person, person[public])
        kept, public = everything[~is_public], everything[is_public]
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


def fingerprint_clients(
    config: Config,
    data: DataSet,
    parts: Sequence[Indices],
    digests_of: Digests = record_digests,
) -> list[str]:
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
    return [
        fingerprint_of([(data.train, kept), (data.test, held)], digests_of) for kept, held in pairs
    ]


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
    config: Config,
    data: DataSet,
    given: object,
    method: Algorithm,
    public: Indices,
    *,
    is_evaluated: bool = True,
) -> tuple[str, ...]:
    """What was read off the records and is used as if everyone knew it.

    Little for the built-in benchmarks, whose sizes and labels are in every textbook.
    `is_evaluated` is whether models are evaluated on test records, and the scores published.
    """
    found = []
    if method.needs_public:
        found.append(
            f"assumes that the {len(public)} public records (data.public) need no protection"
        )
    is_tested_on_clients = (
        is_evaluated and data.test.positions is not None and config.privacy.ledger is not None
    )
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
    if is_evaluated and is_own and not is_tested_on_clients:
        found.append("assumes that the records of the test split are public")
    if config.data.person is not None and config.privacy.ledger is not None:
        found.append(
            f"assumes that {config.data.person} names the same persons in every run of this ledger"
        )
    if config.data.person is not None and config.data.rows_per_person is None:
        found.append("assumes that the most rows of a person are public (data.rows_per_person)")
    if data.schema is not None and config.data.person is None and config.privacy.unit == "record":
        found.append(
            "assumes that one row is all that there is about a person (data.person names whose a "
            "row is)"
        )
    return tuple(found)
