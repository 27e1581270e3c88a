"""What a comparison comes to: for every cell the mean and the spread over its seeds.

The spread is the sample standard deviation (n - 1 in the denominator) and the range. Every figure
comes with the privacy statement that holds for each run of its cell by itself. The same records pay
in every run: `Comparison.selection` has what all of them together cost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from udpfl.accounting.statement import PrivacyStatement, largest
from udpfl.errors import InvalidInput
from udpfl.report.selection import Selection
from udpfl.report.verification import check_run
from udpfl.runs.files import RunFiles, read_summary

_FOREMOST = ("rmse", "accuracy")


@dataclass(frozen=True)
class SeedRun:
    """One run of a cell: its final figure and its privacy, or why there is none."""

    seed: int
    """Of the run."""
    folder: Path | None
    """Where the run is kept; None where its settings were refused."""
    metric: str | None = None
    """Which figure `value` is: "accuracy" or "rmse"."""
    value: float | None = None
    """The figure of the final model on the test records."""
    privacy: PrivacyStatement | None = None
    """What the run cost its costliest client."""
    seconds: float | None = None
    """How long it took."""
    failed: str | None = None
    """Why it did not come to its end; None where it did."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "seed": self.seed,
            "run": None if self.folder is None else str(self.folder),
            "value": _plain(self.value),
            "privacy": self.privacy and self.privacy.to_dict(),
            "seconds": self.seconds,
            "failed": self.failed,
        }


@dataclass(frozen=True)
class Row:
    """One cell of the grid."""

    settings: Mapping[str, Any]
    """The value of every varied key."""
    runs: tuple[SeedRun, ...]
    """One for each seed."""

    @property
    def done(self) -> list[SeedRun]:
        """The runs that came to their end."""
        return [run for run in self.runs if run.failed is None]

    @property
    def failed(self) -> dict[int, str]:
        """Why the others did not, by seed."""
        return {run.seed: run.failed for run in self.runs if run.failed is not None}

    @property
    def metric(self) -> str | None:
        """Which figure the values are: accuracy, or RMSE for regression."""
        return next((run.metric for run in self.done), None)

    @property
    def values(self) -> list[float]:
        """The final figures, in the order of the seeds."""
        return [run.value for run in self.done if run.value is not None]

    @property
    def mean(self) -> float | None:
        """Over the seeds that came to their end."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; None for a single seed and where a model diverged."""
        known = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if known else None

    @property
    def privacy(self) -> PrivacyStatement | None:
        """What holds for each of the runs by itself: the largest spending among them."""
        statements = [run.privacy for run in self.done if run.privacy is not None]
        return largest(statements) if statements else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        privacy = self.privacy
        return {
            "settings": dict(self.settings),
            "metric": self.metric,
            "mean": _plain(self.mean),
            "sd": self.sd,
            "min": _plain(min(self.values, default=None)),
            "max": _plain(max(self.values, default=None)),
            "seeds": [run.seed for run in self.done],
            "privacy": privacy and privacy.to_dict(),
            "statement": None if privacy is None else str(privacy),
            "failed": {str(seed): why for seed, why in self.failed.items()},
            "runs": [run.to_dict() for run in self.runs],
        }


@dataclass(frozen=True)
class Comparison(Sequence[Row]):
    """All rows, in the order of the grid."""

    rows: tuple[Row, ...]
    """One for each cell."""
    keys: tuple[str, ...]
    """The varied keys, in full."""
    seeds: tuple[int, ...]
    """With which every cell was run."""
    folder: Path
    """Where all runs are kept."""
    trained: int = 0
    """Runs that were trained by this call, from their beginning or from a checkpoint on."""
    resumed: int = 0
    """Those of them that had been begun before."""
    found: int = 0
    """Runs that were there already."""
    selection: Selection | None = None
    """What choosing a run by its result leaves out; None where there is nothing to choose from."""

    @property
    def metric(self) -> str:
        """Which figure is compared; both names where some cells are of another task."""
        return " or ".join(dict.fromkeys(row.metric for row in self.rows if row.metric))

    @property
    def complete(self) -> bool:
        """Whether every run of every cell came to its end."""
        return not any(row.failed for row in self.rows)

    @property
    def report(self) -> Path:
        """The page with all runs, if any came to its end."""
        return self.folder / "compare.html"

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def table(self, width: int = 120) -> str:
        """The rows as text, with what is to be known of their privacy."""
        from rich.console import Console

        from udpfl.comparison.table import show

        text = StringIO()
        show(self, Console(file=text, width=width, color_system=None, emoji=False))
        return text.getvalue()

    def plot(self, path: str | Path) -> None:
        """Draw the rows: a line for each value of the first key over those of the second."""
        from udpfl.comparison.figure import comparison_figure

        comparison_figure(self, Path(path))

    def to_dict(self) -> dict[str, Any]:
        """What `udpfl compare --json` prints."""
        return {
            "metric": self.metric,
            "keys": list(self.keys),
            "seeds": list(self.seeds),
            "rows": [row.to_dict() for row in self.rows],
            "folder": str(self.folder),
            "trained": self.trained,
            "resumed": self.resumed,
            "found": self.found,
            "complete": self.complete,
            "selection": self.selection and self.selection.to_dict(),
        }


def read_outcome(seed: int, folder: Path) -> SeedRun:
    """What a finished run folder says, unless its ledger contradicts it.

    A run that ended early is no basis for a mean.
    """
    summary = read_summary(folder, "out")
    if summary is None:
        raise InvalidInput("out", f"{str(folder)!r} has no summary: its run has not ended")
    files = RunFiles.read(folder)
    checked = check_run(files, files.identity.privacy.kind == "nominal")
    if checked.state == "contradicted":
        return SeedRun(seed, folder, failed=f"its ledger contradicts it: {checked.reasons[0]}")
    measured = {name: value for name in _FOREMOST if (value := summary.figure(name)) is not None}
    if not measured:
        return SeedRun(seed, folder, failed=summary.stopped or "nothing was evaluated")
    if summary.stopped:
        return SeedRun(seed, folder, privacy=summary.privacy, failed=summary.stopped)
    metric, value = next(iter(measured.items()))
    return SeedRun(seed, folder, metric, value, summary.privacy, summary.seconds)


def _plain(value: float | None) -> float | str | None:
    """A number that JSON knows; a model that diverged has "inf" or "nan"."""
    return value if value is None or math.isfinite(value) else str(value)
