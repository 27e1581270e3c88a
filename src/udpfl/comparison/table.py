"""A comparison as a table for people: no figure without the kind of privacy behind it.

A guaranteed and a nominal epsilon never stand in the same column. "ε" is always what is guaranteed,
for nominal runs as well; their own number has a column of its own beside it. Where some rows hide
one record and others a whole client, a column says which.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from udpfl.accounting.events import Unit
from udpfl.accounting.statement import Kind, PrivacyStatement, shown
from udpfl.comparison.grid import said, short
from udpfl.comparison.outcome import Comparison, Row

_KINDS: dict[Kind, str] = {
    "guarantee": "[green]guarantee[/]",
    "nominal": "[yellow]nominal: not a guarantee[/]",
    "none": "[bold red]not private[/]",
}
_WHOLE: dict[Unit, str] = {
    "record": "the whole gradient",
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


def _table(comparison: Comparison, reasons: dict[str, int], stacked: bool) -> Table:
    """One line for each cell, or two where the range stands below the mean."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for key in comparison.keys:
        table.add_column(escape(short(key)))
    table.add_column(f"{comparison.metric or 'result'} ± sd", justify="right")
    if not stacked:
        table.add_column("min..max", justify="right")
    # Columns that would say nothing, or the same in every row, are left out.
    deltas = len({statement.delta for statement in _bounds(comparison)}) > 1
    units = len({statement.unit for statement in _bounds(comparison)}) > 1
    units = units and "privacy.unit" not in comparison.keys  # it has a column already
    nominal = any(statement.kind == "nominal" for statement in _bounds(comparison))
    if not comparison.complete:
        table.add_column("seeds", justify="right")
    table.add_column("ε")
    if deltas:
        table.add_column("δ")
    if units:
        table.add_column("unit")
    if nominal:
        table.add_column("nominal ε", style="yellow")
    table.add_column("privacy")
    named = len({row.metric for row in comparison if row.metric}) > 1
    for row in comparison:
        cells = [escape(said(value)) for value in row.settings.values()]
        mean, spread = _figures(row, named)
        cells += [f"{mean}\n{spread}".strip()] if stacked else [mean, spread]
        if not comparison.complete:
            cells.append(f"{len(row.done)} of {len(row.runs)}")
        bound = _bound(row.privacy)
        cells.append(_guaranteed(row.privacy))
        if deltas:
            cells.append(f"{bound.delta:g}" if bound else "")
        if units:
            cells.append(bound.unit if bound else "")
        if nominal:
            cells.append(shown(bound.epsilon) if bound and bound.kind == "nominal" else "")
        labels = [_KINDS[row.privacy.kind]] if row.privacy else []
        numbers = sorted({reasons[reason] for reason in row.failed.values()})
        labels += [f"[red]failed ({number})[/]" for number in numbers]
        cells.append("\n".join(labels).replace(": ", ":\n") if stacked else " ".join(labels))
        table.add_row(*cells)
    return table


def _reasons(comparison: Comparison) -> dict[str, int]:
    """Why runs failed, each reason once, with the number that stands for it in the table."""
    every = dict.fromkeys(reason for row in comparison for reason in row.failed.values())
    return {reason: number for number, reason in enumerate(every, 1)}


def _figures(row: Row, named: bool) -> tuple[str, str]:
    """Mean with standard deviation, and the range."""
    if row.mean is None:
        return "–", ""
    mean = f"{row.metric} {row.mean:.4f}" if named else f"{row.mean:.4f}"
    if row.sd is None:
        return mean, ""
    return f"{mean} ± {row.sd:.4f}", f"{min(row.values):.4f}..{max(row.values):.4f}"


def _guaranteed(statement: PrivacyStatement | None) -> str:
    if statement is None:
        return ""
    # Of a guarantee the two are the same; of a nominal number only this one holds.
    return "no bound" if statement.kind == "none" else shown(statement.vector_epsilon)


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
    if bounds := _bounds(comparison):
        deltas = {statement.delta for statement in bounds}
        at = f" at δ = {deltas.pop():g}" if len(deltas) == 1 else ""
        first, units = bounds[0], {statement.unit for statement in bounds}
        yield (
            f"ε is guaranteed{at} for one {first.unit} {_RELATIONS[first.neighbours]}, for each "
            f"run alone: a {first.unit} pays again in every run that it takes part in."
            if len(units) == 1
            else "[yellow]Some rows hide one record, others a whole client[/]: their ε's, each"
            f"{at} for one run alone, cannot be compared."
        )
        notes = (note for statement in bounds for note in statement.notes)
        for note in dict.fromkeys(notes):
            all_of_them = all(note in statement.notes for statement in bounds)
            if note.startswith("assumes"):
                yield escape(f"It {note}." if all_of_them else f"In some rows it {note}.")
            elif "is no guarantee" in note:  # what a method's authors say of their own noise
                yield f"[yellow]{escape(note)}.[/]"
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
