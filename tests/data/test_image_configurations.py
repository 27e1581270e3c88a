"""The shipped configurations of image data train, on small files and on the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import SCANS
from tests.data.samples import real, rng
from tests.repository import ROOT
from udpfl.cli import main
from udpfl.data import BUILT_IN, cifar10
from udpfl.data._images import scaled

# --- the real files ------------------------------------------------------------------------------


def test_scaling_uses_plain_constants():
    pixels = np.array([[0, 51, 255]], dtype=np.uint8)
    assert scaled(pixels).tolist() == [[-2.0, pytest.approx(-1.2), 2.0]]
    assert scaled(pixels).dtype == np.float32


# --- training from the configurations ------------------------------------------------------------


def small(tmp_path: Path, name: str) -> Path:
    """Enough of each data set for ten clients, in a public format."""
    noise = rng(7)
    if name == "cifar10":
        for batch in cifar10.BATCHES:
            rows = noise.integers(0, 256, (20, 3073), dtype=np.uint8)
            rows[:, 0] = np.arange(20) % 10
            (tmp_path / f"{batch}.bin").write_bytes(rows.tobytes())
        return tmp_path
    for i in range(60):
        if name == "utkface":
            path = tmp_path / "utkface" / f"{20 + i}_{i % 2}_{i % 5}_2017{i}.jpg.chip.jpg"
        else:
            path = tmp_path / SCANS[i % 6] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    return tmp_path


def trained(capsys, name: str, folder: Path, out: Path, *changes: str) -> dict:
    options = [
        "training.rounds=2",
        "training.local_steps=1",
        "training.evaluate_every=2",
        "privacy.accountant=rdp",
        "threads=1",
        *changes,
    ]
    arguments = [part for option in options for part in ("--set", option)]
    with pytest.raises(SystemExit) as stop:
        main(["run", str(ROOT / "configs" / f"{name}.toml"), *arguments,
              "--data-dir", str(folder), "--out", str(out), "--json"])  # fmt: skip
    printed, noted = capsys.readouterr()
    assert not stop.value.code, noted
    assert "torch.func" not in noted
    outcome = json.loads(printed)
    assert outcome["privacy"]["kind"] == "guarantee"
    assert 0 < outcome["privacy"]["epsilon"] <= 8
    assert np.isfinite(outcome["loss"])
    assert len(json.loads((out / "participants.json").read_text())) == 10
    return outcome


SETS = ["cifar10", "medical-mnist", "utkface"]


@pytest.mark.parametrize("name", SETS)
def test_each_configuration_trains(capsys, tmp_path, name):
    pytest.importorskip("torch", reason="the extra 'train' is not installed")
    assert name in BUILT_IN
    trained(capsys, name, small(tmp_path, name), tmp_path / "run", "training.sampling_rate=0.3")


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_each_configuration_trains_on_the_real_files(capsys, tmp_path, name):
    pytest.importorskip("torch", reason="the extra 'train' is not installed")
    folder = real(name.replace("-", "_"))
    outcome = trained(capsys, name, folder, tmp_path / "run", "training.sampling_rate=0.003")
    assert 0 <= outcome["accuracy"] <= 1
