"""`udpfl run` and what is asked of its folder, as a user meets them."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import udpfl
from tests.commands import command
from tests.repository import ROOT
from udpfl import running
from udpfl.config import Config, load
from udpfl.errors import InvalidInput
from udpfl.federation.observers import Observer


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Runs without --out land in a folder of their own, and no data of this machine is found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UDPFL_DATA_DIR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def config(tmp_path):
    """Three clients, three rounds, Laplace noise on a small table."""
    rng = np.random.default_rng(0)
    lines = ["a,b,c,kind"]
    for i in range(75):
        values = rng.normal(size=3) + 3 * np.eye(3)[i % 3]
        lines.append(",".join(f"{value:.4f}" for value in values) + f",{'xyz'[i % 3]}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "small.toml"
    path.write_text(
        """
        [data]
        name = "table"
        clients = 3
        options = { path = "table.csv", target = "kind" }
        [model]
        name = "logistic"
        [privacy]
        mechanism = "laplace"
        [training]
        rounds = 3
        learning_rate = 0.3
        """
    )
    return path


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
    assert stamp.startswith("not private")
    assert why in stamp
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
    program = [str(Path(sys.executable).with_name("udpfl")), "run", str(config), "--json"]
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
        (["privacy.unit=person"], ["privacy.unit", "record", "client"]),
        (["privacy.norm=l3"], ["privacy.norm", "l3", "linf"]),
        (["privacy.mechanism=gausian"], ["privacy.mechanism", "gausian", "gaussian"]),
        (["privacy.mechanism=off"], ["privacy.mechanism", "known are", "none"]),
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
        ("run --name x", "--set data.name=x or --set model.name=x"),
        ("compare --clients 4", "--set data.clients=4"),
        ("audit run --seed 3", "--set seed=3"),
        ("config check x.toml --epsilon 3", "--set privacy.epsilon=3"),
    ],
)
def test_an_option_that_is_a_key_says_how_the_key_is_set(capsys, words, hint):
    code, out, err = command(capsys, *words.split())
    assert (code, out) == (2, "")
    assert err.endswith(f"it is a key of the configuration: {hint}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --outt x", "--out"), ("run --trak mlflow", "--track"), ("run --xyzzy 3", "--xyzzy"),
        ("run --training 3", "--training"), ("compare --seed 4", "--seeds"),
        ("plan --rounds 5 --epsilon 3 --steps 2", "--rounds"), ("report --rounds 5", "--rounds"),
        ("plan", "--epsilon"),
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
        assert f"--resume: '{folder}' is not a run folder" in err
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


# Budgets


def test_a_used_up_budget_ends_with_exit_code_1_and_clear_words(capsys, config, tmp_path):
    shared = ["--set", "privacy.ledger=site.sqlite"]
    code, out, err = command(capsys, "run", config, *shared)
    assert (code, err) == (0, "")
    assert "site.sqlite (shared between runs, new)" in out
    code, out, err = command(capsys, "run", config, *shared, "--out", "second", "--json")
    assert (code, out) == (1, "")
    assert err.startswith(
        "udpfl: error: client-0, client-1, client-2: the budget in site.sqlite does not hold this "
        "run; nothing was trained"
    )
    assert err.count("\n") == 1
    assert not (tmp_path / "second").exists()
    more = ["budget", "set", "site.sqlite", "client-1", "--epsilon", "40", "--delta", "1e-5"]
    code, _, err = command(capsys, *more)
    assert code == 2
    assert err.startswith("udpfl: error: --reason: is needed where a budget rises: client-1 has ε")
    code, out, _ = command(capsys, *more, "--reason", "it agreed")
    assert code == 0
    assert "client-1: budget ε = 40" in out
    code, _, err = command(capsys, "run", config, *shared)
    assert code == 1
    assert err.startswith("udpfl: error: client-0, client-2: the budget in site.sqlite")
    skip = ["--set", "privacy.exhausted=skip"]
    code, out, err = command(capsys, "run", config, *shared, *skip, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["stopped"] is None
    assert found["privacy"]["epsilon"] > 8
    code, _, err = command(capsys, "run", config, *shared, "--set", "privacy.exhausted=stop")
    assert code == 2
    assert "privacy.exhausted: 'stop' is gone, 'refuse' is its successor" in err


class Miser(Observer):
    """Lowers every budget after the first round, as somebody else may."""

    def on_round(self, row):
        if row["round"] == 1:
            with udpfl.Ledger(Path("site.sqlite")) as ledger:
                ledger.set_budgets([own.id for own in ledger.accounts()], udpfl.Budget(4.0, 1e-5))


def test_a_run_that_ends_before_its_last_round_has_exit_code_1(capsys, config, monkeypatch):
    train = running.run
    monkeypatch.setattr(
        running,
        "run",
        lambda *given, **named: train(*given, **{**named, "observers": [Miser()]}),
    )
    shared = ["--set", "privacy.ledger=site.sqlite"]
    code, out, err = command(capsys, "run", config, *shared, "--out", "r", "--json")
    assert code == 1
    assert err.startswith(
        "udpfl: no client is left to train: client-0, client-1, client-2: the budget"
    )
    assert err.count("\n") == 1
    found = json.loads(out)
    assert "no client is left" in found["stopped"]
    assert found["accuracy"] is not None
    assert 0 < found["privacy"]["epsilon"] <= 4
    rows = Path("r/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [1]


def test_the_ledger_of_a_run_folder(capsys, config, tmp_path):
    options = ["--set", "privacy.epsilon=[2, 8]", "--set", "training.local_steps=2"]
    assert command(capsys, "run", config, "--out", "r", *options)[0] == 0

    code, out, err = command(capsys, "budget", "show", "r", "--json")
    assert (code, err) == (0, "")
    rows = {row["client"]: row for row in json.loads(out)}
    assert rows.keys() == {"client-0", "client-1", "client-2"}
    for name, epsilon in (("client-0", 2), ("client-1", 8), ("client-2", 2)):
        assert rows[name]["releases"] == 6
        assert rows[name]["budget"] == {"epsilon": epsilon, "delta": 1e-5}
        assert 0.97 * epsilon < rows[name]["statement"]["epsilon"] <= epsilon
        assert rows[name]["statement"]["kind"] == "guarantee"
        assert len(rows[name]["runs"]) == 1
        assert [own["releases"] for own in rows[name]["data"]] == [6]
        assert len(rows[name]["data"][0]["fingerprint"]) == 32
        assert (rows[name]["block"], rows[name]["reserved"]) == ("", [])
    code, out, _ = command(capsys, "budget", "show", "r", "--client", "client-1")
    assert code == 0
    assert "client-1" in out
    assert "client-0" not in out
    code, _, err = command(capsys, "budget", "show", "r", "--client", "client-9")
    assert code == 2
    assert "client-9" in err

    code, out, _ = command(capsys, "budget", "history", "r", "--client", "client-2", "--json")
    assert code == 0
    history = json.loads(out)
    assert history.keys() == {"charges", "changes"}
    assert [(row["client"], row["round"], row["count"]) for row in history["charges"]] == [
        ("client-2", 1, 2),
        ("client-2", 2, 2),
        ("client-2", 3, 2),
    ]
    assert {row["event"]["type"] for row in history["charges"]} == {"PoissonSampled"}
    (budget,) = [row for row in history["changes"] if row["kind"] == "budget"]
    assert budget["content"] == {"epsilon": 2.0, "delta": 1e-5}
    assert len({row["account"] for row in history["changes"]}) == 1  # of no other client
    code, out, _ = command(capsys, "budget", "history", "r")
    assert code == 0
    assert "laplace" in out

    for name in ("charges.csv", "charges.json"):
        code, out, _ = command(capsys, "budget", "export", "r", name)
        assert code == 0
        assert "wrote 9 charges" in out
    with (tmp_path / "charges.csv").open() as file:
        exported = list(csv.DictReader(file))
    assert sum(int(row["count"]) for row in exported) == 18
    assert len(json.loads((tmp_path / "charges.json").read_text())) == 9
    code, _, err = command(capsys, "budget", "export", "r", "charges.txt")
    assert code == 2
    assert "charges.txt" in err

    code, out, _ = command(capsys, "budget", "verify", "r")
    assert code == 0
    assert "sound: 9 charges of 3 clients" in out
    with sqlite3.connect("r/ledger.sqlite") as raw:
        for (trigger,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            raw.execute(f"DROP TRIGGER {trigger}")
        raw.execute("UPDATE charges SET count = 1 WHERE id = 4")
    raw.close()
    code, out, _ = command(capsys, "budget", "verify", "r")
    assert code == 1
    assert "charge 4 was edited" in out


def test_there_is_no_ledger_where_there_was_no_run(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    for verb in ("show", "history", "verify"):
        code, _, err = command(capsys, "budget", verb, "empty")
        assert code == 2
        assert "there is no ledger" in err
    assert list((tmp_path / "empty").iterdir()) == []


# Configurations that come along


def test_the_printed_example_is_a_configuration(capsys, tmp_path):
    code, out, _ = command(capsys, "config", "example")
    assert code == 0
    (tmp_path / "my.toml").write_text(out)
    assert load(tmp_path / "my.toml") == Config()
    assert command(capsys, "config", "check", "my.toml")[0] == 0
    assert command(capsys, "config", "check", "my.toml", "--set", "training.rounds=0")[0] == 2


MNIST = os.environ.get("UDPFL_DATA_DIR")


@pytest.mark.skipif(not MNIST, reason="UDPFL_DATA_DIR does not say where MNIST is")
def test_mnist_from_its_files(capsys):
    options = [
        "training.rounds=1",
        "model.name=logistic",
        "model.options={}",
        "privacy.accountant=rdp",
        "out=r",
    ]
    changes = [part for option in options for part in ("--set", option)]
    code, out, err = command(
        capsys, "run", ROOT / "configs" / "mnist.toml", *changes, "--data-dir", MNIST, "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["accuracy"] > 0.5
    assert found["privacy"]["kind"] == "guarantee"
    people = json.loads(Path("r/participants.json").read_text())
    assert [row["declared_size"] for row in people] == [6000] * 10


def test_the_embedded_default_reaches_its_accuracy_within_its_budget(capsys, tmp_path):
    """What `make run` does: ten clients, epsilon 8, and what the README promises of it.

    The promise is about the mean (0.907, standard deviation 0.007 over 36 runs of this seed), so an
    unlucky run is asked once more; two in a row would be a defect.
    """
    accuracies: list[float] = []
    while not accuracies or (len(accuracies) < 2 and accuracies[0] < 0.87):
        out_folder = tmp_path / "run" if not accuracies else tmp_path / "again"
        arguments = ["--set", "threads=2", "--out", out_folder, "--json"]
        code, out, err = command(capsys, "run", *arguments)
        assert code == 0, err
        outcome = json.loads(out)
        accuracies.append(outcome["accuracy"])
    assert sum(accuracies) / len(accuracies) >= 0.87, accuracies
    assert outcome["privacy"]["kind"] == "guarantee"
    assert 7.9 < outcome["privacy"]["epsilon"] <= 8
    saved = np.load(tmp_path / "run" / "records.npz")
    assert len(saved["train"]) == 4000
    assert not set(saved["train"]) & set(saved["test"])
    assert len(np.unique(np.concatenate([saved[f"client-{i}"] for i in range(10)]))) == 4000


def test_budget_show_finds_the_shared_ledger_of_a_run(capsys, config, tmp_path):
    shared = ["--set", "privacy.ledger=shared.sqlite"]
    code, _, err = command(capsys, "run", config, *shared, "--out", "first")
    assert code == 0, err
    code, out, err = command(capsys, "budget", "show", "first", "--json")
    assert code == 0, err
    assert len(json.loads(out)) == 3
    more = ["budget", "set", "first", "all", "--epsilon", 50, "--delta", 1e-5]
    assert command(capsys, *more)[0] == 2  # not without a reason
    assert command(capsys, "run", config, *shared, "--out", "second")[0] == 1
    code, out, err = command(capsys, *more, "--reason", "a second run")
    assert (code, out) == (0, "3 clients: budget ε = 50 at δ = 1e-05\n")
    assert command(capsys, "run", config, *shared, "--out", "second")[0] == 0


def test_a_damaged_shared_ledger_is_not_charged(capsys, config):
    shared = ["--set", "privacy.ledger=shared.sqlite"]
    assert command(capsys, "run", config, *shared, "--out", "first")[0] == 0
    with sqlite3.connect("shared.sqlite") as file:
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            file.execute(f"DROP TRIGGER {name}")
        file.execute("DELETE FROM charges WHERE id = 2")
    file.close()
    code, _, err = command(capsys, "run", config, *shared, "--out", "second")
    assert code == 2
    assert "the ledger is not sound" in err


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
    section = {"clients": 3, "partition": "column", "by": "site", "options": {"target": "kind"}}
    result = udpfl.run(
        {"data": section, "training": {"rounds": 1}, "out": str(tmp_path / "run")},
        data=tmp_path / "sites.csv",
        model="logistic",
    )
    assert list(result.clients) == ["a", "b", "c"]
    assert {account.client for account in result.ledger.accounts()} == {"a", "b", "c"}
    assert next(result.model.parameters()).shape == (3, 3)  # the column is no feature
