"""`udpfl.compare`: runs every cell of a grid with every seed, or finds that it was run before."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from udpfl.comparison._folder import ComparisonFolder, comparison_folder, default_folder
from udpfl.comparison._grid import Cell, Grid, grid_of
from udpfl.comparison._jobs import Job, Progress, Tell, train_together
from udpfl.comparison._words import plain_keys, plain_settings
from udpfl.comparison.axes import Pairs, said
from udpfl.comparison.outcome import Comparison, Row, SeedRun, outcome_of
from udpfl.config import Config, load
from udpfl.errors import InvalidInput
from udpfl.report import RunRecord, RunSelection, Setting, selection_of, write_comparison
from udpfl.report.read import read_runs
from udpfl.report.settings import told_apart
from udpfl.runs.targets import Target

log = logging.getLogger(__name__)


_ON_CUDA = 16
"""Runs that are trained together on CUDA unless somebody says how many."""


class AtOnce(NamedTuple):
    """How many runs share the machine."""

    jobs: int
    """Processes."""
    together: int
    """Runs in one process."""


class ComparisonInterrupted(KeyboardInterrupt):
    """A comparison that was asked to stop; the same call goes on from there.

    Args:
        folder: Of the comparison.
        done: Runs that are finished.
        total: Runs in all.
    """

    def __init__(self, folder: Path, done: int, total: int) -> None:
        self.folder, self.done, self.total = folder, done, total
        super().__init__(f"{done} of {total} runs are done in {folder}")


def compare(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    pair: Pairs = (),
    seeds: int | Sequence[int] = 3,
    out: str | Path | None = None,
    jobs: int = 1,
    together: int | None = None,
    tell: Tell | None = None,
    **sections: Any,
) -> Comparison:
    """Run every combination of the values with every seed, and put them side by side.

    The same call again, or one with a larger grid over the same base, reads what is finished, goes
    on with what was interrupted and tries again what failed.

    Guarantee: that of each run by itself. A record pays in every run it takes part in, and whoever
    chooses a run by its result has looked at all of them: `Comparison.selection` has their total.

    Args:
        config: The base of all runs, as for `udpfl.run`.
        vary: Lists of values by key, or by the last part of a key where only one ends like it.
        pair: Keys whose values go together, one by one, as a dictionary of lists of the same
            length, or several such dictionaries: one axis of the grid each.
        seeds: A number of seeds, counted from 0, or the seeds.
        out: The folder of the comparison; named after the settings if left out.
        jobs: Processes that share the work.
        together: Runs that one process trains side by side, their training merged. If left out 16
            on CUDA, where a small run leaves the device idle, and 1 on a CPU or with several jobs.
        tell: Called with runs done, runs in all, and the run under way.
        **sections: Settings on top of `config`, as for `udpfl.run`.

    Returns:
        A row for each combination; runs that failed are in it, with the reason.

    Raises:
        InvalidInput: A setting, a key or a value is wrong.
        ComparisonInterrupted: Somebody asked it to stop.

    Example:
        >>> import udpfl
        >>> from pathlib import Path
        >>> _ = Path("ages.csv").write_text("age,ill\\n" + "20,0\\n70,1\\n" * 20)
        >>> data = {"name": "table", "options": {"path": "ages.csv", "target": "ill"}}
        >>> base = {"data": data, "model": {"name": "logistic"}, "training": {"rounds": 1}}
        >>> rows = udpfl.compare(base, vary={"privacy.epsilon": [2, 8]}, seeds=1, threads=1)
        >>> [row.settings["privacy.epsilon"] for row in rows]
        [2, 8]
    """
    base = load(config, sections)
    at_once = _runs_at_once(jobs, together, base)
    grid, target = grid_of(base, vary or {}, seeds, pair), Target.of(base)
    path = Path(out or base.out or default_folder(base, grid.keys))
    with comparison_folder(path, base, grid.keys) as folder:
        return _compared(folder, grid, at_once, tell, target)


def _compared(
    folder: ComparisonFolder, grid: Grid, at_once: AtOnce, tell: Tell | None, target: Target | None
) -> Comparison:
    """Train what is missing, then read every run once."""
    placed = _place(folder, grid)
    everything = list({job.folder: job for job in placed.values()}.values())
    waiting = [job for job in everything if not job.finished]
    found, begun = len(everything) - len(waiting), [job for job in waiting if job.begun]
    progress = Progress(tell or (lambda *_: None), len(everything), found)
    _train_waiting(folder.path, everything, waiting, at_once, progress)
    records = {run.path: run for run in read_runs(folder.begun)}
    trained, resumed = (sum(job.finished for job in jobs) for jobs in (waiting, begun))
    result = Comparison(
        _rows(grid, placed, records, progress.failed, target),
        grid.keys,
        grid.seeds,
        folder.path,
        trained,
        resumed,
        found,
        _selection(folder, everything, list(records.values())),
        target,
        grid.axes,
    )
    _report(folder, result, records)
    return result


def _runs_at_once(jobs: int, together: int | None, base: Config) -> AtOnce:
    """How many runs share the machine, where nothing speaks against it."""
    for name, number in (("jobs", jobs), ("together", 1 if together is None else together)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InvalidInput(name, f"must be a whole number >= 1, got {number!r}")
    if together is None:
        on_cuda = jobs == 1 and base.device != "cpu" and torch.cuda.is_available()
        return AtOnce(jobs, _ON_CUDA if on_cuda else 1)
    if jobs > 1 and together > 1:
        raise InvalidInput(
            "together", f"{together} and jobs = {jobs} are two ways to share a machine: choose one"
        )
    return AtOnce(jobs, together)


def _place(folder: ComparisonFolder, grid: Grid) -> dict[tuple[int, int], Job]:
    """Every run by the number of its cell and its seed, each in a folder that is noted on disk."""
    placed = {
        (number, seed): Job(folder.place(cell.seeded(seed), cell.settings), cell.seeded(seed))
        for seed in grid.seeds  # every cell once before any cell twice: what fails, fails early
        for number, cell in enumerate(grid.cells)
        if cell.config is not None
    }
    folder.write()
    return placed


def _train_waiting(
    path: Path,
    everything: Sequence[Job],
    waiting: Sequence[Job],
    at_once: AtOnce,
    progress: Progress,
) -> None:
    progress.tell(len(everything) - len(waiting), len(everything), "")
    try:
        _train_all(waiting, at_once, progress)
    except KeyboardInterrupt:
        done = [job for job in everything if job.finished]
        raise ComparisonInterrupted(path, len(done), len(everything)) from None


def _train_all(waiting: Sequence[Job], at_once: AtOnce, progress: Progress) -> None:
    if at_once.jobs > 1 and len(waiting) > 1:
        from udpfl.comparison._workers import train_side_by_side

        train_side_by_side(waiting, at_once.jobs, progress)
        return
    if at_once.together > 1:
        for first in range(0, len(waiting), at_once.together):
            train_together(waiting[first : first + at_once.together], progress)
        return
    for job in waiting:
        progress.advance(job, 0.0)
        progress.end(job, job.train(partial(progress.advance, job)))


def _rows(
    grid: Grid,
    placed: Mapping[tuple[int, int], Job],
    records: Mapping[Path, RunRecord],
    failed: Mapping[Path, str],
    target: Target | None,
) -> tuple[Row, ...]:
    def outcome(cell: Cell, seed: int, job: Job | None) -> SeedRun:
        if job is None:
            return SeedRun(seed, None, failed=str(cell.refused))
        if job.finished:
            return outcome_of(seed, records[job.folder], target)
        return SeedRun(seed, job.folder, failed=failed.get(job.folder, "not finished"))

    return tuple(
        Row(
            cell.settings,
            tuple(outcome(cell, seed, placed.get((number, seed))) for seed in grid.seeds),
        )
        for number, cell in enumerate(grid.cells)
    )


def _selection(
    folder: ComparisonFolder, asked: Sequence[Job], records: Sequence[RunRecord]
) -> RunSelection | None:
    """Of all runs that were ever begun in the folder: who chooses may have seen them all."""
    earlier = len({run.path.name for run in records} - {job.folder.name for job in asked})
    return selection_of(records, fixed=folder.fixed, earlier=earlier)


def _settings(result: Comparison, records: Mapping[Path, RunRecord]) -> list[Setting]:
    """The rows as the page shows them, with every run that has come to an end, be it early."""
    plain = plain_keys(result.keys)
    names = told_apart([plain_settings(row.settings, plain) for row in result])
    return [
        Setting(
            name,
            {plain[key]: said(value) for key, value in row.settings.items()},
            tuple(
                own
                for run in row.runs
                if run.folder and (own := records.get(run.folder)) and own.finished
            ),
            row.failed,
        )
        for name, row in zip(names, result, strict=True)
    ]


def _report(
    folder: ComparisonFolder, result: Comparison, records: Mapping[Path, RunRecord]
) -> None:
    settings = _settings(result, records)
    if not any(own.runs for own in settings):
        return
    try:
        write_comparison(
            settings, folder.report, result.selection, varied=result.keys, goal=result.target
        )
    except Exception as error:  # whatever is wrong with the page, the runs are safe on disk
        log.warning("compare.html was not written (%s); `udpfl report` writes it again", error)
