"""The compact form of image data sets: numpy archives, colour pictures stored as differences.

An array `coded` is uint8 [3, n, height, width]. Modulo 256, red and blue were replaced by their
difference from green, then each plane was differenced along its columns and its rows.
"""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from udpfl.data.records import Array
from udpfl.errors import InvalidInput

_UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    ValueError,  # also what numpy says of pickled objects, which are not admitted
    MemoryError,  # a forged header asks for more than there is
    NotImplementedError,
    RuntimeError,  # an encrypted member
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def decoded(coded: Array) -> Array:
    """The pictures [n, 3, height, width] with channels red, green and blue."""
    planes = coded.cumsum(axis=2, dtype=np.uint8)
    np.cumsum(planes, axis=3, dtype=np.uint8, out=planes)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return np.ascontiguousarray(planes.swapaxes(0, 1))


def arrays(
    source: Path | bytes, where: object, shapes: Mapping[str, tuple[int | None, ...]]
) -> dict[str, Array]:
    """The named members of an archive, each uint8 and of the shape asked for.

    None stands for the number of records: any, but the same in every member.
    """
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with np.load(file, allow_pickle=False) as archive:
            found = {name: np.asarray(archive[name]) for name in shapes}
    except _UNREADABLE as error:
        raise InvalidInput("data.dir", f"cannot read {where}: {error}") from None
    first, records = next(iter(shapes)), None
    for name, shape in shapes.items():
        array = found[name]
        wanted = " × ".join("n" if length is None else str(length) for length in shape)
        fits = array.ndim == len(shape) and all(
            length in (None, have) for length, have in zip(shape, array.shape, strict=True)
        )
        if array.dtype != np.uint8 or not fits:
            have = " × ".join(map(str, array.shape))
            raise InvalidInput(
                "data.dir",
                f"{where}: {name} must be uint8 of shape {wanted}, got {array.dtype} of {have}",
            )
        count = array.shape[shape.index(None)]
        records = count if records is None else records
        if count != records:
            raise InvalidInput(
                "data.dir", f"{where}: {records} entries in {first}, but {count} in {name}"
            )
    return found
