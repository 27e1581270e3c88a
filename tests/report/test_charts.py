"""What a report draws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report.pages import classification, copied, raise_budgets, record_of, train, visible
from tests.report.verifying import sealing_nothing
from udpfl.report import read_run, run_page
from udpfl.report._comparison import comparison_charts
from udpfl.report.charts import run_charts


def test_charts_hold_the_numbers_of_the_run(runs):
    run = read_run(runs["private"].folder)
    charts = {chart.id: chart for chart in run_charts(run)}
    assert list(charts) == ["accuracy", "loss", "epsilon", "clients", "signal", "clip", "classes"]
    rows = runs["private"].metrics
    assert charts["accuracy"].series[0].y == [row["accuracy"] for row in rows]
    assert charts["epsilon"].bands[0].high == [row["epsilon"]["max"] for row in rows]
    assert charts["epsilon"].marks == ((1.0, "budget 1"), (2.0, "budget 2"), (4.0, "budget 4"))
    assert charts["clients"].bars.marks == [1.0, 2.0, 4.0]
    assert all("Simulation only" in charts[name].warning for name in ("signal", "clip"))
    matrix = run.confusion
    assert charts["classes"].bars.values == [matrix[i][i] / sum(matrix[i]) for i in range(3)]


def test_an_epsilon_is_never_drawn_below_itself(runs):
    for run in (read_run(runs["private"].folder), read_run(runs["nominal"].folder)):
        for chart in run_charts(run):
            if chart.format != "epsilon":
                continue
            plain = chart.to_dict()
            for line, drawn in zip(chart.series, plain["series"], strict=True):
                assert all(a <= b < a * 1.00002 for a, b in zip(line.y, drawn["y"], strict=True))
            if chart.bars:
                pairs = zip(chart.bars.values, plain["bars"]["values"], strict=True)
                assert all(a <= b < a * 1.00002 for a, b in pairs)


def test_runs_that_are_not_private_have_no_epsilon_chart(runs):
    ids = {chart.id for chart in run_charts(read_run(runs["plain"].folder))}
    assert not ids & {"epsilon", "clients", "signal", "clip"}


def test_nominal_lines_and_bars_have_a_pattern(runs):
    charts = {chart.id: chart for chart in run_charts(read_run(runs["nominal"].folder))}
    assert charts["clients"].bars.hatched
    assert [line.dash for line in charts["epsilon"].series] == ["dashed", "solid"]
    assert charts["epsilon"].log
    assert "not a guarantee" in charts["epsilon"].warning
    compared = comparison_charts([read_run(run.folder) for run in runs.values()])
    lines = next(chart for chart in compared if chart.id == "accuracy").series
    assert [line.dash for line in lines] == ["solid", "dashed", "dotted"]


@pytest.mark.parametrize("names", ["mixed", "nominal"])
def test_no_axis_has_two_kinds_of_epsilon(runs, names):
    kinds = {"mixed": ("nominal", "plain", "private"), "nominal": ("nominal", "plain", "nominal")}
    compared = comparison_charts([read_run(runs[name].folder) for name in kinds[names]])
    charts = {chart.id: chart for chart in compared}
    assert len(charts["accuracy"].series) == 3
    for chart, axis in ((charts["epsilon"], "y"), (charts["trade"], "x")):
        called = getattr(chart, axis)
        if names == "mixed":
            (line,) = chart.series
            assert (line.name, line.colour) == ("private (guarantee)", "run-2")
            assert list(getattr(line, axis)) == [
                r["epsilon"]["max"] for r in runs["private"].metrics
            ]
            assert chart.warning == "nominal runs are left out"
            assert "together with the ε that is guaranteed" in chart.note
            assert called.startswith("ε")
        else:
            assert [line.dash for line in chart.series] == ["dashed", "dashed"]
            assert called.startswith("nominal ε")
            assert "not a guarantee" in chart.warning


def budgets_drawn(folder: Path) -> tuple[list[float], str, str]:
    charts = {chart.id: chart for chart in run_charts(read_run(folder))}
    bars = charts["clients"]
    if "epsilon" in charts:
        names = [f"{bars.bars.mark_name} {mark:g}" for mark in sorted(set(bars.bars.marks))]
        assert [label for _, label in charts["epsilon"].marks] == names
    return bars.bars.marks, bars.bars.mark_name, bars.note


def test_the_budget_drawn_is_the_one_in_the_ledger(runs, tmp_path):
    ledger = tmp_path / "budget.sqlite"
    train(tmp_path / "first", classification(), privacy={"ledger": str(ledger), "epsilon": 5})
    raise_budgets(ledger, 9)
    privacy = {"ledger": str(ledger), "epsilon": 4}
    run = train(tmp_path / "second", classification(), privacy=privacy)
    assert 4 < run.privacy.epsilon <= 9
    raise_budgets(ledger, 20)  # what comes later is not this run's budget
    marks, name, note = budgets_drawn(run.folder)
    assert (marks, name) == ([9.0] * 3, "budget")
    assert "in the ledger when the run ended" in note
    said = visible(run_page(read_run(run.folder)))
    assert "The budget is the one in the ledger when this run ended." in said
    assert "budget ε left δ" in said
    assert said.count("9 (configured 4)") == 3

    summary = record_of(run.folder, "summary.json")
    assert summary["budgets"] == {person: [9.0, 1e-5] for person in run.clients}
    with sealing_nothing():
        old = train(tmp_path / "old", classification(), privacy={"epsilon": 4}).folder
    summary = record_of(old, "summary.json")
    del summary["budgets"], summary["decided"]
    (old / "summary.json").write_text(json.dumps(summary))
    for folder in (old, copied(run, tmp_path / "unfinished", "summary.json")):
        marks, name, note = budgets_drawn(folder)
        assert (marks, name) == ([4.0] * 3, "configured budget")
        assert "The budget in the ledger may differ." in note
        assert "configured budget ε left δ" in visible(run_page(read_run(folder)))

    assert "noise was planned." in budgets_drawn(runs["nominal"].folder)[2]
    assert budgets_drawn(runs["nominal"].folder)[1] == "configured budget"


def test_many_clients_are_sorted(runs, tmp_path):
    folder = copied(runs["private"], tmp_path / "many", "ledger.sqlite")  # it knows no crowd
    people = json.loads((folder / "participants.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    own = summary["clients"][people[0]["name"]]
    crowd = [{**people[0], "name": f"c{i}"} for i in range(1000)]
    summary["clients"] = {f"c{i}": {**own, "epsilon": 1 + i % 7} for i in range(1000)}
    (folder / "participants.json").write_text(json.dumps(crowd))
    (folder / "summary.json").write_text(json.dumps(summary))
    chart = next(c for c in run_charts(read_run(folder)) if c.id == "clients")
    assert chart.bars.values == sorted(chart.bars.values, reverse=True)
    assert sorted(chart.bars.labels) == sorted(f"c{i}" for i in range(1000))
    for label, value in zip(chart.bars.labels, chart.bars.values, strict=True):
        assert value == 1 + int(label[1:]) % 7
