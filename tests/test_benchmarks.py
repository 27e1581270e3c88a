"""The benchmarks run, at toy scale and without the libraries they compare with; none is timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.repository import ROOT

sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import compare_speed
import contenders
import figures
import machine
import methods
import profile_training
import scaling
import stages
import tables
import training
import vector_noise
import versions
import workload
from workload import TOY, Used, Workload

from udpfl.algorithms import BUILT_IN
from udpfl.engine import LaneModel


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "installed", lambda package: False)


def test_everyone_has_as_many_turns_as_rounds_were_asked_for() -> None:
    found = training.measure(TOY, rounds=2)
    assert list(found) == [contenders.PLAIN, contenders.FEDERATION, contenders.ENGINE]
    for used in found.values():
        assert len(used) == 2
        assert all(each.seconds > 0 and each.cpu_seconds >= 0 for each in used)


def test_the_plain_loop_is_federated_averaging() -> None:
    """One full-batch step of equally large clients is one gradient step on all their records."""
    everyone = Workload(clients=3, picked=3, records=6, steps=1, rate=1.0)
    loop, expected = contenders.Plain(everyone), everyone.network()
    x, y = everyone.data()
    F.cross_entropy(expected(x), y).backward()
    loop()
    for name, p in expected.named_parameters():
        assert p.grad is not None
        stepped = p.detach() - workload.LEARNING_RATE * p.grad
        found = dict(loop.server.named_parameters())[name]
        torch.testing.assert_close(found.detach(), stepped, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(found, p, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("steps", "rate"), [(3, 0.25), (4, 0.25), (9, 0.25), (2, 1.0)])
def test_fixed_batches_take_the_steps_asked_for(steps: int, rate: float) -> None:
    own = Workload(records=8, steps=steps, rate=rate)
    x = torch.arange(8.0)
    batches = list(contenders._batches(x, x, own))
    assert [len(inputs) for inputs, _ in batches] == [own.batch] * steps
    one_pass = torch.cat([inputs for inputs, _ in batches[: 8 // own.batch]])
    assert len(set(one_pass.tolist())) == len(one_pass)


def test_multiples_of_the_plain_loop() -> None:
    took = {
        contenders.PLAIN: [Used(2.0, 3.0, 10), Used(1.0, 1.0, 10), Used(4.0, 1.0, 40)],
        "slow": [Used(6.0, 1.0, 5), Used(3.0, 1.0, 5), Used(9.0, 1.0, 5)],
    }
    found = training.summary(took)
    assert found[contenders.PLAIN]["median_ratio"] == found[contenders.PLAIN]["min_ratio"] == 1
    assert (found["slow"]["median_ratio"], found["slow"]["min_ratio"]) == (3, 3)
    assert found["slow"]["seconds"] == [6, 3, 9]
    assert found[contenders.PLAIN]["page_faults"] == 10


def test_a_child_process_gets_the_setting_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("HOME", "here")
    found = machine.environment("passive")
    assert found["OMP_WAIT_POLICY"] == "PASSIVE"
    assert found["HOME"] == "here"
    assert not {"MALLOC_ARENA_MAX", "OMP_NUM_THREADS"} & set(found)


def test_time_in_an_inner_stage_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 4.0, 10.0])  # outer begins, inner begins, inner ends, outer ends
    monkeypatch.setattr(stages.time, "perf_counter", lambda: next(ticks))
    clock = stages.Clock(tuple(stages.STAGES))
    inner = clock.wrapped("noise", lambda: None)
    clock.wrapped("rest of the steps", inner)()
    lap = clock.lap()
    assert (lap["noise"], lap["rest of the steps"]) == (3.0, 7.0)
    assert not any(clock.lap().values())


def test_a_profile_covers_every_stage_and_leaves_nothing_behind() -> None:
    before = LaneModel.gradients
    found = profile_training.profile(TOY, rounds=1, threads=2)
    assert all(seconds > 0 for seconds in found["stages"].values()), found["stages"]
    assert sum(found["stages"].values()) == pytest.approx(found["round"])
    for shares in (found, found["side_by_side"]):
        assert 0 < shares["charging_and_checkpoint_share"] < shares["durable_share"] < 1
    after = LaneModel.gradients
    assert after is before


def test_one_run_of_the_scaling_benchmark() -> None:
    found = scaling.one(TOY, rounds=1)
    assert len(found["seconds"]) == 1
    assert found["peak_mib"] >= 0.95 * found["before_mib"] > 0  # the kernel counts in batches
    assert found["records_mib"] == pytest.approx(160 * (28 * 28 * 4 + 8) / 2**20)


@pytest.mark.slow
def test_two_versions_take_turns_and_the_median_of_their_ratios_counts() -> None:
    found = versions.measure(versions.ROOT, "logistic", rounds=3, starts=2, device="cpu")
    old, new = found["seconds"]["before"], found["seconds"]["now"]
    assert len(old) == len(new) == 6
    assert 0 < min(n / o for o, n in zip(old, new, strict=True)) <= found["ratio"] * 1.1


def test_a_version_is_a_folder_or_a_revision() -> None:
    with versions.checkout(str(versions.ROOT)) as folder:
        assert folder == versions.ROOT
    with pytest.raises(subprocess.CalledProcessError), versions.checkout("no-such-revision"):
        pass


def test_a_straight_line_and_a_flat_one() -> None:
    straight = scaling.line([10, 20, 50], [1.5, 2.5, 5.5])
    assert straight["seconds_per_client"] == pytest.approx(0.1)
    assert straight["worst_miss"] == pytest.approx(0, abs=1e-9)
    assert scaling.line([10, 20, 50], [1.0, 4.0, 25.0])["worst_miss"] > 0.3
    assert scaling.flatness([1.0] * 8)["growth"] == 1
    assert scaling.flatness([float(i + 1) for i in range(8)])["growth"] == 5


def _report() -> dict[str, Any]:
    used = {contenders.PLAIN: [Used(0.5, 1.0, 1)], "udpfl": [Used(0.6, 1.0, 1)]}
    models = {"cnn-small": training.summary(used)}
    return {
        "machine": machine.described(threads=2),
        "settings": {"default": {"environment": {}, "models": models}},
    }


def test_tables_and_figures_say_what_was_measured(tmp_path: Path) -> None:
    text = tables.training_table(_report())
    assert "| udpfl | 1.20 (1.20) |" in text
    assert "0.500 s (cnn-small)" in text
    figures.training_figure(_report(), tmp_path / "training.png")
    assert (tmp_path / "training.png").read_bytes()[:4] == b"\x89PNG"


def test_the_table_of_flower_adds_up_what_is_ours(tmp_path: Path) -> None:
    parts = {"training": 0.5, "ledger": 0.01, "site": 0.55, "server": 0.002, "ours": 0.052}
    ways = dict.fromkeys(figures.FLOWER_WAYS, 4.0) | {"empty work": 3.0}
    report = {
        "machine": machine.described(threads=1),
        "rounds": [{"model": "cnn", "nodes": 10, **ways}],
        "answer": {"cnn": parts},
        "imports": {"the gate": 1.25},
    }
    text = tables.flower_table(report)
    assert "| `cnn`, 10 nodes | 4.00 | 4.00 | 3.00 | 4.00 |" in text
    assert "| ours: policy, records of the site, serialisation | 40.0 ms |" in text
    assert "| **ours in a round of 10 nodes** | **70 ms** |" in text
    assert "| the gate | 1.25 |" in text
    figures.flower_figure(report, tmp_path / "flower.png")
    assert (tmp_path / "flower.png").read_bytes()[:4] == b"\x89PNG"


def test_a_quick_try_is_never_quoted_as_a_measurement() -> None:
    text = tables.training_table(_report() | {"quick": True})
    assert "mean nothing" in text
    assert "cores" not in text


def test_a_table_goes_between_its_marks() -> None:
    document = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n"
    assert tables.filled(document, "x", "new\n") == "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n"
    with pytest.raises(SystemExit, match="once each"):
        tables.filled("no marks", "x", "new")


def test_the_readme_has_the_numbers_of_the_result_files() -> None:
    text = (machine.ROOT / "README.md").read_text()
    assert tables.readme(text) == text, "run python benchmarks/tables.py"


def test_the_page_has_a_place_for_every_table() -> None:
    document = tables.DOCUMENT.read_text()
    for name in tables.TABLES:
        document = tables.filled(document, name, "…")


def test_every_method_that_is_measured_has_as_many_releases_as_planned() -> None:
    assert {name.partition(",")[0] for name in methods.METHODS} <= set(BUILT_IN)
    for data, planned in {"digits": 80, "digits, uneven": 80, "mnist": 300}.items():
        for method in methods.METHODS:
            found = methods.settings(method, data)["training"]
            assert found["rounds"] * found["local_steps"] == planned, method


def test_one_run_of_the_methods_benchmark_is_resumed_by_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = {"local_steps": 40, "sampling_rate": 0.01}
    monkeypatch.setattr(methods, "METHODS", {"scaffold, toy": toy})
    out = tmp_path / "methods.json"
    command = ["methods.py", "--out", str(out), "--data", "digits", "--seeds", "0"]
    monkeypatch.setattr(sys, "argv", command)
    methods.main()
    (first,) = methods.known(out)["cells"]
    assert first["settings"]["training"]["rounds"] == 2
    assert 0 <= first["accuracy"] <= 1
    before = out.read_bytes()
    methods.main()
    assert out.read_bytes() == before  # the cell was there
    monkeypatch.setattr(methods, "METHODS", {"scaffold, toy": {**toy, "learning_rate": 1.0}})
    assert methods.known(out)["cells"] == []


def test_the_table_of_methods_says_what_was_measured() -> None:
    cells = [
        {"method": method, "data": "digits", "seed": seed, "accuracy": accuracy}
        for method, seed, accuracy in (("fedavg", 0, 0.9), ("fedavg", 1, 0.8), ("median", 0, 0.7))
    ]
    text = methods.table({"cells": cells})
    assert "| `fedavg` | 0.850 ± 0.071 (2) |" in text
    assert "| `median` | 0.700 (1) |" in text
    assert "mnist" not in text
    assert "digits: 1 to 2 seeds" in text


def test_the_page_about_methods_quotes_the_result_file() -> None:
    found = methods.RESULTS / "methods.json"
    page = methods.DOCUMENT.read_text()
    assert tables.filled(page, "methods", methods.table(methods.known(found))) == page


def test_noise_of_whole_vectors_is_compared_and_priced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_noise, "DIMENSIONS", (2,))
    monkeypatch.setattr(vector_noise, "PRICED", 50)
    monkeypatch.setattr(vector_noise, "proved", lambda noise, dimension: 0.5)
    vector_noise.table()
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| 2 | 1.4090 / 1.4142 = 0.9963 | 0.3014 / 0.3536 = 0.8526 |")
    vector_noise.price()
    assert capsys.readouterr().out.count("x independent Staircase noise") == 5


@pytest.mark.slow
def test_a_comparison_is_timed_with_every_number_of_jobs() -> None:
    rows = compare_speed.measure("logistic", [1, 2], rounds=1, turns=1, device="cpu")
    assert [row["jobs"] for row in rows] == [1, 2]
    assert rows[0]["ratio"] == 1
    assert all(row["seconds"][0] > 0 for row in rows)
