"""Four people with a table each, from its first look to the page that is signed, by commands alone.

Tables are real (scikit-learn's breast cancer and diabetes data), written as people have them: with
semicolons, decimal commas, missing cells, a file for each site.
"""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes

import udpfl
from tests.commands import command

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES = ("mean radius", "mean texture", "mean smoothness", "worst area")
LIMITS = {
    "mean radius": (5, 30),
    "mean texture": (5, 45),
    "mean smoothness": (0.03, 0.2),
    "worst area": (100, 4500),
}
"""What everybody may know: limits of the measurements, wider than any table."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UDPFL_DATA_DIR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def invoke(capsys):
    """Runs the command; returns what it printed, or its error where it has to fail."""

    def run(*arguments, fails=0):
        code, out, err = command(capsys, *arguments)
        assert code == fails, err
        return out if out or not fails else err

    return run


def tumours():
    """Rows of the breast cancer data: four features and the diagnosis in words."""
    data = load_breast_cancer()
    places = [list(data.feature_names).index(name) for name in FEATURES]
    names = np.array(data.target_names)[data.target]
    return [[*row, name] for row, name in zip(data.data[:, places].tolist(), names, strict=True)]


def write(path, header, rows, *, delimiter=",", decimal=".", missing=0):
    """Every `missing`-th row has an empty first cell."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(header)
        for number, row in enumerate(rows, 1):
            cells = [
                str(cell).replace(".", decimal) if isinstance(cell, float) else cell for cell in row
            ]
            if missing and number % missing == 0:
                cells[0] = ""
            writer.writerow(cells)


def fill_in(path, limits):
    """What the owner does by hand: public bounds in the places that `init` left open."""
    text = path.read_text()
    for name, (low, high) in limits.items():
        key = name if re.fullmatch(r"\w+", name) else f'"{name}"'
        assert f'{key} = ["LOW", "HIGH"]' in text
        text = text.replace(f'{key} = ["LOW", "HIGH"]', f"{key} = [{low}, {high}]")
    path.write_text(text)


def outputs_by_module(folder, rows, limits):
    """The module's own answer to rows that are scaled here."""
    trained = udpfl.load(folder)
    low, high = np.array([limits[name] for name in limits], dtype=float).T
    inputs = np.clip(2 * (np.array(rows, dtype=float) - low) / (high - low) - 1, -1, 1)
    with torch.no_grad():
        return trained.model(torch.from_numpy(inputs.astype(np.float32))).double().numpy()


def read(path, delimiter=","):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def test_an_engineer_with_a_file_for_each_hospital(invoke, tmp_path):
    """Semicolons, decimal commas, missing cells, three sites, a ledger that stays."""
    rows = tumours()
    for number, site in enumerate(("anna", "berta", "clara")):
        path = tmp_path / "sites" / f"{site}.csv"
        write(
            path, [*FEATURES, "diagnosis"], rows[number::3], delimiter=";", decimal=",", missing=25
        )
    assert "missing" in invoke("data", "describe", "sites/*.csv")
    assert "wrote udpfl.toml" in invoke("init", "sites/*.csv", "--target", "diagnosis")
    assert "scale" in invoke("run", "udpfl.toml", "--dry-run", fails=2)
    fill_in(tmp_path / "udpfl.toml", LIMITS)
    assert "row 25, column mean radius: the value is missing" in invoke(
        "run", "udpfl.toml", "--dry-run", fails=2
    )
    text = (tmp_path / "udpfl.toml").read_text()
    (tmp_path / "udpfl.toml").write_text(text.replace('# missing = "drop"', 'missing = "drop"'))
    settings = ["--set", "privacy.ledger=budget.sqlite", "--set", "training.rounds=12"]
    said = invoke("run", "udpfl.toml", "--dry-run", *settings)
    assert "the shared ledger budget.sqlite" in said
    assert "labels of diagnosis: benign, malignant" in said
    assert not (tmp_path / "budget.sqlite").exists()
    assert not (tmp_path / "runs").exists()
    invoke("run", "udpfl.toml", *settings, "--out", "run")
    assert json.loads(invoke("evaluate", "run", "--json"))["accuracy"] > 0.75
    new = [row[:4] for row in rows[::40]]
    write(tmp_path / "new.csv", FEATURES, new, delimiter=";", decimal=",")
    invoke("predict", "run", "new.csv", "--out", "predictions.csv")
    scores = outputs_by_module("run", new, LIMITS)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = read("predictions.csv", ";")
    assert [row["prediction"] for row in found] == [
        ("benign", "malignant")[own.argmax()] for own in scores
    ]
    malignant = [float(row["malignant"].replace(",", ".")) for row in found]
    assert np.abs(np.array(malignant) - shares[:, 1]).max() < 1e-6
    invoke("export", "run", "--format", "onnx", "--out", "model.onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession("model.onnx")
    inputs = udpfl.load("run").preprocessing.table.encode(
        udpfl.load("run").read("new.csv"), with_targets=False
    ).inputs  # fmt: skip
    (answers,) = session.run(None, {"inputs": inputs.astype(np.float32)})
    assert np.abs(answers - scores).max() < 1e-5
    invoke("report", "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "malignant" in page
    assert all(site in page for site in ("anna", "berta", "clara"))


def test_a_researcher_with_a_regression(invoke, tmp_path):
    """A number to predict, a column of sites, results in its own units."""
    data = load_diabetes(scaled=False)
    names = ["age", "bmi", "bp"]
    places = [data.feature_names.index(name) for name in names]
    rows = [
        [*row, ("north", "south")[i % 2], target]
        for i, (row, target) in enumerate(
            zip(data.data[:, places].tolist(), data.target.tolist(), strict=True)
        )
    ]
    write(tmp_path / "diabetes.csv", [*names, "clinic", "progression"], rows)
    invoke("init", "diabetes.csv", "--target", "progression", "--by", "clinic", "--out", "d.toml")
    limits = {"age": (0, 110), "bmi": (10, 60), "bp": (40, 160)}
    fill_in(tmp_path / "d.toml", {**limits, "progression": (0, 400)})
    settings = ["--set", "training.rounds=20", "--set", "training.learning_rate=0.2"]
    said = json.loads(invoke("plan", "d.toml", "--json", *settings))
    assert [own["client"] for own in said["clients"]] == ["north", "south"]
    assert said["clients"][0]["charge"]["epsilon"] <= 4
    invoke("run", "d.toml", "--out", "run", *settings)
    figures = json.loads(invoke("evaluate", "run", "--json"))
    spread = float(np.std(data.target))
    mae, rmse = figures["errors_in_units"]["progression"]
    assert mae < rmse < 1.6 * spread
    new = [row[:3] for row in rows[::60]]
    write(tmp_path / "new.csv", names, new)
    invoke("predict", "run", "new.csv", "--out", "predictions.csv")
    wanted = 200 * (outputs_by_module("run", new, limits)[:, 0] + 1)
    found = [float(row["progression"]) for row in read("predictions.csv")]
    assert np.abs(np.array(found) - wanted).max() < 1e-6 * 400
    invoke("compare", "d.toml", "--vary", "privacy.mechanism=gaussian,laplace", *settings[2:],
           "--set", "training.rounds=2", "--out", "grid")  # fmt: skip
    assert (tmp_path / "grid" / "compare.html").is_file() or list(
        (tmp_path / "grid").glob("*.html")
    )
    invoke("report", "run")


def test_an_officer_who_has_to_sign(invoke, tmp_path):
    """Persons with several rows, a budget, an audit, and a page that finds an edit."""
    rng = np.random.default_rng(0)
    rows = [[f"P{rng.integers(220)}", *row] for row in tumours()]
    write(tmp_path / "visits.csv", ["patient", *FEATURES, "diagnosis"], rows)
    invoke("init", "visits.csv", "--target", "diagnosis", "--person", "patient")
    path = tmp_path / "udpfl.toml"
    fill_in(path, LIMITS)
    path.write_text(path.read_text().replace("# rows_per_person", "rows_per_person"))
    settings = ["--set", "training.rounds=4"]
    assert "persons to train on" in invoke("run", "udpfl.toml", "--dry-run", *settings)
    invoke("run", "udpfl.toml", "--out", "run", *settings)
    spent = invoke("budget", "show", "run")
    assert "ε is for a person with all rows" in spent
    audit = invoke("audit", "run", "run", "--trials", "400", "--canaries", "0")
    assert "person alone" in audit
    assert "not refuted" in audit
    invoke("evaluate", "run")
    write(tmp_path / "new.csv", FEATURES, [row[1:5] for row in rows[:5]])
    assert len(invoke("predict", "run", "new.csv").splitlines()) == 6
    state = json.loads(invoke("report", "run", "--json"))
    assert (state["state"], state["statement"]["unit"]) == ("verified", "person")
    assert "one person with all rows at one client" in (tmp_path / "run/report.html").read_text()
    kept = tmp_path / "run" / "preprocessing.json"
    kept.write_text(kept.read_text().replace("30.0", "31.0"))
    state = json.loads(invoke("report", "run", "--json", fails=1))
    assert "preprocessing.json" in str(state["reasons"])


def test_a_student_with_one_table(invoke, tmp_path):
    """One file, simulated clients, Laplace noise as in the paper."""
    write(tmp_path / "tumours.csv", [*FEATURES, "class"], tumours())
    invoke("init", "tumours.csv")
    fill_in(tmp_path / "udpfl.toml", LIMITS)
    settings = ["--set", "privacy.mechanism=laplace", "--set", "privacy.norm=l1",
                "--set", "training.rounds=5"]  # fmt: skip
    said = invoke("plan", "udpfl.toml", *settings)
    assert "laplace" in said
    assert "assumed" in said
    invoke("run", "udpfl.toml", "--out", "run", *settings)
    assert "malignant" in invoke("evaluate", "run")
    assert "one row is all that there is" in str(udpfl.load("run").privacy)
    write(tmp_path / "new.csv", FEATURES, [row[:4] for row in tumours()[:3]])
    assert "benign" in invoke("predict", "run", "new.csv").splitlines()[0]
    invoke("report", "run")
