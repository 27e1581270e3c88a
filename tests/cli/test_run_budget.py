"""`udpfl run` and the ledger of its folder, as a user meets them."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path

import pytest

import udpfl
from tests.commands import command
from udpfl import running
from udpfl.federation.observers import Observer

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_a_used_up_budget_ends_with_exit_code_1_and_clear_words(capsys, config, tmp_path):
    shared = ["--set", "privacy.ledger=site.sqlite"]
    code, out, err = command(capsys, "run", config, *shared)
    assert (code, err) == (0, "")
    assert "site.sqlite (shared between runs, new)" in out
    code, out, err = command(capsys, "run", config, *shared, "--out", "second", "--json")
    assert (code, out) == (1, "")
    assert err.startswith(
        "udpfl: error: client-0, client-1, client-2: the budget in site.sqlite is too small for "
        "this run; nothing was trained"
    )
    assert err.count("\n") == 1
    assert not (tmp_path / "second").exists()
    more = ["budget", "set", "site.sqlite", "client-1", "--epsilon", "40", "--delta", "1e-5"]
    code, _, err = command(capsys, *more)
    assert code == 2
    assert err.startswith("udpfl: error: --reason: is needed to raise a budget: client-1 has ε")
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
    assert "privacy.exhausted: 'stop' no longer exists: use 'refuse'" in err


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
