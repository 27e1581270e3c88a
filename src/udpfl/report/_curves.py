"""What the charts of a comparison can show: quantities by round, mean and spread over the seeds.

The reader chooses which quantity is drawn over which. A guaranteed and a nominal epsilon, and the
epsilons of records and of clients, are different quantities: no axis has two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from udpfl.accounting.statement import Kind
from udpfl.report._comparison import OTHER_DELTA, OTHER_KIND, OTHER_UNIT, kind_of
from udpfl.report.charts import (
    DASHES,
    NOMINAL,
    SIMULATION_ONLY,
    Format,
    clip_title,
    marks_of,
    signal_note,
    six_digits,
)
from udpfl.report.read import RunRecord
from udpfl.report.settings import Setting, units_of
from udpfl.report.spread import Spread
from udpfl.report.words import UNITS

COLOURS = 8
TOGETHER = 6
"""At most this many settings share a chart; of more, each has a chart of its own."""
_POINTS = 200
"""At most this many rounds of a setting are drawn."""
_ON_TEST = "On the test records, which are treated as public."
_NAMES = {"accuracy": "accuracy", "rmse": "RMSE", "mae": "MAE", "loss": "loss"}

Values = Callable[[RunRecord], list[float | None]]
"""By evaluated round."""


@dataclass(frozen=True)
class Quantity:
    """Something that an axis can show."""

    id: str
    name: str
    """As the axis and the menu call it."""
    values: Values
    format: Format = "number"
    is_x: bool = False
    is_y: bool = True
    note: str = ""
    warning: str = ""
    kind: Kind | None = None
    unit: str | None = None
    """With a kind: only settings of this kind and unit have it."""

    def is_of(self, setting: Setting) -> bool:
        """Whether a setting has its place on such an axis."""
        return self.kind is None or (setting.kind, setting.unit) == (self.kind, self.unit)


def chart_data(settings: Sequence[Setting]) -> dict[str, Any] | None:
    """All that the script of the page needs; None where no round was evaluated."""
    quantities = [
        quantity
        for quantity in _quantities(settings)
        if any(
            value is not None
            for setting in settings
            if quantity.is_of(setting)
            for run in setting.counted
            for value in quantity.values(run)
        )
    ]
    ys = [quantity for quantity in quantities if quantity.is_y]
    if not ys:
        return None
    known = [run for setting in settings for run in setting.counted]
    return {
        "many": sum(bool(own.counted) for own in settings) > TOGETHER,
        "quantities": [
            {
                "id": own.id, "name": own.name, "format": own.format, "x": own.is_x, "y": own.is_y,
                "note": own.note, "warning": own.warning, "marks": marks_of(known, own.id),
            }
            for own in quantities
        ],
        "settings": [
            {**_drawn(own, i, quantities), "kind": _kind(own, units_of(settings))}
            for i, own in enumerate(settings)
        ],
        "first": _first(quantities),
    }  # fmt: skip


def _first(quantities: Sequence[Quantity]) -> list[list[str]]:
    """What over what is drawn before anybody chooses: the best figure, then what it cost."""
    ys = [own.id for own in quantities if own.is_y]
    spent = [own.id for own in quantities if own.kind is not None]
    pairs = [[ys[0], "round"], [ys[0], spent[0]] if spent else [ys[-1], "round"]]
    return pairs[: 1 if pairs[0] == pairs[1] else 2]


def _drawn(setting: Setting, number: int, quantities: Sequence[Quantity]) -> dict[str, Any]:
    runs = setting.counted
    rounds = sorted({row.round for run in runs for row in run.measured})
    step = math.ceil(len(rounds) / _POINTS) if rounds else 1
    kept = rounds[::-1][::step][::-1]  # with the last one
    curves = {}
    for own in quantities:
        if own.is_of(setting) and runs:
            by_run = [_by_round(run, own) for run in runs]
            curves[own.id] = _curve([[of.get(r) for of in by_run] for r in kept], own.format)
    return {
        "name": setting.name, "colour": colour_of(number), "dash": DASHES[setting.kind],
        "seeds": len(runs), "curves": curves,
    }  # fmt: skip


def _kind(setting: Setting, units: Sequence[str]) -> str:
    """What the legend says of its privacy."""
    run = setting.costliest
    return "" if run is None else kind_of(run, units in ([], ["record"]))


def _by_round(run: RunRecord, quantity: Quantity) -> dict[int, float | None]:
    return dict(zip((row.round for row in run.measured), quantity.values(run), strict=True))


def colour_of(number: int) -> str:
    """The name in the style sheet of a setting's colour."""
    return f"run-{number % COLOURS}"


def _curve(rows: Sequence[Sequence[float | None]], form: Format) -> dict[str, Any]:
    """Mean and sample standard deviation of each round; none where a run has no value."""
    spreads = []
    for row in rows:
        known = [value for value in row if value is not None]
        spreads.append(Spread(known) if known and len(known) == len(row) else None)
    up = form == "epsilon"
    curve: dict[str, Any] = {"mean": [own and six_digits(own.mean, up) for own in spreads]}
    if any(own is not None and own.sd for own in spreads):
        curve["sd"] = [own and own.sd and float(f"{own.sd:.3g}") for own in spreads]
    return curve


def _column(*keys: str) -> Values:
    return lambda run: run.column(*keys)[1]


def _summed(of_round: Callable[[Any], float]) -> Values:
    """By evaluated round what all rounds up to it took."""

    def values(run: RunRecord) -> list[float | None]:
        sums = dict(
            zip(
                (row.round for row in run.metrics), accumulate(map(of_round, run.metrics)),
                strict=True,
            )
        )  # fmt: skip
        return [sums[row.round] for row in run.measured]

    return values


def _quantities(settings: Sequence[Setting]) -> list[Quantity]:
    clipped = {run.clipped for own in settings for run in own.runs if run.kind != "none"}
    paced = any(
        run.config.privacy.pace != "uniform"
        for own in settings
        for run in own.runs
        if run.config.privacy.enabled
    )
    found = [
        Quantity(key, _NAMES[key], _column(key), "percent" if key == "accuracy" else "number",
                 note=_ON_TEST)
        for key in ("accuracy", "rmse", "mae", "loss")
    ]  # fmt: skip
    found += _epsilons(settings)
    found += [
        Quantity("round", "round", lambda run: [float(row.round) for row in run.measured],
                 is_x=True, is_y=False),
        Quantity("sent", "megabytes sent, both ways",
                 _summed(lambda row: (row.bytes_up + row.bytes_down) / 1e6), is_x=True),
        Quantity("seconds", "seconds of training", _summed(lambda row: row.seconds), is_x=True),
    ]  # fmt: skip
    if paced:
        found.append(
            Quantity("noise", "noise, standard deviation", _column("noise_std", "max"),
                     note="Largest of any client, on a clipped sum, as it was charged.")
        )  # fmt: skip
    if clipped:
        found += [
            Quantity("signal", "signal / noise", _column("simulation_only", "signal_to_noise"),
                     note=signal_note(clipped), warning=SIMULATION_ONLY),
            Quantity("clip", _lowered(clip_title(clipped)),
                     _column("simulation_only", "clip_fraction"), "percent",
                     warning=SIMULATION_ONLY),
        ]  # fmt: skip
    return found


def _epsilons(settings: Sequence[Setting]) -> list[Quantity]:
    """One for every kind and unit that some setting has; guaranteed ones first."""
    units, found = units_of(settings), []
    for kind in ("guarantee", "nominal"):
        for unit in units:
            own = [one for one in settings if (one.kind, one.unit) == (kind, unit)]
            if not own:
                continue
            mixed = {one.kind for one in settings} >= {"guarantee", "nominal"}
            deltas = {one.statement.delta for one in own if one.statement is not None}
            notes = [OTHER_KIND] * mixed + [OTHER_UNIT] * (len(units) > 1)
            notes += [OTHER_DELTA] * (len(deltas) > 1)
            said = "ε spent" if kind == "guarantee" else "nominal ε spent"
            whom = "" if units == ["record"] else f", for {UNITS[unit]}"
            found.append(
                Quantity(
                    f"epsilon-{kind}-{unit}", f"{said}, largest of any client{whom}",
                    _column("epsilon", "max"), "epsilon", is_x=True, note=" ".join(notes),
                    warning=NOMINAL if kind == "nominal" else "", kind=kind, unit=unit,
                )
            )  # fmt: skip
    return found


def _lowered(title: str) -> str:
    return title[0].lower() + title[1:]
