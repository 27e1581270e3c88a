"""The configurations that come along, as `udpfl run` trains them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.commands import command
from tests.repository import ROOT
from udpfl.config import Config, load

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_the_printed_example_is_a_configuration(capsys, tmp_path):
    code, out, _ = command(capsys, "config", "example")
    assert code == 0
    (tmp_path / "my.toml").write_text(out)
    assert load(tmp_path / "my.toml") == Config()
    assert command(capsys, "config", "check", "my.toml")[0] == 0
    assert command(capsys, "config", "check", "my.toml", "--set", "training.rounds=0")[0] == 2


MNIST = os.environ.get("UDPFL_DATA_DIR")


@pytest.mark.skipif(not MNIST, reason="UDPFL_DATA_DIR does not say where MNIST is")
def test_mnist_from_its_files(capsys):
    options = [
        "training.rounds=1",
        "model.name=logistic",
        "model.options={}",
        "privacy.accountant=rdp",
        "out=r",
    ]
    changes = [part for option in options for part in ("--set", option)]
    code, out, err = command(
        capsys, "run", ROOT / "configs" / "mnist.toml", *changes, "--data-dir", MNIST, "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["accuracy"] > 0.5
    assert found["privacy"]["kind"] == "guarantee"
    people = json.loads(Path("r/participants.json").read_text())
    assert [row["declared_size"] for row in people] == [6000] * 10


def test_the_embedded_default_reaches_its_accuracy_within_its_budget(capsys, tmp_path):
    """What `make run` does: ten clients, epsilon 8, and what the README promises of it.

    The promise is about the mean (0.907, standard deviation 0.007 over 36 runs of this seed), so an
    unlucky run is asked once more; two in a row would be a defect.
    """
    accuracies: list[float] = []
    while not accuracies or (len(accuracies) < 2 and accuracies[0] < 0.87):
        out_folder = tmp_path / "run" if not accuracies else tmp_path / "again"
        arguments = ["--set", "threads=2", "--out", out_folder, "--json"]
        code, out, err = command(capsys, "run", *arguments)
        assert code == 0, err
        outcome = json.loads(out)
        accuracies.append(outcome["accuracy"])
    assert sum(accuracies) / len(accuracies) >= 0.87, accuracies
    assert outcome["privacy"]["kind"] == "guarantee"
    assert 7.9 < outcome["privacy"]["epsilon"] <= 8
    saved = np.load(tmp_path / "run" / "records.npz")
    assert len(saved["train"]) == 4000
    assert not set(saved["train"]) & set(saved["test"])
    assert len(np.unique(np.concatenate([saved[f"client-{i}"] for i in range(10)]))) == 4000
