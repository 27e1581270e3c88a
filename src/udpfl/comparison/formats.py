"""The table of a comparison to paste elsewhere: LaTeX, Markdown and CSV.

LaTeX and Markdown have the columns and the remarks of the table for people: no epsilon leaves
without its delta and its kind. CSV has plain numbers under the names of the configuration.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, get_args

from rich.text import Text

from udpfl.comparison._words import plain_keys, plain_metric
from udpfl.comparison.axes import said
from udpfl.comparison.outcome import Comparison, Row, TableFormat
from udpfl.comparison.table import columns_of, reasons_of, remarks
from udpfl.errors import InvalidInput, UdpflError
from udpfl.report.spread import Spread, plain

_SUFFIXES: dict[str, TableFormat] = {".tex": "latex", ".csv": "csv", ".md": "markdown"}
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "α": r"$\alpha$", "–": "--",
    "√": r"$\surd$", "≤": r"$\le$", "’": "'",
}  # fmt: skip


@dataclass(frozen=True)
class PlainTable:
    """The table without any markup."""

    heads: Sequence[str]
    is_number: Sequence[bool]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str]


def formatted(comparison: Comparison, format_: str) -> str:
    """The table in a format; ends with a new line."""
    ways: dict[str, Callable[[Comparison], str]] = {
        "latex": _latex,
        "csv": _csv,
        "markdown": _markdown,
    }
    if format_ not in ways:
        known = ", ".join(get_args(TableFormat))
        raise InvalidInput("format", f"must be one of {known}, got {format_!r}")
    return ways[format_](comparison)


def read_format(wanted: str) -> tuple[TableFormat, Path | None]:
    """A format to print, or the format and the path of a file to write."""
    for known in _SUFFIXES.values():
        if wanted == known:
            return known, None
    path = Path(wanted)
    if (found := _SUFFIXES.get(path.suffix.lower())) is None:
        raise InvalidInput(
            "table",
            "must be latex, csv or markdown, or a file that ends in .tex, .csv or .md, "
            f"got {wanted!r}",
        )
    if not path.absolute().parent.is_dir():
        raise InvalidInput("table", f"there is no folder {str(path.parent)!r}")
    return found, path


def write_table(comparison: Comparison, format_: TableFormat, path: Path) -> None:
    """The table as a file."""
    try:
        path.write_text(formatted(comparison, format_), encoding="utf-8")
    except OSError as error:
        raise UdpflError(f"cannot write {path}: {error.strerror}") from None


def plain_table(comparison: Comparison) -> PlainTable:
    """Its columns, rows and remarks as text."""
    reasons = reasons_of(comparison)
    columns = columns_of(comparison, reasons, plain_keys(comparison.keys))
    return PlainTable(
        [_unmarked(column.head) for column in columns],
        [column.is_number for column in columns],
        [[_unmarked(column.text(row)) for column in columns] for row in comparison],
        [
            *map(_unmarked, remarks(comparison)),
            *(f"failed ({number}): {reason}" for reason, number in reasons.items()),
        ],
    )


def _unmarked(markup: str) -> str:
    return " ".join(Text.from_markup(markup, emoji=False).plain.split())


def _markdown(comparison: Comparison) -> str:
    table = plain_table(comparison)
    rules = ["---:" if number else "---" for number in table.is_number]
    lines = [table.heads, rules, *table.rows]
    body = "\n".join(f"| {' | '.join(map(_in_cell, line))} |" for line in lines)
    notes = "\n".join(f"\n{_in_text(remark)}" for remark in table.remarks)
    return f"{body}\n{notes}\n"


def _in_text(text: str) -> str:
    return "".join(
        f"\\{character}" if character in "\\`*_[]<>" else character for character in text
    )


def _in_cell(text: str) -> str:
    return text if set(text) <= {"-", ":"} else _in_text(text).replace("|", "\\|")


def _latex(comparison: Comparison) -> str:
    table = plain_table(comparison)
    kinds = "".join("r" if number else "l" for number in table.is_number)
    seeds = ", ".join(map(str, comparison.seeds))
    shown = plain_metric(comparison.metric) or "result"
    if len(comparison.seeds) > 1:
        spread = f"mean and sample standard deviation over the seeds {seeds}"
    else:
        spread = f"one run each, with the seed {seeds}"
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_escaped(shown[0].upper() + shown[1:])}: {spread}.}}",
        rf"  \begin{{tabular}}{{{kinds}}}",
        r"    \toprule",
        f"    {_latex_row(table.heads)}",
        r"    \midrule",
        *(f"    {_latex_row(row)}" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"  \par\medskip",
        r"  \begin{minipage}{\linewidth}",
        r"    \footnotesize",
        *(f"    {_escaped(remark)}" for remark in table.remarks),
        r"  \end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(_escaped(cell).replace("..", "--") for cell in cells) + r" \\"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _csv(comparison: Comparison) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = [_record(comparison, row) for row in comparison]
    heads = list(dict.fromkeys(head for row in rows for head in row))
    writer.writerow(heads)
    writer.writerows([row.get(head, "") for head in heads] for row in rows)
    return text.getvalue()


def _record(comparison: Comparison, row: Row) -> dict[str, Any]:
    """One row of the CSV file; what is not known is empty."""
    record: dict[str, Any] = {key: said(row.settings[key]) for key in comparison.keys}
    record |= {"seeds": len(row.done), "failed": len(row.failed)}
    for name, spread in row.figures.items():
        record |= _spread(name, spread)
    if comparison.target is not None:
        record["reached"] = len(row.reached["round"].values) if row.reached else 0
        for name, spread in row.reached.items():
            record |= _spread(f"{name}_to_target", spread)
    if (statement := row.privacy) is not None:
        private = statement.kind != "none"
        record |= {
            "privacy": statement.kind,
            "epsilon": plain(statement.vector_epsilon) if private else "",
            "nominal_epsilon": plain(statement.epsilon) if statement.kind == "nominal" else "",
            "delta": statement.delta if private else "",
            "unit": statement.unit if private else "",
        }
    record["reason"] = "; ".join(dict.fromkeys(row.failed.values()))
    return record


def _spread(name: str, spread: Spread) -> dict[str, Any]:
    return {
        f"{name}_{part}": "" if value is None else value for part, value in spread.to_dict().items()
    }
