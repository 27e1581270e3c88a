"""Whoever edits the files of a run folder, and not its ledger, gets no page that vouches for it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import udpfl
from tests.report.verifying import (
    contradicted,
    edit,
    is_green,
    outcome,
    restamp,
    sealing_nothing,
    summary_of,
    train,
    verify,
)
from tests.small import blobs, linear
from udpfl.accounting.statement import PrivacyStatement, largest
from udpfl.cli import main
from udpfl.errors import InvalidInput, UdpflError
from udpfl.federation import _ending, _opening
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import digests
from udpfl.report import read_run, run_page
from udpfl.runs.names import BEGUN_WITH, ENDED_WITH

CLIENTS = ("client-0", "client-1", "client-2")


def others(count=60):
    rng = np.random.default_rng(7)
    labels = np.arange(count) % 2
    return (rng.normal(size=(count, 4)) + 2 * labels[:, None]).astype(np.float32), labels


def block_run(folder, shared):
    """A run of little ε on a block of the same clients."""
    with Ledger(shared) as ledger:
        for client in CLIENTS:
            ledger.declare_block(client, "Q3", reason="new patients")
    privacy = {"epsilon": 0.5, "delta": 1e-3, "mechanism": "gaussian", "ledger": str(shared)}
    settings = {
        "out": str(folder), "threads": 1, "training": {"rounds": 1}, "privacy": privacy,
        "data": {"clients": 3, "block": "Q3"},
    }  # fmt: skip
    return udpfl.run(settings, data=others(), model=linear()).folder


@pytest.fixture(scope="module", params=["sealed", "unsealed"])
def top(request, tmp_path_factory):
    """Runs "large" and "block" on one ledger; those of an earlier version have no seals."""
    place = tmp_path_factory.mktemp(request.param)

    def runs():
        train(place / "large", rounds=2, epsilon=8.0, ledger=str(place / "site.sqlite"))
        block_run(place / "block", place / "site.sqlite")

    if request.param == "sealed":
        runs()
    else:
        with sealing_nothing():
            runs()
    return place


@pytest.fixture
def place(top, tmp_path):
    return Path(shutil.copytree(top, tmp_path / top.name))


@pytest.fixture
def is_sealed(place):
    return not place.name.startswith("unsealed")


def state_of(folder, statements):
    """Let summary and model state these statements, and fit them to each other."""
    most = largest(statements.values())
    said = {"privacy": most.to_dict(), "statement": str(most)}
    clients = {name: own.to_dict() for name, own in statements.items()}
    edit(folder / "summary.json", lambda summary: summary.update(**said, clients=clients))
    if (folder / "model.safetensors").is_file():
        restamp(folder, lambda stamp: stamp.update(said))


def statements(place, head, delta=1e-3, block=""):
    with Ledger(place / "site.sqlite", read_only=True) as ledger:
        return {
            own.client: ledger.statement(own.id, delta, None, head)
            for own in ledger.accounts()
            if own.block == block
        }


# The eight edits that were verified once


def test_the_runs_are_verified_as_they_are(capsys, top):
    for name in ("large", "block"):
        state, reasons, _, page = outcome(capsys, top / name)
        assert state == ("verified" if top.name.startswith("sealed") else "not verified"), reasons
        assert is_green(page) == top.name.startswith("sealed")


def test_another_block_is_found(capsys, place, is_sealed):
    folder = place / "large"
    edit(folder / "run.json", lambda own: own.update(block="Q3"))
    state_of(folder, statements(place, summary_of(folder)["head"][0], block="Q3"))
    reason = "run.json is not the file that the run began with"
    contradicted(
        capsys, folder, reason if is_sealed else "the run charged client-0, but run.json names the"
    )
    if not is_sealed:  # compared with what the run charged, not with the block
        assert "summary.json for client-0 says " in outcome(capsys, folder)[1]


@pytest.mark.parametrize("model", ["gone", "restamped"])
def test_another_id_is_found(capsys, place, model):
    folder = place / "large"
    edit(folder / "run.json", lambda own: own.update(id="0" * 16))
    nothing = {"head": [0, ""]}
    edit(folder / "summary.json", lambda summary: (summary.update(nothing), summary.pop("decided")))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({**row, "participants": 0}) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)
    if model == "gone":
        (folder / "model.safetensors").unlink()
    else:
        restamp(folder, lambda stamp: stamp.update(nothing))
    state_of(folder, statements(place, 0))
    reason = "the ledger does not know the run 0000000000000000, which run.json names"
    contradicted(capsys, folder, reason)
    code, said = verify(capsys, place / "site.sqlite", folder)
    assert (code, f"{folder}: {reason}" in said) == (1, True)


def test_the_id_of_another_run_is_found(capsys, place, is_sealed):
    folder = place / "large"
    stranger = json.loads((place / "block" / "run.json").read_text())["id"]
    edit(folder / "run.json", lambda own: own.update(id=stranger))
    reason = "run.json is not the file" if is_sealed else "holds 3 of the 6 answers of this run"
    contradicted(capsys, folder, reason)
    assert verify(capsys, place / "site.sqlite", folder)[0] == 1


@pytest.mark.parametrize("which", ["all", "of the ledger", "of the run"])
def test_a_note_that_was_taken_out_is_found(capsys, place, is_sealed, which):
    folder = place / "block"
    assert "new patients" in run_page(read_run(folder))

    def without(notes):
        mine = [note for note in notes if "new patients" in note]
        left = {"all": [], "of the ledger": [n for n in notes if n not in mine], "of the run": mine}
        assert left[which] != notes
        return left[which]

    def change(summary):
        for own in (summary["privacy"], *summary["clients"].values()):
            own["assumptions"] = without(own["assumptions"])
        summary["statement"] = str(PrivacyStatement.from_dict(summary["privacy"]))

    edit(folder / "summary.json", change)
    if is_sealed or which != "of the run":
        contradicted(capsys, folder, "summary.json for client-0 leaves out the note “")
    else:
        assert outcome(capsys, folder)[0] != "verified"


def test_a_note_that_was_put_in_is_found(capsys, run):
    def change(summary):
        for own in (summary["privacy"], *summary["clients"].values()):
            own["notes"].append("examined by the authority")

    edit(run / "summary.json", change)
    contradicted(capsys, run, "has the note “examined by the authority”, which is not recomputed")


def test_other_noise_is_found(capsys, run):
    def change(people):
        for person in people:
            person["release"]["mechanism"]["parameters"]["std"] *= 100
            person["declared_size"] = 1_000_000

    edit(run / "participants.json", change)
    contradicted(capsys, run, "participants.json is not the file that the run began with")


def test_other_budgets_are_found(capsys, place):
    folder = place / "large"
    budgets = {client: [1000, 1e-3] for client in CLIENTS}
    edit(folder / "summary.json", lambda summary: summary.update(budgets=budgets))
    contradicted(capsys, folder, "the budgets in summary.json are not those in the ledger")
    assert {client.held for client in read_run(folder).clients} == {(8.0, 1e-3)}
    edit(folder / "summary.json", lambda summary: summary.pop("budgets"))
    contradicted(capsys, folder, "the budgets in summary.json are not those in the ledger")


@pytest.mark.parametrize("model", ["gone", "restamped", "kept"])
def test_another_sentence_is_found(capsys, place, is_sealed, model):
    folder = place / "large"
    said = {"statement": "(ε = 0.1, δ = 1e-05)-DP for one record added or removed"}
    edit(folder / "summary.json", lambda summary: summary.update(said))
    if model == "gone":
        (folder / "model.safetensors").unlink()
    if model == "restamped":
        restamp(folder, lambda stamp: stamp.update(said))
    edited = is_sealed and model == "restamped"
    contradicted(
        capsys,
        folder,
        "model.safetensors is not the file that the run ended with"
        if edited
        else "the sentence in summary.json is not that of its statement",
    )


def test_another_delta_is_found(capsys, place, is_sealed):
    folder = place / "large"
    edit(folder / "participants.json", lambda people: [p["budget"].pop() for p in people])
    edit(folder / "participants.json", lambda people: [p["budget"].append(0.2) for p in people])
    state_of(folder, statements(place, summary_of(folder)["head"][0], 0.2))
    reason = "participants.json is not the file that the run began with"
    contradicted(
        capsys, folder, reason if is_sealed else "δ = 0.2 of client-0 in summary.json is not that"
    )


def test_other_weights_are_found(capsys, run):
    path = run / "model.safetensors"
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    content[start:] = os.urandom(len(content) - start)
    path.write_bytes(content)
    contradicted(capsys, run, "model.safetensors is not the file that the run ended with")
    assert verify(capsys, run, run)[0] == 1


# Every file, and everything in the summary


@pytest.mark.parametrize("name", [*BEGUN_WITH, *ENDED_WITH])
def test_every_sealed_file_is_compared(capsys, run, name):
    content = (run / name).read_bytes()
    with (run / name).open("ab") as file:
        file.write(b"\n")  # nothing that a reader would notice
    verb = "began" if name in BEGUN_WITH else "ended"
    contradicted(capsys, run, f"{name} is not the file that the run {verb} with")
    code, said = verify(capsys, run, run)
    assert (code, name in said) == (1, True)
    (run / name).write_bytes(content)
    assert outcome(capsys, run)[0] == "verified"


@pytest.mark.parametrize("name", ["records.npz", *ENDED_WITH])
def test_a_run_without_one_of_its_files_is_not_verified(capsys, run, name):
    (run / name).unlink()
    state, reasons, _, page = outcome(capsys, run)
    assert (state, f"{name} is missing" in reasons) == ("not verified", True)
    assert not is_green(page)


@pytest.mark.parametrize(
    "key",
    ["accuracy", "loss", "seconds", "stopped", "device", "parameters", "rounding",
     "server_adds_noise", "assumptions"],
)  # fmt: skip
def test_everything_in_the_summary_is_compared(capsys, run, key):
    edit(run / "summary.json", lambda summary: summary.update({key: 7}))
    contradicted(capsys, run, f"“{key}” in summary.json is not the one with which the run ended")
    edit(run / "summary.json", lambda summary: summary.pop(key))
    contradicted(capsys, run, f"“{key}” in summary.json is not the one with which the run ended")


def test_nothing_in_the_summary_goes_unchecked(run):
    """A key that is added to the summary is sealed, recomputed or, like the folder, not shown."""
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        identity = json.loads((run / "run.json").read_text())
        sealed = ledger.sealed(identity["id"]).ending.outcome.keys()
    recomputed = {"privacy", "statement", "clients", "head", "decided", "budgets"}
    assert summary_of(run).keys() == sealed | recomputed | {"run"}


@pytest.mark.parametrize(("key", "word"), [("head", "charge"), ("decided", "decision")])
def test_a_summary_has_to_say_how_the_run_ended(capsys, run, key, word):
    edit(run / "summary.json", lambda summary: summary.pop(key))
    contradicted(capsys, run, f"summary.json does not name the last {word} of the run")
    assert verify(capsys, run, run)[0] == 1


def test_nothing_charged_and_answers_given(capsys, place):
    folder = place / "large"
    edit(folder / "summary.json", lambda summary: summary.update(head=[0, ""]))
    code, said = verify(capsys, place / "site.sqlite", folder)
    assert code == 1
    assert "says that nothing was charged, but metrics.jsonl has 6 answers" in said


def test_the_accountant_is_compared(capsys, run):
    edit(run / "summary.json", lambda s: s["clients"]["client-1"].update(accountant="pure"))
    contradicted(capsys, run, "summary.json for client-1 says accountant “pure”, but recomputed it")


def test_a_model_that_nobody_trained_is_found(capsys, tmp_path, run):
    class Lowers(udpfl.Observer):
        def on_start(self, config, folder):
            with Ledger(config.privacy.ledger) as ledger:
                for account in ledger.accounts():
                    ledger.set_budget(account.id, udpfl.Budget(1.0, 1e-3))

    shared = str(tmp_path / "site.sqlite")
    train(tmp_path / "first", rounds=1, epsilon=1.0, ledger=shared)
    with Ledger(shared) as ledger:
        accounts = [account.id for account in ledger.accounts()]
        ledger.set_budgets(accounts, udpfl.Budget(20.0, 1e-3), reason="more")
    second = train(tmp_path / "second", rounds=1, ledger=shared, observers=[Lowers()])
    assert outcome(capsys, second)[0] == "not verified"
    shutil.copy(run / "model.safetensors", second / "model.safetensors")
    contradicted(capsys, second, "the run ended without model.safetensors")


# When seals are made


def decisions(ledger, kind):
    with Ledger(ledger, read_only=True) as opened:
        return [own for own in opened.decisions() if own.kind == kind]


class Stop(udpfl.Observer):
    def on_round(self, row):
        raise RuntimeError("broken off")


def broken_off(folder):
    with pytest.raises(RuntimeError, match="broken off"):
        train(folder, rounds=3, observers=[Stop()])
    return folder


def test_a_run_begins_once_and_ends_as_often_as_it_ends(capsys, tmp_path):
    folder = broken_off(tmp_path / "run")
    ledger = folder / "ledger.sqlite"
    assert [len(decisions(ledger, kind)) for kind in ("begin", "end")] == [1, 0]
    (sealed,) = decisions(ledger, "begin")
    assert sealed.charges == 0  # before the first release
    assert sealed.content["files"] == digests(folder, BEGUN_WITH)
    assert sealed.content["files"].keys() == set(BEGUN_WITH)
    assert outcome(capsys, folder)[:2] == ("not verified", "the run is not finished")
    for ends in (1, 2):
        udpfl.run(resume=folder, data=blobs(), model=linear())
        assert [len(decisions(ledger, kind)) for kind in ("begin", "end")] == [1, ends]
        last = decisions(ledger, "end")[-1]
        assert last.content["files"] == digests(folder, ENDED_WITH)
        assert summary_of(folder)["decided"][0] == last.id
        assert outcome(capsys, folder)[:2] == ("verified", "")


def test_what_a_run_said_before_it_ended_again_is_found(capsys, run):
    before = (run / "summary.json").read_text()
    udpfl.run(resume=run, data=blobs(), model=linear())
    (run / "summary.json").write_text(before)
    contradicted(capsys, run, "but summary.json names ")


def test_the_last_end_counts(capsys, tmp_path):
    """Another run has charged the ledger when the first one is resumed and ends again."""
    shared = tmp_path / "site.sqlite"
    first = train(tmp_path / "first", rounds=1, epsilon=1.0, ledger=str(shared))
    with Ledger(shared) as ledger:
        ledger.set_budgets([1, 2, 3], udpfl.Budget(20.0, 1e-3), reason="more runs")
    train(tmp_path / "second", rounds=1, epsilon=1.0, ledger=str(shared))
    before = summary_of(first)["head"]
    udpfl.run(resume=first, data=blobs(), model=linear())
    assert summary_of(first)["head"] != before
    assert outcome(capsys, first)[:2] == ("verified", "")


def test_a_finished_run_that_goes_on_is_not_finished(capsys, run, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no power")

    monkeypatch.setattr(_ending, "final_evaluation", broken)
    with pytest.raises(RuntimeError, match="no power"):
        udpfl.run(resume=run, data=blobs(), model=linear())
    assert outcome(capsys, run)[:2] == ("not verified", "the run is not finished")
    monkeypatch.undo()
    took = udpfl.run(resume=run, data=blobs(), model=linear()).seconds
    assert took > 0
    assert outcome(capsys, run)[0] == "verified"


def test_a_run_that_an_earlier_version_began_stays_without_a_seal(capsys, tmp_path):
    with sealing_nothing():
        folder = broken_off(tmp_path / "run")
    udpfl.run(resume=folder, data=blobs(), model=linear())
    assert not decisions(folder / "ledger.sqlite", "begin")
    assert decisions(folder / "ledger.sqlite", "end")
    state, reasons, _, _ = outcome(capsys, folder)
    assert (state, "sealed none of its files" in reasons) == ("not verified", True)
    (folder / "evaluation.json").write_text("{}")
    contradicted(capsys, folder, "evaluation.json is not the file that the run ended with")


@pytest.mark.parametrize("name", ["config.toml", "participants.json", "records.npz", "run.json"])
def test_a_run_does_not_go_on_with_an_edited_file(tmp_path, name):
    folder = broken_off(tmp_path / "run")
    before = (folder / name).read_bytes()
    (folder / name).write_bytes(before + b"\n")
    with pytest.raises(InvalidInput, match=f"{name} is not the file that the run began with"):
        udpfl.run(resume=folder, data=blobs(), model=linear())
    (folder / name).write_bytes(before)
    assert udpfl.run(resume=folder, data=blobs(), model=linear()).privacy.kind == "guarantee"


def test_a_ledger_from_before_the_end_is_found(capsys, tmp_path):
    shared, backup = tmp_path / "site.sqlite", tmp_path / "backup.sqlite"

    class Copies(udpfl.Observer):
        def on_round(self, row):
            with Ledger(shared) as ledger:
                ledger._file._db.execute("VACUUM INTO ?", (str(backup),))

    folder = train(tmp_path / "run", rounds=1, ledger=str(shared), observers=[Copies()])
    assert verify(capsys, shared, folder)[0] == 0
    code, said = verify(capsys, backup, folder)
    assert code == 1
    assert f"{folder}: summary.json says that the run ended, but the ledger does not" in said
    assert "does not hold decision" in said


def test_a_run_that_never_began_is_not_contradicted(capsys, run, tmp_path):
    """Its process died between its folder and its ledger, which another run has used."""
    other = tmp_path / "other"
    shutil.copytree(run, other)
    edit(other / "run.json", lambda own: own.update(id="0" * 16))
    for name in ("summary.json", *ENDED_WITH):
        (other / name).unlink()
    assert outcome(capsys, other)[:2] == ("not verified", "the run is not finished")


def test_words_of_another_version_are_no_contradiction(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(_opening, "__version__", "0.0.1")
    folder = train(tmp_path / "run", rounds=1)
    assert outcome(capsys, folder)[0] == "verified"
    monkeypatch.setattr(PrivacyStatement, "__str__", lambda _: "as it is said now")
    state, reasons, _, _ = outcome(capsys, folder)
    assert state == "not verified"
    assert "udpfl 0.0.1 wrote it" in reasons
    edit(folder / "summary.json", lambda summary: summary["privacy"].update(epsilon=0.1))
    contradicted(capsys, folder, "summary.json for the run says ε = 0.1")


def test_budgets_are_those_of_the_end(tmp_path):
    shared = tmp_path / "site.sqlite"
    folder = train(tmp_path / "run", rounds=1, epsilon=2.0, ledger=str(shared))
    with Ledger(shared) as ledger:
        ledger.set_budgets([1, 2, 3], udpfl.Budget(50.0, 1e-3), reason="later")
    record = read_run(folder)
    assert record.verification.state == "verified"
    assert {client.held for client in record.clients} == {(2.0, 1e-3)}


def test_seals_are_in_the_history(capsys, run):
    with pytest.raises(SystemExit):
        main(["budget", "history", str(run)])
    said = " ".join(capsys.readouterr().out.split())
    assert "begun, its" in said
    assert "ended, its" in said


def test_only_a_run_that_began_can_end(tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(InvalidInput, match="has not begun"):
            ledger.end_run("run", head=(0, ""), files={}, outcome={})
        assert not ledger.decisions()


def test_a_file_that_cannot_be_read_has_no_digest(tmp_path):
    (tmp_path / "run.json").mkdir()
    with pytest.raises(UdpflError, match=r"cannot read .*run\.json"):
        digests(tmp_path, BEGUN_WITH)
    assert digests(tmp_path, ENDED_WITH) == {}
