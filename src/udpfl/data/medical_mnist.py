"""Medical MNIST (MedNIST): small grey pictures of six kinds of medical images.

Read from the compact archive `medical_mnist_28x28.npz`, or from its public form: one folder per
class with JPEG or PNG files. It has no official split, and classes so unlike each other that
accuracies near 1 are to be expected. 440 pictures are exact repeats of another one.

Options:
  size        pixels on each side, 28 by default; pictures in folders are reduced with a Lanczos
              filter, while a compact archive has the size that its name says
  duplicates  "keep" (default), or "remove": only the first of pictures with the same pixels stays

References:
  The Cancer Imaging Archive, the RSNA bone age challenge and the NIH chest X-ray set, gathered
  with the help of B. J. Erickson (Mayo Clinic).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.data import _pictures
from udpfl.data._coded import arrays
from udpfl.data._images import data_set, folders, not_found, side
from udpfl.data.formats import Download, Format, Pictures, Source, described_by, md5, sha256
from udpfl.data.options import known
from udpfl.data.records import Array, DataSet
from udpfl.errors import InvalidInput

CLASSES = ("AbdomenCT", "BreastMRI", "CXR", "ChestCT", "Hand", "HeadCT")
OPTIONS = ("size", "duplicates")

_COUNTS = (
    ("AbdomenCT", 10_000),
    ("BreastMRI", 8_954),
    ("CXR", 10_000),
    ("ChestCT", 10_000),
    ("Hand", 10_000),
    ("HeadCT", 10_000),
)
SOURCE = Source(
    name="medical-mnist",
    title="Medical MNIST (MedNIST), X-ray, CT and MRI images",
    samples="58,954 grey, 6 classes, seeded split",
    licence="CC BY-SA 4.0",
    homepage="github.com/apolanco3225/Medical-MNIST-Classification",
    citation=(
        "MedNIST, B. J. Erickson (Mayo Clinic), from TCIA, the RSNA bone age challenge and the NIH "
        "chest X-ray set"
    ),
    folder="medical_mnist",
    also=("MedNIST",),
    formats=(
        Format(
            "compact npz",  # sum computed from the compact file
            (
                (
                    sha256(
                        "medical_mnist_28x28.npz",
                        "925ff5665431c40b433a4d2a92cc99396be12717155949d06af41ebc00410fde",
                    ),
                ),
            ),
        ),
        Format(
            "a folder per class",
            tuple((Pictures(name, count),) for name, count in _COUNTS),
            (
                Download(
                    md5("MedNIST.tar.gz", "0bc7306e7427e00ad1c5526a6677552d"),  # sum in MONAI
                    (
                        "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1",
                    ),
                    unpacked=500_000_000,
                    inside="MedNIST",
                ),
            ),
        ),
    ),
    options=tuple(OPTIONS),
)


@described_by(SOURCE)
def load(*, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]) -> DataSet:
    """Pictures [1, size, size] in `directory` or a folder medical_mnist inside it, `test` held out.

    Every class gives its share to the test records, which `seed` chooses.
    """
    known("medical-mnist", options, OPTIONS)
    places = folders("medical-mnist", directory, "medical_mnist", "MedNIST")
    pixels, labels = _read(places, side(options, 28))
    return data_set(
        "medical-mnist",
        pixels,
        labels,
        seed=seed,
        test=test,
        options=options,
        class_names=CLASSES,
    )


def _read(places: tuple[Path, ...], size: int) -> tuple[Array, Array]:
    compact = f"medical_mnist_{size}x{size}.npz"
    for place in places:
        if (path := place / compact).is_file():
            shapes = {"images": (None, size, size), "labels": (None,)}
            found = arrays(path, path, shapes)
            return found["images"][:, None], found["labels"]
    for place in places:
        if any((place / name).is_dir() for name in CLASSES):
            return _from_folders(place, size)
    raise not_found("medical-mnist", places, f"{compact} or folders {', '.join(CLASSES)}")


def _from_folders(place: Path, size: int) -> tuple[Array, Array]:
    files = []
    for name in CLASSES:
        if not (place / name).is_dir():
            raise InvalidInput("data.dir", f"{place} has no folder {name}, one of the six classes")
        files.append(_pictures.picture_files(place / name))
        if not files[-1]:
            raise InvalidInput("data.dir", f"{place / name} holds no JPEG or PNG files")
    everything = [path for paths in files for path in paths]
    labels = np.repeat(np.arange(len(CLASSES), dtype=np.uint8), [len(paths) for paths in files])
    return _pictures.read(everything, side=size, colour="grey", filter_="lanczos"), labels
