"""Data sets and how they are divided among clients. Each data set is one file; numpy only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from udpfl.data import cifar10, medical_mnist, mnist, mnist5k, table, utkface, wind
from udpfl.data.formats import Source
from udpfl.data.options import alternatives
from udpfl.data.partition import Partition, partition, sizes_are_public
from udpfl.data.records import DataSet, Records, Task
from udpfl.data.splits import split
from udpfl.data.user_data import as_dataset
from udpfl.errors import InvalidInput


class Loader(Protocol):
    """Reads one data set. `test` is the share to hold out where there is no official split."""

    def __call__(
        self, *, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]
    ) -> DataSet: ...


BUILT_IN: dict[str, Loader] = {
    "mnist5k": mnist5k.load,
    "mnist": mnist.load,
    "cifar10": cifar10.load,
    "medical-mnist": medical_mnist.load,
    "utkface": utkface.load,
    "gefcom2012-wind": wind.load,
    "table": table.load,
}


def load(
    name: str,
    *,
    seed: int = 0,
    directory: Path | None = None,
    test: float = 0.2,
    options: Mapping[str, Any] | None = None,
) -> DataSet:
    """Load a built-in data set by name."""
    loader = _loader(name)
    return loader(seed=seed, directory=directory, test=test, options=options or {})


def source_of(name: str) -> Source:
    """What is known of a built-in data set before it is read."""
    loader = _loader(name)
    said = (loader.__doc__ or "").partition("\n")[0]
    return getattr(loader, "source", None) or Source(name, said)


def sources() -> dict[str, Source]:
    """What is known of every built-in data set, by its name in `data.name`."""
    return {name: source_of(name) for name in BUILT_IN}


def _loader(name: str) -> Loader:
    if name not in BUILT_IN:
        raise InvalidInput(
            "data.name", f"unknown data set {name!r}; {alternatives(name, BUILT_IN)}"
        )
    return BUILT_IN[name]


__all__ = [
    "BUILT_IN",
    "DataSet",
    "Loader",
    "Partition",
    "Records",
    "Source",
    "Task",
    "as_dataset",
    "load",
    "partition",
    "sizes_are_public",
    "source_of",
    "sources",
    "split",
]
