"""What a report measures, and what its words say."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.optimize import brentq
from scipy.special import ndtr

from tests.report.pages import LABELS, classification, regression, train, visible
from tests.repository import ROOT
from udpfl.accounting.statement import shown
from udpfl.cli.run import Live, show
from udpfl.report import read_run, run_page
from udpfl.report.words import explain, factor, small

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
    privacy = replace(run.summary.privacy, epsilon=epsilon, delta=delta)
    page = visible(run_page(replace(run, summary=replace(run.summary, privacy=privacy))))
    assert "except with probability" not in page
    assert (
        "they learn no more than someone who, with probability δ = 10⁻⁵ (1 in 100,000), sees "
        "the data itself, and otherwise sees one randomised answer, by which the odds change by "
        f"at most a factor of e ε = {factor(epsilon)}."
    ) in page
    assert page.count("the odds change") == 1
    assert (
        "From that one randomised answer, someone can become this sure that the record was there; "
        "with probability δ = 10⁻⁵ they see the data instead"
    ) in page
    assert "How sure someone can become" not in page


def test_without_delta_the_odds_change_by_the_factor_and_no_more(runs):
    run = read_run(runs["private"].folder)
    privacy = replace(run.summary.privacy, epsilon=1.0, delta=0.0)
    page = visible(run_page(replace(run, summary=replace(run.summary, privacy=privacy))))
    assert (
        "Whatever they believed before, the odds change by at most a factor of e ε = 2.72." in page
    )
    assert "How sure someone can become that the record was there" in page
    assert "randomised answer" not in page
    assert "outright" not in page


def test_no_text_calls_delta_the_chance_of_a_larger_loss():
    texts = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.ipynb")]
    odds = r"not\* mean that the odds change by at most \$e\^\{\\varepsilon\}\$ "
    wrong = rf"(?<!{odds})except with probability"
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
    assert "nominal" not in said["private"].replace(
        "'scalar', as in the paper, is nominal only", ""
    )
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
