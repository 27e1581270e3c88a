"""The report of a run: one page that works offline, and static figures of the same charts."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from udpfl.errors import InvalidInput, UdpflError
from udpfl.report.page import run_page
from udpfl.report.read import RunRecord, read_run, read_runs
from udpfl.report.selection import RunSelection, selection_of
from udpfl.report.settings import Setting
from udpfl.report.side_by_side import comparison_page, settings_page
from udpfl.report.verification import Verification
from udpfl.runs.targets import Target

__all__ = [
    "RunRecord",
    "RunSelection",
    "Setting",
    "Verification",
    "comparison_page",
    "read_run",
    "run_page",
    "selection_of",
    "settings_page",
    "write_comparison",
    "write_report",
]


def write_report(folders: Sequence[Path], target: Path) -> list[RunRecord]:
    """One page about one run, or one that compares several; the file appears whole or not.

    Args:
        folders: Run folders, at least one.
        target: The HTML file to write.

    Returns:
        What the folders say, and whether their ledgers say the same.

    Raises:
        InvalidInput: There is no folder, or one of them is no run folder.
        UdpflError: The file cannot be written.

    Example:
        >>> import numpy as np
        >>> import udpfl
        >>> from pathlib import Path
        >>> from udpfl.report import write_report
        >>> own = {"data": (np.eye(20), np.arange(20) % 2), "model": "logistic", "threads": 1}
        >>> done = udpfl.run({"data": {"clients": 2}, "training": {"rounds": 1}}, **own)
        >>> [run.rounds for run in write_report([done.folder], Path("page.html"))]
        [1]
    """
    if not folders:
        raise InvalidInput("run", "at least one run folder is needed")
    runs = read_runs(folders)
    if len(runs) == 1:
        _write(run_page(runs[0]), target)
    else:
        _write(comparison_page(runs, target.parent), target)
    return runs


def write_comparison(
    settings: Sequence[Setting],
    target: Path,
    selection: RunSelection | None,
    *,
    varied: Collection[str] = (),
    goal: Target | None = None,
) -> None:
    """The page of the settings of a grid; appears whole or not, too.

    Args:
        settings: Each with its runs, and why others failed.
        target: The HTML file to write.
        selection: What a choice among the runs leaves out; None where there is nothing to choose.
        varied: The keys of the grid, in full.
        goal: The figure whose rounds are compared as well.

    Raises:
        UdpflError: The file cannot be written.

    Example:
        >>> import numpy as np
        >>> import udpfl
        >>> from pathlib import Path
        >>> from udpfl.report import Setting, read_run, write_comparison
        >>> own = {"data": (np.eye(20), np.arange(20) % 2), "model": "logistic", "threads": 1}
        >>> done = udpfl.run({"data": {"clients": 2}, "training": {"rounds": 1}}, **own)
        >>> setting = Setting("clip 1", {"clip": "1"}, (read_run(done.folder),), {1: "no data"})
        >>> write_comparison([setting], Path("page.html"), None)
    """
    page = settings_page(settings, selection, varied=varied, goal=goal, folder=target.parent)
    _write(page, target)


def _write(page: str, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UdpflError(f"cannot write {target}: {error.strerror}") from None
