"""Pictures of the analyses, drawn with matplotlib and written to a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udpfl.analysis.errors import ErrorRow
from udpfl.errors import InvalidInput
from udpfl.mechanisms import PlotStyle

if TYPE_CHECKING:
    from udpfl.analysis.between_runs import Connection
    from udpfl.analysis.curve_rounds import CurveStudy
    from udpfl.analysis.extra_rounds import NetworkCurve, Study

_COLOURS = ("#1f5fbf", "#d95f02", "#2a9d4a", "#8a3fa0", "#4b5563", "#b5176a", "#7a6200", "#0b7285")
_DASHES = ("-", "--", "-.", ":")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")


def curve_figure(found: Connection, path: Path) -> None:
    """Loss, and accuracy where there is one, along the line and along the curve."""
    kind, classes = found.found.curve.kind, found.line.values[0].accuracy is not None

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 1 + classes, squeeze=False)[0]
        names = (("loss", "test loss (less is better)"), ("accuracy", "test accuracy"))
        for axes, (name, label) in zip(panels, names, strict=False):
            walks = ((found.line, "straight line", "--"), (found.curve, f"{kind}, trained", "-"))
            for number, (walk, words, dash) in enumerate(walks):
                values = [getattr(value, name) for value in walk.values]
                words = f"{words} (barrier {walk.barrier:.3f})" if name == "loss" else words
                axes.plot(walk.places, values, dash, color=_COLOURS[number], label=words)
            axes.set_xlabel("p: 0 is the first run's model, 1 the second's")
            axes.set_ylabel(label)
            _plain(axes)
            axes.set_ylim(bottom=0 if name == "loss" else None)

    _drawn(path, (4.9 * (1 + classes), 4.2), draw)


def convergence_figure(found: Study, path: Path) -> None:
    """Distance and bound by step, and steps to the target against the variance of the noise."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for number, (factor, level) in enumerate(zip(found.factors, found.levels, strict=True)):
            steps = range(len(level.distances))
            name = f"{factor:g} × variance" if factor else "no noise"
            left.plot(steps, level.distances, "-", color=_COLOURS[number], label=name)
            left.plot(steps, level.bound, ":", color=_COLOURS[number])
        left.axhline(found.target, color="0.5", linewidth=1)
        left.annotate(
            "target", (0.01, found.target), xycoords=("axes fraction", "data"), va="top",
            color="0.4", fontsize=9,
        )  # fmt: skip
        left.set_xscale("symlog", linthresh=10)
        left.set_xlim(left=0)
        left.set_yscale("log")
        left.set_xlabel("local steps")
        left.set_ylabel("E |w − w*|²: measured (line), bound (dotted)")
        _plain(left)
        left.legend(frameon=False, fontsize=9, loc="lower left")
        variances = [level.constants.noise for level in found.levels]
        right.plot(variances, found.measured, "o-", color=_COLOURS[0], label="measured")
        right.plot(variances, found.bounds, "s:", color=_COLOURS[1], label="bound")
        right.set_xlabel("variance of the noise, all coordinates")
        right.set_ylabel("local steps to the target")
        _plain(right)
        right.set_ylim(bottom=0)

    _drawn(path, (9.8, 4.4), draw)


def curve_rounds_figure(found: CurveStudy, styles: Mapping[str, PlotStyle], path: Path) -> None:
    """Distance by round with the least and the most noise, and rounds to the target by variance."""
    name = next(iter(styles))
    own = [level for level in found.levels if level.mechanism == name]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for colour, level in zip(_COLOURS, (found.levels[0], own[0], own[-1]), strict=False):
            measured, words = level.measured, "no noise"
            if level.mechanism:
                words = f"{name}, {level.factor:g} × variance"
            start, rounds = float(measured.distances[0]), len(measured.thetas)
            left.plot(range(rounds + 1), measured.distances, "-", color=colour, label=words)
            for bound, dash in ((measured.bound, ":"), (measured.printed, "--")):
                left.plot(range(rounds + 1), bound.recursion(start, rounds), dash, color=colour)
        left.plot([], [], ":", color="0.3", label="bound")
        left.plot([], [], "--", color="0.3", label="printed bound")
        left.axhline(found.target, color="0.5", linewidth=1)
        left.set_xscale("symlog", linthresh=10)
        left.set_xlim(left=0)
        left.set_yscale("log")
        left.set_xlabel("round")
        left.set_ylabel("E |w − w*|²")
        _plain(left)
        left.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
        _draw_growth(right, found, styles)

    _drawn(path, (10.6, 4.6), draw)


def _draw_growth(axes: Any, found: CurveStudy, styles: Mapping[str, PlotStyle]) -> None:
    """What grows, by variance; levels that never reach the target are left out."""
    grows, every = found.grows, found.to_dict()["levels"]
    for name, style in styles.items():
        rows = [row for row in every if row["mechanism"] in ("", name)]
        lines = (
            ("measured", [row[grows] for row in rows], style.marker, "none"),
            ("bound", [row["bound"][grows] for row in rows], "", ":"),
            ("printed bound", [row["printed"][grows] for row in rows], "", "--"),
        )
        for words, values, marker, dash in lines:
            there = [place for place, value in enumerate(values) if value is not None]
            axes.plot(
                [rows[place]["bound"]["noise"] for place in there],
                [values[place] for place in there],
                marker=marker, linestyle=dash, color=style.colour, alpha=style.alpha,
                linewidth=style.width, label=f"{name}: {words}",
            )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel("variance of the noise, all coordinates")
    waits = f"rounds until E |w − w*|² stays within {found.target:.2g}"
    axes.set_ylabel(waits if grows == "rounds" else "E |w − w*|² after the last round")
    _plain(axes)


def network_figure(curves: Sequence[NetworkCurve], path: Path) -> None:
    """Test loss by round of every run, and rounds to a loss that all reach. No bound to draw."""
    target = max(min(curve.losses) for curve in curves)

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for number, curve in enumerate(curves):
            colour, again = _COLOURS[number % len(_COLOURS)], number // len(_COLOURS)
            dash, mark = _DASHES[(number + again) % len(_DASHES)], _MARKS[number % len(_MARKS)]
            left.plot(curve.rounds, curve.losses, dash, color=colour, label=curve.name)
            right.plot(curve.variance, curve.rounds_to(target), mark, color=colour)
        left.axhline(target, color="0.5", linewidth=1)
        left.set_xlabel("round")
        left.set_ylabel("test loss, measured (no bound holds)")
        _plain(left, legend=False)
        left.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
        right.set_xlabel("variance of the noise, all coordinates")
        right.set_ylabel(f"rounds until the test loss is {target:.3g}")
        right.set_ylim(bottom=0)
        _plain(right, legend=False)

    _drawn(path, (9.8, 4.2), draw)


def error_figure(
    found: Mapping[str, Sequence[ErrorRow]], styles: Mapping[str, PlotStyle], path: Path
) -> None:
    """Both errors against the number of releases: lines are formulas, marks are samples."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, rows in found.items():
            style = styles[name]
            colour, width, alpha = style.colour, style.width, style.alpha
            at = [row.releases for row in rows]
            lines = (("summed", "--", "s"), ("accumulated", "-", "o"))
            for (figure_, dash, mark), words in zip(lines, ("summed", "of the model"), strict=True):
                axes.plot(
                    at, [getattr(row, figure_) for row in rows], dash, color=colour,
                    alpha=alpha, linewidth=width, label=f"{name}: {words}",
                )  # fmt: skip
                sampled = [getattr(row, f"{figure_}_sampled") for row in rows]
                axes.plot(at, sampled, mark, color=colour, alpha=alpha, markersize=width + 2.5)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("releases T")
        axes.set_ylabel("ℓ₁ error: formula (line), sample (mark)")
        _plain(axes)

    _drawn(path, (6.8, 4.6), draw)


def _plain(axes: Any, legend: bool = True) -> None:
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(fontsize=9, facecolor="white", edgecolor="none", framealpha=0.85)


def _drawn(path: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=size, layout="constrained")
    draw(figure)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InvalidInput("plot", f"cannot write {path}: {error.strerror}") from None
    finally:
        plt.close(figure)
