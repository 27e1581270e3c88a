"""The page is safe, says how far a run got, and is never in the way of one."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import udpfl
from tests.commands import command
from tests.report.pages import (
    HOSTILE,
    LABELS,
    classification,
    copied,
    raise_budgets,
    record_of,
    regression,
    train,
    visible,
)
from tests.repository import EXAMPLES
from udpfl import running
from udpfl.accounting import PureDP, Repeated, account
from udpfl.accounting.budget import Budget
from udpfl.accounting.statement import shown
from udpfl.cli.run import show
from udpfl.data import DataSet
from udpfl.federation.plan import ReleasePlan
from udpfl.ledger.ledger import Ledger
from udpfl.report import read_run, run_page, write_report
from udpfl.report.charts import run_charts
from udpfl.report.page import embedded
from udpfl.runs.schema import ClientRow


class Crash:
    """An observer that ends a run from outside, after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_message(self, message: object) -> None: ...

    def on_model(self, round_: int, model: object) -> None: ...

    def on_round(self, row: dict) -> None:
        if row["round"] == self.after:
            raise ConnectionAbortedError


def crashed(folder: Path, after: int, **sections: object) -> Path:
    """A run of ten rounds that is evaluated at its end and does not get there."""
    with pytest.raises(ConnectionAbortedError):
        train(folder, classification(), 10, 10, observers=[Crash(after)], **sections)
    return folder


class Lowered(udpfl.Observer):
    """An observer that lowers the budget of every client before the first round."""

    def __init__(self, epsilon: float) -> None:
        self.budget = Budget(epsilon, 1e-5)

    def on_start(self, config: udpfl.Config, folder: Path) -> None:
        with Ledger(Path(config.privacy.ledger)) as ledger:
            ledger.set_budgets([found.id for found in ledger.accounts()], self.budget)


def trained_nothing(top: Path, data: DataSet) -> tuple[udpfl.Run, udpfl.Run]:
    """A run on a shared ledger, and one whose clients were left with no budget for it."""
    ledger = top / "budget.sqlite"
    privacy = {"ledger": str(ledger), "epsilon": 1}
    first = train(top / "first", data, privacy=privacy)
    raise_budgets(ledger, 9)
    return first, train(top / "second", data, privacy=privacy, observers=[Lowered(1)])


def test_embedded_data_cannot_end_its_element():
    nasty = ["</script>", "<!--", "a & b", "\u2028"]
    text = embedded(nasty)
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == nasty


def test_names_are_only_ever_text(runs):
    page = run_page(read_run(runs["private"].folder))
    for name in (*HOSTILE, *LABELS):
        assert name not in page
    assert page.count("<script") == 3  # the data, and two files of the package
    assert page.count("</script>") == 3
    assert page.count("<img") == 0


def test_a_report_that_fails_does_not_lose_the_run(tmp_path, monkeypatch, caplog):
    def broken(*_: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(running, "write_report", broken)
    run = train(tmp_path / "r", classification(), rounds=1)
    assert "no ink" in caplog.text
    assert (run.folder / "summary.json").is_file()
    assert not run.report.exists()
    console = Console(file=io.StringIO(), width=100)
    show(run, console)
    assert "report.html" not in console.file.getvalue()


def test_a_run_that_stopped_has_a_report_that_says_so(tmp_path):
    _, run = trained_nothing(tmp_path, classification())
    assert run.stopped
    page = run.report.read_text()
    said = visible(page)
    assert "beside what runs have reserved; udpfl budget show" in said
    assert f"<code>udpfl budget show {run.folder}</code> says what was spent. Nothing was" in page
    assert "`" not in said
    assert "Ended early." in said
    assert "every run that was charged to the same ledger" in said


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_run_that_trained_nothing_shows_nothing_of_its_model(capsys, tmp_path, task):
    data = classification() if task == "classification" else regression()
    _, run = trained_nothing(tmp_path, data)
    assert run.metrics == []
    record = read_run(run.folder)
    assert [chart.id for chart in run_charts(record)] == ["clients"]
    said = visible(run_page(record))
    assert "Nothing was trained, so there is no model." in said
    assert "Class by class" not in said
    assert "Final model" not in said
    assert "Nothing was trained" not in visible(run_page(read_run(tmp_path / "first")))
    if task == "regression":
        assert "test RMSE –" in said
        assert "this model – – – persistence [b] 10.0000" in said
    code, out, _ = command(capsys, "report", run.folder, "--figures", tmp_path / "f")
    assert code == 0
    assert "confusion" not in out


def test_resuming_writes_the_report_again(runs, tmp_path):
    folder = copied(runs["private"], tmp_path / "r", "report.html", "evaluation.json")
    udpfl.run(resume=folder, data=classification())
    assert "private" in (folder / "report.html").read_text()
    assert (folder / "evaluation.json").is_file()


@pytest.mark.parametrize("left", ["all", "one", "none"])
def test_an_unfinished_run_has_a_page_that_says_so(runs, tmp_path, left):
    folder = copied(runs["private"], tmp_path / "r", "summary.json", "evaluation.json")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    kept = {"all": lines, "one": [*lines[:1], lines[1][:40]], "none": []}[left]
    (folder / "metrics.jsonl").write_text("\n".join(kept))
    record = read_run(folder)
    assert not record.finished
    assert record.kind == "guarantee"
    said = visible(run_page(record))
    assert f"Not finished. This page shows the run up to round {record.rounds}" in said
    assert record.rounds == {"all": 4, "one": 1, "none": 0}[left]
    # Whatever the metrics say, four rounds were charged.
    assert record.statement.epsilon == runs["private"].privacy.epsilon
    assert f"ε = {shown(record.statement.epsilon)} at δ = 10⁻⁵ for one record" in said
    assert "so far (what the ledger held when this page was made)" in said
    assert "holds for every client" not in said


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_stopped_between_evaluations_says_what_it_has_spent(tmp_path, shared):
    ledger = tmp_path / "budget.sqlite"
    own = {"ledger": str(ledger)} if shared else {}
    folder = crashed(tmp_path / "r", 5, privacy={"epsilon": [1, 2, 4], **own})
    record = read_run(folder)
    assert record.measured == []
    people = [
        ReleasePlan.from_row(ClientRow.from_dict(row))
        for row in record_of(folder, "participants.json")
    ]
    if shared:
        with Ledger(ledger, read_only=True) as opened:
            rules = [opened.filter(opened.account_of(person.name)) for person in people]
    else:  # whoever stopped it has seen results, so the whole plan counts
        rules = ["best"] * 3
    rounds = 5 if shared else 10
    wanted = [
        account(Repeated(person.round_event(1), rounds), 1e-5, rule).epsilon
        for person, rule in zip(people, rules, strict=True)
    ]
    assert [c.statement.epsilon for c in record.clients] == pytest.approx(wanted, rel=1e-9)
    assert record.statement.epsilon == pytest.approx(max(wanted), rel=1e-9)
    assert record.statement.epsilon > 0.5
    write_report([folder, shutil.copytree(folder, tmp_path / "copy")], tmp_path / "c.html")
    for page in (run_page(record), (tmp_path / "c.html").read_text()):
        said = visible(page)
        assert f"ε = {shown(max(wanted))} at δ = 10⁻⁵ for one record added or removed, so" in said
        assert "holds for every client" not in said
        assert "ε = 0 " not in said
    note = "stated with everything that the run was planned to release"
    assert (note in visible(run_page(record))) != shared


@pytest.mark.parametrize("name", ["private", "nominal", "plain", "shared"])
def test_the_ledger_says_what_the_finished_run_says(runs, tmp_path, name):
    if name == "shared":
        first, run = trained_nothing(tmp_path, classification())
        # An earlier run has used the budget up; this one was asked for nothing and states the sum.
        assert run.stopped
        assert run.privacy.epsilon == first.privacy.epsilon > 0.9
    else:
        run = runs[name]
    record = read_run(copied(run, tmp_path / "r", "summary.json"))
    claims = ("epsilon", "delta", "kind", "vector_epsilon", "accountant", "unit", "neighbours")
    for found, wanted in [
        (record.statement, run.privacy),
        *((c.statement, run.clients[c.name]) for c in record.clients if name != "plain"),
    ]:
        assert [getattr(found, k) for k in claims] == [getattr(wanted, k) for k in claims]


def test_a_crash_on_a_shared_ledger_counts_what_was_spent_before(tmp_path):
    ledger = tmp_path / "budget.sqlite"
    privacy = {"ledger": str(ledger), "epsilon": 2}
    first = train(tmp_path / "first", classification(), privacy=privacy)
    raise_budgets(ledger, 20)
    with Ledger(ledger) as opened:
        own = opened.accounts()
        opened.declare_block(own[0].client, "July", reason="of other people")
        other = opened.account(own[0].client, "other data", block="July")
        opened.import_charge(other, PureDP(100.0), source="elsewhere")
    second = crashed(tmp_path / "second", 2, privacy=privacy)
    with Ledger(ledger, read_only=True) as opened:
        wanted = max(opened.statement(found.id).epsilon for found in own)
    assert 100 > wanted > first.privacy.epsilon
    assert read_run(second).statement.epsilon == wanted  # not what another block has cost
    said = visible(run_page(read_run(first.folder)))
    assert "holds for every client, as of the end of this run" in said  # the ledger has moved on


def test_before_any_charge_nothing_is_spent(runs, tmp_path):
    for name, kind in (("private", "guarantee"), ("nominal", "nominal")):
        folder = copied(runs[name], tmp_path / name, "summary.json", "ledger.sqlite")
        (folder / "metrics.jsonl").write_text("")
        Ledger(folder / "ledger.sqlite").close()
        record = read_run(folder)
        assert (record.statement.epsilon, record.statement.vector_epsilon) == (0, 0)
        assert record.kind == kind
        assert "holds for every client" not in visible(run_page(record))


@pytest.mark.parametrize("trouble", ["missing", "damaged", "older", "no clients"])
@pytest.mark.parametrize("name", ["private", "nominal"])
def test_no_number_without_the_ledger(runs, tmp_path, name, trouble):
    folder = copied(runs[name], tmp_path / "r", "summary.json")
    ledger = folder / "ledger.sqlite"
    if trouble == "no clients":
        (folder / "participants.json").write_text("[]")
    else:
        ledger.unlink()
    if trouble == "damaged":
        ledger.write_bytes(b"no ledger at all" * 500)
    if trouble == "older":  # as if an early copy had been put back
        Ledger(ledger).close()
    record = read_run(folder)
    assert record.kind == "none"
    write_report([folder, shutil.copytree(folder, tmp_path / "copy")], tmp_path / "c.html")
    for page in (run_page(record), (tmp_path / "c.html").read_text()):
        said = visible(page)
        assert "No number can be stated: the spending of this run cannot be read from its" in said
        assert "Not known" in said
        assert "ε = " not in said
        assert "Not private" not in said
        assert "holds for every client" not in said
    assert "holds 0 of the 12 answers" in said or trouble != "older"
    assert not {chart.id for chart in run_charts(record)} & {"epsilon", "clients"}


def test_a_mechanism_of_ones_own_has_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    privacy = {"mechanism": "own_mechanism:Secant", "accountant": "rdp"}
    run = train(tmp_path / "r", classification(), rounds=1, privacy=privacy)
    assert "own_mechanism:Secant (scale " in visible(run.report.read_text())
    record = read_run(copied(run, tmp_path / "unfinished", "summary.json"))
    assert record.statement.epsilon == run.privacy.epsilon


@pytest.mark.slow
def test_the_example_with_its_own_mechanism_leaves_a_report(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "own_mechanism.py"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "was not written" not in done.stderr
    (page,) = tmp_path.glob("runs/*/report.html")
    assert "own_mechanism:Secant" in visible(page.read_text())


def test_a_finished_run_says_that_its_ledger_holds_more_by_now(tmp_path):
    shared = tmp_path / "budget.sqlite"
    privacy = {"ledger": str(shared), "epsilon": [1, 2, 4]}
    path = train(tmp_path / "run", classification(), 1, privacy=privacy).folder
    before = read_run(path)
    with Ledger(shared) as ledger:
        account = ledger.accounts()[0]
        sensitivity = udpfl.Sensitivity(1.0, "l2", 10)
        event = udpfl.PoissonSampled(0.5, udpfl.Release(udpfl.Gaussian(1.0), sensitivity))
        ledger.import_charge(account.id, event, source="elsewhere", note="")
        now = ledger.statement(account.id, before.statement.delta)
    after = read_run(path)
    assert not any("charged with more" in note for note in before.statement.notes)
    (note,) = (note for note in after.statement.notes if "charged with more" in note)
    assert shown(now.epsilon) in note
    assert after.statement.epsilon == before.statement.epsilon  # what the run itself ended with
    assert "charged with more" in run_page(after)
