"""`udpfl methods --table`: the paper's words as printed, and what was measured below them."""

from __future__ import annotations

import json
import re
import sys

from typer.testing import CliRunner

from tests.repository import ROOT

sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import paper_table
from tables import filled

from udpfl.algorithms import BUILT_IN
from udpfl.cli._paper_table import PRINTED, TARGETS, in_words, stored, table
from udpfl.cli.app import app

MAJORITY = 0.12
"""More than the share of the largest class, of the digits as of MNIST."""


def test_the_words_are_the_papers():
    """Copied by hand from its source."""
    slow, answers = ("DP", "Slow"), ("Rand. Response", "Low", "LDP-Shuffle", "N/A")
    assert {row.method: tuple(row[1:]) for row in PRINTED} == {
        "DP-FedAvg": ("Gaussian", "High", *slow),
        "NbAFL": ("Gaussian", "Low", *slow),
        "RDP-PFL": ("Gaussian", "High", *slow),
        "ALS-DPFL": ("Gaussian", "Low", *slow),
        "LDP-Fed": answers,
        "CLDP-SGD": answers,
        "LDP-FL": answers,
        "COFEL-AVG": ("Laplace", "Low", *slow),
        "UDP-FL (Ours)": ("Universal", "High", "DP", "Fast"),
    }


def test_every_method_of_the_table_is_built_in():
    for printed in PRINTED[:-1]:
        assert printed.method.lower() in BUILT_IN
    assert {row for row, _ in paper_table.LINES.values()} == {row.method for row in PRINTED}
    assert {line.partition(",")[0] for line in paper_table.LINES} <= BUILT_IN.keys()


def test_what_was_measured_is_measured_with_the_settings_of_the_script():
    report = stored()
    assert paper_table.known(paper_table.OUT) == report
    found = {(cell["line"], cell["data"]) for cell in report["cells"]}
    assert found == {(line, data) for line in paper_table.LINES for data in TARGETS}


def test_every_method_learns_and_says_what_holds():
    for row in table(stored()):
        assert row.here
        for own in row.here:
            assert own.accuracy.keys() == TARGETS.keys()
            assert min(own.accuracy.values()) > MAJORITY, own.name
            for held in own.epsilon.values():
                assert held <= own.claimed if own.is_budget else held > own.claimed
            is_own = own.name in ("nbafl", "ldp-fed", "cldp-sgd", "ldp-fl")
            assert own.is_budget == (not is_own)
            assert (own.noise == "randomised response") == (row.printed.noise == "Rand. Response")


def test_the_command_prints_both():
    answer = CliRunner().invoke(app, ["methods", "--table"], env={"COLUMNS": "200"})
    assert answer.exit_code == 0, answer.output
    for row in table(stored()):
        for line in (row.printed, *map(in_words, row.here)):
            cells = r"\s+│\s+".join(map(re.escape, line))
            assert re.search(cells, answer.output), line
    plain = CliRunner().invoke(app, ["methods", "--table", "--json"])
    rows = json.loads(plain.output)
    assert [row["printed"]["method"] for row in rows] == [row.method for row in PRINTED]
    assert rows[0]["here"][0]["name"] == "dp-fedavg"
    assert rows[0]["printed"]["convergence"] == "Slow"


def test_the_page_quotes_the_result_file():
    text = paper_table.DOCUMENT.read_text()
    assert filled(text, "paper-table", paper_table.page(stored())) == text


def test_a_target_that_was_missed_once_is_missed():
    cell = {
        "row": "NbAFL", "line": "nbafl", "data": "digits", "noise": "gaussian", "accuracy": 0.5,
        "rounds": 9, "epsilon": 70.0, "delta": 1e-5, "unit": "client", "claimed": 8.0,
        "is_budget": False,
    }  # fmt: skip
    cells = [cell | {"rounds_to_target": 4}, cell | {"rounds_to_target": None, "epsilon": 71.0}]
    rows = {row.printed.method: row.here for row in table({"cells": cells})}
    (own,) = rows["NbAFL"]
    assert rows["RDP-PFL"] == ()
    assert (own.rounds_to_target, own.epsilon) == ({"digits": None}, {"digits": 71.0})
    assert in_words(own).convergence == "digits not 0.8"
    assert in_words(own).privacy == "ε = 71 (authors: 8), δ = 1e-05, one client"
    (once,) = next(r.here for r in table({"cells": cells[:1]}) if r.printed.method == "NbAFL")
    assert in_words(once).convergence == "digits 4 of 9"
