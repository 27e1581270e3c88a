"""Comparisons that are run again, stopped, killed, or shared by several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import udpfl
from tests.commands import command
from tests.comparison.cells import BASE
from tests.repository import IMPORTS
from udpfl.comparison import _jobs
from udpfl.errors import InvalidInput
from udpfl.ledger.ledger import Ledger

PATIENCE = 60.0
pytestmark = pytest.mark.usefixtures("elsewhere")


def charges(run: Path) -> list[tuple[str, int]]:
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.verify() == []
        return sorted((entry.client, entry.round) for entry in ledger.history())


# Again


def times(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}


def test_finished_runs_are_read_and_a_larger_grid_uses_them(tmp_path):
    vary = {"epsilon": [2, 4]}
    first = udpfl.compare(BASE, vary=vary, seeds=2, out="grid")
    before = times(tmp_path / "grid")
    again = udpfl.compare(BASE, vary=vary, seeds=2, out="grid")
    assert (first.trained, first.found, again.trained, again.found) == (4, 0, 0, 4)
    assert again.rows == first.rows
    # More values, other seeds, and a key that was fixed so far: gaussian, as it happens.
    more = {"mechanism": ["laplace", "gaussian"], "epsilon": [4, 8]}
    larger = udpfl.compare(BASE, vary=more, seeds=[1, 2], out="grid")
    assert (larger.trained, larger.found) == (7, 1)
    kept = {run.folder.name for row in larger for run in row.runs} & before.keys()
    assert kept == {"epsilon=4,seed=1"}
    after = times(tmp_path / "grid")
    assert {name: after[name] for name in before} == before
    assert len(after) == 11
    # And back: the first grid has not been forgotten. Where it is computed does not matter.
    back = udpfl.compare({**BASE, "threads": 2}, vary=vary, seeds=2, out="grid")
    assert (back.trained, back.rows) == (0, first.rows)
    laplace = {**BASE, "privacy": {**BASE["privacy"], "mechanism": "laplace"}}
    other = udpfl.compare(laplace, vary={"epsilon": [8]}, seeds=[2], out="grid")
    assert (other.trained, other.found) == (0, 1)


def test_a_summary_that_its_ledger_contradicts_is_no_result(capsys, tmp_path):
    same = ("compare", "base.toml", "--vary", "epsilon=2", "--seeds", "2", "--out", "grid")
    assert command(capsys, *same)[0] == 0
    path = tmp_path / "grid" / "epsilon=2,seed=0" / "summary.json"
    said = json.loads(path.read_text())
    said["accuracy"], said["privacy"]["epsilon"] = 0.999, 0.01
    path.write_text(json.dumps(said))
    code, out, _ = command(capsys, *same, "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 1
    assert "its ledger contradicts it" in row["failed"]["0"]
    assert [run["seed"] for run in row["runs"] if run["failed"] is None] == [1]


def test_without_out_the_same_command_finds_its_folder(capsys):
    vary = ["--vary", "epsilon=2", "--json"]
    code, out, _ = command(capsys, "compare", "base.toml", *vary, "--seeds", "1")
    assert code == 0
    first = json.loads(out)
    assert first["folder"].startswith("runs/compare-tests.comparison.cells-records-fedavg-")
    code, out, _ = command(capsys, "compare", "base.toml", *vary, "--seeds", "2")
    assert (json.loads(out)["folder"], json.loads(out)["found"]) == (first["folder"], 1)
    rounds = ["--set", "training.rounds=1"]
    code, out, _ = command(capsys, "compare", "base.toml", *vary, "--seeds", "1", *rounds)
    assert code == 0
    assert json.loads(out)["folder"] != first["folder"]


def test_another_base_is_refused_with_what_differs(capsys, tmp_path):
    arguments = ["compare", "base.toml", "--seeds", "1", "--out", "grid"]
    assert command(capsys, *arguments, "--vary", "epsilon=2")[0] == 0
    before = (tmp_path / "grid" / "comparison.json").read_text()
    sets = ["--set", "training.rounds=3", "--set", "data.by=x", "--set", "data.partition=column"]
    code, out, err = command(capsys, *arguments, "--vary", "epsilon=2", *sets)
    assert (code, out) == (2, "")
    assert "out: 'grid' holds a comparison with other settings" in err
    assert "training.rounds is 2 there and 3 here" in err
    assert "data.by is not set there and x here" in err
    assert "privacy.epsilon" not in err
    assert (tmp_path / "grid" / "comparison.json").read_text() == before
    off = ["--set", "privacy=none", "--vary", "rounds=2"]
    assert (
        "privacy.mechanism is gaussian there and none here" in command(capsys, *arguments, *off)[2]
    )
    # A key that was varied here once may be anything.
    code, *_ = command(capsys, *arguments, "--vary", "clip=1", "--set", "privacy.epsilon=3")
    assert code == 0
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.md").write_text("years of work")
    code, _, err = command(capsys, "compare", "base.toml", "--out", "thesis")
    assert code == 2
    assert "'thesis' exists and is not the folder of a comparison" in err
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["text.md"]


# Stopped


def start(*arguments: object, log: str = "err.txt") -> subprocess.Popen[bytes]:
    # Whoever is started in the background of a shell is deaf to interrupts.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    asked = [str(a) for a in ("compare", *arguments)]
    code = f"{listen}; from udpfl.cli import main; main({asked})"
    environment = {**os.environ, "PYTHONPATH": IMPORTS}
    with Path(log).open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=err, stderr=err
        )


def until(condition, process) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, Path("err.txt").read_text()
        assert time.monotonic() < give_up, "nothing happens"
        time.sleep(0.01)


def rounds(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def goes_on(capsys, under_way, *arguments: object) -> None:
    """Nobody works there any more, what was charged was used, and the rest is trained."""
    for run in under_way:
        done = rounds(run)
        assert charges(run) == sorted(
            (f"client-{c}", r) for c in range(2) for r in range(1, done + 1)
        )
        assert (run / "checkpoints" / f"round-{done:06d}.safetensors").is_file()
    code, out, _ = command(capsys, "compare", *LONG, *arguments, "--json")
    assert code == 0
    assert json.loads(out)["complete"]
    for run in under_way:
        assert charges(run) == EVERY


ROUNDS = 200  # long enough not to be over before somebody interrupts
LONG = [
    "base.toml", "--seeds", "1", "--out", "grid",
    "--set", f"training.rounds={ROUNDS}", "--set", f"training.evaluate_every={ROUNDS}",
]  # fmt: skip
EVERY = sorted((f"client-{c}", r) for c in range(2) for r in range(1, ROUNDS + 1))


def test_a_killed_comparison_goes_on_where_it_stopped(capsys):
    vary = ["--vary", "epsilon=2,4,8"]
    first, second, third = (Path("grid") / f"epsilon={e},seed=0" for e in (2, 4, 8))
    process = start(*LONG, *vary)
    until(lambda: rounds(second) >= 5, process)
    process.kill()
    process.wait()
    assert (first / "summary.json").is_file()
    assert not (second / "summary.json").exists()
    assert not third.exists()
    before, identity = times(Path("grid")), (second / "run.json").read_text()
    charged = charges(second)
    assert 10 <= len(charged) < len(EVERY)
    code, out, err = command(capsys, "compare", *LONG, *vary, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["trained"], found["found"], found["complete"]) == (2, 1, True)
    assert found["resumed"] == 1
    assert times(Path("grid"))[first.name] == before[first.name]
    assert (second / "run.json").read_text() == identity  # the same run, not a new one
    for run in (first, second, third):
        assert charges(run) == EVERY  # everything once, what was charged before the kill too


@pytest.mark.slow
def test_an_interrupt_with_two_jobs_stops_cleanly_and_says_how_to_go_on(capsys):
    vary = ["--vary", "epsilon=2,4,8"]
    process = start(*LONG, *vary, "--jobs", "2")
    under_way = [Path("grid") / f"epsilon={e},seed=0" for e in (2, 4)]
    until(lambda: all(rounds(run) >= 2 for run in under_way), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    said = Path("err.txt").read_text()
    assert "the current rounds are finished first" in said
    assert "interrupted: 0 of 3 runs are done in grid; repeat the command to continue" in said
    assert "Traceback" not in said
    goes_on(capsys, under_way, *vary)


TROUBLED = "training.algorithm=tests.comparison.cells:Troubled"


@pytest.mark.slow
def test_a_request_to_stop_that_no_round_hears_of_leaves_nobody_waiting(capsys):
    """The runs under way come to their ends, and the workers get nothing else to do."""
    deaf = ["--set", TROUBLED, "--set", "training.options.trouble=deaf", "--vary", "epsilon=2,4,8"]
    process = start(*LONG, *deaf, "--jobs", "2")
    first, second, third = (Path("grid") / f"epsilon={e},seed=0" for e in (2, 4, 8))
    until(lambda: all(rounds(run) >= 2 for run in (first, second)), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    said = Path("err.txt").read_text()
    assert "interrupted: 2 of 3 runs are done in grid" in said
    assert "Traceback" not in said
    assert charges(first) == charges(second) == EVERY
    assert not third.exists()


def ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupted again", "killed"])
def test_without_their_parent_workers_end_and_the_same_command_goes_on(how, capsys):
    waits = ["--set", TROUBLED, "--set", "training.options.trouble=waits", "--vary", "epsilon=2,4"]
    process = start(*LONG, *waits, "--jobs", "2")
    until(lambda: len(list(Path().glob("waits-*"))) == 2, process)
    workers = [int(path.name.partition("-")[2]) for path in Path().glob("waits-*")]
    if how == "killed":
        process.kill()
        process.wait()
        Path("go").touch()  # to their next message
    else:
        process.send_signal(signal.SIGINT)
        until(lambda: "interrupt again to stop now" in Path("err.txt").read_text(), process)
        assert not any(map(ended, workers))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130  # without go
        said = Path("err.txt").read_text()
        assert "interrupted: 0 of 2 runs are done in grid; repeat the command to continue" in said
        assert "Traceback" not in said
    give_up = time.monotonic() + PATIENCE
    while not all(map(ended, workers)):
        assert time.monotonic() < give_up, "a worker goes on"
        time.sleep(0.01)
    Path("go").touch()
    code, out, _ = command(capsys, "compare", *LONG, *waits, "--json")
    assert code == 0
    assert json.loads(out)["resumed"] == 2
    for epsilon in (2, 4):
        assert charges(Path("grid") / f"epsilon={epsilon},seed=0") == EVERY


@pytest.mark.slow
def test_workers_that_die_and_workers_that_have_notes(caplog):
    base = {
        **BASE,
        "training": {**BASE["training"], "algorithm": "tests.comparison.cells:Troubled"},
    }
    vary = {"training.options.trouble": ["dies", "notes"]}
    result = udpfl.compare(base, vary=vary, seeds=2, out="grid", jobs=2)
    assert result[0].failed == dict.fromkeys((0, 1), "its process ended with exit code 7")
    assert result[1].failed == {}
    notes = [record for record in caplog.records if record.message == "something is odd"]
    assert [record.levelname for record in notes] == ["WARNING"] * 4  # two rounds of two runs


def test_an_interrupt_of_a_single_job(monkeypatch, capsys):
    train, calls = _jobs.train, []

    def interrupted(*arguments, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*arguments, **kwargs)

    monkeypatch.setattr(_jobs, "train", interrupted)
    arguments = ["compare", "base.toml", "--vary", "epsilon=2,4", "--seeds", "1", "--out", "grid"]
    code, out, err = command(capsys, *arguments)
    assert (code, out) == (130, "")
    assert err == "interrupted: 1 of 2 runs are done in grid; repeat the command to continue\n"
    code, out, _ = command(capsys, *arguments, "--json")
    assert code == 0
    assert (json.loads(out)["found"], json.loads(out)["trained"]) == (1, 1)


@pytest.mark.slow
def test_two_jobs_give_the_same_cells_as_one_and_as_single_runs():
    """Seeded noise, so that the same run is the same to the last digit."""
    seeded = {**BASE, "privacy": {"randomness": "seeded", "mechanism": "gaussian"}}
    vary = {"epsilon": [1, 20], "delta": [1e-5, 0.0]}
    one = udpfl.compare(seeded, vary=vary, seeds=2, out="one")
    heard = []
    two = udpfl.compare(
        seeded, vary=vary, seeds=2, out="two", jobs=2, tell=lambda *said: heard.append(said)
    )
    assert [row.values for row in one] == [row.values for row in two]
    assert [row.privacy for row in one] == [row.privacy for row in two]
    for row in two:
        if row.settings["privacy.delta"] == 0:
            assert row.failed.keys() == {0, 1}
            assert "no pure-DP guarantee" in row.failed[0]
            continue
        for run in row.runs:
            own = {**seeded, "privacy": {**seeded["privacy"], "epsilon": run_epsilon(row)}}
            assert udpfl.run(own, seed=run.seed).accuracy == run.value
    done, totals, _ = zip(*heard, strict=True)
    assert set(totals) == {8}
    assert list(done) == sorted(done)
    assert (done[0], done[-1]) == (0, 8)


@pytest.mark.parametrize("jobs", [0, True, "many", 1.5])
def test_a_wrong_number_of_jobs_is_refused(jobs):
    with pytest.raises(InvalidInput, match=r"^jobs: must be a whole number >= 1"):
        udpfl.compare(BASE, seeds=1, out="grid", jobs=jobs)
    assert not Path("grid").exists()


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_fault_of_whoever_is_told_of_progress_is_not_lost(jobs):
    def tell(done, total, now):
        if done:
            raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        udpfl.compare(BASE, seeds=2, out="grid", jobs=jobs, tell=tell)


def run_epsilon(row) -> float:
    return row.settings["privacy.epsilon"]


def test_a_second_comparison_in_the_same_folder_waits_for_nobody(tmp_path):
    from udpfl.runs.folder import RunFolder

    udpfl.compare(BASE, vary={"epsilon": [2]}, seeds=1, out="grid")
    with (
        RunFolder(tmp_path / "grid").locked(),
        pytest.raises(InvalidInput, match=r"^out: another process is working"),
    ):
        udpfl.compare(BASE, vary={"epsilon": [2]}, seeds=1, out="grid")
