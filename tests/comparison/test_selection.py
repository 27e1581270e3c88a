"""Best of K: what the epsilon of a chosen run leaves out, and what all runs together cost."""

from __future__ import annotations

import json
import math
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from scipy.stats import norm

import udpfl
from tests.commands import command
from tests.report.pages import visible
from udpfl import Budget, Gaussian, Laplace
from udpfl.accounting import Composed, PoissonSampled, Release, Repeated, Sensitivity, account
from udpfl.accounting.alternatives import account_alternatives
from udpfl.accounting.filter import Filter
from udpfl.accounting.statement import shown
from udpfl.algorithms import FedAvg
from udpfl.errors import InvalidInput, Unsupported
from udpfl.ledger import Ledger
from udpfl.report import read_run, selection_of, write_report

CHOSEN = "The ε of one run does not cover the choice of this run by its result: "
FIXED = "with settings fixed before the first of them was trained"
IF_FIXED = "if their settings were fixed beforehand"
ROUNDS = 3
PRIVACY = {"mechanism": "gaussian", "accountant": "rdp"}
BASE = {
    "threads": 1,
    "data": {"name": "tests.comparison.test_selection:records", "clients": 2},
    "model": {"name": "logistic"},
    "privacy": PRIVACY,
    "training": {"rounds": ROUNDS, "sampling_rate": 1.0, "learning_rate": 0.5},
}


def records(*, options=None, **_):
    rng = np.random.default_rng(3)
    labels = np.arange(80) % 2
    inputs = rng.normal(size=(80, 4)) + 1.5 * np.eye(4)[labels] + (options or {}).get("shift", 0.0)
    return inputs.astype(np.float32), labels


def others(**_):
    return records(options={"shift": 1.0})


class Breaks(FedAvg):
    """A method whose server breaks after it has heard of the second round."""

    def __init__(self, server):
        super().__init__(server)
        self.rounds = 0

    def aggregate(self, server, messages):
        self.rounds += 1
        if self.rounds == 2:
            raise RuntimeError("the server broke")
        return super().aggregate(server, messages)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch, one_thread):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")


def std_of(folder: Path, client: int) -> float:
    """The noise that a client planned, in multiples of its clip."""
    release = json.loads((folder / "participants.json").read_text())[client]["release"]
    assert (release["mechanism"]["name"], release["sensitivity"]["norm"]) == ("gaussian", "l2")
    return release["mechanism"]["parameters"]["std"] / release["sensitivity"]["bound"]


def gaussian(stds: list[float], delta: float, rounds: int = ROUNDS) -> float:
    """Closed form: releases of Gaussian noise compose to one with mu² = sum of rounds / std².

    References: Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 3.3.
    """
    mu = math.sqrt(sum(rounds / std**2 for std in stds))

    def excess(epsilon: float) -> float:
        low, high = norm.logcdf(-epsilon / mu - mu / 2), norm.cdf(-epsilon / mu + mu / 2)
        return high - math.exp(epsilon + low) - delta

    return brentq(excess, 0, 500, xtol=1e-9)


def folders(result: udpfl.Comparison) -> list[Path]:
    return list(dict.fromkeys(run.folder for row in result for run in row.runs if run.folder))


def train(out: str, **sections: object) -> Path:
    """One run by itself."""
    return udpfl.run({**BASE, "out": out}, **sections).folder


def only_total(result: udpfl.Comparison):
    (total,) = result.selection.totals
    return total


# The number


def test_a_total_is_by_client_where_all_runs_dealt_out_the_same():
    """Either client has a large and a small budget: nobody has the large one twice."""
    vary = {"epsilon": [[1, 6], [6, 1]], "delta": [1e-5, 1e-4]}
    result = udpfl.compare(BASE, vary=vary, seeds=1, out="grid")
    noise = [[std_of(folder, client) for folder in folders(result)] for client in range(2)]
    assert len(noise[0]) == 4
    assert len({round(std, 3) for std in noise[0]}) == 4
    expected = max(gaussian(stds, 1e-4) for stds in noise)
    total = only_total(result)
    assert total.privacy.epsilon == pytest.approx(expected, rel=2e-3)
    assert total.privacy.epsilon >= expected
    costliest = [min(pair) for pair in zip(*noise, strict=True)]
    assert total.privacy.epsilon < 0.9 * gaussian(costliest, 1e-4)
    assert (total.privacy.delta, total.privacy.kind, total.privacy.unit) == (
        1e-4, "guarantee", "record",
    )  # fmt: skip
    assert (total.runs, total.records) == (4, "same")


def test_another_seed_deals_anew_and_a_record_may_always_be_at_the_costliest_client():
    result = udpfl.compare(BASE, vary={"epsilon": [[1, 6]]}, seeds=2, out="grid")
    noise = [[std_of(folder, client) for client in range(2)] for folder in folders(result)]
    expected = max(gaussian(list(stds), 1e-5) for stds in product(*noise))
    total = only_total(result)
    assert total.records == "dealt anew"
    assert total.privacy.epsilon == pytest.approx(expected, rel=2e-3)
    assert "the costliest client of each run counts" in result.selection.sentence
    # What one seed trains on another may test on, and figures on test records have no noise.
    assert "test records count as public" in result.selection.sentence
    assert any("test records are public" in own for own in total.privacy.assumptions)


def test_a_total_of_sampled_releases_agrees_with_dp_accounting():
    sampled = {**BASE, "training": {**BASE["training"], "sampling_rate": 0.25}}
    result = udpfl.compare(sampled, vary={"epsilon": [2, 4, 8]}, seeds=1, out="grid")
    accountant = PLDAccountant()
    for folder in folders(result):
        one = dp_event.PoissonSampledDpEvent(0.25, dp_event.GaussianDpEvent(std_of(folder, 0)))
        accountant.compose(one, ROUNDS)
    expected = accountant.get_epsilon(1e-5)
    assert only_total(result).privacy.epsilon == pytest.approx(expected, rel=2e-3)
    assert expected > max(row.privacy.epsilon for row in result) * 1.05


def test_nominal_runs_count_by_what_is_guaranteed():
    result = udpfl.compare(BASE, vary={"accounting": ["vector", "scalar"]}, seeds=1, out="grid")
    assert [row.privacy.kind for row in result] == ["guarantee", "nominal"]
    expected = gaussian([std_of(folder, 0) for folder in folders(result)], 1e-5)
    assert only_total(result).privacy.kind == "guarantee"
    assert only_total(result).privacy.epsilon == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("vary", "reason"),
    [
        ({"mechanism": ["gaussian", "none"]}, "privacy is turned off"),
        ({"randomness": ["entropy", "seeded"]}, "seeded"),
    ],
)
def test_one_run_without_a_claim_leaves_no_total(vary, reason):
    result = udpfl.compare(BASE, vary=vary, seeds=1, out="grid")
    assert [row.privacy.kind for row in result] == ["guarantee", "none"]
    said = result.selection.to_dict()["totals"][0]["privacy"]
    assert (said["kind"], said["epsilon"]) == ("none", "inf")
    assert reason in said["notes"][0]
    for text in (result.table(400), visible(result.report.read_text())):
        assert re.search(
            rf"all 2 runs on the same records together are not private \(.*{reason}", text
        )
        assert "together cost" not in text


def test_a_run_that_broke_down_counts_with_what_it_had_charged():
    base = {**BASE, "privacy": {**PRIVACY, "accountant": "best"}}
    vary = {"algorithm": ["fedavg", "tests.comparison.test_selection:Breaks"]}
    result = udpfl.compare(base, vary=vary, seeds=1, out="grid")
    good, bad = folders(result)
    with Ledger(bad / "ledger.sqlite", read_only=True) as ledger:
        charged = {entry.round for entry in ledger.history()}
    assert charged == {1, 2}
    mu = ROUNDS / std_of(good, 0) ** 2 + 2 / std_of(bad, 0) ** 2
    assert only_total(result).runs == 2
    expected = gaussian([mu**-0.5], 1e-5, rounds=1)
    assert only_total(result).privacy.epsilon == pytest.approx(expected, rel=2e-3)


# Which runs are counted


def test_runs_on_other_data_are_not_added_up(tmp_path):
    one, two = "tests.comparison.test_selection:records", "tests.comparison.test_selection:others"
    alone = udpfl.compare(BASE, vary={"data": [one, two]}, seeds=1, out="grid")
    assert alone.selection is None
    both = udpfl.compare(BASE, vary={"data": [one, two], "epsilon": [2, 4]}, seeds=1, out="both")
    assert [(total.data, total.runs) for total in both.selection.totals] == [(one, 2), (two, 2)]
    runs = folders(both)
    for total, pair in zip(both.selection.totals, (runs[:2], runs[2:]), strict=True):
        expected = gaussian([std_of(folder, 0) for folder in pair], 1e-5)
        assert total.privacy.epsilon == pytest.approx(expected, rel=2e-3)
        assert f"all 2 runs on {total.data}, {FIXED}, together cost" in both.selection.sentence
    write_report(runs[:3], tmp_path / "three.html")
    said = visible((tmp_path / "three.html").read_text())
    assert "all 2 runs on the same records" in said
    assert "This does not include 1 run on other data." in said


def test_a_file_of_another_name_is_other_data_and_of_the_same_name_elsewhere_is_not(tmp_path):
    rng = np.random.default_rng(0)
    found = []
    for place, name in (("a", "x.csv"), ("b", "x.csv"), ("b", "y.csv")):
        rows = [f"{a:.3f},{b:.3f},{int(a > b)}" for a, b in rng.normal(size=(60, 2))]
        path = tmp_path / place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["a,b,y", *rows]))
        data = {
            "name": "table",
            "clients": 2,
            "options": {"path": str(path), "target": "y", "scale": "none"},
        }
        found.append(read_run(train(f"{place}-{name}", data=data)))
    assert selection_of(found[1:]) is None
    (total,) = selection_of(found).totals
    assert (total.runs, total.records) == (2, "not known")
    assert selection_of(found).elsewhere == 1


def test_the_same_records_in_other_shares_are_the_same_people():
    result = udpfl.compare(BASE, vary={"data.clients": [2, 4]}, seeds=1, out="grid")
    expected = gaussian([std_of(folder, 0) for folder in folders(result)], 1e-5)
    assert only_total(result).records == "dealt anew"
    assert only_total(result).privacy.epsilon == pytest.approx(expected, rel=2e-3)


def test_where_it_cannot_be_told_runs_are_added_up_and_the_sentence_says_so():
    options = [{"shift": 0.0}, {"shift": 2.0}]
    result = udpfl.compare(BASE, vary={"data.options": options}, seeds=1, out="grid")
    expected = gaussian([std_of(folder, 0) for folder in folders(result)], 1e-5)
    assert only_total(result).records == "not known"
    assert only_total(result).privacy.epsilon == pytest.approx(expected, rel=2e-3)
    assert "it is not known whether these are the same records" in result.table(400)
    # Handed over in Python, data has no name; the ledgers still know the same records again.
    own = [
        read_run(train(f"own-{number}", data=data))
        for number, data in enumerate((records(), records(), others()))
    ]
    assert selection_of(own[:2]).totals[0].records == "same"
    assert selection_of(own).totals[0].records == "not known"
    assert selection_of(own).totals[0].runs == 3


def test_the_same_records_under_another_name_are_found_by_their_fingerprint():
    named = train("named")
    own = train("own", data=records())
    (total,) = selection_of([read_run(named), read_run(own)]).totals
    assert (total.runs, total.records) == (2, "same")


def test_runs_that_share_a_ledger_are_counted_once_each(tmp_path):
    ledger = tmp_path / "shared.sqlite"
    own, privacy = [], {**PRIVACY, "accountant": "best", "ledger": str(ledger)}
    for number in range(3):
        own.append(train(f"run-{number}", privacy=privacy))
        with Ledger(ledger) as opened:
            for found in opened.accounts():
                opened.set_budget(found.id, Budget(100.0, 1e-5), reason="more runs")
    runs = [read_run(folder) for folder in own]
    for chosen in (runs[:2], runs):
        expected = gaussian([std_of(run.path, 0) for run in chosen], 1e-5)
        (total,) = selection_of(chosen).totals
        assert total.privacy.epsilon == pytest.approx(expected, rel=2e-3)
        assert total.runs == len(chosen)
    # A copy of a folder is the same run on the same ledger.
    shutil.copytree(own[0], tmp_path / "copy")
    again = selection_of([*runs[:2], read_run(tmp_path / "copy")])
    assert again.totals == selection_of(runs[:2]).totals
    assert selection_of([runs[0], read_run(tmp_path / "copy")]) is None


@pytest.mark.parametrize("ledger", ["gone", "of another run"])
def test_a_finished_run_without_its_ledger_is_not_left_out_of_the_total(ledger):
    result = udpfl.compare(BASE, vary={"epsilon": [2, 4]}, seeds=1, out="grid")
    first, second = folders(result)
    for path in second.glob("ledger.sqlite*"):
        path.unlink()
    if ledger == "of another run":
        for path in first.glob("ledger.sqlite*"):
            shutil.copy(path, second)
    (total,) = selection_of([read_run(first), read_run(second)]).totals
    assert total.privacy.kind == "none"
    assert "cannot be read from its ledger" in total.privacy.notes[0]


def test_totals_are_by_unit_where_units_differ():
    base = {**BASE, "privacy": {**PRIVACY, "delta": 1e-3}}
    result = udpfl.compare(base, vary={"unit": ["record", "client"]}, seeds=2, out="grid")
    record, client = result.selection.totals
    runs = folders(result)
    for total, pair in ((record, runs[:2]), (client, runs[2:])):
        assert total.runs == 2
        expected = gaussian([std_of(folder, 0) for folder in pair], 1e-3)
        assert total.privacy.epsilon == pytest.approx(expected, rel=2e-3)
    assert (record.privacy.unit, client.privacy.unit) == ("record", "client")
    said = result.selection.sentence
    assert "2 runs on the same records that hide single records" in said
    assert "2 runs on the same records that hide whole clients" in said
    assert "for someone who is one client in each run" in said
    assert "There is no total for both units together." in said


# What is said, and where


def test_the_sentence_is_on_the_terminal_in_json_and_on_the_page(capsys):
    result = udpfl.compare(BASE, vary={"epsilon": [2, 4]}, seeds=1, out="grid")
    epsilon = gaussian([std_of(folder, 0) for folder in folders(result)], 1e-5)
    number = shown(only_total(result).privacy.epsilon)
    assert float(number) == pytest.approx(epsilon, rel=2e-3)
    sentence = (
        f"{CHOSEN}all 2 runs on the same records, {FIXED}, together cost ε = {number} "
        "at δ = 1e-05 for one record added or removed."
    )
    assert result.selection.sentence == sentence
    assert result.to_dict()["selection"]["sentence"] == sentence
    assert sentence in result.table(400)
    assert sentence in visible(result.report.read_text())
    code, out, _ = command(capsys, "report", *folders(result))
    assert code == 0
    page = visible(Path(out.strip()).read_text())
    assert sentence.replace(FIXED, IF_FIXED) in page
    assert FIXED not in page


def test_one_run_leaves_nothing_out():
    result = udpfl.compare(BASE, vary={"epsilon": [2]}, seeds=1, out="grid")
    assert result.selection is None
    assert result.to_dict()["selection"] is None
    for text in (result.table(400), visible(result.report.read_text())):
        assert "does not cover the choice" not in text


def test_a_grid_that_was_changed_later_counts_all_its_runs_and_presumes_nothing():
    first = udpfl.compare(BASE, vary={"epsilon": [2, 4]}, seeds=1, out="grid")
    again = udpfl.compare(BASE, vary={"epsilon": [2, 4]}, seeds=1, out="grid")
    assert again.selection == first.selection
    assert first.selection.fixed
    later = udpfl.compare(BASE, vary={"epsilon": [8]}, seeds=1, out="grid")
    noise = [std_of(folder, 0) for folder in (*folders(first), *folders(later))]
    assert only_total(later).runs == 3
    assert only_total(later).privacy.epsilon == pytest.approx(gaussian(noise, 1e-5), rel=2e-3)
    text = visible(later.report.read_text())
    assert f"all 3 runs on the same records, {IF_FIXED}, together cost" in text
    assert "This includes 2 runs of earlier grids in this folder." in text
    # Nor does it become known by asking again.
    assert not udpfl.compare(BASE, vary={"epsilon": [2, 8]}, seeds=1, out="grid").selection.fixed
    index = Path("grid/comparison.json")
    stored = json.loads(index.read_text())
    del stored["fixed"]  # as an older version wrote it
    index.write_text(json.dumps(stored))
    assert not udpfl.compare(BASE, vary={"epsilon": [8]}, seeds=1, out="grid").selection.fixed


def test_failed_cells_are_on_the_page():
    vary = {"data.clients": [2, 4], "clients_per_round": [2, 4]}
    result = udpfl.compare(BASE, vary=vary, seeds=1, out="grid")
    assert len(result[1].failed) == 1
    said = visible(result.report.read_text())
    assert "3 runs compared" in said
    assert "clients=2,clients_per_round=4 Failed: training.clients_per_round: must be" in said
    breaks = {"algorithm": ["fedavg", "tests.comparison.test_selection:Breaks"]}
    result = udpfl.compare(BASE, vary=breaks, seeds=1, out="broken")
    said = visible(result.report.read_text())
    assert "1 run compared" in said
    name = folders(result)[1].name
    assert f"{name} Failed: RuntimeError: the server broke" in said


# One event out of each set


def steps(std: float, count: int = 20, rate: float = 0.1) -> Repeated:
    return Repeated(PoissonSampled(rate, Release(Gaussian(std=std), Sensitivity(1.0))), count)


def test_the_bound_for_whichever_event_holds_for_all_of_them():
    few = [[steps(1.0), steps(2.0), steps(1.0, 60)], [steps(1.5, 40), steps(1.2, 30)]]
    exact = max(account(Composed(chosen), 1e-5).epsilon for chosen in product(*few))
    assert account_alternatives(few, 1e-5).epsilon == pytest.approx(exact, rel=1e-9)
    # At some orders one event has the larger divergence, at others the other one.
    gaussian_, laplace = (
        steps(1.0),
        Repeated(Release(Laplace(scale=40.0), Sensitivity(1.0, "l1", 5)), 40),
    )
    many = [[gaussian_, laplace, steps(1.1, 25), steps(3.0, 200)]] * 4
    assert len(list(product(*many))) > 64
    most = max(
        account(Composed(chosen), 1e-5, accountant="rdp").epsilon for chosen in product(*many)
    )
    bound = account_alternatives(many, 1e-5)
    assert most <= bound.epsilon * (1 + 1e-6)
    assert bound.epsilon <= 1.2 * most


@pytest.mark.parametrize("sets", [2, 7])
def test_a_filter_bounds_alternatives_order_by_order(sets):
    """Few combinations one by one, many at once: by the formula of the theorem, in full batches."""
    rule, stds = Filter.planned(), (4.0, 9.0, 5.0)
    each = [[Repeated(Release(Gaussian(s), Sensitivity(1.0)), 3) for s in stds]] * sets
    cost = sets * 3 / (2 * 4.0**2)  # the least noise costs most at every order
    expected = min(
        a * cost + math.log((a - 1) / a) - (math.log(w * 1e-5) + math.log(a)) / (a - 1)
        for a, w in zip(rule.orders, rule.shares, strict=True)
    )
    found = account_alternatives(each, 1e-5, rule)
    assert found.epsilon == pytest.approx(expected)
    assert (found.composition, found.accountant) == ("filter", "filter")
    assert found.epsilon > account_alternatives(each, 1e-5).epsilon


def test_runs_whose_noise_followed_results_are_added_up_by_a_filter():
    """Each has a ledger of its own with a filter, and their total holds for any settings."""
    base = {**BASE, "data": {**BASE["data"], "public": 9}, "privacy": {"mechanism": "gaussian"}}
    result = udpfl.compare(base, vary={"pace": ["uniform", "plateau"]}, seeds=[4], out="grid")
    assert [row.failed for row in result] == [{}, {}]
    (path,) = Path("grid").glob("*.sqlite")
    assert path.name == "pace=plateau,seed=4.sqlite"
    assert result[1].privacy.composition == "filter"
    (total,) = result.selection.totals
    assert total.privacy.composition == "filter"
    assert "whatever their settings depended on" in result.selection.sentence
    spent = []
    for ledger in (path, *Path("grid").glob("pace=uniform*/ledger.sqlite")):
        with Ledger(ledger, read_only=True) as opened:
            spent.append([opened.spent(own.id) for own in opened.accounts()])
    together = [Composed(own) for own in zip(*spent, strict=True)]
    most = max(account(own, 1e-5, Filter.planned()).epsilon for own in together)
    assert total.privacy.epsilon == pytest.approx(most)
    assert total.privacy.epsilon > max(row.privacy.epsilon for row in result)
    again = udpfl.compare(base, vary={"pace": ["uniform", "plateau"]}, seeds=[4], out="grid")
    assert (again.trained, again.found) == (0, 2)
    # A base that has such a pace names a ledger, and none of its runs uses that one.
    named = {**base, "privacy": {"pace": "plateau", "ledger": "named.sqlite"}}
    other = udpfl.compare(named, vary={"privacy.mechanism": ["laplace", "none"]}, seeds=1, out="b")
    assert [row.privacy.kind for row in other] == ["guarantee", "none"]
    assert not Path("named.sqlite").exists()


def test_at_delta_zero_the_largest_losses_add_up():
    def pure(scale: float) -> Release:
        return Release(Laplace(scale=scale), Sensitivity(1.0, "l1", 1))

    sets = [
        [pure(scale) for scale in np.linspace(1, 2, 10)],
        [pure(s) for s in np.linspace(3, 4, 10)],
    ]
    assert account_alternatives(sets, 0.0).epsilon == pytest.approx(1 + 1 / 3)
    with pytest.raises(Unsupported):
        account_alternatives([*sets, [steps(1.0)]], 0.0)
    mixed = [[pure(1.0)], [Release(Gaussian(std=1.0), Sensitivity(1.0), unit="client")]]
    with pytest.raises(Unsupported, match="different units"):
        account_alternatives(mixed, 1e-5)
    for wrong in ([], [[]], [[pure(1.0)], []]):
        with pytest.raises(InvalidInput, match="sets"):
            account_alternatives(wrong, 1e-5)
