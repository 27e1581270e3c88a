"""Inverting gradients on real pictures: minutes on a CPU."""

from __future__ import annotations

import os

import pytest

import udpfl
from udpfl.attacks import Target, build

pytestmark = pytest.mark.slow
NEEDS_DATA = pytest.mark.skipif(
    "UDPFL_DATA_DIR" not in os.environ, reason="UDPFL_DATA_DIR names no folder of data sets"
)


def target(folder, data):
    settings = {
        "data": {"name": data, "clients": 2},
        "model": {"name": "lenet"},
        "training": {"rounds": 1, "local_steps": 2, "sampling_rate": 0.01},
        "privacy": {"epsilon": 8.0},
        "out": str(folder),
    }
    udpfl.run(settings)
    return Target.open(folder)


@pytest.mark.parametrize(
    ("data", "least"),
    [
        ("mnist5k", 18),
        pytest.param("mnist", 18, marks=NEEDS_DATA),
        pytest.param("cifar10", 16, marks=NEEDS_DATA),
    ],
)
def test_twenty_pictures_come_back_without_privacy_and_none_with_it(data, least, tmp_path):
    attacked = target(tmp_path / "run", data)
    found = build("inverting-gradients", {"protection": "none"}).run(attacked)
    assert found.attacked.records == "20 records"
    assert found.figures[0].value >= least
    assert "closer than any picture" in found.verdict
    noisy = build("inverting-gradients", {"iterations": 600}).run(attacked)
    assert abs(noisy.figure("median PSNR above noise alone").value) < 1
