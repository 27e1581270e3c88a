"""Rounds, bytes and seconds to a target, against a count by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import udpfl
from tests.commands import command
from tests.small import Seen, blobs, linear
from udpfl.config import load
from udpfl.errors import InvalidInput
from udpfl.report import comparison_page, read_run, run_page
from udpfl.report._comparison import comparison_charts
from udpfl.report.charts import run_charts
from udpfl.runs.targets import Reached, Target


def rows_of(values, metric):
    return [
        {"round": n, metric: value, "bytes_up": 10 + n, "bytes_down": 20 + n, "seconds": 0.25 * n}
        for n, value in enumerate(values, 1)
    ]


VALUES = st.lists(st.one_of(st.none(), st.sampled_from(["nan", "inf"]), st.floats(-5, 5)))


@given(VALUES, st.floats(-5, 5), st.sampled_from(["accuracy", "loss", "mae", "mse", "rmse"]))
def test_the_first_evaluated_round_at_or_past_it_counts(values, value, metric):
    found = Target(metric, value).first_reached(rows_of(values, metric))
    sign = 1 if metric == "accuracy" else -1
    there = [
        n for n, own in enumerate(values, 1)
        if isinstance(own, float) and sign * own >= sign * value
    ]  # fmt: skip
    if not there:
        assert found is None
        return
    n = there[0]
    sums = 10 * n + n * (n + 1) // 2, 20 * n + n * (n + 1) // 2, 0.25 * n * (n + 1) / 2
    assert found == Reached(n, *sums)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"accuracy": 1.5}, "an accuracy lies above 0, up to 1"),
        ({"accuracy": 0.0}, "an accuracy lies above 0, up to 1"),
        ({"accuracy": 0.9, "loss": 1.0}, "a table with one number"),
        ({}, "a table with one number"),
        ({"recall": 0.9}, "called accuracy or loss or mae or mse or rmse"),
        ({"accuracy": "high"}, "a table with one number"),
        ({"loss": float("inf")}, "a table with one number"),
        (0.9, "a table with one number"),
    ],
)
def test_a_target_is_one_metric_and_one_number(target, words):
    with pytest.raises(InvalidInput, match=words) as refused:
        load({"training": {"target": target}})
    assert refused.value.parameter == "training.target"


def trained(folder, data=None, model=None, observers=(), **training):
    return udpfl.run(
        {
            "out": str(folder), "threads": 1, "data": {"clients": 2},
            "privacy": {"randomness": "seeded", "mechanism": "gaussian", "epsilon": 50.0},
            "training": {"rounds": 5, "learning_rate": 0.5, **training},
        },
        data=data or blobs(), model=model or linear(), observers=observers,
    )  # fmt: skip


@pytest.mark.parametrize(("every", "place"), [(1, 2), (2, 4)])
def test_a_run_says_what_its_target_took(tmp_path, every, place):
    plain = trained(tmp_path / "plain")
    losses = [row["loss"] for row in plain.metrics]
    goal = losses[place - 1]
    first = next(n for n in range(every, 6, every) if losses[n - 1] <= goal)
    seen = Seen()
    result = trained(
        tmp_path / "aimed", observers=[seen], evaluate_every=every, target={"loss": goal}
    )
    assert [row["loss"] for row in result.metrics if row["loss"] is not None] == pytest.approx(
        [losses[n - 1] for n in sorted({*range(every, 6, every), 5})]
    )
    up = sum(len(message.to_bytes()) for message in seen.messages if message.round <= first)
    assert (result.reached.round, result.reached.bytes_up) == (first, up)
    assert result.reached.bytes_down == first * 2 * 10 * 4  # two clients, ten numbers in float32
    seconds = sum(row["seconds"] for row in result.metrics[:first])
    assert result.reached.seconds == pytest.approx(seconds)
    for said in (result.to_dict(), json.loads((result.folder / "summary.json").read_text())):
        assert said["target"] == {"loss": goal}
        assert said["reached"] == result.reached.to_dict()
    marked = [row["round"] for row in result.metrics if "reached" in row]
    assert marked == [first]
    assert result.metrics[first - 1]["reached"] == result.reached.to_dict()
    assert len(result.metrics) == 5  # and the training went on


def test_a_target_that_is_out_of_reach(tmp_path, capsys):
    result = trained(tmp_path / "run", target={"loss": -1.0})
    assert result.reached is None
    assert result.to_dict()["reached"] is None
    assert not any("reached" in row for row in result.metrics)
    assert "loss -1: not reached" in run_page(read_run(result.folder))
    assert "target" not in trained(tmp_path / "other").to_dict()
    code, out, _ = command(
        capsys, "run", "--set", "training.rounds=1", "--set", "training.target.accuracy=1",
        "--set", "model.name=logistic", "--set", "threads=1", "--out", tmp_path / "told",
    )  # fmt: skip
    assert code == 0
    assert "accuracy 1: not reached" in out


def test_the_page_shows_the_target_in_its_chart(tmp_path):
    result = trained(tmp_path / "one", target={"accuracy": 0.01})
    record = read_run(result.folder)
    chart = next(chart for chart in run_charts(record) if chart.id == "accuracy")
    assert chart.marks == ((0.01, "target, reached in round 1"),)
    assert f"accuracy 0.01: reached in {result.reached}" in run_page(record)
    other = read_run(trained(tmp_path / "two", target={"accuracy": 1.0}).folder)
    by_id = {chart.id: chart for chart in comparison_charts([record, record])}
    assert by_id["accuracy"].marks == ((0.01, "target"),)
    by_id = {chart.id: chart for chart in comparison_charts([record, other])}
    assert by_id["accuracy"].marks == ()  # not the same for both
    page = comparison_page([record, other])
    assert '<th scope="col">target</th>' in page
    assert "accuracy 1: not reached" in page or "accuracy 1: round" in page


def waves():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    return x, (x[:, :1] > 0).astype(np.float32)


def test_a_target_has_to_be_measured_for_the_task(tmp_path):
    with pytest.raises(InvalidInput, match="mae is not measured for classification"):
        trained(tmp_path / "run", target={"mae": 0.1})
    with pytest.raises(InvalidInput, match="accuracy is not measured for regression"):
        trained(tmp_path / "run", waves(), nn.Linear(4, 1), target={"accuracy": 0.5})
    result = trained(tmp_path / "run", waves(), nn.Linear(4, 1), target={"mae": 100.0})
    assert result.reached.round == 1


def test_a_comparison_reads_its_target_off_the_rounds(tmp_path, monkeypatch):
    """Another target needs no other runs; errors of regression have mean and spread, too."""
    monkeypatch.chdir(tmp_path)
    base = {
        "threads": 1, "data": {"name": "tests.runs.test_targets:waves_by_name", "clients": 2},
        "model": {"name": "mlp"}, "privacy": {"mechanism": "gaussian", "accountant": "rdp"},
        "training": {"rounds": 3, "learning_rate": 0.1},
    }  # fmt: skip
    vary = {"privacy.epsilon": [2.0, 20.0]}
    first = udpfl.compare(base, vary=vary, seeds=2, out="grid")
    assert (first.target, first.metric, first.trained) == (None, "rmse", 4)
    found = [json.loads((run.folder / "summary.json").read_text()) for run in first[0].runs]
    for name in ("mae", "mse", "rmse", "loss"):
        values = [own[name] for own in found]
        spread = first.to_dict()["rows"][0]["figures"][name]
        assert spread["mean"] == pytest.approx(np.mean(values))
        assert spread["sd"] == pytest.approx(np.std(values, ddof=1))
        assert (spread["min"], spread["max"]) == (min(values), max(values))
    table = first.table(200)
    assert "mae ± sd" in table
    assert "mse ± sd" in table
    assert f"{first[0].figures['mse'].mean:.4f}" in table
    assert "rounds to" not in table

    path = first[0].runs[0].folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    goal = rows[1]["mse"]
    aimed = udpfl.compare(base, vary=vary, seeds=2, out="grid", training={"target": {"mse": goal}})
    assert (aimed.trained, aimed.found) == (0, 4)
    own = aimed[0].runs[0].reached
    place = next(n for n, row in enumerate(rows, 1) if row["mse"] <= goal)
    assert (own.round, own.bytes_up) == (place, sum(row["bytes_up"] for row in rows[:place]))
    assert aimed.to_dict()["target"] == {"mse": goal}
    assert f"rounds to MSE {goal:g}" in aimed.table(250)
    reached = [run.reached.round for run in aimed[0].runs if run.reached]
    assert aimed.to_dict()["rows"][0]["reached"]["round"]["mean"] == pytest.approx(np.mean(reached))
    aimed.plot("grid.svg")
    never = udpfl.compare(base, vary=vary, seeds=2, out="grid", training={"target": {"mse": -1.0}})
    assert never.table(250).count("not reached") == 2
    assert never.to_dict()["rows"][0]["reached"] == {}
    with pytest.raises(InvalidInput, match="does not change what is trained"):
        udpfl.compare(base, vary={"target": [{"mse": 1.0}]}, seeds=1)


def waves_by_name(**_):
    return waves()
