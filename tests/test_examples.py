"""The example scripts run."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import udpfl
from tests.repository import EXAMPLES


def script(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_no_example_goes_untried():
    here = {"own_model_and_data.py", "own_csv.py", "own_csv.toml", "own_framework.py"}
    in_test_docs = {"own_mechanism.py", "shared_budget.py", "plugin.toml", "README.md"}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == here | in_test_docs


def test_own_model_and_data(tmp_path):
    said = script("own_model_and_data.py", tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert f"accuracy {summary['accuracy']:.3f}" in said
    assert summary["accuracy"] > 0.6  # 0.79 is the best there is; always the same answer gives 0.5
    assert summary["privacy"]["kind"] == "guarantee"
    assert 1.9 < summary["privacy"]["epsilon"] <= 2.0
    assert len(summary["clients"]) == 5


def test_own_framework(tmp_path):
    said = script("own_framework.py", tmp_path).splitlines()
    accuracies = [float(line.rpartition(" ")[2]) for line in said[:5]]
    assert accuracies[-1] > 0.4
    assert [line.partition(":")[0] for line in said[5:8]] == ["clinic-0", "clinic-1", "clinic-2"]
    assert all("-DP for one record" in line for line in said[5:8])
    assert said[8] == "one run more: the run has 5 releases, and the policy leaves 0 of 5"


def test_own_csv(tmp_path, monkeypatch):
    assert "wrote patients.csv" in script("own_csv.py", tmp_path)
    with (tmp_path / "patients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1200
    monkeypatch.chdir(tmp_path)
    result = udpfl.run(EXAMPLES / "own_csv.toml", training={"rounds": 3}, out="run")
    assert [tuple(value.shape) for value in result.model.state_dict().values()] == [(2, 2), (2,)]
    assert result.privacy.kind == "guarantee"
    assert 3.9 < result.privacy.epsilon <= 4.0
    # Each hospital's records went to one client, less those that were held out for testing.
    sizes = [len(own) for name, own in np.load("run/records.npz").items() if "client" in name]
    assert len(sizes) == 4
    assert sum(sizes) == 960
    assert max(sizes) <= 300
