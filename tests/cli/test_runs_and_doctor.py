"""`udpfl runs` and `udpfl doctor`: what there is, and whether it is in order."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

import udpfl
from tests.commands import command
from udpfl.cli import _checks
from udpfl.runs.folder import RunFolder
from udpfl.runs.listing import list_runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    x = np.eye(4).repeat(20, 0)
    settings = {"data": {"clients": 2}, "training": {"rounds": 2}, "threads": 1}
    for name, privacy in (("private", {}), ("without", {"privacy": "none"})):
        own = {**settings, **privacy, "out": str(folder / name)}
        udpfl.run(own, data=(x, x.argmax(1)), model="logistic")
    return folder


@pytest.fixture
def runs(trained, tmp_path):
    """A copy whose runs may be broken."""
    shutil.copytree(trained, tmp_path / "runs")
    return tmp_path / "runs"


def listed(folder):
    return {run.folder.removeprefix(f"{folder}/"): run for run in list_runs(folder)}


def test_a_finished_run_is_listed_with_what_came_of_it(runs):
    private, free = list_runs(runs)  # in the order in which they began
    assert (private.state, private.method, private.rounds, private.planned) == (
        "finished", "fedavg", 2, 2,
    )  # fmt: skip
    summary = json.loads((runs / "private" / "summary.json").read_text())
    assert private.accuracy == summary["accuracy"]
    assert private.epsilon == summary["privacy"]["epsilon"]
    assert private.privacy == "guarantee"
    assert (free.privacy, free.epsilon) == ("none", None)


def test_other_states(runs):
    one, other = runs / "private", runs / "deep" / "er"
    shutil.copytree(one, other)
    (other / "summary.json").unlink()
    assert listed(runs)["deep/er"].state == "interrupted"
    assert listed(runs)["deep/er"].epsilon == listed(runs)["private"].epsilon  # by its metrics
    with RunFolder(other).locked():
        assert listed(runs)["deep/er"].state == "running"
    assert listed(runs)["deep/er"].state == "interrupted"
    plain = json.loads((one / "summary.json").read_text()) | {"stopped": "no budget is left"}
    (one / "summary.json").write_text(json.dumps(plain))
    assert (listed(runs)["private"].state, listed(runs)["private"].why) == (
        "stopped", "no budget is left",
    )  # fmt: skip
    (runs / "without" / "run.json").write_text("{")
    assert listed(runs)["without"].state == "broken"
    assert "run.json" in str(listed(runs)["without"].why)


def test_the_command_lists_runs_for_people_and_programs(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    (runs / "without" / "summary.json").unlink()
    code, out, _ = command(capsys, "runs", runs)
    assert code == 0
    assert "finished" in out
    assert f"to go on: udpfl run --resume {runs / 'without'}" in out
    rows = json.loads(command(capsys, "runs", runs, "--json")[1])
    assert [row["state"] for row in rows] == ["finished", "interrupted"]
    code, out, _ = command(capsys, "runs", runs / "private")  # a run itself
    assert code == 0
    assert "private" in out


def test_where_there_are_no_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(capsys, "runs")[:2] == (0, "no runs in .\n")
    (tmp_path / "runs").mkdir()
    assert command(capsys, "runs")[:2] == (0, "no runs in runs\n")


def test_listing_imports_nothing_that_trains(runs):
    code = (
        "import sys; from udpfl.cli.app import call\n"
        f"assert call(['runs', {str(runs)!r}]) == 0\n"
        "print(sorted({'torch', 'matplotlib', 'scipy.stats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# The doctor


def examined(capsys, *arguments):
    code, out, _ = command(capsys, "doctor", "--json", *arguments)
    return code, {row["name"]: row for row in json.loads(out)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UDPFL_DATA_DIR", raising=False)
    return tmp_path


def test_all_is_well(capsys, here):
    code, rows = examined(capsys)
    assert code == 0
    assert {"python", "udpfl", "libraries", "extra train", "device", "threads", "data folder",
            "data sets", "ledgers"} <= rows.keys()  # fmt: skip
    assert "mnist5k" in rows["data sets"]["said"]
    assert rows["ledgers"]["said"] == "none in this folder"
    code, out, _ = command(capsys, "doctor")
    assert code == 0
    assert "hash chain" not in out


def test_ledgers_here_are_found_and_others_are_left_alone(capsys, here, runs):
    shutil.copy(runs / "private" / "ledger.sqlite", here / "site.sqlite")
    with sqlite3.connect(here / "other.sqlite") as other:
        other.execute("CREATE TABLE things (name)")
    code, rows = examined(capsys)
    assert code == 0
    assert rows["ledger site.sqlite"]["said"] == "4 charges of 2 clients, hash chain verified"
    assert "ledger other.sqlite" not in rows
    assert examined(capsys, runs / "private")[0] == 0


def test_an_edited_ledger_is_a_problem(capsys, here, runs):
    path = here / "site.sqlite"
    shutil.copy(runs / "private" / "ledger.sqlite", path)
    with sqlite3.connect(path) as file:
        for (trigger,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            file.execute(f'DROP TRIGGER "{trigger}"')
        file.execute("UPDATE charges SET count = count + 1 WHERE id = 1")
    code, rows = examined(capsys)
    assert code == 1
    assert rows["ledger site.sqlite"]["status"] == "problem"
    assert "udpfl budget verify site.sqlite" in rows["ledger site.sqlite"]["do"]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_ledger_that_cannot_be_written_is_a_warning(capsys, here, runs, monkeypatch):
    shutil.copy(runs / "private" / "ledger.sqlite", here / "site.sqlite")
    monkeypatch.setattr(_checks.os, "access", lambda path, mode: False)  # root may write anything
    code, rows = examined(capsys)
    assert code == 0
    assert rows["ledger site.sqlite"]["status"] == "warning"


def test_what_is_missing_is_named(capsys, here, monkeypatch):
    code, rows = examined(capsys, here / "nothing.sqlite", "--data-dir", here / "nowhere")
    assert code == 1
    assert rows["data folder"]["status"] == "problem"
    assert rows[f"ledger {here / 'nothing.sqlite'}"]["status"] == "problem"
    known = _checks._version
    monkeypatch.setattr(_checks, "_version", lambda name: None if name == "torch" else known(name))
    assert examined(capsys)[1]["extra train"]["status"] == "warning"
    monkeypatch.setattr(_checks, "_version", lambda name: None)
    code, rows = examined(capsys)
    assert (code, rows["libraries"]["status"]) == (1, "problem")
