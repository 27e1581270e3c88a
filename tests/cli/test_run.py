"""`udpfl run` as a user meets it: what it prints, and what it says of wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import udpfl
from tests.commands import command
from udpfl.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("elsewhere")


# What it prints


def test_json_is_one_object_and_nothing_else(capsys, config, tmp_path):
    code, out, err = command(capsys, "run", config, "--out", tmp_path / "r", "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found.keys() >= {"accuracy", "loss", "privacy", "seconds", "run"}
    assert 0 <= found["accuracy"] <= 1
    assert found["loss"] > 0
    assert found["seconds"] > 0
    assert found["run"] == str(tmp_path / "r")
    assert found["stopped"] is None
    assert found["privacy"]["kind"] == "guarantee"
    assert 7 < found["privacy"]["epsilon"] <= 8
    kept = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert {name: kept[name] for name in found} == found
    lines = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[-1]["accuracy"] == found["accuracy"]
    assert rows[-1]["epsilon"]["max"] == found["privacy"]["epsilon"]


def test_a_report_for_people(capsys, config, tmp_path):
    code, out, err = command(capsys, "run", config)
    assert (code, err) == (0, "")
    (folder,) = (tmp_path / "runs").iterdir()
    assert "δ = 1e-05)-DP for one record added or removed" in out
    assert "this run only" in out
    assert f"{folder.relative_to(tmp_path)}, 3 rounds" in out
    assert "not private" not in out
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("privacy=none", "privacy is turned off"),
        ("privacy.mechanism=none", "privacy is turned off"),
        ("privacy.randomness=seeded", "seeded"),
    ],
)
def test_what_is_not_private_says_so(capsys, config, change, why):
    code, out, _ = command(capsys, "run", config, "--set", change, "--out", "r")
    assert code == 0
    assert "not private: " in out
    assert why in out
    assert "-DP" not in out
    stamp = json.loads(Path("r/run.json").read_text())["privacy"]
    assert stamp["kind"] == "none"
    assert why in stamp["why"]
    assert json.loads(Path("r/summary.json").read_text())["privacy"]["kind"] == "none"
    code, out, _ = command(capsys, "budget", "show", "r")
    assert code == 0
    assert out.count("not private") == 3


def test_nominal_accounting_says_so(capsys, config):
    options = ["--set", "privacy.accounting=scalar", "--set", "privacy.accountant=rdp"]
    code, out, _ = command(capsys, "run", config, *options)
    assert code == 0
    assert "nominal" in out
    assert "not a privacy guarantee" in out


def test_the_installed_command_prints_nothing_but_its_answer(config):
    program = [str(Path(sys.executable).with_name("udpfl")), "-q", "run", str(config), "--json"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["privacy"]["kind"] == "guarantee"


# Wrong input: exit code 2 and one line that names the key, the value, and what was meant


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["training.round=5"], ["training.round", "5", "did you mean training.rounds?"]),
        (["privacy.epsilonn=2"], ["privacy.epsilonn", "2", "did you mean privacy.epsilon?"]),
        (["lr=0.1"], ["lr", "0.1", "did you mean training.learning_rate?"]),
        (["training.rounds=many"], ["training.rounds", "whole number", "'many'"]),
        (["training.rounds=2.5"], ["training.rounds", "whole number", "2.5"]),
        (["training.rounds=0"], ["training.rounds", ">= 1", "0"]),
        (["privacy.epsilon=-1"], ["privacy.epsilon", "> 0", "-1"]),
        (["privacy.epsilon='8'"], ["privacy.epsilon", "'8'"]),
        (["privacy.delta=1.0"], ["privacy.delta", "< 1", "1.0"]),
        (["training.sampling_rate=1.5"], ["training.sampling_rate", "<= 1", "1.5"]),
        (["privacy.unit=household"], ["privacy.unit", "record", "client"]),
        (["privacy.norm=l3"], ["privacy.norm", "l3", "linf"]),
        (["privacy.mechanism=gausian"], ["privacy.mechanism", "gausian", "gaussian"]),
        (["privacy.mechanism=off"], ["privacy.mechanism", "known names are", "none"]),
        (["privacy.mechanism=gaussian", "privacy.delta=0"], ["privacy.delta", "gaussian", "pure"]),
        (["training.clients_per_round=9"], ["training.clients_per_round", "9", "3"]),
        (["data.clients=1000"], ["data.clients", "1000", "60"]),
        (["data.name=mnits"], ["data.name", "mnits", "mnist"]),
        (["data.options.target=colour"], ["data.options.target", "colour"]),
        (["model.name=logistics"], ["model.name", "logistics", "logistic"]),
        (["training.algorithm=fedagv"], ["training.algorithm", "fedagv", "did you mean fedavg"]),
        (["device=tpu"], ["device", "tpu", "cuda"]),
        (["device=cuda:99"], ["device", "cuda:99", "no such CUDA device"]),
        (["privacy.ledger=b.sqlite", "privacy.randomness=seeded"], ["privacy.ledger", "b.sqlite"]),
        (["rounds"], ["--set", "rounds"]),
    ],
)
def test_wrong_settings(capsys, config, tmp_path, changes, words):
    before = set(tmp_path.iterdir())
    options = [part for change in changes for part in ("--set", change)]
    code, out, err = command(capsys, "run", config, *options)
    assert code == 2
    assert out == ""
    assert err.startswith("udpfl: error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert set(tmp_path.iterdir()) == before  # nothing was begun


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_that_is_not_there(capsys, config):
    code, _, err = command(capsys, "run", config, "--set", "device=cuda")
    assert code == 2
    assert "device: 'cuda': this machine has no such CUDA device" in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("run --rounds 5", "--set training.rounds=5"),
        ("run --rounds=5", "--set training.rounds=5"),
        ("run --rounds", "--set training.rounds=VALUE"),
        ("run --round 5", "--set training.rounds=5"),
        ("run --learning-rate 0.1 --json", "--set training.learning_rate=0.1"),
        ("run --lr 0.1", "--set training.learning_rate=0.1"),
        ("run --training.rounds 5", "--set training.rounds=5"),
        ("run --epsilon [1,2]", "--set 'privacy.epsilon=[1,2]'"),
        ("run --privacy none", "--set privacy=none"),
        ("run --model mlp", "--set model.name=mlp"),
        ("run --modell mlp", "--set model.name=mlp"),
        ("run --roundz 5", "--set training.rounds=5"),
        ("run --name x", "--set data.name=x or --set model.name=x"),
        ("compare --clients 4", "--set data.clients=4"),
        ("audit run --seed 3", "--set seed=3"),
        ("config check x.toml --epsilon 3", "--set privacy.epsilon=3"),
    ],
)
def test_an_option_that_is_a_key_says_how_the_key_is_set(capsys, words, hint):
    code, out, err = command(capsys, *words.split())
    assert (code, out) == (2, "")
    assert err.endswith(f"It is a configuration key; use {hint}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --quiet", "It belongs before the verb: udpfl --quiet run"),
        ("run -q", "It belongs before the verb: udpfl -q run"),
        ("budget show x --verbose", "It belongs before the verb: udpfl --verbose budget show"),
        ("compare -v", "It belongs before the verb: udpfl -v compare"),
        ("run --epochs 3", "use --set training.rounds=3 or --set training.local_epochs=3"),
    ],
)
def test_an_option_in_the_wrong_place_says_where_it_belongs(capsys, words, said):
    code, out, err = command(capsys, *words.split())
    assert (code, out) == (2, "")
    assert err.endswith(f"{said}\n")


@pytest.mark.parametrize("moment", ["udpfl.cli.app", "typer", "udpfl.federation"])
def test_an_interrupt_while_something_is_imported_ends_quietly(moment, tmp_path):
    code = f"""
import sys
class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
from udpfl.cli import main
main(["run"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --outt x", "--out"), ("run --trak mlflow", "--track"), ("run --xyzzy 3", "--xyzzy"),
        ("run --training 3", "--training"), ("compare --seed 4", "--seeds"),
        ("report --rounds 5", "--rounds"),
        ("plan", "--steps"), ("run --squint x", "--squint"),
    ],
)  # fmt: skip
def test_what_is_no_key_or_near_to_an_option_says_nothing_of_keys(capsys, words, said):
    code, _, err = command(capsys, *words.split())
    assert code == 2
    assert said in err
    assert "--set " not in err.replace("--seeds, --set", "")


def test_a_configuration_that_cannot_be_read(capsys, tmp_path):
    code, _, err = command(capsys, "run", "nowhere.toml")
    assert code == 2
    assert "nowhere.toml" in err
    (tmp_path / "broken.toml").write_text("[data\nname = 3")
    code, _, err = command(capsys, "run", "broken.toml")
    assert code == 2
    assert "broken.toml line 1" in err


def test_mnist_without_its_files_says_where_to_put_them(capsys, monkeypatch, tmp_path):
    code, _, err = command(capsys, "run", "--set", "data.name=mnist")
    assert code == 2
    for word in ("data.dir", "UDPFL_DATA_DIR", "--data-dir"):
        assert word in err
    monkeypatch.setenv("UDPFL_DATA_DIR", str(tmp_path / "empty"))
    code, _, err = command(capsys, "run", "--set", "data.name=mnist")
    assert code == 2
    assert "train-images-idx3-ubyte" in err
    assert str(tmp_path / "empty") in err
    code, _, err = command(capsys, "run", "--set", "data.name=mnist", "--data-dir", "given")
    assert code == 2
    assert "given" in err
    assert "empty" not in err


def test_out_and_resume(capsys, config, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    code, _, err = command(capsys, "run", config, "--out", "full")
    assert code == 2
    assert "out: 'full' exists and is not empty" in err
    assert "--resume" in err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    for folder in ("full", "nowhere", "small.toml"):
        code, _, err = command(capsys, "run", "--resume", folder)
        assert code == 2
        what = "does not exist" if folder == "nowhere" else "is not a run folder"
        assert f"--resume: '{folder}' {what}" in err
    code, _, err = command(capsys, "run", config, "--resume", "full")
    assert code == 2
    assert "--resume" in err
    assert "nowhere" not in {path.name for path in tmp_path.iterdir()}


def test_a_finished_run_resumes_to_the_same_answer(capsys, config):
    code, out, _ = command(capsys, "run", config, "--out", "r", "--json")
    assert code == 0
    history = ("budget", "history", "r", "--json")
    _, before, _ = command(capsys, *history)
    code, again, _ = command(capsys, "run", "--resume", "r", "--json")
    assert code == 0
    assert json.loads(again)["accuracy"] == json.loads(out)["accuracy"]
    assert json.loads(again)["privacy"] == json.loads(out)["privacy"]
    first, second = json.loads(before), json.loads(command(capsys, *history)[1])
    assert second["charges"] == first["charges"]
    assert second["changes"][:-1] == first["changes"]
    assert [second["changes"][end]["kind"] for end in (-2, -1)] == ["end", "end"]


def test_the_model_file_says_what_it_cost(capsys, config):
    for name, extra in (("private", []), ("plain", ["--set", "privacy=none"])):
        assert command(capsys, "run", config, *extra, "--out", name)[0] == 0
    said = []
    for name in ("private", "plain"):
        with safe_open(f"{name}/model.safetensors", "pt") as file:
            said.append(json.loads(file.metadata()["udpfl"])["statement"])
    assert "-DP for one record" in said[0]
    assert said[1].startswith("not private")


def test_an_unfit_model_or_loss_is_named(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2
    with pytest.raises(InvalidInput, match="model: does not fit the data"):
        udpfl.run(model=torch.nn.Linear(3, 2), data=(x, y), out=str(tmp_path / "a"))
    with pytest.raises(InvalidInput, match=r"data: record \d+ has the label 1, .*shape \(1,\)"):
        udpfl.run(model=torch.nn.Linear(4, 1), data=(x, y), out=str(tmp_path / "b"))
    with pytest.raises(InvalidInput, match=r"model: must be an nn\.Module"):
        udpfl.run(model=42, data=(x, y))
    with pytest.raises(InvalidInput, match="one number per sample"):
        udpfl.run(model=torch.nn.Linear(4, 2), data=(x, y), loss=torch.nn.functional.cross_entropy)


def test_a_table_in_python_partitioned_by_a_column(config, tmp_path):
    lines = (tmp_path / "table.csv").read_text().splitlines()
    sites = [f"{line},{'site' if i == 0 else 'abc'[i % 3]}" for i, line in enumerate(lines)]
    (tmp_path / "sites.csv").write_text("\n".join(sites) + "\n")
    section = {
        "clients": 3,
        "partition": "column",
        "by": "site",
        "options": {"target": "kind", "scale": "none"},
    }
    result = udpfl.run(
        {"data": section, "training": {"rounds": 1}, "out": str(tmp_path / "run")},
        data=tmp_path / "sites.csv",
        model="logistic",
    )
    assert list(result.clients) == ["a", "b", "c"]
    assert {account.client for account in result.ledger.accounts()} == {"a", "b", "c"}
    assert next(result.model.parameters()).shape == (3, 3)  # the column is no feature
