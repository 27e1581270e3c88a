"""The charts of a report as data: the page and the static figures draw the same ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context
from typing import Any, Literal

from udpfl.accounting.statement import Kind
from udpfl.report.protection import Clipped
from udpfl.report.read import Client, RunRecord, Tone
from udpfl.report.words import UNITS

Values = list[float | None]
Dash = Literal["solid", "dashed", "dotted"]
DASHES: dict[Kind, Dash] = {"guarantee": "solid", "nominal": "dashed", "none": "dotted"}
Format = Literal["percent", "epsilon", "number"]
SIMULATION_ONLY = (
    "Simulation only: computed from private records without noise. A real client would not publish "
    "this."
)
NOMINAL = "nominal: not a guarantee"
_COUNTED = {"persons": "gradients of persons"}
"""Where a word for what is clipped is not enough."""
_SIGNALS: dict[Clipped, str] = {
    "gradients": "the clipped gradient sum",
    "persons": "the sum of the persons' clipped gradients",
    "updates": "a client's clipped update",
    "parameters": "a client's clipped parameters",
}


@dataclass(frozen=True)
class Series:
    """A line. `colour` is a name of the style sheet."""

    name: str
    x: Sequence[float]
    y: Values
    colour: str
    dash: Dash = "solid"


@dataclass(frozen=True)
class Band:
    """The room between two lines; hatched where it is nominal."""

    name: str
    x: Sequence[float]
    low: Values
    high: Values
    colour: str
    hatched: bool = False


@dataclass(frozen=True)
class Bars:
    """One bar for each label, and the mark that it should not pass."""

    labels: Sequence[str]
    values: Values
    marks: Values
    mark_name: str
    colour: str
    hatched: bool = False
    spent: Sequence[bool] = ()
    """Which of them have used up what they had, and are drawn in another colour."""


@dataclass(frozen=True)
class Chart:
    """One picture: lines and bands over a common axis, or bars."""

    id: str
    title: str
    x: str
    y: str
    format: Format = "number"
    series: tuple[Series, ...] = ()
    bands: tuple[Band, ...] = ()
    bars: Bars | None = None
    marks: tuple[tuple[float, str], ...] = ()
    """Horizontal lines with what they stand for."""
    log: bool = False
    top: float | None = None
    """The axis ends here at least."""
    note: str = ""
    warning: str = ""
    legend: bool = False
    """Whether a line has its name beside it even where it is the only one."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the page, numbers cut to six digits (an epsilon rounded up)."""
        plain = asdict(self)
        up = self.format == "epsilon"
        for part in (*plain["series"], *plain["bands"], plain["bars"] or {}):
            for key in ("x", "y", "low", "high", "values", "marks"):
                if key in part:
                    part[key] = [six_digits(value, up and key != "x") for value in part[key]]
        return plain


def six_digits(value: float | None, up: bool) -> float | None:
    """Cut to six digits, or rounded up to six; None where it is not a finite number."""
    if value is None or not math.isfinite(value):
        return None
    if up:
        return float(Context(prec=6, rounding=ROUND_CEILING).create_decimal_from_float(value))
    return float(f"{value:.6g}")


def run_charts(run: RunRecord) -> list[Chart]:
    """All charts of one run, those without anything to show left out."""
    charts = [
        *_quality(run),
        _loss(run),
        _epsilon_by_round(run),
        _epsilon_by_client(run),
        _noise_by_round(run),
        _signal(run),
        _clip_fraction(run),
        _class_accuracy(run),
        _error_by_output(run),
    ]
    return [chart for chart in charts if chart is not None and shows_something(chart)]


def shows_something(chart: Chart) -> bool:
    """Whether any value is there to be drawn."""
    lines = any(value is not None for line in chart.series for value in line.y)
    return lines or (chart.bars is not None and any(v is not None for v in chart.bars.values))


def _quality(run: RunRecord) -> list[Chart]:
    if run.task == "classification":
        x, y = run.column("accuracy")
        line = Series("accuracy", x, y, "main")
        return [
            Chart("accuracy", "Accuracy by round", "round", "test accuracy", "percent", (line,),
                  marks=marks_of([run], "accuracy"),
                  note="On the test records, which are treated as public.")
        ]  # fmt: skip
    charts = []
    for key, name in (("rmse", "RMSE"), ("mae", "MAE")):
        x, y = run.column(key)
        charts.append(
            Chart(key, f"{name} by round", "round", f"test {name}", "number",
                  (Series(name, x, y, "main"),), marks=marks_of([run], key),
                  note="On the test records, which are treated as public.")
        )  # fmt: skip
    return charts


def _loss(run: RunRecord) -> Chart:
    x, y = run.column("loss")
    return Chart("loss", "Loss by round", "round", "test loss", "number",
                 (Series("loss", x, y, "main"),),
                 marks=marks_of([run], "loss"))  # fmt: skip


def marks_of(runs: Sequence[RunRecord], metric: str) -> tuple[tuple[float, str], ...]:
    """Published figures in this metric, and the target where all runs have the same in it."""
    known = [(ref[metric], name) for run in runs for name, ref in run.references.items()
             if metric in ref]  # fmt: skip
    targets = {run.target for run in runs}
    target = targets.pop() if len(targets) == 1 else None
    if target is not None and target.metric == metric:
        found = runs[0].reached if len(runs) == 1 else None
        known.append((target.value, f"target, reached in round {found.round}" if found else
                      "target"))  # fmt: skip
    return tuple(dict.fromkeys(known))


def _budget_marks(run: RunRecord) -> tuple[tuple[float, str], ...]:
    budgets = sorted({client.budget[0] for client in run.clients if client.budget})
    if len(budgets) > 3:
        budgets = [budgets[0], budgets[-1]]
    return tuple((budget, f"{run.budget_name} {budget:g}") for budget in budgets)


def _axis(run: RunRecord) -> str:
    """What an axis of epsilon says: which kind of number, and whose where it is not a record's."""
    said = "nominal ε" if run.kind == "nominal" else "ε"
    return said if run.unit == "record" else f"{said} for {UNITS[run.unit]}"


def _epsilon_by_round(run: RunRecord) -> Chart | None:
    if run.kind == "none":
        return None
    nominal = run.kind == "nominal"
    full = not nominal and any(client.has_used_up for client in run.clients)
    colour, dash = "spent" if full else run.tone, DASHES[run.kind]
    x, high = run.column("epsilon", "max")
    _, low = run.column("epsilon", "min")
    _, median = run.column("epsilon", "median")
    said = "nominal ε" if nominal else "ε"
    bands: tuple[Band, ...] = ()
    if high == low:
        series = [Series(f"{said} of every client", x, high, colour, dash)]
    else:
        series = [
            Series(f"{said}, largest of any client", x, high, colour, dash),
            Series(f"{said}, median client", x, median, "second", dash),
        ]
        bands = (Band("all clients", x, low, high, colour, nominal),)
    note = (
        "What all releases up to a round cost together, as the run recorded it; it is not "
        "recomputed."
    )
    if run.shared_ledger:
        note += " Earlier runs on the same ledger are included."
        if run.budget_name == "budget":
            note += " The budget is the one in the ledger when this run ended."
    if nominal:
        _, proved = run.column("guaranteed_epsilon", "max")
        series.append(Series("guaranteed ε", x, proved, _proved(run)))
        note += " The axis is logarithmic: the guaranteed ε is far above the nominal one."
    return Chart(
        "epsilon", "Privacy spent by round", "round", _axis(run), "epsilon", tuple(series), bands,
        marks=_budget_marks(run), log=nominal, note=note, warning=NOMINAL if nominal else "",
    )  # fmt: skip


def _proved(run: RunRecord) -> Tone:
    """The colour of what is guaranteed in a nominal run."""
    return "guarantee" if run.verification.state == "verified" else "unverified"


def _epsilon_by_client(run: RunRecord) -> Chart | None:
    known = [client for client in run.clients if client.statement is not None]
    if run.kind == "none" or not known:
        return None
    nominal = run.kind == "nominal"
    many = len(known) > 60
    if many:
        known.sort(key=_spending, reverse=True)
    bars = Bars(
        [client.name for client in known],
        [client.statement.epsilon if client.statement else None for client in known],
        [client.budget[0] if client.budget else None for client in known],
        run.budget_name,
        run.tone,
        nominal,
        [] if nominal else [client.has_used_up for client in known],
    )
    return Chart(
        "clients", "Privacy spent by client", "clients, sorted" if many else "client", _axis(run),
        "epsilon", bars=bars, note=_budget_note(run),
        warning=NOMINAL if nominal else "",
    )  # fmt: skip


def _budget_note(run: RunRecord) -> str:
    """What the lines over the bars are, and whose budget is used up."""
    full = [client.name for client in run.clients if client.has_used_up]
    if run.kind == "nominal" or not full:
        return _mark_note(run)
    if len(full) == len(run.clients):
        return f"{_mark_note(run)} All clients have used up their budgets."
    some = f"{len(full):,} of {len(run.clients):,} clients have used up their budgets"
    return f"{_mark_note(run)} {some}; their bars have another colour."


def _mark_note(run: RunRecord) -> str:
    if run.budget_name == "budget":
        return "The line over a bar is the client's budget in the ledger when the run ended."
    other = "" if run.kind == "nominal" else " The budget in the ledger may differ."
    return f"The line over a bar is the configured budget, for which the noise was planned.{other}"


def _spending(client: Client) -> tuple[float, float]:
    spent = client.statement.epsilon if client.statement else 0.0
    return spent, client.budget[0] if client.budget else 0.0


def _noise_by_round(run: RunRecord) -> Chart | None:
    if run.kind == "none" or run.config.privacy.pace == "uniform":
        return None
    x, high = run.column("noise_std", "max", evaluated=False)
    _, low = run.column("noise_std", "min", evaluated=False)
    name = "noise of every client" if high == low else "noise, largest of any client"
    bands = () if high == low else (Band("all clients", x, low, high, "main"),)
    note = "Standard deviation of the noise on a clipped sum, as it was charged."
    if run.config.privacy.pace == "plateau":
        note += " It falls when results stop improving, as far as budgets hold."
    if run.config.privacy.clip_quantile is not None:
        note += " The clip adapts: this is in units of the planned clip."
    return Chart("noise", "Noise by round", "round", "standard deviation", "number",
                 (Series(name, x, high, "main"),), bands, note=note)  # fmt: skip


def _signal(run: RunRecord) -> Chart:
    x, y = run.column("simulation_only", "signal_to_noise", evaluated=False)
    return Chart("signal", "Signal against noise", "round", "signal / noise", "number",
                 (Series("signal-to-noise ratio", x, y, "main"),), warning=SIMULATION_ONLY,
                 note=signal_note({run.clipped}))  # fmt: skip


def signal_note(clipped: Collection[Clipped]) -> str:
    """What signal and noise are, where these were clipped."""
    signal = " or ".join(text for key, text in _SIGNALS.items() if key in clipped)
    return (
        f"Length of {signal} divided by the length of the noise, averaged over the clients of a "
        f"round. In the mean of many clients the ratio is higher."
    )


def _clip_fraction(run: RunRecord) -> Chart:
    x, y = run.column("simulation_only", "clip_fraction", evaluated=False)
    most = _COUNTED.get(run.clipped, run.clipped)
    return Chart("clip", clip_title({run.clipped}), "round", "clipped", "percent",
                 (Series("clip fraction", x, y, "main"),), top=1.0, warning=SIMULATION_ONLY,
                 note=f"Near 100 %, most {most} are shortened to the clip. Near 0 %, a smaller "
                 "clip would be enough and need less noise.")  # fmt: skip


def clip_title(clipped: Collection[Clipped]) -> str:
    """What is counted where these were clipped: of whole clients, updates and not gradients."""
    names = (_COUNTED.get(key, key) for key in _SIGNALS if key in clipped)
    return f"Share of clipped {' or '.join(names)}"


def class_names(run: RunRecord) -> list[str]:
    """A name for every output of a classifier."""
    names = (run.evaluation and run.evaluation.class_names) or []
    width = len(run.confusion[0])
    return [str(names[i]) if i < len(names) else str(i) for i in range(width)]


def recalls(run: RunRecord) -> Values:
    """The share of each class's test records that was recognised; None where it has none."""
    return [row[i] / sum(row) if sum(row) else None for i, row in enumerate(run.confusion)]


def _class_accuracy(run: RunRecord) -> Chart | None:
    if not run.evaluation or not run.confusion:
        return None
    shares = recalls(run)
    accuracy = run.evaluation.accuracy
    overall = accuracy if isinstance(accuracy, float | int) else None
    bars = Bars(class_names(run)[: len(shares)], shares, [overall] * len(shares),
                "all classes", "main")  # fmt: skip
    return Chart("classes", "Accuracy by class", "class", "recognised", "percent", bars=bars,
                 top=1.0, note="Share of each class's test records that the final model "
                 "recognises. The line is the share over all classes.")  # fmt: skip


def _error_by_output(run: RunRecord) -> Chart | None:
    tested = run.evaluation
    if tested is None or len(tested.mae_by_output or ()) < 2:
        return None
    lines = []
    for errors, name, colour in (
        (tested.rmse_by_output, "RMSE", "main"),
        (tested.mae_by_output, "MAE", "second"),
    ):
        values = [value if isinstance(value, float) else None for value in errors or ()]
        lines.append(Series(name, range(1, len(values) + 1), values, colour))
    return Chart("outputs", "Error by output position", "output", "error", "number", tuple(lines),
                 note="The error of the final model for each value that it forecasts. In an hourly "
                 "forecast, position 1 is the first hour.")  # fmt: skip
