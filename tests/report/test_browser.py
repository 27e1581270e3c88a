"""How a report looks and behaves in a real browser."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.report.pages import HOSTILE, LABELS, classification, train
from udpfl.accounting.statement import shown
from udpfl.report import write_report


def test_pages_load_in_silence_and_draw_every_chart(browser, runs):
    for page in (run.report for run in runs.values()):
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
    charts = {"data-chart=accuracy": run.report, "data-compare='1'": tmp_path / "c.html"}
    for place, page in charts.items():
        browser.open(page)
        plot = f'document.querySelector("[{place}] .plot svg")'
        middle = browser.run(f"Number({plot}.querySelector('text.axis').getAttribute('x'))")
        assert browser.run(
            f"Number({plot}.querySelector('circle').getAttribute('cx'))"
        ) == pytest.approx(middle)
        ticks = f"[...{plot}.querySelectorAll('text.tick.middle')].map(t => Number(t.textContent))"
        if page == run.report:
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
        "document.querySelectorAll('details.on-paper:not([open])').length; "
        f"window.ground = {ground}; }})"
    )
    browser.run("document.querySelector('details.on-paper').open = false")
    assert browser.run("document.querySelectorAll('details.on-paper:not([open])').length") == 1
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF")
    assert browser.run("window.open_") == 0  # the table of clients is unfolded on paper
    assert browser.run("document.querySelectorAll('details.on-paper:not([open])').length") == 1
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
