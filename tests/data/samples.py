"""Small data sets, and what several tests of data ask of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from udpfl.data import DataSet, Records
from udpfl.errors import InvalidInput

DATA = os.environ.get("UDPFL_DATA_DIR")


def real(*names: str) -> Path:
    """The folder of real data sets; without these in it the test is skipped."""
    if not DATA or not all((Path(DATA) / name).exists() for name in names):
        pytest.skip(f"UDPFL_DATA_DIR has no {' and '.join(names)}")
    return Path(DATA)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def refused(match: str, parameter: str = "data.dir"):
    return pytest.raises(InvalidInput, match=rf"(?s)^{parameter}: .*{match}")


def make(**changes):
    records = Records(np.ones((4, 2)), np.arange(4))
    return replace(DataSet("toy", "classification", records, records, 4), **changes)


HOSPITALS = """age, dose,site,ill
30,1.5,north,yes
40,-2,south,no
50,0.25,north,no
60,1e1,east,yes
70,3,south,no
"""
