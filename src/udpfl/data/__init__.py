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
    """Load a built-in data set by name.

    Args:
        name: One of `BUILT_IN`.
        seed: Chooses the test records where there is no official split.
        directory: Where data sets lie; the data directory of this machine if left out.
        test: Share to hold out where there is no official split.
        options: Of this data set, such as the path of a "table".

    Returns:
        Its records to train on and to test on.

    Raises:
        InvalidInput: The name or an option is not known, or the files are not there or not right.
        MissingExtra: The package that brings the data, or reads it, is not installed.

    Example:
        >>> from pathlib import Path
        >>> from udpfl.data import load
        >>> _ = Path("ages.csv").write_text("age,ill\\n20,0\\n30,0\\n60,1\\n70,1\\n")
        >>> options = {"path": "ages.csv", "target": "ill", "scale": {"age": [0, 110]}}
        >>> load("table", test=1, options=options).input_shape
        (1,)
    """
    loader = _loader(name)
    return loader(seed=seed, directory=directory, test=test, options=options or {})


def source_of(name: str) -> Source:
    """What is known of a built-in data set before it is read.

    Args:
        name: One of `BUILT_IN`.

    Returns:
        Its title, licence, files and where to get them.

    Raises:
        InvalidInput: There is no data set of this name.

    Example:
        >>> from udpfl.data import source_of
        >>> source_of("cifar10").folder
        'cifar10'
    """
    loader = _loader(name)
    said = (loader.__doc__ or "").partition("\n")[0]
    return getattr(loader, "source", None) or Source(name, said)


def sources() -> dict[str, Source]:
    """What is known of every built-in data set, by its name in `data.name`.

    Returns:
        One source for each of `BUILT_IN`.

    Example:
        >>> from udpfl.data import sources
        >>> "mnist5k" in sources()
        True
    """
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
