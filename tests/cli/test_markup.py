"""Names, reasons and paths are printed as they are: nothing in them is markup or an emoji."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

import udpfl
from tests.small import blobs, linear
from udpfl.accounting.events import PureDP
from udpfl.cli import main, plan, run
from udpfl.cli._analyze_tables import _table
from udpfl.cli._progress import _Above
from udpfl.ledger.ledger import Ledger

NASTY = ("[/x]", "[red]ward 7", ":warning: site", "[vote 7] of May", "back\\")


def printed(capsys, monkeypatch, *arguments):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as stopped:
        main([*map(str, arguments)])
    out, err = capsys.readouterr()
    assert stopped.value.code in (0, None), err
    return out


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "site.sqlite"
    with Ledger(path) as opened:
        for number, name in enumerate(NASTY):
            own = opened.account(name, f"[b]{number}[/b]")
            budget = udpfl.Budget(9.0, 1e-5)
            opened.set_budget(own, budget, reason=NASTY[-number], author=f"[{number}] Dr :x:")
            opened.import_charge(own, PureDP(0.5), source="[/] elsewhere", note=":x: of [old]")
            opened.declare_block(name, "[Q3]", reason="[/other] people :x:")
            opened.account(name, f"block {number}", block="[Q3]")
    return path


@pytest.mark.parametrize("name", NASTY)
def test_budget_show_prints_names_as_they_are(capsys, monkeypatch, ledger, name):
    out = printed(capsys, monkeypatch, "budget", "show", ledger, "--client", name)
    assert f" {name} " in out
    assert f" {name} (block [Q3]) " in out
    assert "data [b]" in out
    assert "[/other] people :x:" in out


def test_budget_history_prints_reasons_and_authors_as_they_are(capsys, monkeypatch, ledger):
    out = printed(capsys, monkeypatch, "budget", "history", ledger)
    for text in (*NASTY, "[3] Dr :x:", "[/] elsewhere", ":x: of [old]", "block [Q3] of [/x]"):
        assert f" {text}" in out


def test_notes_above_the_bar_are_printed_as_they_are():
    console = Console(file=io.StringIO(), width=200)
    for text in NASTY:
        _Above(console).emit(logging.LogRecord("x", logging.WARNING, "", 0, text, None, None))
    assert console.file.getvalue() == "".join(f"note: {text}\n" for text in NASTY)


def test_a_run_in_a_folder_of_any_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    settings = {"out": "[/x] :x:", "threads": 1, "training": {"rounds": 1}, "data": {"clients": 2}}
    done = udpfl.run(settings, data=blobs(), model=linear())
    run.show(done, Console(emoji=False))
    assert "[/x] :x:" in capsys.readouterr().out


class Bracketed(udpfl.Gaussian):
    """A mechanism whose parameters have strange names."""

    @property
    def parameters(self):
        return {"[/std]": self.std}


def test_a_plan_prints_names_as_they_are(monkeypatch):
    console = Console(file=io.StringIO(), width=200)
    rows = udpfl.plan("gaussian", epsilon=4, steps=5, sampling_rate=0.1, dimension=3)
    row = rows.best
    object.__setattr__(row, "mechanism", "[/own]:x:")
    object.__setattr__(row, "why", "because [/of] it")
    object.__setattr__(row, "noise", Bracketed(row.noise.std))
    plan.show(rows, console)
    out = console.file.getvalue()
    for text in ("[/own]:x:", "[/std] ", "because [/of] it"):
        assert text in out


def test_titles_of_tables_are_printed_as_they_are():
    console = Console(file=io.StringIO(), width=200)
    table = _table("[/title] :x:", "a column that is wide")
    table.add_row("1")
    console.print(table)
    assert "[/title] :x:" in console.file.getvalue()
