"""CIFAR-10: 32×32 colour photographs of ten kinds of things, with the official split.

Read from the compact archives, the binary version or the Python version, the latter two unpacked
or as the archives they are published in. There is no `duplicates` option: no two of the 60,000
images are exactly alike.

References:
  A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.data._coded import arrays, decoded
from udpfl.data._images import folders, not_found, scaled
from udpfl.data._pickled import unpickled
from udpfl.data.formats import Download, Format, Source, described_by, md5, sha256
from udpfl.data.options import known
from udpfl.data.records import Array, DataSet, Records
from udpfl.errors import InvalidInput

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_PIXELS = 3 * 32 * 32
_LONGEST = 64 * 2**20  # bytes of a batch, which has 30 MB

Batch = tuple[Array, Array]
"""Pixels [n, 3, 32, 32] and labels [n], both as bytes."""

_COMPACT = Format(  # sums computed from the compact files
    "compact npz",
    tuple(
        (sha256(f"{batch}.npz", digest),)
        for batch, digest in (
            ("data_batch_1", "6d684feb785fa328e2c82137c3d9550270f5fb0384a45d39693fd77c4c86782b"),
            ("data_batch_2", "17b02593a648f64b49ffc07bb759f7b476ad942e4f2c517b4092c9f7dfbd23c9"),
            ("data_batch_3", "eeba1a5714e758cc2b49dca9e987b6f82637f3fbd7065e7e2744f2a89e096790"),
            ("data_batch_4", "5fe8ec19e937e7c0eef4ab9f516d82327afc5614da0ff344b630539a0c97bfce"),
            ("data_batch_5", "17fc10056584abe79162f93fb0cb9b64a9124ff5eff916a383d98451a9806bba"),
            ("test_batch", "9b30599234424341f60a0750326466e61fdeead4433afe5639873ad775962129"),
        )
    ),
)
# The sums of the archives stand on the home page.
_BINARY_ARCHIVE = md5("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171)
_PYTHON_ARCHIVE = md5("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071)
_BINARY = Format(
    "binary version",
    # Computed from the decoded compact files, and the same in several public build scripts.
    tuple(
        (md5(f"cifar-10-batches-bin/{batch}.bin", digest, 30_730_000),)
        for batch, digest in (
            ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
            ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
            ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
            ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
            ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
        )
    ),
    (Download(_BINARY_ARCHIVE, ("https://www.cs.toronto.edu/~kriz",), unpacked=200_000_000),),
)
_PYTHON = Format(  # sums in torchvision
    "Python version",
    tuple(
        (md5(f"cifar-10-batches-py/{batch}", digest),)
        for batch, digest in (
            ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            ("data_batch_4", "634d18415352ddfa80567beed471001a"),
            ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            ("test_batch", "40351d587109b95175f43aff81a1287e"),
        )
    ),
)
SOURCE = Source(
    name="cifar10",
    title="CIFAR-10, small colour photographs",
    samples="50,000 + 10,000 test, RGB 32×32, 10 classes",
    licence="none stated; research with citation is customary",
    homepage="www.cs.toronto.edu/~kriz/cifar.html",
    citation="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    folder="cifar10",
    formats=(
        _COMPACT,
        _BINARY,
        _PYTHON,
        Format("binary version, packed", ((_BINARY_ARCHIVE,),)),
        Format("Python version, packed", ((_PYTHON_ARCHIVE,),)),
    ),
)


@described_by(SOURCE)
def load(*, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]) -> DataSet:
    """The six batches in `directory`, or in a folder cifar10 inside it.

    The split is the official one: `seed` and `test` are not used. No options.
    """
    known("cifar10", options, ())
    *train, held_out = _batches(folders("cifar10", directory, "cifar10"))
    return DataSet(
        name="cifar10",
        task="classification",
        train=_records(train),
        test=_records([held_out]),
        classes=len(CLASSES),
        class_names=CLASSES,
    )


def _records(batches: list[Batch]) -> Records:
    pixels, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return Records(scaled(pixels), labels)


def _compact(content: bytes, where: object) -> Batch:
    found = arrays(content, where, {"coded": (3, None, 32, 32), "labels": (None,)})
    return decoded(found["coded"]), found["labels"]


def _binary(content: bytes, where: object) -> Batch:
    """For each image its label in one byte, then its red, green and blue plane."""
    if not content or len(content) % (1 + _PIXELS):
        raise InvalidInput(
            "data.dir",
            f"{where} must hold whole records of {1 + _PIXELS} bytes, got {len(content)} bytes",
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + _PIXELS)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _pickled(content: bytes, where: object) -> Batch:
    """A dictionary with the planes as rows of `data`, and `labels`."""
    found = unpickled(content, where)
    pixels, labels = found.get("data"), found.get("labels")
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise InvalidInput("data.dir", f"{where} must hold `data` with rows of {_PIXELS} bytes")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise InvalidInput("data.dir", f"{where} must hold `labels`, one for each of its images")
    if not all(type(label) is int and 0 <= label < len(CLASSES) for label in labels):
        raise InvalidInput("data.dir", f"{where}: labels must be whole numbers from 0 to 9")
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.uint8)


@dataclass(frozen=True)
class _Format:
    folder: str
    suffix: str
    archive: str | None
    parse: Callable[[bytes, object], Batch]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(f"{batch}{self.suffix}" for batch in BATCHES)


_FORMATS = (
    _Format("", ".npz", None, _compact),
    _Format("cifar-10-batches-bin", ".bin", "cifar-10-binary.tar.gz", _binary),
    _Format("cifar-10-batches-py", "", "cifar-10-python.tar.gz", _pickled),
)


def _batches(places: tuple[Path, ...]) -> list[Batch]:
    """All six, from the first place that has them in one of the formats."""
    lacking = ""
    for form in _FORMATS:
        for place in dict.fromkeys(p for folder in places for p in (folder, folder / form.folder)):
            missing = [name for name in form.files if not (place / name).is_file()]
            if not missing:
                return [form.parse(_bytes(place / name), place / name) for name in form.files]
            if len(missing) < len(BATCHES):
                lacking = lacking or f"{place} has some batches, but not {', '.join(missing)}"
    for form in _FORMATS:
        for path in (folder / str(form.archive) for folder in places if form.archive):
            if path.is_file():
                members = _members(path, [f"{form.folder}/{name}" for name in form.files])
                return [form.parse(content, f"{path}:{name}") for name, content in members]
    if lacking:
        raise InvalidInput("data.dir", f"{lacking}; `udpfl data check cifar10` checks them all")
    wanted = [form.folder + "/" * bool(form.folder) + form.files[0] for form in _FORMATS]
    archives = [form.archive for form in _FORMATS if form.archive]
    raise not_found("cifar10", places, ", ".join([*wanted, *archives]))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput("data.dir", f"cannot read {path}: {error}") from None


def _members(path: Path, names: list[str]) -> list[tuple[str, bytes]]:
    """The named files in an archive, in this order; nothing is written to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name in names and member.isfile() and member.size <= _LONGEST:
                    file = archive.extractfile(member)
                    found[name] = file.read() if file else b""
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InvalidInput("data.dir", f"cannot read {path}: {error}") from None
    if missing := [name for name in names if name not in found]:
        raise InvalidInput("data.dir", f"{path} holds no file {', '.join(missing)}")
    return [(name, found[name]) for name in names]
