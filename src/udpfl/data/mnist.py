"""MNIST from its four public files in IDX format, plain or gzipped, with the official split.

IDX is a big-endian header (a magic number, then one 32-bit size per dimension) and raw bytes.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.data.formats import Download, Format, Source, described_by, md5
from udpfl.data.options import known
from udpfl.data.records import Array, DataSet, Records
from udpfl.errors import InvalidInput

_IMAGES, _LABELS = 2051, 2049
_MEAN, _STD = 0.1307, 0.3081  # published constants, so that scaling learns nothing from the data

# The sums of the .gz files are in torchvision and many others; those of the contents in the README
# of the compact files. Sizes are those of files with the right sums.
_FILES = (
    (
        md5("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        md5("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
    ),
    (
        md5("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        md5("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
    ),
    (
        md5("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        md5("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
    ),
    (
        md5("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        md5("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
    ),
)
# The original address no longer serves them. The first mirror is torchvision's, the second the one
# of TensorFlow's tutorials.
_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
SOURCE = Source(
    name="mnist",
    is_benchmark=True,
    title="MNIST, handwritten digits",
    samples="60,000 + 10,000 test, grey 28×28, 10 classes",
    licence="usually stated as CC BY-SA 3.0",
    homepage="yann.lecun.com/exdb/mnist",
    citation="Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits",
    folder="mnist",
    formats=(
        Format(
            "IDX",
            _FILES,
            tuple(Download(gzipped, _MIRRORS) for gzipped, _ in _FILES),
        ),
    ),
)


@described_by(SOURCE)
def load(*, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]) -> DataSet:
    """The files train-* and t10k-* in `directory`, or in a folder mnist inside it.

    The split is the official one: `seed` and `test` are not used. No options.
    """
    known("mnist", options, ())
    if directory is None:
        raise InvalidInput(
            "data.dir",
            "mnist is read from files: give their folder with --data-dir or UDPFL_DATA_DIR "
            "(mnist5k needs no files)",
        )
    return DataSet(
        name="mnist",
        task="classification",
        train=_records(Path(directory), "train"),
        test=_records(Path(directory), "t10k"),
        classes=10,
    )


def scaled(pixels: Array) -> Array:
    """Images [n, 28, 28] of bytes as [n, 1, 28, 28] with about zero mean and unit variance."""
    images: Array = ((pixels.astype(np.float32) / 255 - _MEAN) / _STD)[:, None]
    return images


def _records(directory: Path, part: str) -> Records:
    images_file = _find(directory, f"{part}-images-idx3-ubyte")
    labels_file = _find(directory, f"{part}-labels-idx1-ubyte")
    images = _read(images_file, _IMAGES)
    labels = _read(labels_file, _LABELS)
    if images.shape[1:] != (28, 28):
        size = "×".join(map(str, images.shape[1:]))
        raise InvalidInput("data.dir", f"{images_file} must hold 28×28 images, got {size}")
    if len(images) != len(labels):
        raise InvalidInput(
            "data.dir",
            f"{images_file} has {len(images)} images, but {labels_file} has {len(labels)} labels",
        )
    return Records(scaled(images), labels.astype(np.int64))


def _find(directory: Path, name: str) -> Path:
    folders = (directory, directory / "mnist")
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    looked = " and ".join(map(str, folders))
    raise InvalidInput(
        "data.dir",
        f"no file {name} or {name}.gz: looked in {looked}; "
        f"`udpfl data fetch mnist --data-dir {directory}` gets it",
    )


def _read(path: Path, expected: int) -> Array:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput("data.dir", f"cannot read {path}: {error}") from None
    dimensions = expected % 256  # the last byte of the magic number
    start = 4 * (1 + dimensions)
    if len(content) < start:
        raise InvalidInput("data.dir", f"{path} is too short to be an IDX file")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", content[:start])
    if magic != expected:
        raise InvalidInput("data.dir", f"{path} must start with {expected}, got {magic}")
    size = len(content) - start
    # Python integers: a forged header cannot overflow its way past this comparison.
    announced = 1
    for length in shape:
        announced *= length
    if size != announced:
        raise InvalidInput(
            "data.dir", f"{path} says that it has {announced} bytes, but it has {size}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
