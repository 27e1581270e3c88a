"""`udpfl compare`: the grid, the table, and what happens to runs that are stopped or fail."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import udpfl
from tests.commands import command
from tests.repository import ROOT
from udpfl.accounting.statement import PrivacyStatement
from udpfl.algorithms import FedAvg
from udpfl.comparison import jobs
from udpfl.comparison.figure import _lines
from udpfl.comparison.grid import grid_of, key_of, read_seeds, read_vary
from udpfl.comparison.outcome import Comparison, Row, SeedRun
from udpfl.config import load
from udpfl.errors import InvalidInput
from udpfl.ledger.ledger import Ledger

PATIENCE = 60.0
BASE = {
    "threads": 1,
    "data": {"name": "tests.comparison.test_compare:records", "clients": 2},
    "model": {"name": "logistic"},
    "privacy": {"mechanism": "gaussian", "accountant": "rdp"},
    "training": {"rounds": 2, "learning_rate": 0.5},
}
TOML = """
threads = 1
[data]
name = "tests.comparison.test_compare:records"
clients = 2
[model]
name = "logistic"
[privacy]
mechanism = "gaussian"
accountant = "rdp"
[training]
rounds = 2
learning_rate = 0.5
"""


def records(**_):
    rng = np.random.default_rng(3)
    labels = np.arange(120) % 3
    inputs = rng.normal(size=(120, 4)) + 1.5 * np.eye(4)[labels]
    return inputs.astype(np.float32), labels


class Troubled(FedAvg):
    """A method whose server gets into some kind of trouble in every round."""

    def __init__(self, server, *, trouble="none"):
        super().__init__(server)
        self.trouble = trouble

    def aggregate(self, server, messages):
        if self.trouble == "dies":
            os._exit(7)
        if self.trouble == "notes":
            logging.getLogger("udpfl.tests").warning("something is odd")
        if self.trouble == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.trouble == "waits":
            Path(f"waits-{os.getpid()}").touch()
            while not Path("go").exists():
                time.sleep(0.01)
        return super().aggregate(server, messages)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "base.toml").write_text(TOML)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def accuracies(folder: Path) -> dict[str, float]:
    """The final figures as the run folders say them, by their names."""
    return {
        path.parent.name: json.loads(path.read_text())["accuracy"]
        for path in folder.glob("*/summary.json")
    }


def charges(run: Path) -> list[tuple[str, int]]:
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.verify() == []
        return sorted((entry.client, entry.round) for entry in ledger.history())


# The grid


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("mechanism", "privacy.mechanism"),
        ("epsilon", "privacy.epsilon"),
        ("algorithm", "training.algorithm"),
        ("clip", "privacy.clip"),
        ("rounds", "training.rounds"),
        ("learning_rate", "training.learning_rate"),
        ("training.rounds", "training.rounds"),
        ("model", "model.name"),
        ("data", "data.name"),
        ("model.options.activation", "model.options.activation"),
    ],
)
def test_short_names(name, key):
    assert key_of(name) == key


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("epsilonn", "did you mean privacy.epsilon?"),
        ("privacy.epsilonn", "did you mean privacy.epsilon?"),
        ("training.epsilon", "did you mean privacy.epsilon?"),
        ("lr", "did you mean training.learning_rate?"),
        ("name", "data.name or model.name"),
        ("options", "write out which"),
        ("seed", "--seeds"),
        ("out", "cannot be varied"),
        ("ledger", "its own ledger"),
        ("privacy", "privacy.mechanism"),
        ("xyzzy", "udpfl config example"),
        ("model.options.", "there is no key"),
        ("options.mu", "did you mean training.options.mu, model.options.mu, data.options.mu?"),
    ],
)
def test_names_that_cannot_be_varied(name, words):
    with pytest.raises(InvalidInput, match=re.escape(words)) as refused:
        key_of(name)
    assert refused.value.parameter == "vary"


def test_values_are_read_as_in_set():
    assert read_vary(["epsilon=2,[2, 8], 4.5", "mechanism=gaussian,'my,own'"]) == {
        "privacy.epsilon": [2, [2, 8], 4.5],
        "privacy.mechanism": ["gaussian", "my,own"],
    }
    assert read_vary(["model.options={a = 1, b = 2},{}"]) == {
        "model.options": [{"a": 1, "b": 2}, {}]
    }
    for wrong in ("epsilon", "epsilon=", "=2", "epsilon=2,,4", "epsilon=2,"):
        with pytest.raises(InvalidInput, match="must look like"):
            read_vary([wrong])
    with pytest.raises(InvalidInput, match="twice"):
        read_vary(["epsilon=2", "privacy.epsilon=4"])


def test_seeds_are_a_number_or_a_list():
    assert read_seeds("3") == 3
    assert read_seeds("3,5,8") == [3, 5, 8]
    assert read_seeds("5,") == [5]
    for wrong in ("", "a", "1,,2", "-1", "1.5", "²"):
        with pytest.raises(InvalidInput, match="must look like 3 or 3,5,8"):
            read_seeds(wrong)
    assert grid_of(load(), {}, 3).seeds == (0, 1, 2)
    assert grid_of(load(), {}, [4, 1, 4]).seeds == (4, 1)
    for wrong in (0, [], [-1], [True], ["0"]):
        with pytest.raises(InvalidInput, match=r"^seeds"):
            grid_of(load(), {}, wrong)


def test_the_grid_is_every_combination_over_the_base():
    base = load({"training": {"rounds": 7}, "model": {"options": {"width": 5}}})
    vary = {
        "mechanism": ["gaussian", "laplace"],
        "epsilon": [2, 4, 8],
        "model.options.bias": [True],
    }
    grid = grid_of(base, vary, 2)
    assert grid.keys == ("privacy.mechanism", "privacy.epsilon", "model.options.bias")
    expected = list(product(["gaussian", "laplace"], [2, 4, 8]))
    found = [(c.config.privacy.mechanism, c.config.privacy.epsilon) for c in grid.cells]
    assert found == expected
    for cell, (mechanism, epsilon) in zip(grid.cells, expected, strict=True):
        # The same through the other door: what `udpfl run --set` would make of it.
        sets = [f"privacy.mechanism={mechanism}", f"privacy.epsilon={epsilon}"]
        sets += ["model.options.bias=true", "seed=9"]
        assert cell.seeded(9) == load(base, overrides=sets)
        assert cell.config.model.options == {"width": 5, "bias": True}
    assert base.model.options == {"width": 5}


def test_a_value_that_fits_nowhere_is_bad_input_and_a_bad_combination_is_a_cell():
    with pytest.raises(InvalidInput, match=r"privacy\.epsilon: must be .* got 'much'"):
        grid_of(load(), {"epsilon": [2, "much"]}, 1)
    grid = grid_of(load(), {"data.clients": [2, 8], "clients_per_round": [2, 4]}, 1)
    refused = {tuple(c.settings.values()): c.refused for c in grid.cells if c.refused}
    assert refused.keys() == {(2, 4)}
    assert refused[2, 4].parameter == "training.clients_per_round"
    with pytest.raises(InvalidInput, match=r"set privacy\.mechanism to turn it on"):
        grid_of(load({"privacy": "none"}), {"epsilon": [2]}, 1)
    on = grid_of(load({"privacy": "none"}), {"epsilon": [2], "mechanism": ["laplace"]}, 1)
    assert on.cells[0].config.privacy.epsilon == 2
    for wrong in ({"epsilon": []}, {"epsilon": "2,4"}, {"epsilon": 2}, {"nothing": [1]}):
        with pytest.raises(InvalidInput, match=r"^vary"):
            grid_of(load(), wrong, 1)
    with pytest.raises(InvalidInput, match="twice"):
        grid_of(load(), {"epsilon": [2], "privacy.epsilon": [4]}, 1)


def test_what_only_some_cells_make_use_of_changes_those_alone():
    uneven = {"partition": "dirichlet", "alpha": 0.3}
    grid = grid_of(load({"data": uneven}), {"partition": ["iid", "dirichlet"]}, 1)
    assert [cell.config for cell in grid.cells] == [load(), load({"data": uneven})]
    # The rows where it makes no difference come to the same configuration, and so to one run.
    vary = {"partition": ["iid", "dirichlet"], "alpha": [0.3, 0.5, 2.0]}
    found = [cell.config for cell in grid_of(load(), vary, 1).cells]
    assert found[:3] == [load()] * 3
    assert [each.data.alpha for each in found[3:]] == [0.3, 0.5, 2.0]
    off = grid_of(load(), {"mechanism": ["none", "laplace"], "pace_ratio": [2.0]}, 1)
    assert not off.cells[0].config.privacy.enabled
    for vary in ({"pace_ratio": [2.0, 4.0]}, {"pace_ratio": [4.0], "pace": ["uniform"]}):
        with pytest.raises(InvalidInput, match=r"no use unless privacy\.pace is") as refused:
            grid_of(load(), vary, 1)
        assert refused.value.parameter == "privacy.pace_ratio"


# The outcome


def test_the_table_says_what_the_run_folders_say(capsys, tmp_path):
    vary = ["--vary", "mechanism=gaussian,laplace", "--vary", "epsilon=2,50"]
    arguments = ["compare", "base.toml", *vary, "--seeds", "3", "--out", "grid"]
    code, out, err = command(capsys, *arguments, "--json", "--plot", "grid.svg")
    assert (code, err) == (0, "wrote grid.svg\n")
    found = json.loads(out)
    assert found["metric"] == "accuracy"
    assert found["keys"] == ["privacy.mechanism", "privacy.epsilon"]
    assert (found["trained"], found["found"], found["complete"]) == (12, 0, True)
    expected = accuracies(tmp_path / "grid")
    assert len(expected) == 12
    assert len(list((tmp_path / "grid").glob("*/ledger.sqlite"))) == 12
    code, table, _ = command(capsys, *arguments)
    assert code == 0
    assert "12 found in grid" in table
    assert (tmp_path / "grid" / "compare.html").read_text().count("laplace") > 2
    lines = [line.split() for line in table.splitlines() if "guarantee " in f"{line} "]
    cells = product(["gaussian", "laplace"], [2, 50])
    for row, line, (mechanism, epsilon) in zip(found["rows"], lines, cells, strict=False):
        assert row["settings"] == {"privacy.mechanism": mechanism, "privacy.epsilon": epsilon}
        names = [f"mechanism={mechanism},epsilon={epsilon},seed={seed}" for seed in range(3)]
        values = [expected[name] for name in names]
        mean, sd = statistics.mean(values), statistics.stdev(values)
        assert row["mean"] == pytest.approx(mean)
        assert row["sd"] == pytest.approx(sd)
        assert (row["min"], row["max"]) == (min(values), max(values))
        assert [run["value"] for run in row["runs"]] == values
        assert [Path(run["run"]).name for run in row["runs"]] == names
        said = [f"{mean:.4f}", "±", f"{sd:.4f}", f"{min(values):.4f}..{max(values):.4f}"]
        assert line[:6] == [mechanism, str(epsilon), *said]
        assert line[-1] == "guarantee"
        assert row["privacy"]["kind"] == "guarantee"
        spent = [json.loads((tmp_path / "grid" / n / "summary.json").read_text()) for n in names]
        most = max(run["privacy"]["epsilon"] for run in spent)
        assert row["privacy"]["epsilon"] == most <= epsilon
    picture = (tmp_path / "grid.svg").read_text()
    assert picture.startswith("<?xml")


def test_what_is_nominal_or_not_private_never_looks_like_a_guarantee(tmp_path):
    base = {**BASE, "privacy": {"accountant": "rdp", "delta": 1e-4}}
    vary = {"mechanism": ["laplace", "none"], "accounting": ["vector", "scalar"]}
    result = udpfl.compare(base, vary=vary, seeds=1, out="grid")
    kinds = [row.privacy.kind for row in result]
    assert kinds == ["guarantee", "nominal", "none", "none"]
    # Without privacy the accounting does not matter: one run stands for both cells.
    assert result.trained == 3
    assert result[2].runs == result[3].runs
    table = result.table().splitlines()
    (head,) = [line for line in table if "min..max" in line]
    columns = {name: head.index(name) for name in ("ε ", "nominal ε", "privacy")}
    rows = table[table.index(head) + 2 :][:4]
    for row, line in zip(result, rows, strict=True):
        proved = line[columns["ε "] : columns["nominal ε"]].strip()
        nominal = line[columns["nominal ε"] : columns["privacy"]].strip()
        label = line[columns["privacy"] :].strip()
        if row.privacy.kind == "guarantee":
            assert (nominal, label) == ("", "guarantee")
            assert float(proved) == pytest.approx(row.privacy.epsilon, rel=1e-3)
        elif row.privacy.kind == "nominal":
            assert label == "nominal: not a guarantee"
            assert float(nominal) <= 8 < float(proved)
        else:
            assert (proved, nominal, label) == ("no bound", "", "not private")
    text = " ".join(" ".join(table).split())
    assert "ε is guaranteed at δ = 0.0001 for one record added or removed" in text
    assert "a record pays again in every run" in text
    assert "not a privacy guarantee" in text
    result.plot(tmp_path / "kinds.png")
    assert (tmp_path / "kinds.png").read_bytes().startswith(b"\x89PNG")


def of_units(keys=("training.algorithm", "privacy.epsilon"), seeds=(0,)) -> Comparison:
    """Two methods at two budgets, of which one hides whole clients at the larger."""
    rows = []
    for algorithm, epsilon in product(["fedavg", "dp-fedavg"], [2, 8]):
        unit = "client" if (algorithm, epsilon) == ("dp-fedavg", 8) else "record"
        spent = PrivacyStatement(epsilon, 1e-4, "guarantee", "pld", unit, vector_epsilon=epsilon)
        own = [SeedRun(seed, None, "accuracy", 0.5 + epsilon / 100, spent, 1.0) for seed in seeds]
        rows.append(Row(dict(zip(keys, (algorithm, epsilon), strict=True)), tuple(own)))
    return Comparison(tuple(rows), keys, tuple(seeds), Path("grid"))


def test_rows_of_two_units_have_a_column_for_it():
    for width in (60, 200):
        lines = of_units().table(width).splitlines()
        (head,) = [line for line in lines if " unit" in line]
        place = head.index("unit")
        rows = lines[lines.index(head) + 2 :][:4]
        assert [line[place:].split()[0] for line in rows] == ["record"] * 3 + ["client"]
        text = " ".join(" ".join(lines).split())
        assert "Some rows hide one record, others a whole client" in text
        assert "each at δ = 0.0001 for a run by itself, cannot be compared" in text
    alike = replace(of_units(), rows=of_units().rows[:3])
    assert " unit" not in alike.table(200)
    varied = of_units(("privacy.unit", "privacy.epsilon"))
    (head,) = [line for line in varied.table(200).splitlines() if "accuracy" in line]
    assert head.split().count("unit") == 1  # the key's own


def test_no_line_of_the_figure_joins_two_units(tmp_path):
    import matplotlib

    lines = _lines(of_units(), "privacy.epsilon")
    assert {key: [stop for stop, _, _ in points] for key, points in lines.items()} == {
        ("fedavg", "guarantee", "record"): [2, 8],
        ("dp-fedavg", "guarantee", "record"): [2],
        ("dp-fedavg", "guarantee", "client"): [8],
    }
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        of_units().plot(tmp_path / "units.svg")
        replace(of_units(), rows=of_units().rows[:3]).plot(tmp_path / "alike.svg")
    drawn, alike = ((tmp_path / f"{name}.svg").read_text() for name in ("units", "alike"))
    for label in ("fedavg (guarantee, single records)", "dp-fedavg (guarantee, whole clients)"):
        assert label in drawn
    assert "for single records and for whole clients: not to be compared" in drawn
    assert "fedavg (guarantee)" in alike
    assert "whole clients" not in alike


def test_one_run_and_one_seed_are_not_said_in_the_plural(capsys):
    code, out, _ = command(capsys, "compare", "base.toml", "--seeds", "1", "--out", "grid")
    assert code == 0
    assert "1 run trained, 0 found in grid" in out
    assert "One run each, with seed 0: nothing is known of the spread." in out
    code, out, _ = command(capsys, "compare", "base.toml", "--seeds", "3", "--out", "grid")
    assert "2 runs trained, 1 found in grid" in out
    assert "range over seeds 0, 1, 2." in out


def test_a_narrow_table_is_not_cut_off():
    result = udpfl.compare(BASE, vary={"epsilon": [2, 4], "clip": [0.5, 1.5]}, seeds=2, out="grid")
    for width in (40, 60, 200):
        text = result.table(width)
        assert "…" not in text
        for row in result:
            assert f"{row.mean:.4f} ± {row.sd:.4f}" in text
            assert f"{min(row.values):.4f}..{max(row.values):.4f}" in text
        assert text.count("guarantee\n") + len(re.findall(r"guarantee +\n", text)) >= 4


def test_no_key_at_all_is_one_cell(capsys):
    result = udpfl.compare(BASE, seeds=[4, 7], out="grid")
    assert len(result) == 1
    assert {path.name for path in Path("grid").iterdir()} >= {"seed=4", "seed=7"}
    assert result[0].mean == pytest.approx(sum(accuracies(Path("grid")).values()) / 2)
    with pytest.raises(InvalidInput, match="nothing to draw"):
        result.plot("x.png")
    code, _, err = command(capsys, "compare", "base.toml", "--plot", "x.png")
    assert code == 2
    assert "--vary" in err


def test_a_cell_that_fails_says_why_and_does_not_stop_the_others(capsys):
    vary = ["--vary", "mechanism=gaussian,laplace", "--set", "privacy.delta=0.0"]
    options = ["--set", "privacy.accountant=best", "--seeds", "2", "--out", "grid"]
    code, out, err = command(capsys, "compare", "base.toml", *vary, *options)
    assert (code, err) == (1, "")
    assert re.search(r"gaussian +– +0 of 2 +failed \(1\)", out)
    assert re.search(r"laplace +0\.\d+ ± 0\.\d+ +\S+ +2 of 2 +\S+ +guarantee", out)
    assert "failed (1): privacy.delta: 0 asks for pure DP, and gaussian noise has no" in out
    code, out, _ = command(capsys, "compare", "base.toml", *vary, *options, "--json")
    assert code == 1
    found = json.loads(out)
    assert (found["found"], found["trained"], found["complete"]) == (2, 0, False)
    assert found["rows"][0]["failed"].keys() == {"0", "1"}
    assert found["rows"][0]["mean"] is None
    assert found["rows"][1]["failed"] == {}


def test_a_bug_in_one_cell_does_not_stop_the_others(monkeypatch):
    train = jobs.train

    def flawed(config, **kwargs):
        if config.privacy.clip == 2:
            raise RuntimeError("out of memory")
        return train(config, **kwargs)

    monkeypatch.setattr(jobs, "train", flawed)
    result = udpfl.compare(BASE, vary={"clip": [2, 1]}, seeds=1, out="grid")
    assert result[0].failed == {0: "RuntimeError: out of memory"}
    assert result[1].failed == {}
    assert not result.complete
    monkeypatch.setattr(jobs, "train", train)
    again = udpfl.compare(BASE, vary={"clip": [2, 1]}, seeds=1, out="grid")
    assert (again.trained, again.found, again.complete) == (1, 1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vary", "epsilonn=2"], ["--vary", "did you mean privacy.epsilon?"]),
        (["--vary", "epsilon=2,much"], ["privacy.epsilon", "'much'"]),
        (["--vary", "epsilon=2", "--seeds", "few"], ["--seeds", "few"]),
        (
            [
                "--vary",
                "epsilon=2",
                "--set",
                "privacy.ledger=a",
                "--set",
                "privacy.accountant=best",
            ],
            ["privacy.ledger", "own"],
        ),
        (["--vary", "epsilon=2", "--plot", "x.txt"], ["--plot", "x.txt"]),
        (["--vary", "epsilon=2", "--out", "base.toml"], ["out: ", "base.toml"]),
        (["--vary", "epsilon=2", "--jobs", "0"], ["--jobs", "got 0"]),
        (["--vary", "epsilon=2", "--lanes", "2"], ["No such option: --lanes"]),
        (["--set", "training.round=2"], ["did you mean training.rounds?"]),
        (["--vary", "mechanism=laplace,gausian"], ["privacy.mechanism", "did you mean gaussian?"]),
        (["--vary", "mechanism=laplace,['auto', 'gausian']"], ["did you mean gaussian?"]),
        (["--vary", "algorithm=fedavg,fedav"], ["training.algorithm", "did you mean fedavg?"]),
        (["--vary", "model=logistic,mlpp"], ["model.name", "did you mean mlp?"]),
        (["--vary", "data=table,mnits"], ["data.name", "did you mean mnist?"]),
        (["--vary", "data=table,nowhere:there"], ["data.name", "cannot import 'nowhere'"]),
        (["--vary", "epsilon=2,4", "--set", "model.name=mlpp"], ["model.name", "mlp?"]),
        (["--vary", "options.mu=0.1"], ["--vary", "training.options.mu"]),
        (["--set", "options.mu=0.1"], ["options.mu", "training.options.mu"]),
    ],
)
def test_bad_input_begins_nothing(capsys, tmp_path, arguments, words):
    code, out, err = command(capsys, "compare", "base.toml", *arguments)
    assert (code, out) == (2, "")
    for word in words:
        assert word in err
    assert [path.name for path in tmp_path.iterdir()] == ["base.toml"]


def test_a_name_that_is_found_and_does_not_fit_is_a_cell(capsys):
    # It can be imported and is no model, which only its own runs find out.
    code, out, _ = command(
        capsys, "compare", "base.toml", "--vary", "model=logistic,logging:root", "--seeds", "1"
    )
    assert code == 1
    assert re.search(r"logging:root +– +0 of 1 +failed \(1\)", out)
    assert re.search(r"logistic +0\.\d+", out)


# Again


def times(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}


def test_finished_runs_are_read_and_a_larger_grid_uses_them(tmp_path):
    vary = {"epsilon": [2, 4]}
    first = udpfl.compare(BASE, vary=vary, seeds=2, out="grid")
    before = times(tmp_path / "grid")
    again = udpfl.compare(BASE, vary=vary, seeds=2, out="grid")
    assert (first.trained, first.found, again.trained, again.found) == (4, 0, 0, 4)
    assert again.rows == first.rows
    # More values, other seeds, and a key that was fixed so far: gaussian, as it happens.
    more = {"mechanism": ["laplace", "gaussian"], "epsilon": [4, 8]}
    larger = udpfl.compare(BASE, vary=more, seeds=[1, 2], out="grid")
    assert (larger.trained, larger.found) == (7, 1)
    kept = {run.folder.name for row in larger for run in row.runs} & before.keys()
    assert kept == {"epsilon=4,seed=1"}
    after = times(tmp_path / "grid")
    assert {name: after[name] for name in before} == before
    assert len(after) == 11
    # And back: the first grid has not been forgotten. Where it is computed does not matter.
    back = udpfl.compare({**BASE, "threads": 2}, vary=vary, seeds=2, out="grid")
    assert (back.trained, back.rows) == (0, first.rows)
    laplace = {**BASE, "privacy": {**BASE["privacy"], "mechanism": "laplace"}}
    other = udpfl.compare(laplace, vary={"epsilon": [8]}, seeds=[2], out="grid")
    assert (other.trained, other.found) == (0, 1)


def test_without_out_the_same_command_finds_its_folder(capsys):
    vary = ["--vary", "epsilon=2", "--json"]
    code, out, _ = command(capsys, "compare", "base.toml", *vary, "--seeds", "1")
    assert code == 0
    first = json.loads(out)
    assert first["folder"].startswith("runs/compare-tests.comparison.test_compare-records-fedavg-")
    code, out, _ = command(capsys, "compare", "base.toml", *vary, "--seeds", "2")
    assert (json.loads(out)["folder"], json.loads(out)["found"]) == (first["folder"], 1)
    rounds = ["--set", "training.rounds=1"]
    code, out, _ = command(capsys, "compare", "base.toml", *vary, "--seeds", "1", *rounds)
    assert code == 0
    assert json.loads(out)["folder"] != first["folder"]


def test_another_base_is_refused_with_what_differs(capsys, tmp_path):
    arguments = ["compare", "base.toml", "--seeds", "1", "--out", "grid"]
    assert command(capsys, *arguments, "--vary", "epsilon=2")[0] == 0
    before = (tmp_path / "grid" / "comparison.json").read_text()
    sets = ["--set", "training.rounds=3", "--set", "data.by=x", "--set", "data.partition=column"]
    code, out, err = command(capsys, *arguments, "--vary", "epsilon=2", *sets)
    assert (code, out) == (2, "")
    assert "out: 'grid' holds a comparison of other settings" in err
    assert "training.rounds is 2 there and 3 here" in err
    assert "data.by is not set there and x here" in err
    assert "privacy.epsilon" not in err
    assert (tmp_path / "grid" / "comparison.json").read_text() == before
    off = ["--set", "privacy=none", "--vary", "rounds=2"]
    assert (
        "privacy.mechanism is gaussian there and none here" in command(capsys, *arguments, *off)[2]
    )
    # A key that was varied here once may be anything.
    code, *_ = command(capsys, *arguments, "--vary", "clip=1", "--set", "privacy.epsilon=3")
    assert code == 0
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.md").write_text("years of work")
    code, _, err = command(capsys, "compare", "base.toml", "--out", "thesis")
    assert code == 2
    assert "'thesis' exists and holds no comparison" in err
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["text.md"]


# Stopped


def start(*arguments: object, log: str = "err.txt") -> subprocess.Popen[bytes]:
    # Whoever is started in the background of a shell is deaf to interrupts.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    asked = [str(a) for a in ("compare", *arguments)]
    code = f"{listen}; from udpfl.cli import main; main({asked})"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with Path(log).open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=err, stderr=err
        )


def until(condition, process) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, Path("err.txt").read_text()
        assert time.monotonic() < give_up, "nothing happens"
        time.sleep(0.01)


def rounds(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def goes_on(capsys, under_way, *arguments: object) -> None:
    """Nobody works there any more, what was charged was used, and the rest is trained."""
    for run in under_way:
        done = rounds(run)
        assert charges(run) == sorted(
            (f"client-{c}", r) for c in range(2) for r in range(1, done + 1)
        )
        assert (run / "checkpoints" / f"round-{done:06d}.safetensors").is_file()
    code, out, _ = command(capsys, "compare", *LONG, *arguments, "--json")
    assert code == 0
    assert json.loads(out)["complete"]
    for run in under_way:
        assert charges(run) == EVERY


ROUNDS = 200  # long enough not to be over before somebody interrupts
LONG = [
    "base.toml", "--seeds", "1", "--out", "grid",
    "--set", f"training.rounds={ROUNDS}", "--set", f"training.evaluate_every={ROUNDS}",
]  # fmt: skip
EVERY = sorted((f"client-{c}", r) for c in range(2) for r in range(1, ROUNDS + 1))


def test_a_killed_comparison_goes_on_where_it_stopped(capsys):
    vary = ["--vary", "epsilon=2,4,8"]
    first, second, third = (Path("grid") / f"epsilon={e},seed=0" for e in (2, 4, 8))
    process = start(*LONG, *vary)
    until(lambda: rounds(second) >= 5, process)
    process.kill()
    process.wait()
    assert (first / "summary.json").is_file()
    assert not (second / "summary.json").exists()
    assert not third.exists()
    before, identity = times(Path("grid")), (second / "run.json").read_text()
    charged = charges(second)
    assert 10 <= len(charged) < len(EVERY)
    code, out, err = command(capsys, "compare", *LONG, *vary, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["trained"], found["found"], found["complete"]) == (2, 1, True)
    assert found["resumed"] == 1
    assert times(Path("grid"))[first.name] == before[first.name]
    assert (second / "run.json").read_text() == identity  # the same run, not a new one
    for run in (first, second, third):
        assert charges(run) == EVERY  # everything once, what was charged before the kill too


@pytest.mark.slow
def test_an_interrupt_with_two_jobs_stops_cleanly_and_says_how_to_go_on(capsys):
    vary = ["--vary", "epsilon=2,4,8"]
    process = start(*LONG, *vary, "--jobs", "2")
    under_way = [Path("grid") / f"epsilon={e},seed=0" for e in (2, 4)]
    until(lambda: all(rounds(run) >= 2 for run in under_way), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    said = Path("err.txt").read_text()
    assert "finishing the rounds under way" in said
    assert "interrupted: 0 of 3 runs are done in grid; the same command goes on" in said
    assert "Traceback" not in said
    goes_on(capsys, under_way, *vary)


TROUBLED = "training.algorithm=tests.comparison.test_compare:Troubled"


@pytest.mark.slow
def test_a_request_to_stop_that_no_round_hears_of_leaves_nobody_waiting(capsys):
    """The runs under way come to their ends, and the workers get nothing else to do."""
    deaf = ["--set", TROUBLED, "--set", "training.options.trouble=deaf", "--vary", "epsilon=2,4,8"]
    process = start(*LONG, *deaf, "--jobs", "2")
    first, second, third = (Path("grid") / f"epsilon={e},seed=0" for e in (2, 4, 8))
    until(lambda: all(rounds(run) >= 2 for run in (first, second)), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    said = Path("err.txt").read_text()
    assert "interrupted: 2 of 3 runs are done in grid" in said
    assert "Traceback" not in said
    assert charges(first) == charges(second) == EVERY
    assert not third.exists()


def ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupted again", "killed"])
def test_without_their_parent_workers_end_and_the_same_command_goes_on(how, capsys):
    waits = ["--set", TROUBLED, "--set", "training.options.trouble=waits", "--vary", "epsilon=2,4"]
    process = start(*LONG, *waits, "--jobs", "2")
    until(lambda: len(list(Path().glob("waits-*"))) == 2, process)
    workers = [int(path.name.partition("-")[2]) for path in Path().glob("waits-*")]
    if how == "killed":
        process.kill()
        process.wait()
        Path("go").touch()  # to their next message
    else:
        process.send_signal(signal.SIGINT)
        until(lambda: "once more to stop at once" in Path("err.txt").read_text(), process)
        assert not any(map(ended, workers))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130  # without go
        said = Path("err.txt").read_text()
        assert "interrupted: 0 of 2 runs are done in grid; the same command goes on" in said
        assert "Traceback" not in said
    give_up = time.monotonic() + PATIENCE
    while not all(map(ended, workers)):
        assert time.monotonic() < give_up, "a worker goes on"
        time.sleep(0.01)
    Path("go").touch()
    code, out, _ = command(capsys, "compare", *LONG, *waits, "--json")
    assert code == 0
    assert json.loads(out)["resumed"] == 2
    for epsilon in (2, 4):
        assert charges(Path("grid") / f"epsilon={epsilon},seed=0") == EVERY


@pytest.mark.slow
def test_workers_that_die_and_workers_that_have_notes(caplog):
    base = {
        **BASE,
        "training": {**BASE["training"], "algorithm": "tests.comparison.test_compare:Troubled"},
    }
    vary = {"training.options.trouble": ["dies", "notes"]}
    result = udpfl.compare(base, vary=vary, seeds=2, out="grid", jobs=2)
    assert result[0].failed == dict.fromkeys((0, 1), "its process ended with exit code 7")
    assert result[1].failed == {}
    notes = [record for record in caplog.records if record.message == "something is odd"]
    assert [record.levelname for record in notes] == ["WARNING"] * 4  # two rounds of two runs


def test_an_interrupt_of_a_single_job(monkeypatch, capsys):
    train, calls = jobs.train, []

    def interrupted(*arguments, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*arguments, **kwargs)

    monkeypatch.setattr(jobs, "train", interrupted)
    arguments = ["compare", "base.toml", "--vary", "epsilon=2,4", "--seeds", "1", "--out", "grid"]
    code, out, err = command(capsys, *arguments)
    assert (code, out) == (130, "")
    assert err == "interrupted: 1 of 2 runs are done in grid; the same command goes on from there\n"
    code, out, _ = command(capsys, *arguments, "--json")
    assert code == 0
    assert (json.loads(out)["found"], json.loads(out)["trained"]) == (1, 1)


def test_two_jobs_give_the_same_cells_as_one_and_as_single_runs():
    """Seeded noise, so that the same run is the same to the last digit."""
    seeded = {**BASE, "privacy": {"randomness": "seeded", "mechanism": "gaussian"}}
    vary = {"epsilon": [1, 20], "delta": [1e-5, 0.0]}
    one = udpfl.compare(seeded, vary=vary, seeds=2, out="one")
    heard = []
    two = udpfl.compare(
        seeded, vary=vary, seeds=2, out="two", jobs=2, tell=lambda *said: heard.append(said)
    )
    assert [row.values for row in one] == [row.values for row in two]
    assert [row.privacy for row in one] == [row.privacy for row in two]
    for row in two:
        if row.settings["privacy.delta"] == 0:
            assert row.failed.keys() == {0, 1}
            assert "no pure-DP guarantee" in row.failed[0]
            continue
        for run in row.runs:
            own = {**seeded, "privacy": {**seeded["privacy"], "epsilon": run_epsilon(row)}}
            assert udpfl.run(own, seed=run.seed).accuracy == run.value
    done, totals, _ = zip(*heard, strict=True)
    assert set(totals) == {8}
    assert list(done) == sorted(done)
    assert (done[0], done[-1]) == (0, 8)


@pytest.mark.parametrize("jobs", [0, True, "many", 1.5])
def test_a_wrong_number_of_jobs_is_refused(jobs):
    with pytest.raises(InvalidInput, match=r"^jobs: must be a whole number >= 1"):
        udpfl.compare(BASE, seeds=1, out="grid", jobs=jobs)
    assert not Path("grid").exists()


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_fault_of_whoever_is_told_of_progress_is_not_lost(jobs):
    def tell(done, total, now):
        if done:
            raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        udpfl.compare(BASE, seeds=2, out="grid", jobs=jobs, tell=tell)


def run_epsilon(row) -> float:
    return row.settings["privacy.epsilon"]


def test_a_second_comparison_in_the_same_folder_waits_for_nobody(tmp_path):
    from udpfl.runs.folder import RunFolder

    udpfl.compare(BASE, vary={"epsilon": [2]}, seeds=1, out="grid")
    with (
        RunFolder(tmp_path / "grid").locked(),
        pytest.raises(InvalidInput, match=r"^out: another process is working"),
    ):
        udpfl.compare(BASE, vary={"epsilon": [2]}, seeds=1, out="grid")


def test_regression_is_compared_by_its_rmse(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["a,b,y", *(f"{a:.3f},{b:.3f},{a - b:.3f}" for a, b in rng.normal(size=(80, 2)))]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    data = {
        "name": "table",
        "clients": 2,
        "task": "regression",
        "options": {"path": "table.csv", "target": "y"},
    }
    result = udpfl.compare({**BASE, "data": data}, vary={"epsilon": [2, 8]}, seeds=2, out="grid")
    assert result.metric == "rmse"
    for row in result:
        folders = [run.folder for run in row.runs]
        values = [json.loads((f / "summary.json").read_text())["rmse"] for f in folders]
        assert row.mean == pytest.approx(statistics.mean(values))
