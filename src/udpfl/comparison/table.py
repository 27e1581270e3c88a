"""A comparison as a table for people: no figure without the kind of privacy behind it.

A guaranteed and a nominal epsilon never stand in the same column. "ε" is always what is guaranteed,
for nominal runs as well; their own number has a column of its own beside it. Where some rows hide
one record and others a whole client, a column says which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from udpfl.accounting.events import Unit
from udpfl.accounting.statement import Kind, PrivacyStatement, shown
from udpfl.comparison._spread import Spread
from udpfl.comparison.grid import said, short
from udpfl.comparison.outcome import Comparison, Row
from udpfl.report.words import UNITS

_KINDS: dict[Kind, str] = {
    "guarantee": "[green]guarantee[/]",
    "nominal": "[yellow]nominal: not a guarantee[/]",
    "none": "[bold red]not private[/]",
}
_WHOLE: dict[Unit, str] = {
    "record": "the whole gradient",
    "person": "the whole gradient of a person",
    "client": "the whole update of a client",
}
_RELATIONS = {"add-remove": "added or removed", "replace-one": "replaced"}


def show(comparison: Comparison, console: Console) -> None:
    """Print the table, and below it what its numbers mean and whom they protect."""
    reasons = _reasons(comparison)
    table = _table(comparison, reasons, stacked=False)
    if _width(table, console) > console.width:
        table = _table(comparison, reasons, stacked=True)
    # Rather too wide than cut off: half a number would be another number.
    table.width = _width(table, console)
    console.print(table, highlight=False, crop=False, soft_wrap=True)
    for remark in _remarks(comparison):
        console.print(remark, highlight=False)
    for reason, number in reasons.items():
        console.print(f"[red]failed ({number})[/]: {escape(reason)}", highlight=False)


def _width(table: Table, console: Console) -> int:
    """What the table would take if it had all the room it wants."""
    return Measurement.get(console, console.options.update(width=1000), table).maximum


@dataclass(frozen=True)
class _Column:
    """What a column is called, and its text for each cell of the grid."""

    head: str
    text: Callable[[Row], str]
    is_number: bool = False
    style: str | None = None


def _table(comparison: Comparison, reasons: dict[str, int], stacked: bool) -> Table:
    """One line for each cell, or two where the range stands below the mean."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    columns = [
        *(_Column(escape(short(key)), _setting(key)) for key in comparison.keys),
        *_quality(comparison, stacked),
        *_to_target(comparison),
        *_privacy(comparison, reasons, stacked),
    ]
    for column in columns:
        justify: JustifyMethod = "right" if column.is_number else "left"
        table.add_column(column.head, justify=justify, style=column.style)
    for row in comparison:
        table.add_row(*(column.text(row) for column in columns))
    return table


def _setting(key: str) -> Callable[[Row], str]:
    return lambda row: escape(said(row.settings[key]))


def _quality(comparison: Comparison, stacked: bool) -> Iterator[_Column]:
    """The foremost figure with its range, the other errors, and how many seeds there are."""
    named = len({row.metric for row in comparison if row.metric}) > 1
    head = f"{comparison.metric or 'result'} ± sd"
    if stacked:
        yield _Column(head, lambda row: "\n".join(_figures(row, named)).strip(), True)
    else:
        yield _Column(head, lambda row: _figures(row, named)[0], True)
        yield _Column("min..max", lambda row: _figures(row, named)[1], True)
    for name in ("mae", "mse"):
        if any(name in row.figures for row in comparison):
            yield _Column(f"{name} ± sd", _spread_of(name), True)
    if not comparison.complete:
        yield _Column("seeds", lambda row: f"{len(row.done)} of {len(row.runs)}", True)


def _spread_of(name: str) -> Callable[[Row], str]:
    return lambda row: _with_sd(row.figures.get(name), "{:.4f}")


def _to_target(comparison: Comparison) -> Iterator[_Column]:
    """What it took to reach the target, over the seeds that did."""
    if comparison.target is None:
        return
    yield _Column(f"rounds to {comparison.target}", _rounds, True)
    yield _Column("MB up", lambda row: _mean(row, "bytes_up", 1e6), True)
    yield _Column("MB down", lambda row: _mean(row, "bytes_down", 1e6), True)
    yield _Column("seconds", lambda row: _mean(row, "seconds", 1.0), True)


def _rounds(row: Row) -> str:
    if not row.done:
        return ""
    if not row.reached:
        return "not reached"
    reached, count = row.reached["round"], len(row.reached["round"].values)
    some = f" ({count} of {len(row.done)})" if count < len(row.done) else ""
    return _with_sd(reached, "{:.1f}") + some


def _mean(row: Row, name: str, unit: float) -> str:
    return f"{row.reached[name].mean / unit:.3g}" if row.reached else ""


def _with_sd(spread: Spread | None, form: str) -> str:
    if spread is None:
        return ""
    sd = "" if spread.sd is None else f" ± {form.format(spread.sd)}"
    return form.format(spread.mean) + sd


def _reference(row: Row) -> str:
    if (own := row.matched) is None:
        return ""
    return f"{own.reference:.4g} (ε {shown(own.other.epsilon)})"


def _privacy(comparison: Comparison, reasons: dict[str, int], stacked: bool) -> Iterator[_Column]:
    """Columns that would say nothing, or the same in every row, are left out."""
    bounds = _bounds(comparison)
    yield _Column("ε", lambda row: _guaranteed(row.privacy))
    if len({statement.delta for statement in bounds}) > 1:
        yield _Column("δ", lambda row: f"{own.delta:g}" if (own := _bound(row.privacy)) else "")
    has_column = "privacy.unit" in comparison.keys
    if len({statement.unit for statement in bounds}) > 1 and not has_column:
        yield _Column("unit", lambda row: own.unit if (own := _bound(row.privacy)) else "")
    if any(statement.kind == "nominal" for statement in bounds):
        yield _Column("nominal ε", lambda row: _nominal(row.privacy), style="yellow")
    if any(row.matched for row in comparison):
        yield _Column("matched to", _reference)

    def kind(row: Row) -> str:
        labels = [_KINDS[row.privacy.kind]] if row.privacy else []
        numbers = sorted({reasons[reason] for reason in row.failed.values()})
        labels += [f"[red]failed ({number})[/]" for number in numbers]
        return "\n".join(labels).replace(": ", ":\n") if stacked else " ".join(labels)

    yield _Column("privacy", kind)


def _reasons(comparison: Comparison) -> dict[str, int]:
    """Why runs failed, each reason once, with the number that stands for it in the table."""
    every = dict.fromkeys(reason for row in comparison for reason in row.failed.values())
    return {reason: number for number, reason in enumerate(every, 1)}


def _figures(row: Row, named: bool) -> tuple[str, str]:
    """Mean with standard deviation, and the range."""
    if row.mean is None:
        return "–", ""
    mean = f"{row.metric} " if named else ""
    mean += _with_sd(Spread(row.values), "{:.4f}")
    return mean, "" if row.sd is None else f"{min(row.values):.4f}..{max(row.values):.4f}"


def _guaranteed(statement: PrivacyStatement | None) -> str:
    if statement is None:
        return ""
    # Of a guarantee the two are the same; of a nominal number only this one holds.
    return "no bound" if statement.kind == "none" else shown(statement.vector_epsilon)


def _nominal(statement: PrivacyStatement | None) -> str:
    return shown(statement.epsilon) if statement and statement.kind == "nominal" else ""


def _bound(statement: PrivacyStatement | None) -> PrivacyStatement | None:
    return statement if statement is not None and statement.kind != "none" else None


def _bounds(comparison: Comparison) -> list[PrivacyStatement]:
    """The statements that hold a number."""
    return [statement for row in comparison if (statement := _bound(row.privacy))]


def _remarks(comparison: Comparison) -> Iterator[str]:
    seeds = ", ".join(map(str, comparison.seeds))
    if len(comparison.seeds) > 1:
        yield f"Mean, sample standard deviation (sd) and range over seeds {seeds}."
    else:
        yield f"One run each, with seed {seeds}: the spread is not known."
    if comparison.target is not None:
        yield (
            f"Rounds, MB and seconds are those until the model first had {comparison.target} on "
            "the test records, as a mean over the seeds in which it did."
        )
    if bounds := _bounds(comparison):
        deltas = {statement.delta for statement in bounds}
        at = f" at δ = {deltas.pop():g}" if len(deltas) == 1 else ""
        first, units = bounds[0], {statement.unit for statement in bounds}
        yield (
            f"ε is guaranteed{at} for one {first.unit} {_RELATIONS[first.neighbours]}, for each "
            f"run alone: a {first.unit} pays again in every run that it takes part in."
            if len(units) == 1
            else f"[yellow]Rows hide {_either(units)}[/]: their ε's, each{at} for one run alone, "
            "cannot be compared."
        )
        for assumed in dict.fromkeys(own for bound in bounds for own in bound.assumptions):
            is_everywhere = all(assumed in bound.assumptions for bound in bounds)
            yield escape(f"It {assumed}." if is_everywhere else f"In some rows it {assumed}.")
        for note in dict.fromkeys(note for bound in bounds for note in bound.notes):
            yield f"[yellow]{escape(note[0].upper() + note[1:])}.[/]"
    if any(row.matched for row in comparison):
        yield (
            "Matched to: noise multiplier of the reference Gaussian (of the costliest client), and "
            "what the releases would cost with it by Rényi divergences, computed as for any noise."
        )
    if comparison.selection is not None:
        yield escape(comparison.selection.sentence)
    if nominal := {statement.unit for statement in bounds if statement.kind == "nominal"}:
        proved = " or ".join(_WHOLE[unit] for unit in sorted(nominal, reverse=True))
        yield (
            "[yellow]Nominal: scalar accounting, not a privacy guarantee.[/] The column ε shows "
            f"what is proved for {proved}."
        )
    if any(row.privacy is not None and row.privacy.kind == "none" for row in comparison):
        reasons = (row.privacy.notes for row in comparison if row.privacy is not None)
        said_why = "; ".join(dict.fromkeys(w for why in reasons for w in why))
        yield f"[bold red]Not private[/]: {escape(said_why)}."


def _either(units: Collection[Unit]) -> str:
    return " or ".join(words for unit, words in UNITS.items() if unit in units)
