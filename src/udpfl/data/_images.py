"""What the image data sets share: where their files lie, their options, scaling and splitting.

Pictures are bytes [n, channels, height, width] until the very end, where they become floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.data._repeats import first_of_each
from udpfl.data.records import Array, DataSet, Indices, Records
from udpfl.data.splits import hold_out
from udpfl.errors import InvalidInput

_SMALLEST, _LARGEST = 8, 256


def folders(name: str, directory: Path | None, *inner: str) -> tuple[Path, ...]:
    """Where the files of a data set may lie: the data directory, then the folders `inner` in it."""
    if directory is None:
        raise InvalidInput(
            "data.dir",
            f"{name} is read from files: give their folder with --data-dir or UDPFL_DATA_DIR "
            "(`udpfl data list` says where the files come from)",
        )
    top = Path(directory)
    if not top.is_dir():
        raise InvalidInput("data.dir", f"there is no folder {top}")
    first, *others = inner
    return (top, top / first, *(folder / o for o in others for folder in (top, top / first)))


def not_found(name: str, places: Sequence[Path], wanted: str) -> InvalidInput:
    """The refusal that says what was looked for, and where."""
    looked = ", ".join(map(str, places))
    return InvalidInput(
        "data.dir",
        f"{name} is not here: looked for {wanted} in {looked} "
        "(`udpfl data list` says where the files come from)",
    )


def choice(options: Mapping[str, Any], option: str, allowed: Sequence[str]) -> str:
    """The value of an option that is one of a few words; the first word is the default."""
    value = options.get(option, allowed[0])
    if value not in allowed:
        raise InvalidInput(
            f"data.options.{option}",
            f"must be {', '.join(allowed[:-1])} or {allowed[-1]}, got {value!r}",
        )
    return str(value)


def side(options: Mapping[str, Any], default: int) -> int:
    """The option `size`: how many pixels a picture has on each side."""
    value = options.get("size", default)
    if not isinstance(value, int) or not _SMALLEST <= value <= _LARGEST:
        raise InvalidInput(
            "data.options.size",
            f"must be a whole number of pixels from {_SMALLEST} to {_LARGEST}, got {value!r}",
        )
    return value


def scaled(pixels: Array) -> Array:
    """(x / 255 - 1/2) / (1/4): about zero mean and unit variance for photographs.

    The constants are plain numbers, so scaling learns nothing from the data.
    """
    values = pixels.astype(np.float32)
    values -= 127.5
    values /= 63.75
    return values


def data_set(
    name: str,
    pixels: Array,
    targets: Array,
    *,
    seed: int,
    test: float,
    options: Mapping[str, Any],
    class_names: tuple[str, ...] | None,
    columns: Mapping[str, Array] | None = None,
) -> DataSet:
    """Pictures without an official split: repeats removed on request, then `test` held out.

    With `class_names` the targets are labels and every class gives its share to the test records;
    without, they are values to regress on.
    """
    labelled = class_names is not None
    if choice(options, "duplicates", ("keep", "remove")) == "remove":
        chosen = first_of_each(name, pixels, targets)
    else:
        chosen = np.arange(len(pixels))
    kept, held_out = hold_out(len(chosen), test, seed, targets[chosen] if labelled else None)

    def records(part: Indices) -> Records:
        source = chosen[part]
        return Records(scaled(pixels[source]), targets[source], source)

    return DataSet(
        name=name,
        task="classification" if labelled else "regression",
        train=records(kept),
        test=records(held_out),
        classes=None if class_names is None else len(class_names),
        columns={key: column[chosen[kept]] for key, column in (columns or {}).items()},
        test_columns={key: column[chosen[held_out]] for key, column in (columns or {}).items()},
        class_names=class_names,
    )
