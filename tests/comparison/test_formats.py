"""Tables to paste elsewhere, notebooks and short texts: every number with the privacy behind it."""

from __future__ import annotations

import csv
import re
import statistics
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from tests.commands import command
from udpfl.accounting.statement import PrivacyStatement
from udpfl.comparison import Comparison, Row, SeedRun
from udpfl.comparison._words import plain_keys, plain_settings
from udpfl.errors import InvalidInput

KEYS = ("privacy.mechanism", "model.options.my_width")
VALUES = {"laplace": [0.75, 0.80, 0.88], "my_module:A&B": [0.5, 0.5, 0.6]}


def comparison() -> Comparison:
    rows = []
    for mechanism, values in VALUES.items():
        kind = "guarantee" if mechanism == "laplace" else "nominal"
        proved = 2.0 if kind == "guarantee" else 31.4
        spent = PrivacyStatement(2.0, 1e-5, kind, "rdp", vector_epsilon=proved)
        own = [SeedRun(n, None, "accuracy", value, spent, 1.0, figures={"accuracy": value})
               for n, value in enumerate(values)]  # fmt: skip
        rows.append(Row({KEYS[0]: mechanism, KEYS[1]: 16}, tuple(own)))
    failed = [SeedRun(n, None, failed="a | b_c < 50 % of {x}") for n in range(3)]
    rows.append(Row({KEYS[0]: "gaussian", KEYS[1]: 16}, tuple(failed)))
    return Comparison(tuple(rows), KEYS, (0, 1, 2), Path("grid"))


def test_csv_has_plain_numbers():
    rows = list(csv.DictReader(StringIO(comparison().table(format="csv"))))
    assert [row["privacy.mechanism"] for row in rows] == ["laplace", "my_module:A&B", "gaussian"]
    for row, values in zip(rows, VALUES.values(), strict=False):
        assert float(row["accuracy_mean"]) == pytest.approx(statistics.mean(values))
        assert float(row["accuracy_sd"]) == pytest.approx(statistics.stdev(values))
        assert (float(row["accuracy_min"]), float(row["accuracy_max"])) == (values[0], values[-1])
        assert (row["seeds"], row["delta"], row["unit"]) == ("3", "1e-05", "record")
    assert [row["epsilon"] for row in rows] == ["2.0", "31.4", ""]  # what is guaranteed
    assert [row["nominal_epsilon"] for row in rows] == ["", "2.0", ""]
    assert [row["privacy"] for row in rows] == ["guarantee", "nominal", ""]
    assert (rows[2]["failed"], rows[2]["accuracy_mean"]) == ("3", "")
    assert rows[2]["reason"] == "a | b_c < 50 % of {x}"


def test_markdown_is_one_table_with_its_remarks():
    text = comparison().table(format="markdown")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 5
    # A bar inside a cell is escaped: every row has as many cells as the head.
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert lines[0].startswith("| mechanism | my width | accuracy ± sd | min..max |")
    assert lines[2].startswith("| laplace | 16 | 0.8100 ± 0.0656 | 0.7500..0.8800 | 3 of 3 | 2 |")
    assert "nominal: not a guarantee" in lines[3]
    assert "ε is guaranteed at δ = 1e-05 for one record added or removed" in text
    assert r"failed (1): a | b\_c \< 50 % of {x}" in text


def test_latex_escapes_what_latex_would_read():
    text = comparison().table(format="latex")
    assert text.startswith("% needs \\usepackage{booktabs}\n\\begin{table}")
    for name in ("table", "tabular", "minipage"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
    rows = [line.strip() for line in text.splitlines() if line.endswith(r" \\")]
    columns = len(re.search(r"\\begin{tabular}{([lr]+)}", text)[1])
    assert len(rows) == 4
    assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {columns}
    assert r"laplace & 16 & 0.8100 $\pm$ 0.0656 & 0.7500--0.8800" in rows[1]
    assert rows[2].startswith(r"my\_module:A\&B & 16 &")
    assert r"$\varepsilon$ is guaranteed at $\delta$ = 1e-05" in text
    assert r"failed (1): a | b\_c < 50 \% of \{x\}" in text
    # Nothing is left that stops a plain LaTeX.
    assert all(ord(character) < 128 for character in text)


def test_there_is_no_other_format():
    with pytest.raises(InvalidInput, match="must be one of latex, csv, markdown, got 'html'"):
        comparison().table(format="html")


def test_a_notebook_shows_the_table():
    text = comparison()._repr_html_()
    assert text.count("<tr>") == 4
    assert "my_module:A&amp;B" in text
    assert "&lt; 50 %" in text
    assert "ε is guaranteed at δ = 1e-05" in text
    assert "<script" not in text
    assert "http" not in text


def test_reprs_are_short():
    result = comparison()
    assert repr(result) == (
        "<Comparison: 3 settings, 3 seeds, accuracy 0.5333 to 0.8100, 3 failed, in 'grid'>"
    )
    assert repr(result[0]).startswith(
        "<Row privacy.mechanism=laplace, model.options.my_width=16: accuracy 0.8100 ± 0.0656, ("
    )
    assert "no result, failed" in repr(result[2])
    nothing = replace(result, rows=result.rows[2:])
    assert repr(nothing) == "<Comparison: 1 setting, 3 seeds, 3 failed, in 'grid'>"


def test_keys_are_said_in_plain_words():
    names = plain_keys(("privacy.epsilon", "training.learning_rate", "training.options.mu"))
    assert list(names.values()) == ["ε per client", "learning rate", "mu"]
    assert plain_keys(("training.options.mu", "model.options.mu")) == {
        "training.options.mu": "training.options.mu",
        "model.options.mu": "model.options.mu",
    }
    words = plain_settings({"privacy.mechanism": "laplace", "privacy.epsilon": 2.0},
                           plain_keys((*KEYS, "privacy.epsilon")))  # fmt: skip
    assert words.replace("\N{NO-BREAK SPACE}", " ") == "laplace, ε 2"


@pytest.mark.usefixtures("elsewhere")
def test_the_command_prints_or_writes_the_table(capsys, tmp_path):
    grid = ["compare", "base.toml", "--vary", "epsilon=2,8", "--seeds", "1", "--out", "grid"]
    code, out, _ = command(capsys, *grid, "--table", "csv")
    assert code == 0
    rows = list(csv.DictReader(StringIO(out)))
    assert [row["privacy.epsilon"] for row in rows] == ["2", "8"]
    code, out, err = command(capsys, *grid, "--table", tmp_path / "table.tex")
    assert code == 0
    assert "2 found in grid" in out  # the table for people as well
    assert "wrote " in err
    assert (tmp_path / "table.tex").read_text().count(r"\\") == 3
    for wrong, words in (
        (["--table", "html"], "must be latex, csv or markdown, or a file that ends in .tex"),
        (["--table", "nowhere/table.md"], "there is no folder 'nowhere'"),
        (["--table", "csv", "--json"], "cannot be combined with --json"),
    ):
        code, out, err = command(capsys, *grid, *wrong)
        assert (code, out) == (2, "")
        assert words in err
