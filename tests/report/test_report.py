"""The report: what it says, that it says it safely, and how it looks in a real browser."""

from __future__ import annotations

import html
import io
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.optimize import brentq
from scipy.special import ndtr

import udpfl
from tests.chromium import Chromium, executable
from tests.commands import command
from tests.report.test_verified import sealing_nothing
from tests.repository import EXAMPLES, ROOT
from udpfl import running
from udpfl.accounting import PureDP, Repeated, account
from udpfl.accounting.budget import Budget
from udpfl.accounting.statement import shown
from udpfl.cli.run import Live, show
from udpfl.data import DataSet
from udpfl.data.records import Records
from udpfl.errors import InvalidInput
from udpfl.federation.participants import Participant
from udpfl.ledger.ledger import Ledger
from udpfl.report import read_run, run_page, write_report
from udpfl.report.charts import run_charts
from udpfl.report.comparison import comparison_charts
from udpfl.report.page import embedded
from udpfl.report.words import explain, factor, small

HOSTILE = (
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "<!-- <script>",
)
LABELS = ("<b>cat</b>", "dog & co", "</td></table>$x_1$")


def records(rng: np.random.Generator, count: int) -> Records:
    labels = np.arange(count) % 3
    return Records((rng.normal(size=(count, 5)) + 2 * np.eye(5)[labels]).astype("f4"), labels)


def classification(**extra: object) -> DataSet:
    rng = np.random.default_rng(0)
    names = np.array(HOSTILE)[np.arange(120) // 3 % 3]
    return DataSet("own", "classification", records(rng, 120), records(rng, 60), 3,
                   columns={"site": names}, class_names=LABELS, **extra)  # fmt: skip


def regression() -> DataSet:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(150, 4)).astype("f4")
    y = (x @ rng.normal(size=(4, 6))).astype("f4")
    return DataSet("own", "regression", Records(x[:90], y[:90]), Records(x[90:], y[90:]), None,
                   references={"persistence [b]": {"mae": 9.5, "mse": 100.0, "rmse": 10.0}},
                   )  # fmt: skip


def train(
    folder: Path, data: DataSet, rounds: int = 4, evaluate_every: int = 1, **sections: object
) -> udpfl.Run:
    threads = torch.get_num_threads()
    by = {"partition": "column", "by": "site"} if data.columns else {}
    base = {"out": str(folder), "threads": 1, "model": {"name": "logistic"},
            "data": {"clients": 3, "declared_sizes": 40, **by}}  # fmt: skip
    try:
        training = {"rounds": rounds, "learning_rate": 0.5, "evaluate_every": evaluate_every}
        return udpfl.run(base, data=data, training=training, **sections)
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, udpfl.Run]:
    """One run of every kind, with names that try to break out of the page."""
    top = tmp_path_factory.mktemp("runs")
    return {
        "private": train(top / "private", classification(), privacy={"epsilon": [1, 2, 4]}),
        "nominal": train(
            top / "nominal", classification(),
            privacy={"mechanism": "staircase", "accounting": "scalar"},
        ),
        "plain": train(top / "<i>plain", classification(), privacy="none"),
        "errors": train(top / "errors", regression()),
    }  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if executable() is None:
        pytest.skip("no chromium on PATH, and UDPFL_CHROMIUM is not set")
    found = Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def record_of(folder: Path, name: str) -> list[dict]:
    return json.loads((folder / name).read_text())


def copied(run: udpfl.Run, target: Path, *without: str) -> Path:
    shutil.copytree(run.folder, target)
    for name in without:
        (target / name).unlink()
    return target


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


def raise_budgets(path: Path, epsilon: float) -> None:
    with Ledger(path) as ledger:
        accounts = [found.id for found in ledger.accounts()]
        ledger.set_budgets(accounts, Budget(epsilon, 1e-5), reason="more runs")


def trained_nothing(top: Path, data: DataSet) -> tuple[udpfl.Run, udpfl.Run]:
    """A run on a shared ledger, and one whose clients were left with no budget for it."""
    ledger = top / "budget.sqlite"
    privacy = {"ledger": str(ledger), "epsilon": 1}
    first = train(top / "first", data, privacy=privacy)
    raise_budgets(ledger, 9)
    return first, train(top / "second", data, privacy=privacy, observers=[Lowered(1)])


def visible(page: str) -> str:
    """The page as a reader sees it without scripts: no tags, no embedded data."""
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


# What is measured


def test_the_confusion_matrix_counts_what_the_model_says(runs):
    run, test = runs["private"], classification().test
    wanted = [[0] * 3 for _ in range(3)]
    for x, y in zip(test.inputs, test.targets, strict=True):
        wanted[int(y)][int(run.model(torch.from_numpy(x)[None]).argmax())] += 1
    found = json.loads((run.folder / "evaluation.json").read_text())
    assert found["confusion"] == wanted
    assert sum(wanted[i][i] for i in range(3)) / 60 == pytest.approx(run.accuracy)
    assert found["accuracy"] == run.accuracy
    assert found["class_names"] == list(LABELS)
    assert found["test_records"] == 60
    assert wanted != [list(column) for column in zip(*wanted, strict=True)]  # rows are not columns


def test_errors_by_output_are_those_of_the_model(runs):
    run, test = runs["errors"], regression().test
    with torch.no_grad():
        gap = run.model(torch.from_numpy(test.inputs)).numpy() - test.targets
    found = json.loads((run.folder / "evaluation.json").read_text())
    np.testing.assert_allclose(found["mae_by_output"], np.abs(gap).mean(0), rtol=1e-4)
    np.testing.assert_allclose(found["rmse_by_output"], np.sqrt((gap**2).mean(0)), rtol=1e-4)
    assert found["rmse"] == pytest.approx(np.sqrt((gap**2).mean()), rel=1e-4)
    assert run.to_dict()["rmse"] == found["rmse"] == run.metrics[-1]["rmse"]
    assert found["references"] == {"persistence [b]": {"mae": 9.5, "mse": 100.0, "rmse": 10.0}}


def test_the_closing_table_names_the_benchmark_and_the_report(runs):
    for width in (80, 200):
        console = Console(file=io.StringIO(), width=width)
        show(runs["errors"], console)
        said = console.file.getvalue()
        assert "persistence [b]: mae 9.5000, mse 100.0000, rmse 10.0000" in said
        assert re.search(r"^rmse +\d", said, re.MULTILINE)
        assert str(runs["errors"].report) in said.replace("\n", "")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_progress_keeps_accuracy_and_epsilon_on_one_line(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, record=True)
    view = Live(console)
    view.expect(1000)
    row = {"loss": 0.4, "accuracy": 0.8412, "privacy": "nominal", "epsilon": {"max": 3.2511}}
    for round_ in (998, 999):
        view.on_round({"round": round_, **row})
    console.print(view._bar.get_renderable())
    lines = console.export_text().splitlines()
    assert len(lines) == 1
    assert "999/1000" in lines[0]
    assert "accuracy 0.8412  nominal ε 3.252" in lines[0]
    assert "…" not in lines[0]


# What the words say


def test_odds_are_what_bayes_rule_gives(runs):
    run = read_run(runs["private"].folder)
    spent = run.statement.epsilon
    assert spent == pytest.approx(4, rel=0.01)
    for belief in explain(run).beliefs:
        prior = float(belief.before.removesuffix(" %")) / 100
        # A randomised answer whose likelihoods differ by e^eps, told "yes".
        truth = math.exp(spent) / (1 + math.exp(spent))
        posterior = prior * truth / (prior * truth + (1 - prior) * (1 - truth))
        said = float(belief.at_most.removesuffix(" %")) / 100
        assert posterior <= said <= posterior + 1.1e-4
        lowest = prior * (1 - truth) / (prior * (1 - truth) + (1 - prior) * truth)
        said = float(belief.at_least.removesuffix(" %")) / 100
        assert lowest - 1.1e-4 <= said <= lowest


def gaussian_delta(mean: float, epsilon: float) -> float:
    """Smallest delta for N(0, 1) against N(mean, 1): Balle and Wang 2018, theorem 8."""
    high, low = mean / 2 - epsilon / mean, -mean / 2 - epsilon / mean
    return float(ndtr(high) - math.exp(epsilon) * ndtr(low))


@pytest.mark.parametrize(("epsilon", "times"), [(0.5, 28.57), (8, 3.61)])
def test_delta_is_the_chance_of_the_truth_and_not_of_a_larger_loss(runs, epsilon, times):
    delta = 1e-5
    mean = brentq(lambda m: gaussian_delta(m, epsilon) - delta, 0.01, 10, xtol=1e-14)
    # The log-likelihood ratio is N(mean²/2, mean²): the odds change by more than e^epsilon with
    # several times the probability delta, in a mechanism that is exactly (epsilon, delta)-private.
    beyond = ndtr(mean / 2 - epsilon / mean)
    assert beyond / delta == pytest.approx(times, abs=0.01)
    # What the page says instead holds: the truth with probability delta, else a randomised answer,
    # is the better experiment at every threshold, so the noise can be simulated from it.
    for threshold in np.linspace(0, 3 * epsilon, 61):
        gap = max(0.0, math.exp(epsilon) - math.exp(threshold)) / (1 + math.exp(epsilon))
        assert gaussian_delta(mean, threshold) <= delta + (1 - delta) * gap + 1e-12

    run = read_run(runs["private"].folder)
    privacy = {**run.summary["privacy"], "epsilon": epsilon, "delta": delta}
    page = visible(run_page(replace(run, summary={**run.summary, "privacy": privacy})))
    assert "except with probability" not in page
    assert (
        "they learn no more than someone who, with probability δ = 10⁻⁵ (1 in 100,000), is told "
        "the truth outright, and otherwise gets one randomised answer, by which the odds change by "
        f"at most a factor of e ε = {factor(epsilon)}."
    ) in page
    assert page.count("the odds change") == 1
    assert (
        "How sure that one randomised answer can make someone that the record was there; with "
        "probability δ = 10⁻⁵ they are told instead"
    ) in page
    assert "How sure someone can become" not in page


def test_without_delta_the_odds_change_by_the_factor_and_no_more(runs):
    run = read_run(runs["private"].folder)
    privacy = {**run.summary["privacy"], "epsilon": 1.0, "delta": 0.0}
    page = visible(run_page(replace(run, summary={**run.summary, "privacy": privacy})))
    assert (
        "Whatever they believed before, the odds change by at most a factor of e ε = 2.72." in page
    )
    assert "How sure someone can become that the record was there" in page
    assert "randomised answer" not in page
    assert "outright" not in page


def test_no_text_calls_delta_the_chance_of_a_larger_loss():
    texts = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.ipynb")]
    wrong = r"(?<!not\* mean that the odds change by at most e\^ε )except with probability"
    for path in texts:
        said = " ".join(path.read_text().replace('\\n",\n    "', " ").split())
        assert not re.search(rf"{wrong}|probability with which even|δ[^.]{{0,60}}may fail", said), (
            path
        )


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1, 2, 5, 8, 13.8, 14, 50, 800, 246_000])
def test_factors_are_never_rounded_down(epsilon):
    said = factor(epsilon)
    if said.startswith("10 to the power of "):
        exponent = int(said.removeprefix("10 to the power of ").replace(",", ""))
        assert epsilon / math.log(10) <= exponent < epsilon / math.log(10) + 1
    else:
        value = float(said.replace(",", ""))
        assert math.exp(epsilon) * (1 - 1e-9) <= value < math.exp(epsilon) * 1.011


def test_small_numbers_are_powers_of_ten_only_where_they_are():
    assert [small(d) for d in (1e-5, 1e-12, 2e-5, 0.0, 0.01)] == [
        "10⁻⁵", "10⁻¹²", "2e-05", "0", "0.01",
    ]  # fmt: skip


def test_each_kind_speaks_for_itself(runs):
    said = {name: visible(run_page(read_run(run.folder))) for name, run in runs.items()}
    proved = runs["nominal"].privacy.vector_epsilon
    assert proved > 10 * runs["nominal"].privacy.epsilon
    assert (
        f"not a guarantee. The true guarantee for the whole gradient is ε = {shown(proved)}"
        in (said["nominal"])
    )
    assert "an upper bound that holds for every client" not in said["nominal"]
    assert "an upper bound that holds for every client" in said["private"]
    assert "nominal" not in said["private"].replace("'scalar' is the paper's, nominal only", "")
    assert "Not private: privacy is turned off" in said["plain"]
    for phrase in ("Whatever they believed before", "Facts that are true of the whole population"):
        assert phrase in said["private"]
        assert phrase not in said["plain"]
    assert "e ε = 54.6" in said["private"]  # e^4 = 54.598
    assert "1 in 100,000" in said["private"]


def test_the_odds_of_a_nominal_run_are_those_of_its_guarantee(runs):
    run = read_run(runs["nominal"].folder)
    assert factor(run.statement.vector_epsilon) in explain(run).meaning[1]
    assert factor(run.statement.vector_epsilon) != factor(run.statement.epsilon)


def test_notes_of_the_statement_are_shown(tmp_path):
    run = train(tmp_path / "r", classification(), rounds=1)
    summary = json.loads((run.folder / "summary.json").read_text())
    summary["privacy"]["notes"] = ["assumes <that> much"]
    (run.folder / "summary.json").write_text(json.dumps(summary))
    assert "assumes &lt;that&gt; much" in run_page(read_run(run.folder))


# What is drawn


def test_charts_hold_the_numbers_of_the_run(runs):
    run = read_run(runs["private"].folder)
    charts = {chart.id: chart for chart in run_charts(run)}
    assert list(charts) == ["accuracy", "loss", "epsilon", "clients", "signal", "clip", "classes"]
    rows = runs["private"].metrics
    assert charts["accuracy"].series[0].y == [row["accuracy"] for row in rows]
    assert charts["epsilon"].bands[0].high == [row["epsilon"]["max"] for row in rows]
    assert charts["epsilon"].marks == ((1.0, "budget 1"), (2.0, "budget 2"), (4.0, "budget 4"))
    assert charts["clients"].bars.marks == [1.0, 2.0, 4.0]
    assert all("Simulation only" in charts[name].warning for name in ("signal", "clip"))
    matrix = run.evaluation["confusion"]
    assert charts["classes"].bars.values == [matrix[i][i] / sum(matrix[i]) for i in range(3)]


def test_an_epsilon_is_never_drawn_below_itself(runs):
    for run in (read_run(runs["private"].folder), read_run(runs["nominal"].folder)):
        for chart in run_charts(run):
            if chart.format != "epsilon":
                continue
            plain = chart.to_dict()
            for line, drawn in zip(chart.series, plain["series"], strict=True):
                assert all(a <= b < a * 1.00002 for a, b in zip(line.y, drawn["y"], strict=True))
            if chart.bars:
                pairs = zip(chart.bars.values, plain["bars"]["values"], strict=True)
                assert all(a <= b < a * 1.00002 for a, b in pairs)


def test_runs_that_are_not_private_have_no_epsilon_chart(runs):
    ids = {chart.id for chart in run_charts(read_run(runs["plain"].folder))}
    assert not ids & {"epsilon", "clients", "signal", "clip"}


def test_nominal_lines_and_bars_have_a_pattern(runs):
    charts = {chart.id: chart for chart in run_charts(read_run(runs["nominal"].folder))}
    assert charts["clients"].bars.hatched
    assert [line.dash for line in charts["epsilon"].series] == ["dashed", "solid"]
    assert charts["epsilon"].log
    assert "not a guarantee" in charts["epsilon"].warning
    compared = comparison_charts([read_run(run.folder) for run in runs.values()])
    lines = next(chart for chart in compared if chart.id == "accuracy").series
    assert [line.dash for line in lines] == ["solid", "dashed", "dotted"]


@pytest.mark.parametrize("names", ["mixed", "nominal"])
def test_no_axis_has_two_kinds_of_epsilon(runs, names):
    kinds = {"mixed": ("nominal", "plain", "private"), "nominal": ("nominal", "plain", "nominal")}
    compared = comparison_charts([read_run(runs[name].folder) for name in kinds[names]])
    charts = {chart.id: chart for chart in compared}
    assert len(charts["accuracy"].series) == 3
    for chart, axis in ((charts["epsilon"], "y"), (charts["trade"], "x")):
        called = getattr(chart, axis)
        if names == "mixed":
            (line,) = chart.series
            assert (line.name, line.colour) == ("private (guarantee)", "run-2")
            assert list(getattr(line, axis)) == [
                r["epsilon"]["max"] for r in runs["private"].metrics
            ]
            assert chart.warning == "nominal runs are left out"
            assert "the ε that is guaranteed instead" in chart.note
            assert called.startswith("ε")
        else:
            assert [line.dash for line in chart.series] == ["dashed", "dashed"]
            assert called.startswith("nominal ε")
            assert "not a guarantee" in chart.warning


def budgets_drawn(folder: Path) -> tuple[list[float], str, str]:
    charts = {chart.id: chart for chart in run_charts(read_run(folder))}
    bars = charts["clients"]
    if "epsilon" in charts:
        names = [f"{bars.bars.mark_name} {mark:g}" for mark in sorted(set(bars.bars.marks))]
        assert [label for _, label in charts["epsilon"].marks] == names
    return bars.bars.marks, bars.bars.mark_name, bars.note


def test_the_budget_drawn_is_the_one_in_the_ledger(runs, tmp_path):
    ledger = tmp_path / "budget.sqlite"
    train(tmp_path / "first", classification(), privacy={"ledger": str(ledger), "epsilon": 5})
    raise_budgets(ledger, 9)
    privacy = {"ledger": str(ledger), "epsilon": 4}
    run = train(tmp_path / "second", classification(), privacy=privacy)
    assert 4 < run.privacy.epsilon <= 9
    raise_budgets(ledger, 20)  # what comes later is not this run's budget
    marks, name, note = budgets_drawn(run.folder)
    assert (marks, name) == ([9.0] * 3, "budget")
    assert "in the ledger when the run ended" in note
    said = visible(run_page(read_run(run.folder)))
    assert "The budget is the one that it held when this run ended." in said
    assert "budget ε δ" in said
    assert said.count("9 (configured 4)") == 3

    summary = record_of(run.folder, "summary.json")
    assert summary["budgets"] == {person: [9.0, 1e-5] for person in run.clients}
    with sealing_nothing():
        old = train(tmp_path / "old", classification(), privacy={"epsilon": 4}).folder
    summary = record_of(old, "summary.json")
    del summary["budgets"], summary["decided"]
    (old / "summary.json").write_text(json.dumps(summary))
    for folder in (old, copied(run, tmp_path / "unfinished", "summary.json")):
        marks, name, note = budgets_drawn(folder)
        assert (marks, name) == ([4.0] * 3, "configured budget")
        assert "The ledger may hold another one." in note
        assert "configured budget ε δ" in visible(run_page(read_run(folder)))

    assert "planned for." in budgets_drawn(runs["nominal"].folder)[2]
    assert budgets_drawn(runs["nominal"].folder)[1] == "configured budget"


def test_many_clients_are_sorted(runs, tmp_path):
    folder = copied(runs["private"], tmp_path / "many", "ledger.sqlite")  # it knows no crowd
    people = json.loads((folder / "participants.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    own = summary["clients"][people[0]["name"]]
    crowd = [{**people[0], "name": f"c{i}"} for i in range(1000)]
    summary["clients"] = {f"c{i}": {**own, "epsilon": 1 + i % 7} for i in range(1000)}
    (folder / "participants.json").write_text(json.dumps(crowd))
    (folder / "summary.json").write_text(json.dumps(summary))
    chart = next(c for c in run_charts(read_run(folder)) if c.id == "clients")
    assert chart.bars.values == sorted(chart.bars.values, reverse=True)
    assert sorted(chart.bars.labels) == sorted(f"c{i}" for i in range(1000))
    for label, value in zip(chart.bars.labels, chart.bars.values, strict=True):
        assert value == 1 + int(label[1:]) % 7


# Safe, and never in the way


def test_embedded_data_cannot_end_its_element():
    nasty = ["</script>", "<!--", "a & b", "\u2028"]
    text = embedded(nasty)
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == nasty


def test_names_are_only_ever_text(runs):
    page = run_page(read_run(runs["private"].folder))
    for name in (*HOSTILE, *LABELS):
        assert name not in page
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
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
    assert "the budget does not allow another round; udpfl budget show" in said
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
        assert "– test RMSE" in said
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
    assert f"Not finished. This page shows the run as far as it got: round {record.rounds}" in said
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
    people = [Participant.from_dict(row) for row in record_of(folder, "participants.json")]
    if shared:
        with Ledger(ledger, read_only=True) as opened:
            rules = [opened.filter(opened.account_of(person.name)) for person in people]
    else:  # whoever stopped it has seen results, so the whole plan counts
        rules = ["best"] * 3
    rounds = 5 if shared else 10
    wanted = [
        account(Repeated(person.round_event, rounds), 1e-5, rule).epsilon
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
        assert "No number can be stated: what this run has spent cannot be read from its" in said
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


# The command


def test_the_command_writes_one_page_or_a_comparison(capsys, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [run.folder for run in runs.values()]
    (folders[0] / "report.html").unlink()
    assert command(capsys, "report", folders[0]) == (0, f"{folders[0]}/report.html\n", "")
    assert (folders[0] / "report.html").is_file()
    assert command(capsys, "report", *folders) == (0, "comparison.html\n", "")
    page = Path("comparison.html").read_text()
    said = visible(page)
    assert "4 runs compared" in said
    assert "privacy.accounting vector scalar – vector" in said
    assert "privacy on on none on" in said
    assert "data.clients" not in said  # the same in all
    assert "&lt;i&gt;plain" in page
    assert "<i>plain" not in page


def test_the_same_folder_twice_counts_once(capsys, runs, tmp_path):
    one, other = runs["private"].folder, runs["plain"].folder
    again = one.parent / "nominal" / ".." / one.name
    write_report([one, again], tmp_path / "c.html")
    assert "UDP-FL run report" in visible((tmp_path / "c.html").read_text())
    write_report([one, other, again], tmp_path / "c.html")
    assert "2 runs compared" in visible((tmp_path / "c.html").read_text())
    code, out, _ = command(
        capsys, "report", one, again, "--out", tmp_path / "r.html", "--figures", tmp_path / "f"
    )
    assert (code, "confusion.png" in out) == (0, True)


def test_two_runs_of_the_same_name_are_told_apart(runs, tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        copied(runs["private"], tmp_path / place / "same")
    write_report([tmp_path / "a" / "same", tmp_path / "b" / "same"], tmp_path / "c.html")
    said = visible((tmp_path / "c.html").read_text())
    assert "same (2)" in said
    assert "All runs have the same settings." in said


@pytest.mark.parametrize(("name", "format_"), [("nominal", "svg"), ("plain", "png")])
def test_figures_are_drawn_for_every_chart(capsys, runs, tmp_path, name, format_):
    code, out, _ = command(
        capsys, "report", runs[name].folder, "--out", tmp_path / "r.html",
        "--figures", tmp_path / "f", "--format", format_,
    )  # fmt: skip
    assert code == 0
    charts = [chart.id for chart in run_charts(read_run(runs[name].folder))]
    wanted = {f"{chart}.{format_}" for chart in (*charts, "confusion")}
    assert {path.name for path in (tmp_path / "f").iterdir()} == wanted
    assert len(out.splitlines()) == 1 + len(wanted)
    for path in (tmp_path / "f").iterdir():
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if format_ == "png" else b"<?xml" in start


def test_what_is_no_run_is_refused(capsys, runs, tmp_path):
    code, _, err = command(capsys, "report", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "RUN: " in err
    assert "is not a run folder" in err
    code, _, err = command(capsys, "report", runs["plain"].folder, "--out", tmp_path / "r.pdf")
    assert code == 2
    assert "out: the file must end in .html, got 'r.pdf'" in err
    code, _, err = command(
        capsys, "report", runs["plain"].folder, "--out", tmp_path / "no" / "r.html"
    )
    assert code == 2
    assert "cannot write" in err
    (tmp_path / "file").touch()
    code, _, err = command(
        capsys, "report", runs["plain"].folder, "--out", tmp_path / "r.html",
        "--figures", tmp_path / "file",
    )  # fmt: skip
    assert (code, "is a file, not a folder" in err) == (2, True)
    broken = copied(runs["plain"], tmp_path / "broken")
    (broken / "summary.json").write_text("{")
    with pytest.raises(InvalidInput, match="cannot read"):
        read_run(broken)


def test_a_report_needs_no_torch(runs, tmp_path):
    unfinished = copied(runs["nominal"], tmp_path / "r", "summary.json")
    code = f"""
import sys
from pathlib import Path
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
from udpfl.cli import main
from udpfl.report import read_run
assert read_run(Path({str(unfinished)!r})).statement.epsilon > 0
main(["report", {str(runs["private"].folder)!r}, "--out", {str(tmp_path / "r.html")!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "r.html").stat().st_size > 30_000


# In a browser


def test_pages_load_in_silence_and_draw_every_chart(browser, runs, tmp_path):
    comparison = tmp_path / "comparison.html"
    write_report([run.folder for run in runs.values()], comparison)
    for page in (*(run.report for run in runs.values()), comparison):
        assert page.stat().st_size < 100_000
        browser.open(page)
        assert browser.complaints() == []
        assert browser.requests() == [page.resolve().as_uri()]
        assert browser.run("document.documentElement.dataset.ready") == "yes"
        assert browser.run("typeof window.hacked") == "undefined"
        assert browser.run("document.images.length") == 0
        charts = browser.run("JSON.parse(document.getElementById('report-data').textContent)")
        assert charts
        drawn = browser.run(
            "[...document.querySelectorAll('figure[data-chart] .plot svg')]"
            ".map(s => [...s.querySelectorAll('path')].filter(p => p.getTotalLength() > 50).length)"
        )
        assert len(drawn) == len(charts)
        assert all(drawn)


def test_the_policy_of_the_page_lets_nothing_else_run(browser, runs, tmp_path):
    page = tmp_path / "r.html"
    text = runs["private"].report.read_text()
    evil = "<script>window.hacked = 1</script><img src='https://example.invalid/x.png'>"
    page.write_text(text.replace("</main>", evil + "</main>"))
    browser.open(page)
    browser.run("new Promise(done => setTimeout(done, 300))")
    assert browser.run("typeof window.hacked") == "undefined"
    assert len(browser.complaints()) >= 2  # both are refused, and it says so
    # the request is announced, then refused by the policy before it leaves
    failed = [e["params"] for e in browser.events if e.get("method") == "Network.loadingFailed"]
    assert [found.get("blockedReason") for found in failed] == ["csp"]


def test_hostile_names_are_shown_as_they_are(browser, runs):
    browser.open(runs["private"].report)
    names = browser.run(
        "[...document.querySelectorAll('.clients tbody th')].map(n => n.textContent)"
    )
    assert sorted(names) == sorted(HOSTILE)
    heads = browser.run(
        "[...document.querySelectorAll('#matrix thead th')].map(n => n.textContent)"
    )
    assert tuple(heads) == LABELS


def test_pointer_keys_and_legend_read_the_chart(browser, runs):
    run = runs["private"]
    browser.open(run.report)
    plot = "document.querySelector('[data-chart=epsilon] .plot svg')"
    said = "document.querySelector('[data-chart=epsilon] .readout').textContent"
    browser.run(f"{plot}.scrollIntoView({{block: 'center'}})")
    box = browser.run(f"JSON.parse(JSON.stringify({plot}.getBoundingClientRect()))")
    assert browser.run(said) == ""
    browser.move(box["x"] + box["width"] - 16, box["y"] + box["height"] / 2)
    last = shown(run.metrics[-1]["epsilon"]["max"])
    assert browser.run(said).startswith(f"round 4: ε, largest of any client {last}; ε, median")
    browser.run(f"{plot}.focus()")
    browser.press("Home")
    first = shown(run.metrics[0]["epsilon"]["max"])
    assert browser.run(said).startswith(f"round 1: ε, largest of any client {first};")
    browser.press("ArrowRight")
    assert browser.run(said).startswith("round 2: ")
    assert browser.run(f"{plot}.getAttribute('aria-valuetext')") == browser.run(said)
    lines = f"{plot}.querySelectorAll('path.line').length"
    assert browser.run(lines) == 2
    button = "document.querySelector('[data-chart=epsilon] .legend button')"
    browser.run(f"{button}.click()")
    assert browser.run(lines) == 1
    assert browser.run(f"{button}.getAttribute('aria-pressed')") == "false"
    browser.run(f"{button}.click()")
    assert browser.run(lines) == 2
    browser.run("document.querySelector('[data-chart=epsilon] details').open = true")
    cells = browser.run(
        "new Promise(r => setTimeout(() => r([...document.querySelectorAll("
        "'[data-chart=epsilon] tbody tr:last-child > *')].map(c => c.textContent)), 50))"
    )
    assert cells[:2] == ["4", last]
    assert browser.complaints() == []


def test_a_single_evaluated_round_stands_in_the_middle(browser, tmp_path):
    run = train(tmp_path / "r", classification(), rounds=3, evaluate_every=3)
    write_report([run.folder, shutil.copytree(run.folder, tmp_path / "s")], tmp_path / "c.html")
    for page, chart in ((run.report, "accuracy"), (tmp_path / "c.html", "trade")):
        browser.open(page)
        plot = f"document.querySelector('[data-chart={chart}] .plot svg')"
        middle = browser.run(f"Number({plot}.querySelector('text.axis').getAttribute('x'))")
        assert browser.run(
            f"Number({plot}.querySelector('circle').getAttribute('cx'))"
        ) == pytest.approx(middle)
        ticks = f"[...{plot}.querySelectorAll('text.tick.middle')].map(t => Number(t.textContent))"
        if chart == "accuracy":
            assert browser.run(ticks) == [3]
        else:
            assert len(browser.run(ticks)) > 1
        assert browser.complaints() == []


def test_bars_and_the_matrix_read_out(browser, runs):
    browser.open(runs["private"].report)
    browser.run("document.querySelector('[data-chart=classes] .plot svg').focus()")
    browser.press("Home")
    said = browser.run("document.querySelector('[data-chart=classes] .readout').textContent")
    assert said.startswith(f"{LABELS[0]}: ")
    cell = "document.querySelector('#matrix tbody td')"
    browser.run(f"{cell}.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))")
    matrix = json.loads((runs["private"].folder / "evaluation.json").read_text())["confusion"]
    said = browser.run("document.getElementById('cell').textContent")
    assert said.startswith(f"{LABELS[0]} taken for {LABELS[0]}: {matrix[0][0]} of {sum(matrix[0])}")


@pytest.mark.parametrize("name", ["private", "nominal", "errors"])
def test_a_phone_needs_no_sideways_scrolling(browser, runs, name):
    browser.open(runs[name].report, width=390, height=844)
    assert browser.run("document.documentElement.scrollWidth") == 390
    widths = browser.run(
        "[...document.querySelectorAll('.plot svg')].map(s => s.getBoundingClientRect().right)"
    )
    assert max(widths) <= 390


def test_dark_is_dark_and_paper_is_white(browser, runs):
    page, ground = runs["nominal"].report, "getComputedStyle(document.body).backgroundColor"
    browser.open(page)
    assert browser.run(ground) == "rgb(246, 247, 249)"
    browser.open(page, dark=True)
    assert browser.run(ground) == "rgb(18, 22, 28)"
    browser.run(
        "addEventListener('beforeprint', () => { window.open_ = "
        "document.querySelectorAll('details:not(.data):not([open])').length; "
        f"window.ground = {ground}; }})"
    )
    browser.run("document.querySelector('details:not(.data)').open = false")
    assert browser.run("document.querySelectorAll('details:not(.data):not([open])').length") > 0
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF")
    assert browser.run("window.open_") == 0  # everything is unfolded on paper
    assert browser.run("document.querySelectorAll('details:not(.data):not([open])').length") > 0
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.run(ground) == "rgb(255, 255, 255)"


def test_nominal_bars_are_hatched_and_guaranteed_ones_are_not(browser, runs):
    hatched = "document.querySelectorAll('[data-chart=clients] .plot path[data-hatch]').length"
    browser.open(runs["nominal"].report)
    assert browser.run(hatched) == 1
    dashes = "document.querySelector('[data-chart=epsilon] path.line').getAttribute('{}')"
    assert browser.run(dashes.format("stroke-dasharray")) == "7 4"
    browser.open(runs["private"].report)
    assert browser.run(hatched) == 0
    assert browser.run(dashes.format("stroke-dasharray")) == "none"


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
