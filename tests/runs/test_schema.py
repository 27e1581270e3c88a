"""The files of a run folder: types, versions, and nobody else who opens them."""

from __future__ import annotations

import ast
import json
import math
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import udpfl
from tests.small import blobs, linear
from udpfl import algorithms
from udpfl.accounting import PrivacyStatement
from udpfl.cli import main
from udpfl.errors import InvalidInput
from udpfl.harmonizer import Matched
from udpfl.ledger.chain import Head
from udpfl.report import read_run
from udpfl.runs import names
from udpfl.runs.files import (
    RunFiles,
    has_begun,
    has_ended,
    read_clients,
    read_identity,
    read_metrics,
    read_summary,
)
from udpfl.runs.folder import RunFolder
from udpfl.runs.ledgers import ledger_at, ledger_of
from udpfl.runs.schema import (
    VERSION,
    Claim,
    ClientRow,
    FinalEvaluation,
    Identity,
    NewerFolder,
    RoundRow,
    Stamp,
    Summary,
)

ARCHIVE = Path(__file__).with_name("version1.tar.xz")
"""Runs that udpfl 0.1.0 left before run.json had a version, on the records of `small.blobs`:
"finished"; "begun" (dp-fedavg) and "nominal", broken off after round 2 of 3; and a comparison."""
ROOT = Path(udpfl.__file__).parent
RELEASE = {"type": "Release", "mechanism": {"name": "gaussian", "parameters": {"std": 2.0}}}
STATEMENT = PrivacyStatement(1.0, 1e-3, "guarantee", "pld", vector_epsilon=1.0, notes=("a", "b"))
NOMINAL = PrivacyStatement(0.1, 1e-3, "nominal", "rdp", unit="client")
HEAD = Head(6, "ab" * 32)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    place = tmp_path_factory.mktemp("version1")
    with tarfile.open(ARCHIVE) as file:
        file.extractall(place, filter="data")
    return place


@pytest.fixture
def old(archive, tmp_path):
    """The folders of version 1, to be changed at will."""
    return Path(shutil.copytree(archive, tmp_path / "old"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run of the present version."""
    return train(tmp_path_factory.mktemp("written") / "run")


@pytest.fixture
def run(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "run"))


def train(folder, training=None, **privacy):
    settings = {
        "out": str(folder), "threads": 1, "data": {"clients": 2},
        "training": {"rounds": 2, **(training or {})},
        "privacy": {"epsilon": 1.0, "delta": 1e-3, "mechanism": "gaussian", **privacy},
    }  # fmt: skip
    return udpfl.run(settings, data=blobs(), model=linear()).folder


def command(*arguments):
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(own) for own in arguments])
    return ended.value.code


def edit(path, change):
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


# From plain data and back

EXAMPLES = [
    Identity("1f", Claim("guarantee", "by the book"), False, "classification"),
    Identity(
        "1f", Claim("none", "seeded"), True, "regression", udpfl="0.1.0", torch="2", started="now",
        fingerprints=("a", "b"), block="Q3", ledger="/a.sqlite", ledger_from_here="../a.sqlite",
    ),
    ClientRow("a", 10, 0.5, 3, 1),
    ClientRow(
        "a", 10, 0.5, 3, 1, trainings=2, participation=0.5, penalty=0.1, parameters=True,
        diameter=False, delta=1e-5, count=RELEASE, factors=(2.0, 1.0, 1.0), asked=(1, 3),
        shuffled=4, release=RELEASE, budget=(1.0, 1e-3), matched=Matched(2.0, STATEMENT, NOMINAL),
    ),
    RoundRow({"round": 1, "accuracy": None, "loss": "inf", "participants": 2}),
    RoundRow({"round": 2, "loss": 0.5, "clip_factor": 0.9, "own_stage": {"deep": [1, "two"]}}),
    FinalEvaluation(
        "classification", 12, 0.5, 0.7, class_names=["x", "y"], confusion=[[4, 2], [0, 6]]
    ),
    FinalEvaluation("classification", 12, 0.5, 0.7, confusion=[[4, 2], [0, 6]]),
    FinalEvaluation(
        "regression", 12, None, "nan", 1.0, 4.0, 2.0, mae_by_output=[1.0, "inf"],
        rmse_by_output=[2.0, 2.0], references={"persistence": {"rmse": 3.0}},
    ),
    FinalEvaluation(),
    Summary({"seconds": 1.5, "stopped": None}, STATEMENT, str(STATEMENT), "run", {"a": STATEMENT}),
    Summary(
        {"accuracy": 0.5, "own": [1]}, NOMINAL, None, None, {"a": NOMINAL, "b": STATEMENT},
        HEAD, Head(0, ""), {"a": (1.0, 1e-3), "b": None},
    ),
    Stamp.of(STATEMENT, HEAD),
    Stamp.of(PrivacyStatement.none("seeded"), HEAD),
    Stamp(),
]  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda own: type(own).__name__)
def test_what_is_written_is_read_again(example):
    plain = json.loads(json.dumps(example.to_dict()))
    again = type(example).from_dict(plain)
    assert again == example
    assert json.dumps(again.to_dict()) == json.dumps(plain)


def test_the_plan_of_every_client_is_a_row(run):
    rows = json.loads((run / "participants.json").read_text())
    assert [row.to_dict() for row in read_clients(run)] == rows
    assert list(rows[0]) == list(ClientRow("a", 1, 1.0, 1, 1).to_dict())  # and in its order


def test_every_file_is_written_as_its_type(run):
    """The bytes are the same again: nothing is normalised, rounded or left out."""
    files = RunFiles.read(run)
    assert (
        files.identity.version == VERSION == json.loads((run / "run.json").read_text())["version"]
    )
    for name, content in (
        ("run.json", files.identity.to_dict()),
        ("participants.json", [row.to_dict() for row in files.clients]),
        ("evaluation.json", files.evaluation.to_dict()),
        ("summary.json", files.summary.to_dict()),
    ):
        assert (run / name).read_text() == json.dumps(content, indent=2) + "\n"
    lines = [json.dumps(row.to_dict()) + "\n" for row in files.metrics]
    assert (run / "metrics.jsonl").read_text() == "".join(lines)
    assert files.stamp == Stamp.of(files.summary.privacy, files.summary.head)


def test_a_claim_in_words():
    assert str(Claim("guarantee", "why")) == "private: why"
    assert str(Claim("nominal", "why")) == "nominal: why"
    assert str(Claim("none", "why")) == "not private: why"


def test_a_row_has_the_keys_of_every_stage():
    row = RoundRow.from_dict({"round": 3, "seconds": 2, "bytes_up": 8, "mine": 1.5})
    assert (row.round, row.seconds, row.bytes_up, row.bytes_down, row["mine"]) == (3, 2, 8, 0, 1.5)
    assert (row.is_evaluated, row.participants, row.clip_factor, len(row)) == (False, 0, None, 4)
    assert {**row} == row.to_dict()


def test_rows_that_are_written_again_keep_the_keys_of_a_stage(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    rows = [{"round": 1, "mine": math.pi}, {"round": 2, "mine": None}]
    for row in rows:
        folder.append_metrics(row)
    with folder.metrics.open("a") as file:
        file.write('{"round": 3, "mi')  # cut short by a crash
    assert folder.read_metrics() == rows
    folder.rewrite_metrics(folder.read_metrics(1))
    assert [row.to_dict() for row in read_metrics(folder.path)] == rows[:1]


def test_what_is_known_beforehand_is_said_at_once(tmp_path):
    """The report of a run that has not come to its first round guesses nothing."""
    folder = train(tmp_path / "run", {"algorithm": "dp-fedavg"}, unit="client")
    shutil.rmtree(folder / "aggregates")
    for name in ("summary.json", "evaluation.json", "metrics.jsonl"):
        (folder / name).unlink()
    assert read_identity(folder).server_adds_noise
    record = read_run(folder)
    assert record.server_adds
    assert record.task == "classification"


# The last version


def test_a_folder_of_version_1_is_read(archive):
    kinds = {"finished": "guarantee", "begun": "guarantee", "nominal": "nominal"}
    for name, kind in kinds.items():
        files = RunFiles.read(archive / name)
        assert "version" not in json.loads((archive / name / "run.json").read_text())
        assert (files.identity.version, files.identity.privacy.kind) == (1, kind)
        assert files.identity.task == "classification"
        assert files.identity.server_adds_noise == (name == "begun")
        assert [client.name for client in files.clients] == ["client-0", "client-1"]
        assert (files.summary is not None) == has_ended(archive / name) == (name == "finished")
        assert files.answers == 2 * len(files.metrics)
    assert str(read_identity(archive / "finished").privacy) == (
        "private: vector accounting, a guarantee"
    )


@pytest.mark.parametrize(
    ("sentence", "claim"),
    [
        ("not private: privacy is turned off", Claim("none", "privacy is turned off")),
        ("nominal: scalar accounting", Claim("nominal", "scalar accounting")),
        (None, Claim("none", "")),
    ],
)
def test_what_a_sentence_of_version_1_claims(old, sentence, claim):
    edit(old / "begun" / "run.json", lambda own: own.update(privacy=sentence))
    if sentence is None:
        edit(old / "begun" / "run.json", lambda own: own.pop("privacy"))
    assert read_identity(old / "begun").privacy == claim


def test_the_task_of_version_1_is_that_of_its_metrics(old):
    metrics = old / "begun" / "metrics.jsonl"
    metrics.write_text(json.dumps({"round": 1, "loss": 1.0, "mae": 0.5}) + "\n")
    assert read_identity(old / "begun").task == "regression"
    (old / "begun" / "evaluation.json").write_text("{")  # reported by whoever needs it
    assert read_identity(old / "begun").task == "regression"
    edit(old / "finished" / "evaluation.json", lambda own: own.update(task="regression"))
    assert read_identity(old / "finished").task == "regression"


def test_a_folder_of_version_1_is_reported_and_verified(capsys, old):
    assert command("report", old / "finished", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["reasons"]) == ("verified", [])
    assert "client-1" in (old / "finished" / "report.html").read_text()
    for name, kind in (("begun", "guarantee"), ("nominal", "nominal")):
        assert command("report", old / name, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["reasons"] == ["the run is not finished"]
        assert found["statement"]["kind"] == kind
    ledger = old / "finished" / "ledger.sqlite"
    assert command("budget", "verify", ledger, "--against", old / "finished") == 0


@pytest.mark.parametrize("name", ["run.json", "participants.json", "metrics.jsonl"])
def test_an_edit_of_a_folder_of_version_1_is_found(capsys, old, name):
    """Though the typed values are the same: the seal is of the bytes."""
    file = old / "finished" / name
    file.write_text(file.read_text().replace(": ", ":  ", 1))
    assert command("report", old / "finished", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "contradicted"
    assert f"{name} is not the file that the run" in found["reasons"][0]


def test_runs_of_version_1_are_found_by_a_comparison(old, monkeypatch):
    monkeypatch.chdir(old)
    base = {
        "out": "grid", "threads": 1, "model": {"name": "logistic"}, "training": {"rounds": 1},
        "data": {"name": "table", "clients": 2,
                 "options": {"path": "table.csv", "target": "label"}},
        "privacy": {"delta": 1e-3, "mechanism": "gaussian"},
    }  # fmt: skip
    found = udpfl.compare(base, vary={"privacy.epsilon": [1.0, 8.0]}, seeds=1)
    assert (found.found, found.trained, found.complete) == (2, 0, True)
    assert [row.privacy.kind for row in found] == ["guarantee", "guarantee"]
    assert found.selection.runs == 2
    assert found.report.is_file()


@pytest.mark.parametrize("name", ["begun", "nominal"])
def test_a_run_of_version_1_is_resumed(old, name):
    before = (old / name / "run.json").read_bytes()
    result = udpfl.run(resume=old / name, data=blobs(), model=linear())
    assert [row["round"] for row in result.metrics] == [1, 2, 3]
    assert (old / name / "run.json").read_bytes() == before
    record = read_run(old / name)
    assert (record.verification.state, record.server_adds) == ("verified", name == "begun")


# A version to come, and broken files


def test_a_folder_of_a_newer_version_is_refused(capsys, run):
    edit(run / "run.json", lambda own: own.update(version=VERSION + 1, privacy=["in another way"]))
    said = "was written by a newer version of udpfl: upgrade udpfl to read it"
    for reader in (read_identity, read_run, RunFiles.read, RunFolder.open, ledger_at):
        with pytest.raises(NewerFolder, match=said):
            reader(run)
    with pytest.raises(NewerFolder, match=said):
        udpfl.run(resume=run, data=blobs(), model=linear())
    for words in ("report", "audit run", "budget show"):
        assert command(*words.split(), run) == 2
        assert "newer version of udpfl" in " ".join(capsys.readouterr().err.split())
    assert has_begun(run)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("run.json", "id", None),
        ("run.json", "version", "two"),
        ("run.json", "version", 0),
        ("run.json", "task", "guessing"),
        ("run.json", "server_adds_noise", "yes"),
        ("run.json", "privacy", "private: a sentence"),
        ("run.json", "privacy", {"kind": "private", "why": ""}),
        ("evaluation.json", "confusion", "none"),
        ("evaluation.json", "test_records", True),
        ("summary.json", "privacy", {"epsilon": 0.1}),
        ("summary.json", "clients", {"client-0": {}}),
        ("summary.json", "head", [1, 2, 3]),
        ("summary.json", "budgets", {"client-0": [1.0]}),
    ],
)
def test_a_field_that_is_wrong_is_named(run, name, key, value):
    edit(run / name, lambda own: own.update({key: value}))
    with pytest.raises(InvalidInput, match=f"cannot read .*{name}: "):
        read_run(run)


@pytest.mark.parametrize(
    ("key", "value"),
    [("rate", "often"), ("rounds", 1.5), ("budget", [1.0]), ("matched", 2.0), ("temper", 1)],
)
def test_a_client_that_is_wrong_is_refused(run, key, value):
    edit(run / "participants.json", lambda people: people[0].update({key: value}))
    with pytest.raises(InvalidInput, match=r"cannot read .*participants\.json: "):
        read_run(run)
    with pytest.raises(InvalidInput, match=r"cannot read .*participants\.json: "):
        udpfl.run(resume=run, data=blobs(), model=linear())


def test_a_client_that_is_incomplete_is_refused(run):
    edit(run / "participants.json", lambda people: people[0].pop("release"))
    with pytest.raises(InvalidInput, match=r"participants\.json: release: is missing"):
        read_run(run)


@pytest.mark.parametrize(
    "name", ["run.json", "participants.json", "evaluation.json", "summary.json"]
)
def test_a_file_that_is_no_json_is_named(run, name):
    for text in ("{", "7", '"text"'):
        (run / name).write_text(text)
        with pytest.raises(InvalidInput, match=f"cannot read .*{name}: "):
            read_run(run)


def test_a_round_that_is_wrong_is_refused(run):
    (run / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    with pytest.raises(InvalidInput, match=r"cannot read .*metrics\.jsonl: round: is missing"):
        read_run(run)


def test_a_folder_without_clients_is_not_resumed(run):
    (run / "participants.json").write_text("[]")
    with pytest.raises(InvalidInput, match="names no clients"):
        udpfl.run(resume=run, data=blobs(), model=linear())


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(InvalidInput, match=r"is not a run folder: it has no run\.json"):
        read_identity(tmp_path)
    assert read_clients(tmp_path) == read_metrics(tmp_path) == ()
    assert read_summary(tmp_path) is None


def test_a_broken_run_names_no_other_ledger(run):
    (run / "run.json").write_text("{")
    assert ledger_at(run) == run / "ledger.sqlite"


def test_a_shared_ledger_is_found_beside_the_folder(tmp_path):
    identity = Identity("1", Claim("none", ""), False, "classification", ledger="/gone.sqlite")
    assert ledger_of(tmp_path, identity) == Path("/gone.sqlite")
    (tmp_path / "near.sqlite").touch()
    near = replace(identity, ledger_from_here="near.sqlite")
    assert ledger_of(tmp_path, near) == tmp_path / "near.sqlite"


# Nobody else


def constants(*folders):
    """Every text in the code of these packages, docstrings left out, and where it is."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            prose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
            for node in ast.walk(tree):
                is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
                if is_text and id(node) not in prose:
                    yield path.relative_to(ROOT).as_posix(), node.value


def test_nobody_else_opens_the_files_of_a_run_folder():
    files = {names.IDENTITY, names.CLIENTS, names.METRICS, names.SUMMARY, names.EVALUATION}
    packages = [path.name for path in ROOT.iterdir() if path.name != "runs"]
    found = {path for path, text in constants(*packages) if text.rsplit("/")[-1] in files}
    # A ledger of a former format was a run's own if it lies beside a run.json.
    assert found == {"ledger/_upgrade.py"}


def test_no_method_is_known_by_its_name():
    methods = algorithms.BUILT_IN.keys() - {"median"}  # of an epsilon, too
    found = constants("report", "runs", "trackers", "comparison")
    assert [(path, text) for path, text in found if text in methods] == []


def test_a_folder_is_read_without_torch(written):
    code = (
        "import sys; from pathlib import Path; from udpfl.runs.files import RunFiles; "
        f"assert RunFiles.read(Path({str(written)!r})).stamp; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
