"""A comparison as a picture: a line for each value of the first key over those of the second."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from udpfl.accounting.events import Unit
from udpfl.accounting.statement import Kind
from udpfl.comparison._spread import Spread
from udpfl.comparison.grid import said, short
from udpfl.comparison.outcome import Comparison, Row
from udpfl.errors import InvalidInput, UdpflError
from udpfl.report.charts import DASHES, NOMINAL
from udpfl.report.words import WHOSE

_COLOURS = ("#1f5fbf", "#b5176a", "#0b7285", "#7a6200", "#7a3fb0", "#4b5563", "#c2410c", "#2b2f77")
_MARKERS = "osDv^P*X"
_WIDE = 10
"""Numbers that span at least this factor get a logarithmic axis."""
_Line = tuple[str, Kind, Unit | None]
"""Its name, the kind of privacy of its runs, and whose; nobody's where there is none."""
_Point = tuple[Any, float, float]
"""Where along the axis, mean, standard deviation."""


def comparison_figure(comparison: Comparison, path: Path) -> None:
    """Means with error bars of one standard deviation; a line of nominal runs is dashed, one of
    runs without privacy dotted, and the legend says so. It also says whose privacy a line is about
    where that is not one record's for all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    if not comparison.keys:
        raise InvalidInput("plot", "there is nothing to draw: no key is varied")
    if len({row.metric for row in comparison if row.metric}) != 1:
        raise InvalidInput(
            "plot", f"the runs have no common metric to draw: {comparison.metric or 'none'}"
        )
    over = comparison.keys[min(1, len(comparison.keys) - 1)]
    stops = _distinct(row.settings[over] for row in comparison)
    panels = _panels(comparison, over)
    figure, rows = plt.subplots(
        len(panels), figsize=(7.2, 4.6 * len(panels)), layout="constrained", squeeze=False
    )
    known = _distinct((name, unit) for name, _, unit in next(iter(panels.values())))
    for (axes,), (label, lines) in zip(rows, panels.items(), strict=True):
        _draw(axes, lines, known, stops)
        axes.set_xlabel(_about_axis(over, lines))
        axes.set_ylabel(label)
        axes.set_title(_title(comparison), fontsize=10, loc="left")
    first = ", ".join(short(key) for key in comparison.keys if key != over)
    rows[0, 0].legend(frameon=False, fontsize=9, title=first or None)
    try:
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise UdpflError(f"cannot write {path}: {error.strerror}") from None
    finally:
        plt.close(figure)


def _panels(comparison: Comparison, over: str) -> dict[str, dict[_Line, list[_Point]]]:
    """The lines of each picture by what its axis shows: the figure, and the rounds to a target."""
    name = comparison.metric
    shown = f"test {name if name == 'accuracy' else name.upper()}"
    panels = {shown: _lines(comparison, over, lambda row: Spread(row.values))}
    if comparison.target is not None:
        reached = _lines(comparison, over, lambda row: row.reached.get("round"))
        panels[f"rounds to {comparison.target}, where it was reached"] = reached
    return panels


def _lines(
    comparison: Comparison, over: str, spread_of: Callable[[Row], Spread | None]
) -> dict[_Line, list[_Point]]:
    """The points by everything but the key along the axis; no line joins two kinds of privacy, or
    the privacy of records with that of clients."""
    lines: dict[_Line, list[_Point]] = {}
    for row in comparison:
        if row.mean is None or row.privacy is None or not math.isfinite(row.mean):
            continue
        if (spread := spread_of(row)) is None:
            continue
        name = ", ".join(said(value) for key, value in row.settings.items() if key != over)
        point = (row.settings[over], spread.mean, spread.sd or 0.0)
        unit = None if row.privacy.kind == "none" else row.privacy.unit
        lines.setdefault((name, row.privacy.kind, unit), []).append(point)
    return lines


def _draw(
    axes: Any,
    lines: Mapping[_Line, Sequence[_Point]],
    known: Sequence[tuple[str, Unit | None]],
    stops: Sequence[Any],
) -> None:
    """Lines over all stops; one of the same name has the same colour in every picture."""
    places, units = _places(stops), _units(lines)
    for (name, kind, unit), points in lines.items():
        number = known.index((name, unit))
        axes.errorbar(
            [places[stops.index(stop)] for stop, _, _ in points],
            [mean for _, mean, _ in points],
            yerr=[sd for _, _, sd in points],
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle=DASHES[kind],
            label=_label(name, kind, unit if units - {"record"} else None),
            capsize=4,
            markersize=5,
            linewidth=1.6,
            elinewidth=1.1,
        )
    _axis(axes, stops, places)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _units(lines: Mapping[_Line, Sequence[_Point]]) -> set[Unit]:
    return {unit for _, _, unit in lines if unit is not None}


def _about_axis(over: str, lines: Mapping[_Line, Sequence[_Point]]) -> str:
    """The key along the axis, and what is to be known of an epsilon there."""
    remarks = []
    if over == "privacy.epsilon" and any(kind == "nominal" for _, kind, _ in lines):
        remarks.append("of dashed lines: nominal, not a guarantee")
    if over == "privacy.epsilon" and len(_units(lines)) > 1:
        whose = " and ".join(WHOSE[own] for own in WHOSE if own in _units(lines))
        remarks.append(f"for {whose}: these cannot be compared")
    return f"{over} ({'; '.join(remarks)})" if remarks else over


def _label(name: str, kind: Kind, unit: Unit | None) -> str:
    kinds: dict[Kind, str] = {"guarantee": "guarantee", "nominal": NOMINAL, "none": "not private"}
    whose = f", {WHOSE[unit]}" if unit else ""
    return f"{name} ({kinds[kind]}{whose})".strip().replace("$", r"\$")


def _title(comparison: Comparison) -> str:
    count = len(comparison.seeds)
    spread = "" if count == 1 else ", bars: ± one standard deviation"
    return f"{'one seed' if count == 1 else f'mean of {count} seeds'}{spread}"


def _distinct(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _numeric(stops: Sequence[Any]) -> bool:
    return len(stops) > 1 and all(
        isinstance(stop, int | float) and not isinstance(stop, bool) for stop in stops
    )


def _places(stops: Sequence[Any]) -> list[float]:
    """Numbers where they are, anything else side by side."""
    return list(stops) if _numeric(stops) else [float(i) for i in range(len(stops))]


def _axis(axes: Any, stops: Sequence[Any], places: Sequence[float]) -> None:
    from matplotlib.ticker import NullLocator

    if _numeric(stops) and min(stops) > 0 and max(stops) / min(stops) >= _WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(places), [said(stop).replace("$", r"\$") for stop in stops])
