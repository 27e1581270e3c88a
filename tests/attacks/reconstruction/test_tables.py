"""The paper's tables of these attacks come out at toy scale."""

from __future__ import annotations

import sys

import pytest

from tests.attacks.reconstruction.bars import bars
from tests.repository import ROOT

sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import reconstruction_tables as tables

RUN = {
    "data.clients": 2, "model.name": "mlp", "model.options.hidden": [8], "training.rounds": 1,
    "training.local_steps": 1, "training.sampling_rate": 0.2, "threads": 1,
}  # fmt: skip
TOY = {
    "gradients": {"signals": 2, "iterations": 3},
    "decoder": {"epochs": 1, "width": 4},
    "attribute": {"attribute": "tall", "epochs": 3},
}


@pytest.mark.parametrize("name", TOY)
def test_a_table_has_a_line_for_every_budget_and_all_that_learned_nothing(name):
    table = tables.TABLES[name]
    found = [
        tables.measured(table, RUN, TOY[name], privacy, data=bars(test=100))
        for privacy in tables.cells(["gaussian"], [8.0])
    ]
    page = tables.page(name, found, ["gaussian"])
    head, _, line, *_ = page.splitlines()
    assert head == "| ε | " + " | ".join(f"DP-SGD: {c}" for c in table.columns) + " |"
    first = next(iter(table.columns.values()))
    assert line.startswith(f"| 8 | {found[1]['figures'][first][0]:.4g} |")
    assert "Without privacy: " in page
    for who in table.beside:
        assert f"Baseline, {who}: " in page
    assert "8" in found[1]["stated"]


def test_cells_are_those_of_the_paper():
    found = list(tables.cells(list(tables.MECHANISMS), tables.EPSILONS))
    assert found[0] == {"privacy": "none", "training.learning_rate": 0.1}
    assert len(found) == 1 + 3 * 4
    assert found[3] == {"privacy.mechanism": "staircase", "privacy.epsilon": 2.0}


def test_changes_come_last():
    table = tables.TABLES["decoder"]
    found = tables.settings_of(table, "small", {"training.rounds": 7})
    assert (found["training.rounds"], found["data.clients"]) == (7, 2)
    assert tables.settings_of(table, "full", {})["training.rounds"] == 50
    assert tables.options_for(table, "small", {"epochs": 2})["epochs"] == 2
    assert tables.nested({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
