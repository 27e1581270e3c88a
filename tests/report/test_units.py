"""Whose epsilon a report shows, and the noise and the clip that its rounds really had."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import udpfl
from tests.report.pages import visible
from tests.small import blobs, linear
from udpfl.accounting.statement import shown
from udpfl.ledger.ledger import Ledger
from udpfl.report import comparison_page, read_run, run_page, write_report
from udpfl.report._comparison import comparison_charts
from udpfl.report.charts import run_charts
from udpfl.report.figures import write_figures
from udpfl.report.read import RunRecord
from udpfl.report.words import counted, explain


def train(
    folder: Path, privacy: object, training: dict | None = None, clients: int = 3
) -> udpfl.Run:
    settings = {
        "out": str(folder),
        "threads": 1,
        "data": {"clients": clients},
        "privacy": privacy,
        "training": {"rounds": 4, "learning_rate": 0.1, **(training or {})},
    }
    return udpfl.run(settings, data=blobs(), model=linear())


WHOLE = {"unit": "client", "delta": 1e-3, "mechanism": "gaussian"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, udpfl.Run]:
    top = tmp_path_factory.mktemp("units")
    plain = {"mechanism": "gaussian"}
    trusted = {"algorithm": "dp-fedavg", "options": {"participation": 0.5}}
    return {
        "record": train(top / "record", plain),
        "loose": train(top / "loose", {**plain, "delta": 1e-4}),
        "client": train(top / "client", WHOLE),
        "trusted": train(top / "trusted", WHOLE, trusted),
        "scalar": train(top / "scalar", {**plain, "accounting": "scalar"}),
        "open": train(top / "open", "none"),
        "paced": train(top / "paced", {**plain, "pace": "increasing", "pace_ratio": 3.0}),
        "adapting": train(top / "adapting", {**plain, "clip_quantile": 0.5, "accountant": "rdp"}),
        "uneven": train(
            top / "uneven",
            {"epsilon": [1, 4, 8], "mechanism": ["gaussian", "laplace", "staircase"]},
            {"penalty": 0.5},
        ),
    }


def records(runs: dict[str, udpfl.Run], *names: str) -> list[RunRecord]:
    return [read_run(runs[name].folder) for name in names]


def spent(run: udpfl.Run) -> list[float]:
    return [row["epsilon"]["max"] for row in run.metrics]


# Several runs


def test_no_axis_has_the_epsilon_of_two_units(runs):
    names = ("record", "client", "trusted", "scalar", "open")
    charts = {chart.id: chart for chart in comparison_charts(records(runs, *names))}
    assert [id_ for id_ in charts if id_.startswith(("epsilon", "trade"))] == [
        "epsilon-record", "epsilon-client", "trade-record", "trade-client",
    ]  # fmt: skip
    wanted = {"record": ["record"], "client": ["client", "trusted"]}
    for unit, drawn in wanted.items():
        by_round, trade = charts[f"epsilon-{unit}"], charts[f"trade-{unit}"]
        assert [line.y for line in by_round.series] == [spent(runs[name]) for name in drawn]
        assert [list(line.x) for line in trade.series] == [spent(runs[name]) for name in drawn]
        for chart in (by_round, trade):
            assert [line.name.split(" (")[0] for line in chart.series] == drawn
            assert "cannot be compared" in chart.note
            assert {"record": "single records", "client": "whole clients"}[unit] in chart.title
            assert chart.legend  # a single line is named as well
        assert trade.x == {"record": "ε for one record", "client": "ε for a whole client"}[unit]
    # A nominal number for records is no reason to leave out what is guaranteed for clients.
    assert charts["epsilon-record"].warning == "nominal runs are left out"
    assert charts["epsilon-client"].warning == ""
    assert [line.name for line in charts["accuracy"].series] == [
        "record (guarantee, single records)",
        "client (guarantee, whole clients)",
        "trusted (guarantee, whole clients, trusted server)",
        "scalar (nominal: not a guarantee, single records)",
        "open (not private)",
    ]
    assert charts["clip"].title == "Share of clipped gradients or updates"
    assert "the clipped gradient sum or a client's clipped update" in charts["signal"].note


def test_runs_of_one_unit_share_their_charts(runs):
    charts = {chart.id: chart for chart in comparison_charts(records(runs, "client", "trusted"))}
    assert len(charts["epsilon"].series) == len(charts["trade"].series) == 2
    assert charts["trade"].x == "ε for a whole client"
    assert "cannot be compared" not in charts["trade"].note
    charts = {chart.id: chart for chart in comparison_charts(records(runs, "record", "paced"))}
    assert (charts["trade"].x, charts["trade"].title) == ("ε", "Accuracy against privacy spent")
    assert [line.name for line in charts["trade"].series] == [
        "record (guarantee)", "paced (guarantee)",
    ]  # fmt: skip


def test_delta_is_shown_where_it_differs(runs):
    own = records(runs, "record", "loose")
    charts = {chart.id: chart for chart in comparison_charts(own)}
    for id_ in ("epsilon", "trade"):
        names = [line.name for line in charts[id_].series]
        assert names == ["record (guarantee, δ = 10⁻⁵)", "loose (guarantee, δ = 10⁻⁴)"]
        assert "different δ" in charts[id_].note
    assert "δ" not in charts["accuracy"].series[0].name
    said = visible(comparison_page(own))
    assert "ε δ privacy rounds" in said
    assert re.search(r"loose \S+ % \S+ 10⁻⁴ Guarantee", said)
    alike = visible(comparison_page(records(runs, "record", "paced")))
    assert "accuracy ε privacy rounds" in alike


def test_the_first_table_has_a_unit_where_it_is_not_always_a_record(runs):
    said = visible(comparison_page(records(runs, "record", "client", "open")))
    assert "ε δ unit privacy rounds" in said
    client = shown(runs["client"].privacy.epsilon)
    assert re.search(rf"client \S+ % {re.escape(client)} 10⁻³ a whole client Guarantee", said)
    assert re.search(r"record \S+ % \S+ 10⁻⁵ one record Guarantee", said)
    assert re.search(r"open \S+ % no bound – – Not private", said)
    assert "an ε for one record cannot be compared with an ε for a whole client" in said
    assert "each record or client is charged in every run" in said
    only = visible(comparison_page(records(runs, "client", "trusted")))
    assert "ε unit privacy rounds" in only
    assert "each client is charged in every run" in only
    plain = visible(comparison_page(records(runs, "record", "paced")))
    assert "unit" not in plain.partition("Settings that differ")[0]
    assert "each record is charged in every run" in plain


def test_figures_are_drawn_by_unit(runs, tmp_path):
    folders = [runs[name].folder for name in ("record", "client")]
    drawn = {path.stem for path in write_figures(folders, tmp_path / "f", "svg")}
    assert {"epsilon-record", "epsilon-client", "trade-record", "trade-client"} <= drawn
    assert not {"epsilon", "trade"} & drawn


# What a client's noise and clip were


def stds_charged(run: udpfl.Run, client: str) -> list[float]:
    """What the ledger says of every round, in its own words."""
    with Ledger(run.ledger_path, read_only=True) as ledger:
        entries = [entry for entry in ledger.history() if entry.client == client]
    found = [(e.round, json.loads(e.event_json)["event"]["mechanism"]) for e in entries]
    return [m["parameters"]["std"] for _, m in sorted(found, key=lambda pair: pair[0])]


def test_a_paced_run_shows_the_noise_of_its_first_and_last_round(runs):
    (record,) = records(runs, "paced")
    for client in record.clients:
        charged = stds_charged(runs["paced"], client.name)
        assert len(charged) == 4
        assert charged[0] == pytest.approx(3 * charged[-1])
        assert client.noise == f"gaussian (std {charged[0]:.4g} to {charged[-1]:.4g})"
    said = visible(run_page(record))
    assert "of the first and of the last round in which the client is asked" in said
    (even,) = records(runs, "record")
    (always,) = set(stds_charged(runs["record"], "client-0"))
    assert even.clients[0].noise == f"gaussian (std {always:.4g})"
    assert "paced" not in " ".join(even.protection)


def test_a_client_that_is_asked_for_a_part_has_the_noise_of_that_part(runs, tmp_path):
    folder = Path(shutil.copytree(runs["paced"].folder, tmp_path / "r"))
    people = json.loads((folder / "participants.json").read_text())
    people[0]["asked"], people[1]["asked"] = [2, 3], [4]
    (folder / "participants.json").write_text(json.dumps(people))
    base, factors = people[0]["release"]["mechanism"]["parameters"]["std"], people[0]["factors"]
    own = read_run(folder).clients
    assert own[0].noise == f"gaussian (std {base * factors[1]:.4g} to {base * factors[2]:.4g})"
    assert own[1].noise == f"gaussian (std {base * factors[3]:.4g})"


def test_a_clip_that_adapts_says_where_it_got_to(runs, tmp_path):
    (record,) = records(runs, "adapting")
    factors = [row["clip_factor"] for row in runs["adapting"].metrics]
    assert factors[-1] != 1
    for client in record.clients:
        assert client.clip == f"l2 1 planned, × {factors[-1]:.4g} after round 4"
    used = [1.0, *factors[:-1]]  # the last factor would be that of the next round
    said = visible(run_page(record))
    assert f"× {min(used):.4g} to {max(used):.4g} of what was planned" in said
    assert "the noise grows and shrinks with it" in said
    assert "one count, with separate noise, which is charged as well" in said
    early = Path(shutil.copytree(runs["adapting"].folder, tmp_path / "r"))
    (early / "metrics.jsonl").write_text("")
    assert read_run(early).clients[0].clip == "l2 1 at the start"


def test_the_page_says_who_adds_the_noise_and_to_what(runs):
    said = {name: visible(run_page(read_run(run.folder))) for name, run in runs.items()}
    assert "noise of the server, on the sum" in said["trusted"]
    assert (
        "adds the noise of the table once a round, to the sum of all clients' updates"
        in (said["trusted"])
    )
    assert "takes part with probability 0.5, which it decides in secret" in said["trusted"]
    assert "a client clips its update as a whole and adds the noise itself" in said["client"]
    assert "clips the gradient of every record and adds the noise to their sum" in said["record"]
    for name in ("client", "record", "open"):
        assert "noise of the server" not in said[name]
    assert "adds the noise" not in said["open"]


def test_a_server_without_noise_is_not_said_to_add_any(tmp_path):
    run = train(tmp_path / "r", "none", {"algorithm": "dp-fedavg", "rounds": 1})
    record = read_run(run.folder)
    assert not record.server_adds
    assert record.protection == ()
    assert "noise of the server" not in visible(run_page(record))


def test_every_client_of_an_uneven_run_has_its_own_row(runs):
    run = runs["uneven"]
    (record,) = records(runs, "uneven")
    said = visible(run_page(record))
    people = json.loads((run.folder / "participants.json").read_text())
    for person, budget in zip(people, (1, 4, 8), strict=True):
        name, spending = person["name"], run.clients[person["name"]].epsilon
        assert 0.9 * budget < spending <= budget
        left = "used up" if spending >= 0.99 * budget else f"{int(100 - 100 * spending / budget)} %"
        row = f"{name} {shown(spending)} {budget} {left} 10⁻⁵ {person['declared_size']} "
        assert row in said
        assert f" {person_noise(person)}) l2 1 4 " in said
    assert f"largest ε, at δ = 10⁻⁵ {shown(run.privacy.epsilon)}" in said
    assert "largest ε, at" not in visible(run_page(read_run(runs["record"].folder)))


def person_noise(person: dict) -> str:
    mechanism = person["release"]["mechanism"]
    name, values = mechanism["name"], mechanism["parameters"]
    said = [f"{key} {value:.4g}" for key, value in values.items()]
    if name == "laplace":
        said.append(f"std {values['scale'] * math.sqrt(2):.4g}")
    if name == "staircase":
        said.append(f"std {staircase_std(**values):.4g}")
    return f"{name} ({', '.join(said)}"


def staircase_std(decay: float, period: float, split: float) -> float:
    """By adding up the steps: e^(-decay k) high from k periods on, one step lower after a split."""
    starts = np.arange(200_000)
    mass = moment = 0.0
    for low, high, lower in ((0, split, 0), (split, 1, 1)):
        height = np.exp(-decay * (starts + lower))
        mass += float((height * (high - low)).sum())
        moment += float((height * ((starts + high) ** 3 - (starts + low) ** 3) / 3).sum())
    return period * math.sqrt(moment / mass)


def test_noise_whose_code_is_gone_still_has_its_factors(runs, tmp_path):
    folder = Path(shutil.copytree(runs["paced"].folder, tmp_path / "r"))
    people = json.loads((folder / "participants.json").read_text())
    own = {"class": "gone:Noise", "parameters": {"scale": 0.5}, "digest": "0"}
    for person in people:
        person["release"]["mechanism"] = own
    (folder / "participants.json").write_text(json.dumps(people))
    assert read_run(folder).clients[0].noise == "gone:Noise (scale 0.5) × 3 to 1"


# The words of each unit


def test_words_are_those_of_the_unit(runs):
    pages = {name: run_page(read_run(runs[name].folder)) for name in ("record", "client")}
    said = {name: visible(page) for name, page in pages.items()}
    assert "ε for a whole client, at δ = 10⁻³" in said["client"]
    assert "whether or not a given client is there" in said["client"]
    assert "whether or not a given record is there" in said["record"]
    for name, clipped in (("record", "gradients"), ("client", "updates")):
        charts = {chart.id: chart for chart in run_charts(read_run(runs[name].folder))}
        assert charts["clip"].title == f"Share of clipped {clipped}"
        assert ("gradient" in charts["signal"].note) == (name == "record")
        assert (charts["epsilon"].y == "ε") == (name == "record")
    before = said["client"].partition("Configuration")[0]
    assert "gradient" not in before
    assert "each a noisy release" not in said["client"]
    assert "with privacy.unit = 'client' all steps together are one release" in said["client"]


def test_a_nominal_number_for_clients_is_about_their_updates(tmp_path):
    run = train(tmp_path / "r", {**WHOLE, "accounting": "scalar"}, {"rounds": 2})
    found = explain(read_run(run.folder))
    assert "for the whole update of a client" in found.headline
    assert "accounting the update of a client as if it were one coordinate" in found.meaning[0]
    assert "gradient" not in " ".join((found.headline, *found.meaning))


def test_before_any_charge_the_unit_is_the_configured_one(runs, tmp_path):
    for name in ("record", "client", "trusted"):
        folder = Path(shutil.copytree(runs[name].folder, tmp_path / name))
        for gone in ("summary.json", "ledger.sqlite"):
            (folder / gone).unlink()
        (folder / "metrics.jsonl").write_text("")
        Ledger(folder / "ledger.sqlite").close()
        record = read_run(folder)
        assert record.statement.unit == ("record" if name == "record" else "client")
        assert record.server_adds == (name == "trusted")


def test_one_is_not_said_in_the_plural(tmp_path):
    assert [counted(n, "client") for n in (0, 1, 2, 1000)] == [
        "0 clients", "1 client", "2 clients", "1,000 clients",
    ]  # fmt: skip
    run = train(tmp_path / "r", {"mechanism": "gaussian"}, {"rounds": 1}, clients=1)
    said = visible(run_page(read_run(run.folder)))
    assert "round 1 of 1 client 1" in said
    assert not re.search(r"\b1 (clients|rounds|test records)\b", said)


# In a browser


def test_every_axis_of_epsilon_has_the_lines_of_one_unit(browser, runs, tmp_path):
    write_report([runs[name].folder for name in ("record", "client")], tmp_path / "c.html")
    for dark in (False, True):
        browser.open(tmp_path / "c.html", dark=dark)
        assert browser.complaints() == []
        names = "[...document.querySelectorAll('.legend button')].map(b => b.textContent)"
        assert browser.run(names) == [
            "record (guarantee, single records)",
            "client (guarantee, whole clients)",
        ]
        for unit, other in (("record", "client"), ("client", "record")):
            for axis in ("x", "y"):
                browser.open(tmp_path / "c.html", dark=dark)
                browser.run(
                    f"(() => {{ const menu = document.querySelector('[data-axis={axis}]');"
                    f"menu.value = 'epsilon-guarantee-{unit}';"
                    "menu.dispatchEvent(new Event('change')); })()"
                )
                card = "document.querySelector('[data-compare]')"
                assert browser.run(f"{card}.querySelectorAll('.plot path.line').length") == 1
                assert f"Without such numbers: {other}." in browser.run(
                    f"{card}.querySelector('.note').textContent"
                )
