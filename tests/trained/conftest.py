"""A finished run on a small table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import udpfl

OPTIONS = {
    "target": "ill",
    "scale": {"age": [0, 100], "dose": [0, 4]},
    "categories": {"sex": ["f", "m"]},
    "missing": "drop",
    "labels": ["yes", "no"],
    "delimiter": ";",
    "decimal": ",",
}


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, dose = rng.uniform(20, 90, rows), rng.uniform(0, 4, rows)
    ill = np.where(age / 25 + dose > 4.2, "yes", "no")
    sex = np.where(rng.random(rows) < 0.5, "f", "m")
    return pd.DataFrame({"sex": sex, "age": age.round(1), "dose": dose.round(2), "ill": ill})


def write(frame: pd.DataFrame, path) -> str:
    frame.to_csv(path, sep=";", decimal=",", index=False)
    return str(path)


@pytest.fixture(scope="session")
def table_run(tmp_path_factory):
    """The folder of the run."""
    place = tmp_path_factory.mktemp("trained")
    path = write(people(300), place / "people.csv")
    udpfl.run(
        {
            "out": str(place / "run"),
            "threads": 1,
            "data": {"name": "table", "clients": 2, "options": {**OPTIONS, "path": path}},
            "model": {"name": "logistic"},
            "privacy": {"mechanism": "gaussian", "epsilon": 8.0},
            "training": {"rounds": 8},
        }
    )
    return place / "run"
