"""The report of a run: one page that works offline, and static figures of the same charts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from udpfl.errors import InvalidInput, UdpflError
from udpfl.report.page import comparison_page, run_page
from udpfl.report.read import RunRecord, read_run, read_runs
from udpfl.report.selection import Selection, selection_of

__all__ = [
    "RunRecord",
    "Selection",
    "comparison_page",
    "read_run",
    "run_page",
    "selection_of",
    "write_comparison",
    "write_report",
]


def write_report(folders: Sequence[Path], target: Path) -> list[RunRecord]:
    """One page about one run, or one that compares several; the file appears whole or not.

    Returns what the folders say, and whether their ledgers say the same.
    """
    if not folders:
        raise InvalidInput("run", "at least one run folder is needed")
    runs = read_runs(folders)
    if len(runs) == 1:
        _write(run_page(runs[0]), target)
    else:
        _write(comparison_page(runs), target)
    return runs


def write_comparison(
    runs: Sequence[RunRecord],
    target: Path,
    selection: Selection | None,
    failed: Mapping[str, str],
) -> None:
    """The page of the runs of a grid, with those that failed; appears whole or not, too."""
    _write(comparison_page(runs, selection, failed), target)


def _write(page: str, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UdpflError(f"cannot write {target}: {error.strerror}") from None
