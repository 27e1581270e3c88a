"""Run folders that name somebody's class, and classes of the wrong kind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import udpfl
from tests.plugins.example import BLOBS, PLACES, PLUGIN, QUICK
from tests.small import PowerCut, Stops
from udpfl.accounting.serial import event_to_json
from udpfl.config import load
from udpfl.plugins import resolve

TRUST = "if this code is one you trust, allow it with --trust %s,"

pytestmark = pytest.mark.usefixtures("installed")


def command(path: list[str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own, with the code that is tested here."""
    places = [str(Path(udpfl.__file__).parents[1]), *path]
    return subprocess.run(
        [Path(sys.executable).with_name("udpfl"), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "COLUMNS": "200"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


# A run folder that names somebody's class


def private(folder: Path) -> dict:
    """Three rounds of two clients with logistic noise."""
    return {
        "data": {"name": "blobs", "clients": 2, "options": BLOBS},
        "model": {"name": "logistic"},
        "privacy": {"mechanism": "logistic", "epsilon": 4.0, "accountant": "rdp"},
        "training": {**QUICK, "rounds": 3},
        "out": str(folder),
    }


def balances(path: list[str], folder: Path, *options: str) -> list[dict]:
    shown = command(path, "budget", "show", folder, "--json", *options)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def test_a_run_with_such_noise_is_resumed_and_its_budget_shown(installed, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(PowerCut):
        udpfl.run(private(folder), observers=[Stops(after=2)])
    people = (folder / "participants.json").read_bytes()
    resumed = udpfl.run(resume=folder)
    assert (folder / "participants.json").read_bytes() == people
    assert [row["round"] for row in resumed.metrics] == [1, 2, 3]
    assert resumed.privacy.kind == "guarantee"
    assert 3.9 < resumed.privacy.epsilon <= 4.0

    rows = balances(installed, folder)
    assert [row["client"] for row in rows] == ["client-0", "client-1"]
    for row in rows:
        assert row["releases"] == 3  # one each round: nothing is charged twice
        assert row["statement"]["kind"] == "guarantee"
        assert row["statement"]["epsilon"] == pytest.approx(resumed.privacy.epsilon)
        assert 0 <= row["left"] < 0.03


@pytest.mark.parametrize("theirs", ["nothing", "not installed", "another density"])
def test_nobody_is_told_a_number_without_the_very_class(tmp_path, theirs):
    folder, path, options = tmp_path / "run", [], []
    udpfl.run({**private(folder), "training": QUICK})
    reason = f"code is not imported because a file names it: {TRUST % PLACES['logistic']}"
    if theirs == "not installed":  # it could be imported, and no package offers it
        path = [str(PLUGIN)]
    if theirs == "another density":
        path, reason = [str(tmp_path)], "has another density than when it was stored"
        options = ["--trust", PLACES["logistic"]]
        shutil.copytree(PLUGIN / "udpfl_example", tmp_path / "udpfl_example")
        module = tmp_path / "udpfl_example" / "noise.py"
        module.write_text(module.read_text().replace("- 2 * np.log1p", "- 1 * np.log1p"))
    for row in balances(path, folder, *options):
        assert row["releases"] == QUICK["rounds"]
        assert row["statement"]["kind"] == "none"
        assert reason in row["statement"]["notes"][0]
        assert row["left"] is None


@pytest.mark.slow
def test_the_readme_of_the_package_in_processes_of_their_own(installed, tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", (PLUGIN / "README.md").read_text(), re.DOTALL)
    config = tomllib.loads(text)
    sections = ("data", "model", "privacy", "training")
    names = [config[section].get(key) for section in sections
             for key in ("name", "mechanism", "algorithm")]  # fmt: skip
    assert set(names) - {None} == PLACES.keys() - {"power"}
    (tmp_path / "mine.toml").write_text(text)
    folder = tmp_path / "run"
    done = command(installed, "run", tmp_path / "mine.toml", "--out", folder, "--json")
    assert done.returncode == 0, done.stderr
    privacy = json.loads(done.stdout)["privacy"]
    assert privacy["kind"] == "guarantee"
    assert 3.9 < privacy["epsilon"] <= 4.0

    (folder / "checkpoints" / "round-000010.safetensors").unlink()
    resumed = command(installed, "run", "--resume", folder, "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["privacy"] == privacy
    lost = command([], "run", "--resume", folder)
    assert lost.returncode == 2
    assert "blobs" in lost.stderr


def test_the_readme_of_the_package_says_where_everything_is():
    text = (PLUGIN / "README.md").read_text()
    rows = re.findall(r"^\| (?:model|data set|method|noise) .*$", text, re.MULTILINE)
    for name, place in PLACES.items():
        shown = "…:POWER" if name == "power" else place
        assert sum(f"`{name}`" in row and f"`{shown}`" in row for row in rows) == 1
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert load(tomllib.loads(block)).training.algorithm == "fedcm"


def entries(folder: Path, points: str) -> list[str]:
    """Where a package lies that offers exactly these mechanisms of the example."""
    info = folder / "one-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[udpfl.mechanisms]\n{points}\n")
    return [str(PLUGIN), str(folder)]


@pytest.mark.parametrize(
    ("points", "known"),
    [
        ("power = udpfl_example.noise:POWER", True),  # an instance of the class
        ("power = udpfl_example.noise:Power", True),
        ("gone = udpfl_example.gone:Gone\npower = udpfl_example.noise:POWER", True),
        ("gone = udpfl_example.gone:Gone", False),
    ],
)
def test_an_installed_package_offers_the_classes_of_its_entry_points(tmp_path, points, known):
    from udpfl_example.noise import POWER

    text = event_to_json(udpfl.Release(POWER, udpfl.Sensitivity(1.0, dimension=2)))
    code = "import sys; from udpfl.accounting.serial import *; event_from_json(sys.argv[1])"
    places = [str(Path(udpfl.__file__).parents[1]), *entries(tmp_path, points)]
    done = subprocess.run(
        [sys.executable, "-c", code, text],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == known, done.stderr
    if not known:
        assert TRUST % "udpfl_example.noise:Power" in done.stderr
        assert "cannot import 'gone' (udpfl_example.gone:Gone)" in done.stderr


def test_what_a_package_offers_is_not_looked_for_in_the_current_folder(tmp_path, monkeypatch):
    """A stranger's folder of the same name is not imported in the place of what is installed."""
    (tmp_path / "udpfl_example").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != ""])
    wide = resolve("models", PLACES["wide"], {})
    assert wide is resolve("models", "wide", {})
    assert str(tmp_path) not in sys.path


# What is refused


WRONG = {
    "a mechanism that is a function": (
        "privacy", {"mechanism": PLACES["wide"]}, "privacy.mechanism", "is not a mechanism"),
    "a mechanism that is a method": (
        "privacy", {"mechanism": "fedcm"}, "privacy.mechanism",
        "no 'fedcm'.* known names are .*logistic.*power"),
    "an abstract mechanism": (
        "privacy", {"mechanism": "udpfl:Tabulated"}, "privacy.mechanism", "abstract"),
    "a mechanism with two parameters": (
        "privacy", {"mechanism": "udpfl:Staircase"}, "privacy.mechanism", "name an instance"),
    "a method that is a class of noise": (
        "training", {"algorithm": PLACES["logistic"]}, "training.algorithm", "not an Algorithm"),
    "a method that is no class": (
        "training", {"algorithm": PLACES["power"]}, "training.algorithm", "not an Algorithm"),
    "a function that makes no method": (
        "training", {"algorithm": "wrong_kinds:method"}, "training.algorithm", "not an Algorithm"),
    "half a method": (
        "training", {"algorithm": "wrong_kinds:Half"}, "training.options", "aggregate"),
    "an option the method does not have": (
        "training", {"algorithm": "fedcm", "options": {"nu": 1.0}}, "training.options.nu",
        "its options are: alpha"),
    "an option the method refuses": (
        "training", {"algorithm": "fedcm", "options": {"alpha": 0.0}},
        "training.options.alpha", "above 0"),
    "a function that makes no network": (
        "model", {"name": "wrong_kinds:network"}, "model.name", "must return an nn.Module"),
    "a model that is a loader": ("model", {"name": PLACES["blobs"]}, "model.name", "input_shape"),
    "a model that is no function": (
        "model", {"name": "udpfl_example.blobs:DEFAULTS"}, "model.name", "builds a network"),
    "an option the model does not have": (
        "model", {"name": "wide", "options": {"widht": 3}}, "model.options.widht", "width"),
    "data that is no function": (
        "data", {"name": "udpfl_example.blobs:DEFAULTS"}, "data.name", "not a function"),
    "data that is a network": (
        "data", {"name": PLACES["wide"]}, "data.name", "function of seed, directory, test"),
    "a loader that loads nothing": ("data", {"name": "wrong_kinds:data"}, "data", "got int"),
    "an option the data set does not have": (
        "data", {"name": "blobs", "options": {"recrods": 5}}, "data.options.recrods", "records"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_kinds_are_named_and_leave_nothing_behind(tmp_path, monkeypatch, case):
    section, values, parameter, message = WRONG[case]
    (tmp_path / "wrong_kinds.py").write_text(
        "from udpfl.algorithms import FedAvg, Algorithm\n"
        "def network(input_shape, outputs): return 'a network'\n"
        "def method(server): return server\n"
        "def data(*, seed, directory, test, options): return 7\n"
        "class Half(Algorithm):\n"
        "    init, client_step = FedAvg.init, FedAvg.client_step\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_kinds", raising=False)
    config = {
        "data": {"name": "blobs", "clients": 2, "options": BLOBS},
        "model": {"name": "logistic"},
        "privacy": {"mechanism": "gaussian", "accountant": "rdp"},
        "training": QUICK,
        "out": str(tmp_path / "run"),
    }
    with pytest.raises(udpfl.InvalidInput, match=message) as refused:
        udpfl.run({**config, section: {**config[section], **values}})
    assert refused.value.parameter == parameter
    assert not (tmp_path / "run").exists()
