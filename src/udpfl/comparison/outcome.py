"""What a comparison comes to: for every cell the mean and the spread over its seeds.

The spread is the sample standard deviation (n - 1 in the denominator) and the range. Every figure
comes with the privacy statement that holds for each run of its cell by itself. The same records pay
in every run: `Comparison.selection` has what all of them together cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from udpfl.accounting.described import counted
from udpfl.accounting.statement import PrivacyStatement, largest
from udpfl.errors import InvalidInput
from udpfl.harmonizer import Matched
from udpfl.report.read import RunRecord
from udpfl.report.selection import RunSelection
from udpfl.report.spread import Spread, plain
from udpfl.runs.targets import Reached, Target

_FOREMOST = ("rmse", "accuracy")
_FIGURES = ("accuracy", "rmse", "mae", "mse", "loss")


TableFormat = Literal["latex", "csv", "markdown"]
"""Of a table to paste elsewhere."""


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
    figures: Mapping[str, float] = field(default_factory=dict)
    """All figures of the final model on the test records: accuracy, or RMSE, MAE and MSE; loss."""
    reached: Reached | None = None
    """What it took to reach the target of the comparison; None where it was not reached."""
    matched: Matched | None = None
    """To what the noise of its costliest client was matched, if it was."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "seed": self.seed,
            "run": None if self.folder is None else str(self.folder),
            "value": plain(self.value),
            "figures": {name: plain(value) for name, value in self.figures.items()},
            "reached": self.reached and self.reached.to_dict(),
            "privacy": self.privacy and self.privacy.to_dict(),
            "seconds": self.seconds,
            "failed": self.failed,
            "matched": self.matched and self.matched.to_dict(),
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
        return Spread(self.values).mean if self.values else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; None for a single seed and where a model diverged."""
        return Spread(self.values).sd if self.values else None

    @property
    def figures(self) -> dict[str, Spread]:
        """Every figure that all runs with an end have: accuracy, or RMSE, MAE and MSE; loss."""
        shared = [name for name in _FIGURES if all(name in run.figures for run in self.done)]
        return {
            name: Spread([run.figures[name] for run in self.done]) for name in shared if self.done
        }

    @property
    def reached(self) -> dict[str, Spread]:
        """Over the runs that reached the target: rounds, bytes and seconds; empty without any."""
        found = [run.reached.to_dict() for run in self.done if run.reached is not None]
        return {name: Spread([own[name] for own in found]) for name in (found[0] if found else ())}

    @property
    def privacy(self) -> PrivacyStatement | None:
        """What holds for each of the runs by itself: the largest spending among them."""
        statements = [run.privacy for run in self.done if run.privacy is not None]
        return largest(statements) if statements else None

    @property
    def matched(self) -> Matched | None:
        """To what the noise was matched in the costliest of the runs, if it was."""
        return _costliest(run.matched for run in self.done)

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        spread = "" if self.sd is None else f" ± {self.sd:.4f}"
        result = "no result" if self.mean is None else f"{self.metric} {self.mean:.4f}{spread}"
        return f"<Row {settings or 'without a key'}: {result}, {self.privacy or 'failed'}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        privacy, matched = self.privacy, self.matched
        return {
            "settings": dict(self.settings),
            "metric": self.metric,
            "mean": plain(self.mean),
            "sd": self.sd,
            "min": plain(min(self.values, default=None)),
            "max": plain(max(self.values, default=None)),
            "figures": {name: spread.to_dict() for name, spread in self.figures.items()},
            "reached": {name: spread.to_dict() for name, spread in self.reached.items()},
            "seeds": [run.seed for run in self.done],
            "privacy": privacy and privacy.to_dict(),
            "statement": None if privacy is None else str(privacy),
            "matched": matched and matched.to_dict(),
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
    selection: RunSelection | None = None
    """What choosing a run by its result leaves out; None where there is nothing to choose from."""
    target: Target | None = None
    """The figure whose rounds, bytes and seconds are compared as well; None without one."""
    axes: tuple[tuple[str, ...], ...] = ()
    """The varied keys by axis of the grid: those that go together are on one."""

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

    def __repr__(self) -> str:
        found = [row.mean for row in self.rows if row.mean is not None]
        between = f", {self.metric} {min(found):.4f} to {max(found):.4f}" if found else ""
        failed = sum(len(row.failed) for row in self.rows)
        lost = f", {failed} failed" if failed else ""
        counts = f"{counted(len(self.rows), 'setting')}, {counted(len(self.seeds), 'seed')}"
        return f"<Comparison: {counts}{between}{lost}, in {str(self.folder)!r}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the table, and what its numbers mean."""
        from udpfl.comparison._notebook import notebook_table

        return notebook_table(self)

    def table(self, width: int = 120, format: TableFormat | Literal["text"] = "text") -> str:
        """The rows as text, with what is to be known of their privacy; or to paste elsewhere.

        Args:
            width: Of the text, in characters; other formats have none.
            format: "text", "latex", "markdown" or "csv".

        Raises:
            InvalidInput: There is no such format.
        """
        if format != "text":
            from udpfl.comparison.formats import formatted

            return formatted(self, format)
        from rich.console import Console

        from udpfl.comparison.table import show

        text = StringIO()
        show(self, Console(file=text, width=width, color_system=None, emoji=False))
        return text.getvalue()

    def plot(self, path: str | Path) -> None:
        """Draw the rows: a line for each value of the first key over those of the second."""
        from udpfl.comparison._figure import comparison_figure

        comparison_figure(self, Path(path))

    def to_dict(self) -> dict[str, Any]:
        """What `udpfl compare --json` prints."""
        return {
            "metric": self.metric,
            "target": self.target and self.target.to_dict(),
            "keys": list(self.keys),
            "axes": [list(keys) for keys in self.axes],
            "seeds": list(self.seeds),
            "rows": [row.to_dict() for row in self.rows],
            "folder": str(self.folder),
            "trained": self.trained,
            "resumed": self.resumed,
            "found": self.found,
            "complete": self.complete,
            "selection": self.selection and self.selection.to_dict(),
        }


def outcome_of(seed: int, run: RunRecord, target: Target | None = None) -> SeedRun:
    """What a finished run says, unless its ledger contradicts it.

    A run that ended early is no basis for a mean. The target is that of the comparison: what it
    took to reach it is read off the rounds, whatever target the run was trained with.
    """
    folder, summary = run.path, run.summary
    if summary is None:
        raise InvalidInput("out", f"{str(folder)!r} has no summary: its run has not ended")
    if run.contradicted:
        reason = run.verification.reasons[0]
        return SeedRun(seed, folder, failed=f"its ledger contradicts it: {reason}")
    figures = {name: value for name in _FIGURES if (value := summary.figure(name)) is not None}
    metric = next((name for name in _FOREMOST if name in figures), None)
    if metric is None:
        return SeedRun(seed, folder, failed=summary.stopped or "nothing was evaluated")
    if summary.stopped:
        return SeedRun(seed, folder, privacy=summary.privacy, failed=summary.stopped)
    is_claimed = summary.privacy.kind != "none"
    return SeedRun(
        seed,
        folder,
        metric,
        figures[metric],
        summary.privacy,
        summary.seconds,
        figures=figures,
        reached=None if target is None else target.first_reached(run.metrics),
        matched=_costliest(client.matched for client in run.clients if is_claimed),
    )


def _costliest(matched: Iterable[Matched | None]) -> Matched | None:
    known = (own for own in matched if own is not None)
    return max(known, key=lambda own: own.own.epsilon, default=None)
