"""Every part of the benchmark on a GPU, with toys on the CPU; none is timed."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from tests.repository import ROOT

sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import around
import gpu
import gpu_contenders
import gpu_runs
import gpu_tables
import gpu_works
import tables

from udpfl.mechanisms import BUILT_IN

CPU = torch.device("cpu")


@pytest.fixture
def measure(monkeypatch, tmp_path):
    """Runs the benchmark with these arguments; returns its report and its tables."""
    monkeypatch.setattr(gpu, "installed", lambda package: False)

    def run(*arguments):
        out = tmp_path / "gpu.json"
        command = ["gpu.py", "--device", "cpu", "--quick", "--rounds", "1", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", [*command, "--iterations", "4", *arguments])
        gpu.main()
        return json.loads(out.read_text()), out.with_suffix(".md").read_text()

    return run


def _work(report, start):
    return next(own for own in report["works"] if own["work"]["name"].startswith(start))


def test_parts_are_merged_into_one_report(measure):
    measure("--part", "engine", "--only", "2 steps")
    report, text = measure("--part", "run", "--only", "2 steps")
    assert list(report["parts"]) == ["engine", "run"]
    (own,) = report["works"]
    names = set(own["seconds"])
    assert {"udpfl engine, gaussian, float32", "udpfl engine, not private, float32",
            "plain PyTorch loop, not private, float32", "torch.func vmap, float32",
            "udpfl run, gaussian, float32",
            "udpfl run, every message stored, gaussian, float32"} == names  # fmt: skip
    assert set(own["revisions"]) == names
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in own["seconds"].values())
    assert own["floor"]["flops"] > 0
    assert report["card"]["bytes"] > 0
    assert "these times mean nothing" in text
    for name in names:
        assert f"| {name.removesuffix(', float32')} |" in text
    state, messages = own["stored"].values()
    assert 0 < state["bytes"] < messages["bytes"]
    assert all(own["seconds"] > 0 for own in (state, messages))


def test_every_work_of_the_engine_runs(measure):
    report, _ = measure("--part", "engine")
    for work in (gpu_works.CNN, gpu_works.FEW_STEPS, gpu_works.RESNET):
        assert "udpfl engine, gaussian, float32" in _work(report, work.name)["seconds"]


def test_every_built_in_noise_is_measured(measure):
    assert set(gpu_contenders.NOISES) == set(BUILT_IN)
    report, _ = measure("--part", "mechanisms")
    seconds = _work(report, "cnn")["seconds"]
    for name in BUILT_IN:
        assert seconds[f"udpfl engine, {name}, float32"]
        assert seconds[f"udpfl run, {name}, float32"]


def test_clients_are_a_table_of_their_own(measure):
    report, text = measure("--part", "clients")
    assert len(report["works"]) == 4
    assert "| clients × 2 steps |" in text


def test_the_papers_rows_are_runs_of_so_many_iterations(measure):
    assert len(gpu_runs.PAPER_SECONDS) == 6
    assert gpu_runs.PAPER_SECONDS["MNIST", 50][50] == 1049.71
    for data, clients in gpu_runs.PAPER_SECONDS:
        work = gpu_runs.paper_work(data, clients, "two epochs")
        assert work.steps * work.batch == pytest.approx(2 * work.records, rel=0.06)
    report, text = measure("--part", "paper", "--only", "100 clients, two")
    assert len(report["paper"]) == 6
    for own in report["paper"].values():
        assert own["seconds"] > own["iteration"] > 0
        assert own["paper"] is None  # the paper has no runs of four iterations
    assert "Medical, 100 clients, two epochs: 40 × 29 records each, 4 iterations" in text


def test_flutes_tasks_are_private_runs(measure):
    report, text = measure("--part", "flute")
    assert {name: own["rounds"] for name, own in report["flute"].items()} == {
        "LR-MNIST": 100, "CNN-FEMNIST": 1500,
    }  # fmt: skip
    assert "FLUTE, not private" in text
    network = gpu_runs.femnist_network(toy=False)
    assert sum(own.numel() for own in network.parameters()) == 1_206_590
    for task in gpu_runs.FLUTE:  # one epoch of each client, in expectation
        assert task.work.steps * task.work.batch == pytest.approx(task.work.records, rel=0.02)


def test_a_quick_try_is_never_mixed_with_a_measurement(tmp_path):
    path = tmp_path / "gpu.json"
    assert gpu.known(path, quick=True) == {}
    path.write_text(json.dumps({"quick": False, "works": [1]}))
    assert gpu.known(path, quick=True) == {}
    assert gpu.known(path, quick=False)["works"] == [1]


@pytest.mark.parametrize(
    "arguments",
    [["--device", "cpu"], ["--device", "cpu", "--quick", "--rounds", "0"],
     ["--device", "cpu", "--quick", "--iterations", "3"], ["--part", "nothing"]],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    with pytest.raises(SystemExit):
        gpu.arguments()


def test_precisions_are_those_that_exist():
    assert gpu_works.precisions(CPU) == ["float32"]
    on_a_card = gpu_works.precisions(torch.device("cuda"))
    assert on_a_card[:2] == ["float32", "tf32"]
    assert set(on_a_card) <= set(gpu_tables._SHOWN)


def test_a_report_of_before_there_were_parts_is_read_and_added_to(tmp_path):
    report = gpu.known(gpu.RESULTS / "gpu.json", quick=False)
    before = gpu_tables.tables(report)
    own = _work(report, "cnn, 50 clients × 2 steps")
    own["seconds"]["udpfl engine, gaussian, bfloat16"] = [0.5]
    own["seconds"]["udpfl run, gaussian, float32"] = [0.125]
    own["stored"] = {"udpfl run, gaussian, float32": {"bytes": 2e6, "seconds": 0.025}}
    after = gpu_tables.tables(report)
    assert "bfloat16, s" in after
    assert "bfloat16, s" not in before
    assert "| udpfl run, gaussian, float32 | 0.125 | 2.0 | 0.025 | 0.100 |" in after
    report["card"] = {"bytes": 4e12}
    own["floor"]["bfloat16"] = own["floor"]["tf32"] / 2
    gpu_tables.roofline(report, tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").read_bytes()[:4] == b"\x89PNG"


def test_the_page_has_the_tables_of_the_result_file():
    report = json.loads((gpu.RESULTS / "gpu.json").read_text())
    page = tables.DOCUMENT.read_text()
    assert tables.filled(page, "gpu", gpu_tables.tables(report)) == page


def test_a_run_in_which_nothing_is_computed_is_timed():
    for road in around.ROADS:
        found = around.measure("logistic", 2, road, rounds=1)
        assert len(found) == 1
        assert all(0 < seconds < 10 for seconds in found[0])
