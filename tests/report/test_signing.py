"""The page to sign: one sentence, the digest, audits, signatures, and two sheets of paper."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

import udpfl
from tests.chromium import executable
from tests.commands import command
from tests.report.accessibility import assert_readable
from tests.report.pages import copied, record_of, visible
from udpfl.accounting.statement import shown
from udpfl.data import DataSet
from udpfl.data.records import Records
from udpfl.report import read_run, run_page
from udpfl.report.charts import run_charts
from udpfl.runs.audits import write_audit

NAMES = ("benign, no treatment needed", "malignant, refer to hospital")
FINE = "The claim ε ≤ 4 was not refuted; an audit of this size would have caught noise below 0.5."
needs_chromium = pytest.mark.skipif(executable() is None, reason="no chromium")


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """Ten clients and two classes with long names; half of the budgets are larger than needed."""
    rng = np.random.default_rng(0)

    def records(count):
        labels = np.arange(count) % 2
        return Records((rng.normal(size=(count, 5)) + labels[:, None]).astype("f4"), labels)

    data = DataSet("own", "classification", records(200), records(60), 2, class_names=NAMES)
    folder = tmp_path_factory.mktemp("signed") / "clinics"
    config = {"out": str(folder), "threads": 1, "model": {"name": "logistic"},
              "data": {"clients": 10}, "training": {"rounds": 3}}  # fmt: skip
    return udpfl.run(config, data=data).folder


@pytest.fixture
def folder(ten, tmp_path):
    return shutil.copytree(ten, tmp_path / ten.name)


def kept(folder, conclusion, refuted=False):
    result = {"conclusion": conclusion, "refuted": refuted}
    return write_audit(folder, record_of(folder, "run.json")["id"], result, 500, None)


def said_of(folder) -> str:
    return visible(run_page(read_run(folder)))


def test_the_sentence_to_repeat(ten, runs):
    spent = shown(record_of(ten, "summary.json")["privacy"]["epsilon"])
    assert (
        "logistic was trained on data given in Python at 10 clients over 3 rounds; single records "
        f"are protected with ε = {spent} at δ = 10⁻⁵, a guarantee that was verified against the "
        "ledger."
    ) in said_of(ten)
    nominal = said_of(runs["nominal"].folder)
    assert "it has a nominal ε = " in nominal
    assert ", which is not a guarantee; guaranteed is ε = " in nominal
    assert "(verified against the ledger)" in nominal
    plain = said_of(runs["plain"].folder)
    assert "it protects no one: privacy is turned off" in plain
    assert "nothing is promised about the privacy of this run" in plain


def test_what_was_not_verified_or_not_finished_is_not_said_to_be(ten, tmp_path):
    alone = shutil.copytree(ten, tmp_path / "alone")
    (alone / "ledger.sqlite").unlink()
    said = said_of(alone)
    assert "stated as a guarantee, but not verified against the ledger." in said
    assert "The number was not verified ." in said
    begun = shutil.copytree(ten, tmp_path / "begun")
    (begun / "summary.json").unlink()
    said = said_of(begun)
    assert "is being trained on data given in Python at 10 clients, so far in 3 of 3 rounds" in said
    assert "There is nothing to sign yet: the run has not ended." in said
    assert "Responsible for" not in said


def test_the_digest_of_the_ledger_is_on_top_and_beside_the_signatures(ten):
    number, chain = record_of(ten, "summary.json")["head"]
    said = said_of(ten)
    assert f"Ledger digest charge {number}: {chain}." in said
    assert f"ledger digest charge {number}: {chain} )" in said
    assert said.count("Name Role Date Signature") == 2


def test_the_latest_audit_is_shown_and_one_that_refuted_is_never_forgotten(folder):
    assert "Audit None is kept with this run; udpfl audit run RUN tries" in said_of(folder)
    kept(folder, "The first one.")
    kept(folder, "The claim ε ≤ 4 was refuted: by an adversary.", refuted=True)
    kept(folder, FINE)
    assert read_run(folder).verification.state == "verified"  # an audit changes nothing sealed
    said = said_of(folder)
    assert f"{FINE} (" in said
    assert "500 replays in each world" in said
    assert "The claim ε ≤ 4 was refuted: by an adversary." in said
    assert "1 earlier audit did not refute the claim." in said
    assert "An audit refuted the claim." in said
    assert "The first one." not in said
    assert "of another run or model" not in said


def test_two_epsilons_on_one_page_are_explained(folder):
    path = kept(folder, FINE)
    assert "An audit looks at this run alone" not in said_of(folder)
    plain = json.loads(path.read_text())
    plain["result"]["epsilon"] = 0.5 * record_of(folder, "summary.json")["privacy"]["epsilon"]
    path.write_text(json.dumps(plain))
    assert "An audit looks at this run alone, by the tightest accountant" in said_of(folder)


def test_an_audit_of_another_model_is_said_to_be_that(folder):
    path = kept(folder, FINE)
    digest = read_run(folder).audits[0].model
    path.write_text(path.read_text().replace(digest, "0" * 64))
    assert "This audit is of another run or model than the one in this folder." in said_of(folder)


def test_budgets_that_are_used_up_are_not_green(ten, runs):
    record = read_run(ten)
    assert all(client.has_used_up for client in record.clients)
    charts = {chart.id: chart for chart in run_charts(record)}
    assert charts["clients"].bars.spent == [True] * 10
    assert charts["epsilon"].series[0].colour == "spent"
    said = visible(run_page(record))
    assert "10 of 10 clients have used up their budget (99 % of it or more)" in said
    assert said.count("used up 10⁻⁵") == 10
    # Half of the budget is left: the guarantee may be green, and the table says how much is left.
    half = [replace(client, held=(2 * client.statement.epsilon, 1e-5)) for client in record.clients]
    easy = replace(record, clients=half)
    charts = {chart.id: chart for chart in run_charts(easy)}
    assert charts["clients"].bars.spent == [False] * 10
    assert charts["epsilon"].series[0].colour == "guarantee"
    said = visible(run_page(easy))
    assert "used up" not in said
    assert said.count("50 % 10⁻⁵") == 10
    nominal = {chart.id: chart for chart in run_charts(read_run(runs["nominal"].folder))}
    assert nominal["clients"].bars.spent == []


def test_options_are_shown_key_by_key(folder):
    record = read_run(folder)
    data = record.config.data.model_copy(
        update={"options": {"scale": {"age": [0, 120]}, "x": True}}
    )
    page = run_page(replace(record, config=record.config.model_copy(update={"data": data})))
    said = visible(page)
    assert "options.scale.age 0, 120" in said
    assert "options.x true" in said
    assert "data.options.scale.age = 0, 120" in said  # on paper, under its whole name
    assert "{&#x27;" not in page


def test_numbers_are_not_torn_from_their_names(ten):
    page = run_page(read_run(ten))
    body = page[page.index("<main>") : page.index("<script")]
    assert "δ\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}10⁻⁵" in body
    assert "δ = 10" not in body


@needs_chromium
@pytest.mark.parametrize("name", ["private", "nominal", "plain", "errors"])
def test_every_page_can_be_read_by_everybody(browser, runs, name):
    assert_readable(browser, runs[name].report, ready="document.documentElement.dataset.ready")


@needs_chromium
def test_long_names_and_audits_can_be_read_by_everybody(browser, folder):
    kept(folder, "The claim ε ≤ 4 was refuted: by an adversary.", refuted=True)
    page = folder / "report.html"
    page.write_text(run_page(read_run(folder)))
    assert_readable(browser, page)
    browser.open(page)
    cut = browser.run(
        "[...document.querySelectorAll('#matrix th')].filter(c => c.scrollWidth > c.clientWidth + 1"
        " || c.scrollHeight > c.clientHeight + 1).map(c => c.textContent)"
    )
    assert cut == []
    ticks = "[...document.querySelectorAll('[data-chart=classes] .tick')].map(t => t.textContent)"
    assert set(NAMES) <= set(browser.run(ticks))
    spent = "document.querySelectorAll('[data-chart=clients] path.spent').length"
    assert browser.run(spent) == 1


@needs_chromium
def test_a_wide_table_shows_on_a_phone_that_it_scrolls(browser, ten):
    frame = "document.querySelector('.clients').parentElement"
    hint = f"getComputedStyle({frame}, '::before').content"
    browser.open(ten / "report.html", width=390, height=844)
    browser.run("new Promise(done => setTimeout(done, 50))")
    assert browser.run(hint) == '"Scroll sideways to see all columns →"'
    assert browser.run(f"{frame}.scrollWidth > {frame}.clientWidth")
    browser.open(ten / "report.html", width=1440)
    browser.run("new Promise(done => setTimeout(done, 50))")
    assert browser.run(hint) == "none"


@needs_chromium
def test_a_run_with_ten_clients_is_two_sheets_of_a4(capsys, folder, tmp_path):
    kept(folder, FINE)
    target = tmp_path / "signed.pdf"
    code, out, err = command(capsys, "report", folder, "--pdf", target)
    assert (code, out, err) == (0, f"{folder}/report.html\n{target}\n", "")
    pdf = target.read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) in (1, 2)
    width, height = map(float, re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", pdf)[0])
    assert (width, height) == pytest.approx((595.3, 841.9), abs=1)


def test_what_is_left_out_on_paper_is_said(ten, runs):
    said = said_of(ten)
    assert "On paper the other charts, the class-by-class results" in said
    assert "Settings that differ from the defaults threads = 1; data.name = own;" in said
    record = read_run(runs["private"].folder)
    many = replace(record, clients=[record.clients[0]] * 13)
    assert "13 clients: spent ε " in visible(run_page(many))
    assert "The table of all is in report.html." not in said


def test_without_a_browser_it_says_what_to_do(capsys, folder, tmp_path, monkeypatch):
    before = (folder / "report.html").read_bytes()
    for name in ("UDPFL_CHROMIUM", "CHROMIUM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    target = tmp_path / "p.pdf"
    code, _, err = command(capsys, "report", folder, "--pdf", target)
    assert code == 2
    assert "a PDF needs a headless Chromium, and none was found: install Chromium" in err
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    code, _, err = command(capsys, "report", folder, "--pdf", target)
    assert (code, "$CHROMIUM names '/nowhere/chromium', which cannot be run" in err) == (2, True)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("CHROMIUM", str(broken))
    code, _, err = command(capsys, "report", folder, "--pdf", target)
    assert (code, "did not print the page: no display" in err) == (2, True)
    assert not target.exists()
    assert (folder / "report.html").read_bytes()[:200] == before[:200]


def test_only_one_run_is_printed_and_only_as_pdf(capsys, folder, runs, tmp_path):
    other = copied(runs["plain"], tmp_path / "other")
    code, _, err = command(capsys, "report", folder, other, "--pdf", tmp_path / "p.pdf")
    assert (code, "a page to sign is about one run" in err) == (2, True)
    code, _, err = command(capsys, "report", folder, "--pdf", tmp_path / "p.html")
    assert (code, "the file must end in .pdf, got 'p.html'" in err) == (2, True)
