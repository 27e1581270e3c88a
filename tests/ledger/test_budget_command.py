"""`udpfl budget` as a user meets it."""

from __future__ import annotations

import csv
import json
import math

import pytest
import typer
from typer.testing import CliRunner

from tests.accounting.samples import STEP, TENTH
from tests.ledger.samples import ROUND, charge, raw
from udpfl import Budget, InvalidInput, Repeated, account
from udpfl.accounting.serial import event_from_dict, event_from_json
from udpfl.cli._decisions import budget as budget_app
from udpfl.ledger.ledger import Ledger

app = typer.Typer()
app.add_typer(budget_app)


def call(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["budget", *map(str, arguments)])


def failure(*arguments):
    result = call(*arguments)
    assert result.exit_code == 1
    return result.exception


def test_show(used):
    rows = json.loads(call("show", used.parent, "--json").stdout)  # the folder of a run
    alice, bob = rows
    expected = account(Repeated(STEP, 15), 1e-5).epsilon
    assert (alice["client"], alice["releases"], alice["runs"]) == ("alice", 15, ["run"])
    assert alice["statement"]["epsilon"] == pytest.approx(expected)
    assert alice["left"] == pytest.approx(1 - expected / 2.0)
    assert (bob["statement"]["kind"], bob["budget"], bob["left"]) == ("none", None, None)
    table = call("show", used).stdout
    assert "  data aa11" in table
    assert f"{math.floor(100 * (1 - expected / 2))} %" in table
    assert "not private" in table
    assert "bob: noise of a seeded run" in table
    assert "bob" not in call("show", used, "--client", "alice").stdout
    assert failure("show", used, "--delta", "2").parameter == "delta"
    assert failure("show", used, "--client", "carol").parameter == "client"


def test_set(used):
    higher = ("set", used, "alice", "--epsilon", "3", "--delta", "1e-6")
    assert failure(*higher).parameter == "reason"
    said = call(*higher, "--reason", "ethics vote", "--by", "Ada").stdout
    assert "budget ε = 3 at δ = 1e-06" in said
    with Ledger(used) as ledger:
        assert ledger.budget(1) == Budget(3.0, 1e-6)
        last = ledger.decisions(1)[-1]
        assert (last.kind, last.reason, last.author) == ("budget", "ethics vote", "Ada")
    options = ("--epsilon", "2", "--delta", "1e-6")
    assert call("set", used, "alice", *options).exit_code == 0  # lower needs no reason
    assert failure("set", used, "alice", *options, "--block", "Q3").parameter == "block"
    assert failure("set", used, "carol", *options).parameter == "client"
    for bad in (("--epsilon", "2.5", "--delta", "1e-6"), ("--epsilon", "2", "--delta", "1e-5")):
        assert failure("set", used, "alice", *bad, "--reason", " ").parameter == "reason"
    assert failure("set", used, "alice", "--epsilon", "-1", "--delta", "0").parameter == "epsilon"


def test_history_and_export(used, tmp_path):
    call("set", used, "alice", "--epsilon", "1.9", "--delta", "1e-5", "--by", "Ada")
    found = json.loads(call("history", used, "--json").stdout)
    assert found["changes"][-1]["content"] == {"delta": 1e-5, "epsilon": 1.9}
    assert found["changes"][-1]["author"] == "Ada"
    rows = [{k: v for k, v in row.items() if k != "folder"} for row in found["charges"]]
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert event_from_dict(rows[0]["event"]) == STEP
    table = call("history", used, "--client", "alice").stdout
    assert "gaussian (std 1.1), l2 clip 1 per record, sampled at 0.02" in table
    assert "bob" not in table
    assert "budget ε = 1.9 at δ = 1e-05" in table
    assert "Ada" in table
    assert table.count("gaussian") == 1  # three rounds alike are one line, with their sum
    assert "0–2" in table
    assert " 15 " in table
    every = call("history", used, "--client", "alice", "--all").stdout
    assert every.count("gaussian") == 3
    assert "0–2" not in every
    for name in ("charges.json", "charges.csv"):
        assert "wrote 6 charges" in call("export", used, tmp_path / name).stdout
    assert json.loads((tmp_path / "charges.json").read_text(encoding="utf-8")) == rows
    with (tmp_path / "charges.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(line["client"], line["count"]) for line in lines[:2]] == [("alice", "5"), ("bob", "1")]
    assert event_from_json(lines[0]["event_json"]) == STEP
    assert failure("export", used, tmp_path / "charges.xml").parameter == "file"
    assert failure("export", used, tmp_path / "nowhere" / "charges.csv").parameter == "file"


def test_verify_command(used):
    assert call("verify", used).stdout == "sound: 6 charges of 2 clients\n"
    with raw(used) as db:
        db.execute("DROP TRIGGER charges_never_update")
        db.execute("UPDATE charges SET count = 1 WHERE id = 5")
    result = call("verify", used)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2  # the edit and the missing trigger
    assert "charge 5 was edited" in result.stdout
    used.write_bytes(b"nonsense" * 1000)
    assert "damaged" in call("verify", used).stdout


@pytest.mark.parametrize("verb", ["show", "set", "history", "export", "verify"])
def test_a_missing_ledger_is_never_created(tmp_path, verb):
    more = {"set": ["alice", "--epsilon", "1", "--delta", "0"], "export": [tmp_path / "out.csv"]}
    for missing in (tmp_path / "none.sqlite", tmp_path):
        error = failure(verb, missing, *more.get(verb, []))
        assert isinstance(error, InvalidInput)
        assert error.parameter == "ledger"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["show", "set", "history", "export", "verify"])
def test_every_verb_shows_an_example(verb):
    assert f"udpfl budget {verb} " in call(verb, "--help").stdout
    assert verb in call().stdout


def test_one_unreadable_account_hides_no_other(used):
    with raw(used) as db:
        db.execute("DROP TRIGGER charges_never_update")
        db.execute("UPDATE charges SET event = replace(event, 'gaussian', 'x') WHERE account = 1")
        db.execute("UPDATE charges SET event = replace(event, '\"name\"', '\"class\"')")
        db.execute("DROP TRIGGER runs_never_update")
        db.execute("UPDATE runs SET randomness = 'entropy'")
    alice, bob = json.loads(call("show", used, "--json").stdout)
    assert alice["statement"]["notes"][0].startswith("cannot be accounted")
    assert bob["statement"]["kind"] == "guarantee"
    assert "unreadable" in call("history", used).stdout
    with Ledger(used) as ledger:
        with pytest.raises(InvalidInput):
            ledger.statement(1)
        assert ledger.statement(2, 0.0).epsilon == pytest.approx(0.3)
        with pytest.raises(InvalidInput):
            ledger.commit([charge(1, 9, ROUND)])
        ledger.commit([charge(2, 9, TENTH)])


def test_a_decision_about_several_clients_is_one_line(used):
    call("set", used, "all", "--epsilon", "9", "--delta", "1e-5", "--reason", "vote")
    lines = [line for line in call("history", used).stdout.splitlines() if "ε = 9 " in line]
    assert len(lines) == 1
    assert "2 clients" in lines[0]
    lines = [
        line for line in call("history", used, "--all").stdout.splitlines() if "ε = 9 " in line
    ]
    assert len(lines) == 2
    only = call("history", used, "--client", "alice").stdout
    assert "2 clients" not in only
    changes = json.loads(call("history", used, "--json").stdout)["changes"]
    assert len([own for own in changes if own["kind"] == "budget" and own["reason"] == "vote"]) == 2


def test_every_verb_that_decides_prints_json(used):
    budget = ("--epsilon", "9", "--delta", "1e-5", "--reason", "vote", "--json")
    assert json.loads(call("set", used, "alice", *budget).stdout)["clients"] == ["alice"]
    assert json.loads(call("set", used, "all", *budget).stdout)["clients"] == ["alice", "bob"]
    assert json.loads(call("verify", used, "--json").stdout) == {
        "sound": True, "problems": [], "charges": 6, "clients": 2,
    }  # fmt: skip
    why = ("--disjoint", "--reason", "new", "--json")
    added = json.loads(call("client", "add", used, "carol", *why).stdout)
    assert added == {"clients": ["carol"], "block": ""}
    added = json.loads(call("block", "add", used, "bob", "Q3", *why).stdout)
    assert added == {"clients": ["bob"], "block": "Q3"}


def test_a_ledger_that_is_not_sound_says_so_in_json(used):
    with raw(used) as file:
        file.execute("DROP TRIGGER charges_never_update")
        file.execute("UPDATE charges SET count = count + 1 WHERE id = 1")
    result = call("verify", used, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["sound"]
    assert found["problems"]
