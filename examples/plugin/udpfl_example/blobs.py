"""A data set: a function that returns a `DataSet`. This one makes its records up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from udpfl import InvalidInput
from udpfl.data import DataSet, as_dataset

DEFAULTS = {"records": 600, "features": 8, "classes": 3, "spread": 1.0}


def load(*, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]) -> DataSet:
    """A Gaussian blob per class, `spread` wide around a centre drawn at distance about 2.

    `directory` is where a data set with files would look for them.
    """
    for name in options:
        if name not in DEFAULTS:
            raise InvalidInput(f"data.options.{name}", f"blobs has {', '.join(DEFAULTS)}")
    chosen = {**DEFAULTS, **options}
    records, features, classes = (int(chosen[n]) for n in ("records", "features", "classes"))
    rng = np.random.default_rng([*b"blobs", seed])
    centres = rng.normal(size=(classes, features)) * 2 / features**0.5
    labels = rng.integers(classes, size=records)
    inputs = centres[labels] + chosen["spread"] * rng.normal(size=(records, features))
    # Classes are stated: what can be read off the records would not be public.
    return as_dataset((inputs, labels), test, name="blobs", classes=classes, seed=seed)
