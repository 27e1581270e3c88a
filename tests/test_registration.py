"""What one line of a registry does: a new mechanism, method, data set or model is there everywhere.

Each test registers something that lies in one place, and finds it in plans, pictures, runs,
comparisons, audits, lists of the command and the tables of the documentation.
"""

from __future__ import annotations

import json
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'train' is not installed")

from torch import nn
from typer.testing import CliRunner

import udpfl
from udpfl import algorithms, data, mechanisms, models
from udpfl.algorithms import FedAvg
from udpfl.cli._completion import values
from udpfl.cli.app import app
from udpfl.data.formats import Source, described_by
from udpfl.mechanisms import PlotStyle

TABLES = runpy.run_path(str(Path(__file__).parent.parent / "docs" / "tables.py"))["TABLES"]
TINY = {
    "threads": 1,
    "data": {"name": "registered-blobs", "clients": 2},
    "model": {"name": "registered-line"},
    "privacy": {
        "mechanism": "registered-secant",
        "epsilon": 50.0,
        "accountant": "rdp",
        "norm": "linf",
    },
    "training": {"algorithm": "registered-mean", "rounds": 2},
}


@dataclass(frozen=True)
class Secant(udpfl.Tabulated):
    """Hyperbolic secant noise: density 1 / (2 cosh(pi x / 2)) at scale 1."""

    name = "registered-secant"
    summary = "between Gaussian and Laplace noise"
    plot_style = PlotStyle("#0b7285", "v", "--")

    @classmethod
    def explain(cls, norm: str, dimension: int | None) -> str:
        return "Its tails lie between the two."

    def shape(self, x: Any) -> Any:
        return -np.logaddexp(0.5 * np.pi * x, -0.5 * np.pi * x)


class Mean(FedAvg):
    """Averaging under another name."""

    name = "registered-mean"
    paper = "nobody 2000, A mean by another name"

    def __init__(self, server: Any, *, haste: float = 1.0) -> None:
        super().__init__(server)


@described_by(Source("registered-blobs", "two clouds of points", "200 records", "CC0 1.0"))
def blobs(*, seed: int, directory: Path | None, test: float, options: Any) -> data.DataSet:
    """Two clouds of points."""
    labels = np.arange(200) % 2
    points = (np.random.default_rng(0).normal(size=(200, 3)) + 2 * labels[:, None]).astype("f4")
    train, held_out = slice(0, 150), slice(150, 200)
    return data.DataSet(
        name="registered-blobs",
        task="classification",
        train=data.Records(points[train], labels[train]),
        test=data.Records(points[held_out], labels[held_out]),
        classes=2,
    )


def line(input_shape: Any, outputs: int, *, bias: bool = True) -> nn.Module:
    """One linear layer, and nothing else."""
    return nn.Linear(input_shape[0], outputs, bias=bias)


@pytest.fixture(autouse=True)
def _registered(monkeypatch, tmp_path, one_thread):
    """One entry each, as one line of the source would make it."""
    monkeypatch.setitem(mechanisms.BUILT_IN, "registered-secant", Secant)
    monkeypatch.setitem(algorithms.BUILT_IN, "registered-mean", Mean)
    monkeypatch.setitem(data.BUILT_IN, "registered-blobs", blobs)
    monkeypatch.setitem(models.BUILT_IN, "registered-line", line)
    monkeypatch.setattr("udpfl.running.write_report", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def said(*arguments: object) -> str:
    """What the command prints."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


class TestMechanism:
    setting = udpfl.Setting(2.0, 1e-5, 1, udpfl.Sensitivity(1.0, "l2", 1), accountant="rdp")

    def test_it_is_calibrated_and_ranked(self):
        found = udpfl.calibrate("registered-secant", self.setting)
        assert isinstance(found.mechanism, Secant)
        assert 1.99 < found.statement.epsilon <= 2
        ranking = {choice.name: choice for choice in udpfl.choose(self.setting)}
        assert ranking.keys() == {n for n, k in mechanisms.BUILT_IN.items() if k.is_ranked}
        mine = ranking["registered-secant"]
        assert mine.why.endswith("Its tails lie between the two.")
        best, worst = (ranking[name].error("l2") for name in ("laplace", "gaussian"))
        assert best < mine.error("l2") < worst

    def test_plan_prints_and_draws_it(self, tmp_path):
        options = ["--epsilon", 2, "--steps", 1, "--dimension", 1, "--accountant", "rdp"]
        table = said("plan", "--mechanism", "all", *options, "--plot", "noise.svg")
        assert "│ registered-secant │" in table
        assert "Its tails lie between the two." in table
        assert "#0b7285" in (tmp_path / "noise.svg").read_text()
        (row,) = json.loads(
            said("plan", "--mechanism", "registered-secant", *options, "--json")
        )  # fmt: skip
        assert row["parameters"].keys() == {"scale"}

    def test_analyze_and_audit_take_it(self, tmp_path):
        common = ["--mechanism", "registered-secant", "--epsilon", 2, "--dimension", 1]
        table = said("analyze", "error", *common, "--rounds", 1, "--plot", "error.svg")
        assert "registered-secant noise of std" in table
        assert "#0b7285" in (tmp_path / "error.svg").read_text()
        verdict = said("audit", "mechanism", *common, "--trials", 500)
        assert "registered-secant, vector accounting, dense canary: claim ε ≤ " in verdict
        assert "not refuted" in verdict

    def test_it_is_stored_by_its_name(self):
        result = udpfl.run(TINY, out="run")
        assert result.privacy.kind == "guarantee"
        told = json.loads(Path("run/participants.json").read_text())
        assert '"registered-secant"' in json.dumps(told)
        assert "class" not in json.dumps(told)

    def test_names_are_offered_and_the_table_has_it(self):
        assert "registered-secant" in values("privacy.mechanism")
        assert (
            "| `registered-secant` | between Gaussian and Laplace noise | `scale` | yes | yes |"
            in (TABLES["mechanisms"]())
        )


class TestAll:
    def test_a_run_has_them(self):
        result = udpfl.run(TINY, out="run")
        assert result.config.training.algorithm == "registered-mean"
        assert result.accuracy > 0.5
        assert [len(weights) for weights in result.model.parameters()] == [2, 2]

    def test_a_comparison_has_them(self):
        found = udpfl.compare(
            TINY | {"training": {"rounds": 1}},
            vary={
                "mechanism": ["registered-secant", "gaussian"],
                "algorithm": ["registered-mean"],
                "model.name": ["registered-line"],
                "data.name": ["registered-blobs"],
            },
            seeds=1,
        )
        table = found.table()
        for name in ("secant", "mean", "line", "blobs"):
            assert f"registered-{name}" in table

    def test_a_slip_of_the_pen_is_told_of_them(self):
        wrong = {
            "data": "registered-blob", "model": "registered-lines", "privacy": "registered-secan",
            "training": "registered-mea",
        }  # fmt: skip
        for section, name in wrong.items():
            (key,) = (key for key in TINY[section] if str(TINY[section][key]).startswith("regis"))
            changed = TINY | {section: TINY[section] | {key: name}}
            with pytest.raises(udpfl.InvalidInput, match=rf"^{section}\.{key}: .*registered-"):
                udpfl.run(changed)


def test_a_method_is_in_the_lists():
    (row,) = (r for r in json.loads(said("methods", "--json")) if r["name"] == "registered-mean")
    assert row["options"] == {"haste": 1.0}
    assert "nobody 2000" in said("methods")
    assert "| `registered-mean` | update: " in TABLES["methods"]()


def test_a_data_set_is_in_the_lists():
    listed = said("data", "list")
    assert "registered-blobs" in listed
    assert "two clouds of points" in listed
    assert json.loads(said("data", "check", "--json")) is not None
    row = "| `registered-blobs` | two clouds of points | 200 records | CC0 1.0 |"
    assert row in TABLES["data-sets"]()


def test_a_loader_without_a_description_is_in_the_lists(monkeypatch):
    monkeypatch.setitem(data.BUILT_IN, "bare", lambda **_: None)
    assert data.source_of("bare") == Source("bare", "")
    assert "bare" in said("data", "list")


def test_a_model_is_in_the_table():
    assert "| `registered-line` | One linear layer, and nothing else. | `bias` |" in (
        TABLES["models"]()
    )
