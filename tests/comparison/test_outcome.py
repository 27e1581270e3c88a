"""The table and the figure of a comparison say what its run folders say."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import udpfl
from tests.commands import command
from tests.comparison.cells import BASE
from udpfl.accounting.statement import PrivacyStatement, shown
from udpfl.comparison import _jobs
from udpfl.comparison._figure import _panels
from udpfl.comparison.outcome import Comparison, Row, SeedRun
from udpfl.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("elsewhere")


def accuracies(folder: Path) -> dict[str, float]:
    """The final figures as the run folders say them, by their names."""
    return {
        path.parent.name: json.loads(path.read_text())["accuracy"]
        for path in folder.glob("*/summary.json")
    }


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


def test_a_nominal_number_is_of_the_accountant_that_planned_the_run():
    """So that rows with the same budget stand at the same place of a nominal axis."""
    base = {**BASE, "privacy": {"accounting": "scalar", "mechanism": "gaussian", "delta": 1e-4}}
    accountants = ["best", "rdp", "paper"]
    result = udpfl.compare(base, vary={"accountant": accountants}, seeds=1, out="grid")
    assert [row.privacy.kind for row in result] == ["nominal"] * 3
    assert [row.privacy.accountant for row in result][1:] == ["rdp", "paper"]
    assert all(7.98 < row.privacy.epsilon <= 8 for row in result)
    proved = [row.privacy.vector_epsilon for row in result]
    assert proved[0] > 1.02 * proved[1] > 1.04 * proved[2]  # the looser ones plan more noise
    assert result.table().count("nominal: not a guarantee") == 3


def test_matched_noise_has_a_column_with_its_reference(tmp_path):
    vary = {"harmonize": ["budget", "match"], "mechanism": ["laplace", "gaussian"]}
    result = udpfl.compare(BASE, vary=vary, seeds=1, out="grid")
    assert [row.matched is None for row in result] == [True, True, False, False]
    for row in result:
        (run,) = row.runs
        told = json.loads((run.folder / "participants.json").read_text())[0].get("matched")
        assert row.to_dict()["matched"] == run.to_dict()["matched"] == told
    rows = [line for line in result.table(200).splitlines() if line.startswith(" match  ")]
    reference = result[2].matched
    assert f"{reference.reference:.4g} (ε {shown(reference.other.epsilon)})" in rows[0]
    assert "Matched to: noise multiplier of the reference Gaussian" in result.table(200)
    plain = udpfl.compare(BASE, vary={"harmonize": ["budget"]}, seeds=1, out="plain")
    assert "atched to" not in plain.table(200)


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
        assert "each at δ = 0.0001 for one run alone, cannot be compared" in text
    alike = replace(of_units(), rows=of_units().rows[:3])
    assert " unit" not in alike.table(200)
    varied = of_units(("privacy.unit", "privacy.epsilon"))
    (head,) = [line for line in varied.table(200).splitlines() if "accuracy" in line]
    assert head.split().count("unit") == 1  # the key's own


def test_no_line_of_the_figure_joins_two_units(tmp_path):
    import matplotlib

    (lines,) = _panels(of_units(), "privacy.epsilon").values()
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
    assert "for single records and for whole clients: these cannot be compared" in drawn
    assert "fedavg (guarantee)" in alike
    assert "whole clients" not in alike


def test_one_run_and_one_seed_are_not_said_in_the_plural(capsys):
    code, out, _ = command(capsys, "compare", "base.toml", "--seeds", "1", "--out", "grid")
    assert code == 0
    assert "1 run trained, 0 found in grid" in out
    assert "One run each, with seed 0: the spread is not known." in out
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
    assert "failed (1): privacy.delta: 0 means pure DP, but gaussian noise has no" in out
    code, out, _ = command(capsys, "compare", "base.toml", *vary, *options, "--json")
    assert code == 1
    found = json.loads(out)
    assert (found["found"], found["trained"], found["complete"]) == (2, 0, False)
    assert found["rows"][0]["failed"].keys() == {"0", "1"}
    assert found["rows"][0]["mean"] is None
    assert found["rows"][1]["failed"] == {}


def test_a_bug_in_one_cell_does_not_stop_the_others(monkeypatch):
    train = _jobs.train

    def flawed(config, **kwargs):
        if config.privacy.clip == 2:
            raise RuntimeError("out of memory")
        return train(config, **kwargs)

    monkeypatch.setattr(_jobs, "train", flawed)
    result = udpfl.compare(BASE, vary={"clip": [2, 1]}, seeds=1, out="grid")
    assert result[0].failed == {0: "RuntimeError: out of memory"}
    assert result[1].failed == {}
    assert not result.complete
    monkeypatch.setattr(_jobs, "train", train)
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


def test_regression_is_compared_by_its_rmse(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["a,b,y", *(f"{a:.3f},{b:.3f},{a - b:.3f}" for a, b in rng.normal(size=(80, 2)))]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    data = {
        "name": "table",
        "clients": 2,
        "task": "regression",
        "options": {"path": "table.csv", "target": "y", "scale": "none"},
    }
    result = udpfl.compare({**BASE, "data": data}, vary={"epsilon": [2, 8]}, seeds=2, out="grid")
    assert result.metric == "rmse"
    for row in result:
        folders = [run.folder for run in row.runs]
        values = [json.loads((f / "summary.json").read_text())["rmse"] for f in folders]
        assert row.mean == pytest.approx(statistics.mean(values))
