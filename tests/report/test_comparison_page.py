"""The page that compares: settings with mean and spread, sorted, folded, drawn and read."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.report.accessibility import assert_readable
from tests.report.pages import HOSTILE, visible
from udpfl.config import load
from udpfl.report import RunRecord, Setting, comparison_page, read_run, settings_page
from udpfl.report._curves import chart_data
from udpfl.report.settings import settings_of
from udpfl.runs.schema import RoundRow

READY = "document.documentElement.dataset.compared === 'yes'"


def seeded(run: RunRecord, seed: int, shift: float = 0.0, **changes: object) -> RunRecord:
    """The same run with another seed and, in every round, another accuracy."""
    metrics = [
        RoundRow({**row.plain, "accuracy": row["accuracy"] + shift * row.round})
        for row in run.metrics
    ]
    outcome = {**run.summary.outcome, "accuracy": metrics[-1]["accuracy"]}
    return replace(
        run,
        config=load(run.config, {"seed": seed}),
        metrics=metrics,
        summary=replace(run.summary, outcome=outcome),
        **changes,
    )


@pytest.fixture(scope="module")
def records(runs) -> dict[str, RunRecord]:
    return {name: read_run(run.folder) for name, run in runs.items()}


@pytest.fixture(scope="module")
def settings(records) -> list[Setting]:
    """Of every kind, with several seeds; one failed by half, one entirely."""
    private, nominal, plain = (records[name] for name in ("private", "nominal", "plain"))
    many = tuple(seeded(private, seed, -0.01 * (seed - 1)) for seed in range(3))
    return [
        Setting("gaussian, ε 2", {"mechanism": "gaussian", "ε per client": "2"}, many),
        Setting(
            "staircase, ε 10",
            {"mechanism": "staircase", "ε per client": "10"},
            (seeded(nominal, 0, -0.02), seeded(nominal, 1, -0.04)),
            {2: f"RuntimeError: {HOSTILE[0]}"},
        ),
        Setting("none, ε 2", {"mechanism": "none", "ε per client": "2"}, (plain,)),
        Setting("laplace, ε 2", {"mechanism": "laplace", "ε per client": "2"}, (),
                {0: "there is no δ", 1: "there is no δ"}),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def page(settings, records, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compared") / "compare.html"
    path.write_text(settings_page(settings, varied=["privacy.mechanism"], folder=path.parent))
    return path


@pytest.fixture(scope="module")
def crowded(records, tmp_path_factory) -> Path:
    """More settings than one chart holds."""
    path = tmp_path_factory.mktemp("crowded") / "compare.html"
    private = records["private"]
    many = [
        Setting(f"clip {n}", {"clipping norm": str(n)},
                (seeded(private, 0, -0.01 * n), seeded(private, 1, -0.012 * n)))
        for n in range(1, 8)
    ]  # fmt: skip
    path.write_text(settings_page(many, varied=["privacy.clip"]))
    return path


def press(browser, selector: str, number: int = 0) -> None:
    browser.run(f'document.querySelectorAll("{selector}")[{number}].click()')


def choose(browser, card: int, axis: str, quantity: str) -> None:
    browser.run(
        f"(() => {{ const menu = document.querySelectorAll('[data-axis={axis}]')[{card}];"
        f"menu.value = '{quantity}'; menu.dispatchEvent(new Event('change')); }})()"
    )


def texts(browser, selector: str) -> list[str]:
    return browser.run(
        f'[...document.querySelectorAll("{selector}")].map(n => n.textContent.trim())'
    )


# The settings


def test_runs_that_differ_in_their_seed_are_one_setting(records):
    named = replace(
        records["private"], config=load(records["private"].config, {"data": {"name": "mnist5k"}})
    )
    runs = [
        replace(seeded(named, seed), path=Path(f"grid/clip=1,seed={seed}")) for seed in range(3)
    ]
    other = replace(named, config=load(named.config, {"privacy": {"clip": 3.0}}))
    found = settings_of([*runs, other])
    assert [(own.name, len(own.runs)) for own in found] == [("clip=1", 3), ("private", 1)]
    # Two data sets that were handed over in Python cannot be told to be the same.
    copies = [replace(seeded(records["private"], n), path=Path(f"own-{n}")) for n in range(2)]
    assert [own.name for own in settings_of(copies)] == ["own-0", "own-1"]


def test_a_run_that_ended_early_counts_only_where_none_came_to_its_end(records):
    whole = seeded(records["private"], 0)
    early = replace(
        seeded(records["private"], 1, -0.1),
        summary=replace(whole.summary, outcome={**whole.summary.outcome, "stopped": "budget"}),
    )
    assert Setting("a", {}, (whole, early)).counted == [whole]
    assert Setting("a", {}, (early,)).counted == [early]
    assert "ended early" in visible(settings_page([Setting("a", {}, (early,))]))


def test_a_setting_is_only_as_private_as_its_weakest_run(records):
    private, plain = records["private"], records["plain"]
    assert Setting("a", {}, (private, plain)).kind == "none"
    doubtful = replace(private, verification=replace(private.verification, state="not verified"))
    mixed = Setting("a", {}, (private, doubtful))
    assert (mixed.kind, mixed.state) == ("guarantee", "not verified")
    said = settings_page([mixed])
    assert '<span class="badge unverified">Guarantee</span> <span class="badge unverified">' in said


def test_mean_and_spread_are_those_of_the_seeds(settings, page):
    said = visible(page.read_text())
    for setting in settings[:2]:
        values = [100 * run.metrics[-1]["accuracy"] for run in setting.runs]
        mean, sd = statistics.mean(values), statistics.stdev(values)
        assert f"{mean:.2f} % ± {sd:.2f} {min(values):.2f} to {max(values):.2f} %" in said
    assert "4 settings compared, 9 runs, 3 failed" in said
    assert "staircase, ε 10 (seed 2) : RuntimeError: </script>" in unescape(said)
    assert "laplace, ε 2 (seeds 0, 1) : there is no δ" in said
    data = chart_data(settings)
    drawn = data["settings"][0]["curves"]["accuracy"]
    by_round = zip(*([row["accuracy"] for row in run.metrics] for run in settings[0].runs),
                   strict=True)  # fmt: skip
    for values, mean, sd in zip(by_round, drawn["mean"], drawn["sd"], strict=True):
        assert mean == pytest.approx(statistics.mean(values), rel=1e-5)
        assert sd == pytest.approx(statistics.stdev(values), rel=1e-2)
    sent = data["settings"][2]["curves"]["sent"]["mean"]
    rows = settings[2].runs[0].metrics
    assert sent[-1] == pytest.approx(sum(r.bytes_up + r.bytes_down for r in rows) / 1e6, rel=1e-5)


def test_no_axis_has_two_kinds_of_epsilon(settings):
    data = chart_data(settings)
    has = {own["name"]: {key for key in own["curves"] if key.startswith("eps")}
           for own in data["settings"]}  # fmt: skip
    assert has == {
        "gaussian, ε 2": {"epsilon-guarantee-record"},
        "staircase, ε 10": {"epsilon-nominal-record"},
        "none, ε 2": set(),
        "laplace, ε 2": set(),
    }
    warned = {own["id"]: own["warning"] for own in data["quantities"]}
    assert warned["epsilon-nominal-record"] == "nominal: not a guarantee"
    assert warned["signal"].startswith("Simulation only")


def test_a_mean_over_fewer_seeds_is_not_drawn(records):
    private = records["private"]
    gap = [RoundRow({**row.plain, "accuracy": "nan"}) if row.round == 2 else row
           for row in private.metrics]  # fmt: skip
    drawn = chart_data([Setting("a", {}, (private, replace(private, metrics=gap)))])
    assert drawn["settings"][0]["curves"]["accuracy"]["mean"][1] is None
    assert drawn["settings"][0]["curves"]["loss"]["mean"][1] is not None


# In a browser


def test_everybody_can_read_the_page(browser, page, crowded, runs, tmp_path):
    folders = tmp_path / "folders.html"
    found = [read_run(run.folder) for run in runs.values()]
    folders.write_text(comparison_page(found, tmp_path))
    for path in (page, crowded, folders):
        assert_readable(browser, path, ready=READY)
        assert browser.run("typeof window.hacked") == "undefined"
        assert path.stat().st_size < 150_000


def test_a_heading_sorts_the_settings(browser, page):
    browser.open(page)
    order = ["gaussian, ε 2", "staircase, ε 10", "none, ε 2", "laplace, ε 2"]
    names = "tbody tr.setting .name"
    assert texts(browser, names) == order
    heads = texts(browser, "table.compared thead th button")
    assert heads == [
        "setting", "mechanism", "ε per client", "accuracy", "min to max", "seeds", "ε",
        "nominal ε", "privacy", "rounds", "seconds",
    ]  # fmt: skip
    sorted_ = (
        "[...document.querySelectorAll('.compared thead th')].map(h => h.getAttribute('aria-sort'))"
    )
    means = browser.run(
        "[...document.querySelectorAll('tr.setting')].map(r => Number(r.cells[3].dataset.sort))"
    )
    press(browser, "table.compared thead button", 3)
    best, worst = (sorted(range(3), key=lambda n: way * means[n]) for way in (-1, 1))
    assert texts(browser, names) == [*(order[n] for n in best), order[3]]  # without result: last
    assert browser.run(sorted_)[3] == "descending"
    press(browser, "table.compared thead button", 3)
    assert texts(browser, names) == [*(order[n] for n in worst), order[3]]
    assert browser.run(sorted_) == [None] * 3 + ["ascending"] + [None] * 7
    press(browser, "table.compared thead button", 2)
    press(browser, "table.compared thead button", 2)
    assert texts(browser, names)[0] == "staircase, ε 10"  # 10 is more than 2, as a number


def test_the_runs_of_a_setting_are_folded_below_it(browser, page):
    browser.open(page)
    shown = "[...document.querySelectorAll('tr.run')].filter(r => !r.hidden).length"
    assert browser.run(shown) == 0
    press(browser, "button.fold")
    assert browser.run(shown) == 3
    fold = "document.querySelector('button.fold').getAttribute('aria-expanded')"
    assert browser.run(fold) == "true"
    (way, *_) = browser.run(
        "[...document.querySelectorAll('tr.run:not([hidden]) a')].map(a => a.getAttribute('href'))"
    )
    report = (page.parent / unquote(way)).resolve()
    assert report.name == "report.html"
    assert report.is_file()
    press(browser, "#unfold")
    assert browser.run(shown) == 9
    press(browser, "#unfold")
    assert browser.run(shown) == 0


def test_menus_choose_the_axes_and_one_legend_serves_all_charts(browser, page):
    browser.open(page)
    assert browser.run("document.querySelectorAll('.legend').length") == 1
    assert texts(browser, ".legend button") == [
        "gaussian, ε 2 (guarantee)",
        "staircase, ε 10 (nominal: not a guarantee)",
        "none, ε 2 (not private)",
    ]
    lines = (
        "[...document.querySelectorAll('[data-compare]')]"
        ".map(f => f.querySelectorAll('path.line').length)"
    )
    bands = lines.replace("path.line", "path.area.faint")
    assert browser.run(lines) == [3, 1]
    assert browser.run(bands) == [2, 1]
    axes = "[data-compare='0'] text.axis"
    assert texts(browser, axes) == ["round", "accuracy"]
    offered = texts(browser, "[data-compare='0'] [data-axis=x] option")
    assert offered == [
        "ε spent, largest of any client", "nominal ε spent, largest of any client", "round",
        "megabytes sent, both ways", "seconds of training",
    ]  # fmt: skip
    choose(browser, 0, "x", "sent")
    choose(browser, 0, "y", "loss")
    assert texts(browser, axes) == ["megabytes sent, both ways", "loss"]
    assert texts(browser, "[data-compare='0'] h3") == ["Loss by megabytes sent, both ways"]
    press(browser, ".legend button")
    assert browser.run(lines) == [2, 0]
    assert browser.run("document.querySelector('.legend button').ariaPressed") == "false"
    press(browser, ".legend button")
    assert browser.run(lines) == [3, 1]
    choose(browser, 0, "y", "epsilon-nominal-record")
    assert browser.run(lines) == [1, 1]
    assert texts(browser, "[data-compare='0'] .warning") == ["nominal: not a guarantee"]
    dash = (
        "document.querySelector('[data-compare=\"0\"] path.line').getAttribute('stroke-dasharray')"
    )
    assert browser.run(dash) == "7 4"
    assert browser.complaints() == []


def test_keys_and_the_table_of_numbers_read_the_chart(browser, page, settings):
    browser.open(page)
    browser.run("document.querySelector('[data-compare=\"0\"] .plot svg').focus()")
    browser.press("End")
    values = [100 * run.metrics[-1]["accuracy"] for run in settings[0].runs]
    (said,) = texts(browser, "[data-compare='0'] .readout")
    mean, sd = float(f"{statistics.mean(values):.4g}"), statistics.stdev(values)
    found = re.search(r"round 4: gaussian, ε 2 (\S+) % ± (\S+) %; staircase", said)
    assert float(found[1]) == pytest.approx(mean, rel=1e-3)
    assert float(found[2]) == pytest.approx(sd, rel=1e-2)
    browser.run("document.querySelector('[data-compare=\"0\"] details').open = true")
    browser.run("new Promise(done => setTimeout(done, 50))")
    rows = texts(browser, "[data-compare='0'] details tbody tr")
    assert len(rows) == 12  # four rounds of three settings
    assert rows[3].startswith("gaussian, ε 24")


def test_more_than_six_settings_have_a_chart_each_on_the_same_axes(browser, crowded, page):
    browser.open(crowded)
    assert texts(browser, ".panel h4") == [f"clip {n}" for n in range(1, 8)]
    ticks = browser.run(
        "[...document.querySelectorAll('.panel')].map(p => "
        "[...p.querySelectorAll('text.tick')].map(t => t.textContent).join())"
    )
    assert len(set(ticks)) == 1
    grey = (
        "[...document.querySelectorAll('.panel')]"
        ".map(p => p.querySelectorAll('path.behind').length)"
    )
    assert browser.run(grey) == [6] * 7
    data = json.loads(browser.run("document.getElementById('comparison-data').textContent"))
    assert data["many"]
    browser.open(page)
    assert browser.run("document.querySelectorAll('.panel').length") == 2


def test_a_phone_shows_the_accuracy_first(browser, page, crowded):
    for path in (page, crowded):
        browser.open(path, width=390, height=844)
        boxes = browser.run(
            "[...document.querySelectorAll('tr.setting td.best')].map(c => "
            "(({left, right}) => [left, right])(c.getBoundingClientRect()))"
        )
        assert boxes
        assert all(100 < left < right <= 390 for left, right in boxes)
        box = "document.querySelector('.settings')"
        assert browser.run(f"{box}.scrollWidth > {box}.clientWidth")
        browser.run(f"{box}.scrollTo(10000, 0)")
        first = "document.querySelector('tr.setting > th').getBoundingClientRect().left"
        assert 0 <= browser.run(first) < 40  # the name of the setting stays


def test_a_long_name_stays_in_its_column_on_a_phone(browser, records, tmp_path):
    long = replace(records["private"], path=Path("algorithm=fedavg,mechanism=gaussian,clip=1"))
    (tmp_path / "c.html").write_text(comparison_page([long, records["nominal"]]))
    browser.open(tmp_path / "c.html", width=390, height=844)
    right = "document.querySelector('tr.setting {}').getBoundingClientRect().{}"
    name, next_ = right.format(".name", "right"), right.format("td.best", "left")
    assert browser.run(name) <= browser.run(next_)
    assert browser.run(right.format("td.best", "right")) <= 390
