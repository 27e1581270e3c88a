"""The charts of a report as PNG or SVG files, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from udpfl.errors import InvalidInput, UdpflError
from udpfl.report._comparison import comparison_charts
from udpfl.report.charts import SIMULATION_ONLY, Chart, class_names, run_charts
from udpfl.report.read import RunRecord, read_runs

_COLOURS = {
    "main": "#1f5fbf", "second": "#8a3fa0", "guarantee": "#14734a", "nominal": "#a85400",
    "unverified": "#5b5f66", "spent": "#9c1c5c",
    "run-0": "#1f5fbf", "run-1": "#b5176a", "run-2": "#0b7285", "run-3": "#7a3fb0",
    "run-4": "#7a6200", "run-5": "#4b5563", "run-6": "#6d4c41", "run-7": "#2b2f77",
}  # fmt: skip
_SHORT = {SIMULATION_ONLY: "simulation only: a real client would not publish this"}


def write_figures(
    folders: Sequence[Path], target: Path, format_: Literal["png", "svg"]
) -> list[Path]:
    """Draw every chart of one run, or of the comparison of several, into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "udpfl"  # the same run gives the same file
    runs = read_runs(folders)
    alone = len(runs) == 1
    charts = run_charts(runs[0]) if alone else comparison_charts(runs)
    try:
        target.mkdir(parents=True, exist_ok=True)
        paths = [_drawn(chart, target / f"{chart.id}.{format_}") for chart in charts]
        if alone and runs[0].confusion:
            paths.append(_matrix(runs[0], target / f"confusion.{format_}"))
    except FileExistsError:
        raise InvalidInput("figures", f"{str(target)!r} is a file, not a folder") from None
    except OSError as error:
        raise UdpflError(f"cannot write to {target}: {error.strerror}") from None
    return paths


def _drawn(chart: Chart, path: Path) -> Path:
    from matplotlib import pyplot as plt
    from matplotlib.ticker import PercentFormatter

    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    if chart.log:
        axes.set_yscale("log")
    for band in chart.bands:
        colour = _COLOURS[band.colour]
        axes.fill_between(
            list(band.x), _gaps(band.low), _gaps(band.high), label=_plain(band.name), alpha=0.25,
            facecolor="none" if band.hatched else colour, edgecolor=colour,
            hatch="///" if band.hatched else None,
        )  # fmt: skip
    for line in chart.series:
        axes.plot(
            list(line.x), _gaps(line.y), color=_COLOURS[line.colour], label=_plain(line.name),
            linestyle=line.dash, marker="o" if len(line.x) < 4 else None,
        )  # fmt: skip
    if len(stops := {x for line in chart.series for x in line.x}) == 1:
        axes.set_xticks(list(stops))
    if chart.bars is not None:
        _bars(axes, chart)
    for value, label in chart.marks:
        axes.axhline(value, color="0.3", linewidth=1, linestyle=":")
        axes.annotate(
            _plain(label), (0.02, value), xycoords=("axes fraction", "data"), va="bottom",
            fontsize=9, color="0.3",
        )  # fmt: skip
    if chart.format == "percent":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if not chart.log:
        axes.set_ylim(bottom=0)
        if chart.top is not None:
            axes.set_ylim(top=chart.top * 1.02)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    _finished(figure, axes, chart.title, chart.warning)
    if chart.legend or len(chart.series) + len(chart.bands) > 1:
        axes.legend(frameon=False, fontsize=9)
    return _saved(figure, path)


def _bars(axes: Any, chart: Chart) -> None:
    bars = chart.bars
    assert bars is not None
    colour, places = _COLOURS[bars.colour], range(len(bars.labels))
    full = bars.spent or [False] * len(bars.labels)
    edges = [_COLOURS["spent"] if own else colour for own in full]
    face: dict[str, Any] = {"facecolor": edges}
    if bars.hatched:
        face = {"facecolor": "none", "hatch": "///"}
    crowded = len(bars.labels) > 60
    width = 1.0 if crowded else 0.8
    axes.bar(places, _gaps(bars.values), width, edgecolor=edges, linewidth=0 if crowded else 1,
             **face)  # fmt: skip
    axes.hlines(
        _gaps(bars.marks), [p - width / 2 for p in places], [p + width / 2 for p in places],
        color="black", linewidth=1.5, label=bars.mark_name,
    )  # fmt: skip
    if crowded:
        axes.set_xticks([])
    else:
        turned = max(map(len, bars.labels)) > 5
        axes.set_xticks(places, [_plain(label[:16]) for label in bars.labels])
        axes.tick_params(axis="x", rotation=45 if turned else 0)
    axes.legend(fontsize=9, loc="lower right", framealpha=0.9, edgecolor="none")


def _matrix(run: RunRecord, path: Path) -> Path:
    from matplotlib import pyplot as plt

    matrix, names = run.confusion, class_names(run)
    shares = [[count / (sum(row) or 1) for count in row] for row in matrix]
    figure, axes = plt.subplots(figsize=(6.4, 5.6), layout="constrained")
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(names) <= 20:
        for i, row in enumerate(matrix):
            for j, count in enumerate(row):
                axes.text(j, i, str(count), ha="center", va="center", fontsize=8,
                          color="white" if shares[i][j] > 0.5 else "0.2")  # fmt: skip
        short = [_plain(name[:14]) for name in names]
        turned = max(map(len, short)) > 3
        axes.set_xticks(range(len(names)), short, rotation=45 if turned else 0)
        axes.set_yticks(range(len(matrix)), short[: len(matrix)])
    axes.set_xlabel("what the model said")
    axes.set_ylabel("true class")
    figure.colorbar(image, ax=axes, label="share of the row", shrink=0.8)
    _finished(figure, axes, "Confusion matrix of the final model", "")
    axes.grid(False)
    return _saved(figure, path)


def _finished(figure: Any, axes: Any, title: str, warning: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if warning:
        said = _SHORT.get(warning, warning)
        figure.text(0.99, 0.985, said, ha="right", va="top", fontsize=9, color="#a85400")


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot as plt

    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, dpi=160, metadata=metadata)
    plt.close(figure)
    return path


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _plain(name: str) -> str:
    """A name as matplotlib shows it, without reading formulas into it."""
    return name.replace("$", r"\$")
