"""Runs on small pictures, which attacks take a moment for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import udpfl
from udpfl.attacks import Target
from udpfl.data import DataSet, Records

SIDE = 8
CLASSES = 4


def pictures(count, seed):
    """Bright bars on grey: the class is where the bar lies, `tall` whether it stands."""
    rng = np.random.default_rng(seed)
    labels, tall = rng.integers(0, CLASSES, count), rng.integers(0, 2, count)
    found = rng.normal(0, 0.1, (count, 1, SIDE, SIDE))
    for picture, label, stands in zip(found, labels, tall, strict=True):
        bar = slice(2 * label, 2 * label + 2)
        if stands:
            picture[0, :, bar] += 1.5
        else:
            picture[0, bar] += 1.5
    found[0, 0, 0, :2] = -2, 2  # black and white occur
    return Records(np.clip(found, -2, 2).astype(np.float32), labels), tall


def bars(train=80, test=60):
    known, tall = pictures(train, 0)
    held_out, other = pictures(test, 1)
    columns = {"tall": tall, "same": known.targets}, {"tall": other, "same": held_out.targets}
    return DataSet(
        "bars", "classification", known, held_out, CLASSES,
        columns=columns[0], test_columns=columns[1],
    )  # fmt: skip


def finished(folder: Path, data=None, **settings):
    """A target: a small run on bars."""
    data = bars() if data is None else data
    given = {
        "data": {"clients": 2},
        "model": {"name": "mlp", "options": {"hidden": [24], "activation": "tanh"}},
        "training": {"rounds": 1, "local_steps": 2, "sampling_rate": 0.2, "learning_rate": 0.5},
        "threads": 1,
        "out": str(folder),
    }
    for key, value in settings.items():
        given[key] = {**given.get(key, {}), **value} if isinstance(value, dict) else value
    udpfl.run(given, data=data)
    return Target.open(folder, data=data)
