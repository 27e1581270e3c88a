"""Cells of a comparison that are trained together: the same cells, folders and failures."""

from __future__ import annotations

import copy

import pytest
import torch

import udpfl
from tests.commands import command
from tests.comparison.cells import BASE
from udpfl.comparison import ComparisonInterrupted, _jobs, running
from udpfl.config import load
from udpfl.engine import merging
from udpfl.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("elsewhere")
SEEDED = {**BASE, "privacy": {**BASE["privacy"], "randomness": "seeded"}}
VARY = {"mechanism": ["gaussian", "laplace"], "epsilon": [2, 8]}


def plain(result):
    """All that a comparison found, without places and times."""
    rows = copy.deepcopy(result.to_dict()["rows"])

    def strip(value):
        if isinstance(value, dict):
            dropped = ("folder", "seconds", "report", "run")
            return {k: strip(own) for k, own in value.items() if k not in dropped}
        if isinstance(value, list):
            return [strip(own) for own in value]
        return pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value

    return strip(rows)


@pytest.fixture
def lanes(monkeypatch):
    """How many lanes the merged calls have."""
    seen, merge = [], merging._merge

    def noted(calls, pool):
        merged = merge(calls, pool)
        seen.append(len(merged.lanes))
        return merged

    monkeypatch.setattr(merging, "_merge", noted)
    return seen


def test_cells_together_are_those_of_one_after_the_other(lanes):
    alone = udpfl.compare(SEEDED, vary=VARY, seeds=2, out="alone", together=1)
    assert lanes == []
    heard = []
    result = udpfl.compare(
        SEEDED, vary=VARY, seeds=2, out="grid", together=8, tell=lambda *said: heard.append(said)
    )
    assert plain(result) == plain(alone)
    assert lanes == [8 * 2] * 2
    assert (result.trained, result.found, result.complete) == (8, 0, True)
    done = [share for share, _, _ in heard]
    assert done == sorted(done)
    assert heard[-1][:2] == (8, 8)
    names = {path.name for path in result.folder.iterdir() if path.is_dir()}
    assert names == {path.name for path in alone.folder.iterdir() if path.is_dir()}
    again = udpfl.compare(SEEDED, vary=VARY, seeds=2, out="grid", together=3)
    assert (again.trained, again.found, again.rows) == (0, 8, result.rows)


def test_so_many_at_a_time(monkeypatch):
    groups, together = [], _jobs.run_together

    def noted(wanted, **more):
        groups.append(len(wanted))
        return together(wanted, **more)

    monkeypatch.setattr(_jobs, "run_together", noted)
    udpfl.compare(BASE, vary={"epsilon": [2, 8]}, seeds=2, out="grid", together=3)
    assert groups == [3, 1]
    udpfl.compare(BASE, vary={"epsilon": [2, 4, 8]}, seeds=2, out="grid", together=1)
    assert groups == [3, 1]


def test_a_cell_that_fails_says_why_and_stops_no_other(capsys):
    troubled = "tests.comparison.test_together:Breaks"
    vary = ["--vary", f"algorithm=fedavg,{troubled}", "--seeds", "2", "--set", "threads=1"]
    code, out, err = command(
        capsys, "compare", "base.toml", *vary, "--out", "grid", "--together", "4"
    )
    assert code == 1
    assert "RuntimeError: of my own making" in out + err
    result = udpfl.compare(
        BASE, vary={"algorithm": ["fedavg", troubled]}, seeds=2, out="grid", together=4
    )
    assert [row.failed for row in result] == [
        {},
        dict.fromkeys((0, 1), "RuntimeError: of my own making"),
    ]
    assert (result.trained, result.found) == (0, 2)


class Breaks(udpfl.Algorithm):
    """Whose server cannot aggregate."""

    name = "breaks"

    def aggregate(self, server, messages):
        raise RuntimeError("of my own making")


def test_what_was_interrupted_is_gone_on_with_together(monkeypatch, lanes):
    whole = udpfl.compare(SEEDED, vary=VARY, seeds=1, out="alone")
    advance = running.Progress.advance

    def interrupted(self, job, share):
        advance(self, job, share)
        if share == 0.5:
            raise KeyboardInterrupt

    monkeypatch.setattr(running.Progress, "advance", interrupted)
    with pytest.raises(ComparisonInterrupted):
        udpfl.compare(SEEDED, vary=VARY, seeds=1, out="grid", together=4)
    monkeypatch.setattr(running.Progress, "advance", advance)
    result = udpfl.compare(SEEDED, vary=VARY, seeds=1, out="grid", together=4)
    assert (result.trained, result.resumed, result.found) == (4, 4, 0)
    assert plain(result) == plain(whole)


@pytest.mark.parametrize("together", [0, True, "many", 1.5])
def test_a_wrong_number_of_runs_is_refused(together):
    with pytest.raises(InvalidInput, match=r"^together: must be a whole number >= 1"):
        udpfl.compare(BASE, seeds=1, out="grid", together=together)


def test_jobs_and_together_are_two_ways():
    with pytest.raises(InvalidInput, match="together: 2 and jobs = 2 are two ways"):
        udpfl.compare(BASE, seeds=1, out="grid", together=2, jobs=2)


@pytest.mark.parametrize(
    ("cuda", "device", "jobs", "expected"),
    [
        (False, "auto", 1, (1, 1)),
        (True, "auto", 1, (1, 16)),
        (True, "cuda", 1, (1, 16)),
        (True, "cpu", 1, (1, 1)),
        (True, "auto", 2, (2, 1)),
    ],
)
def test_what_is_done_unless_somebody_says_so(monkeypatch, cuda, device, jobs, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    base = load({**BASE, "device": device})
    assert running._runs_at_once(jobs, None, base) == expected
    assert running._runs_at_once(1, 5, base) == (1, 5)
