"""Folders that were mailed, that are old, or in which nobody trained: what their report says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import udpfl
from tests.report.verifying import (
    contradicted,
    edit,
    is_green,
    older,
    outcome,
    restamp,
    sealing_nothing,
    shared_with_backup,
    summary_of,
    train,
)
from udpfl.accounting import PrivacyStatement
from udpfl.cli import main
from udpfl.ledger.ledger import Ledger
from udpfl.report import read_run, run_page


def test_a_run_in_which_nobody_trained_leaves_no_model(capsys, tmp_path):
    class Lowers(udpfl.Observer):
        """The budget is lowered before the first round."""

        def on_start(self, config, folder):
            with Ledger(config.privacy.ledger) as ledger:
                for own in ledger.accounts():
                    ledger.set_budget(own.id, udpfl.Budget(4.0, 1e-3))

    shared, _, _ = shared_with_backup(tmp_path)
    second = train(tmp_path / "second", rounds=1, ledger=str(shared), observers=[Lowers()])
    assert not read_run(second).metrics
    assert not (second / "model.safetensors").exists()
    state, reasons, said, page = outcome(capsys, second)
    assert (state, reasons) == (
        "not verified", "no client has trained in this run, so there is no model",
    )  # fmt: skip
    assert "Nothing was trained, so there is no model." in said
    assert not is_green(page)


def test_notes_of_all_clients_are_on_the_page(run):
    record, clients = read_run(run), []
    for client in record.clients:
        notes = ("what everybody assumes", f"own to {client.name}")
        notes += ("what two assume",) if client.name != "client-2" else ()
        clients.append(replace(client, statement=replace(client.statement, notes=notes)))
    privacy = replace(record.summary.privacy, assumptions=clients[2].statement.assumptions)
    page = run_page(
        replace(record, clients=clients, summary=replace(record.summary, privacy=privacy))
    )
    assert "own to client-2 (client-2)" in page
    assert "own to client-0 (client-0)" in page
    assert page.count("<li>what everybody assumes</li>") == 1
    assert page.count("what two assume") == 1
    assert "what two assume (client-0, client-1)" in page


def test_a_mailed_folder_finds_the_ledger_beside_it(capsys, tmp_path, monkeypatch):
    home, mailed = tmp_path / "home", tmp_path / "mailed"
    home.mkdir()
    monkeypatch.chdir(home)
    train("runs/one", rounds=1, ledger="site.sqlite")
    home.rename(mailed)
    monkeypatch.chdir(tmp_path)
    assert outcome(capsys, mailed / "runs" / "one")[0] == "verified"
    with pytest.raises(SystemExit) as stopped:
        main(["budget", "verify", str(mailed / "runs" / "one")])
    assert stopped.value.code in (0, None)
    capsys.readouterr()
    (mailed / "site.sqlite").unlink()
    assert outcome(capsys, mailed / "runs" / "one")[0] == "not verified"


def test_the_ledger_that_was_named_goes_first(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    folder = train(home / "run", rounds=1, ledger=str(home / "site.sqlite"))
    copy = Path(shutil.copytree(home, tmp_path / "copy")) / "run"
    assert read_run(copy).ledger == home / "site.sqlite"
    assert read_run(folder).ledger == home / "site.sqlite"


def test_a_folder_without_seals_is_not_verified(capsys, unsealed):
    for _ in range(2):
        state, reasons, said, page = outcome(capsys, unsealed)
        assert state == "not verified"
        assert "an earlier version of udpfl wrote this folder and sealed none of" in reasons
        assert "ε = " in said
        assert not is_green(page)
        if "head" in summary_of(unsealed):
            older(unsealed)
    edit(unsealed / "summary.json", lambda s: s["clients"]["client-1"].update(epsilon=0.5))
    contradicted(capsys, unsealed, "summary.json for client-1 says ε = 0.5")


def test_an_older_folder_on_a_shared_ledger(capsys, tmp_path):
    with sealing_nothing():
        shared, _, first = shared_with_backup(tmp_path)
        train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    older(first)
    state, reasons, _, _ = outcome(capsys, first)
    assert state == "not verified"
    assert "does not name the last charge" not in reasons

    def larger(summary):  # as if another run had charged before this one ended
        for own in (summary["privacy"], *summary["clients"].values()):
            own["epsilon"] = own["vector_epsilon"] = own["epsilon"] * 1.5
        summary["statement"] = str(PrivacyStatement.from_dict(summary["privacy"]))

    edit(first / "summary.json", larger)
    said = {key: summary_of(first)[key] for key in ("privacy", "statement")}
    restamp(first, lambda stamp: stamp.update(said))
    state, reasons, _, page = outcome(capsys, first)
    assert state == "not verified"
    assert "does not name the last charge of the run in the shared ledger" in reasons
    assert not is_green(page)
