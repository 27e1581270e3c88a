"""A configuration to begin with for a table: what only its owner can know is left open."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from udpfl.data.columns import parse_number, toml_key
from udpfl.data.csv_files import Dialect
from udpfl.data.describing import ColumnSummary
from udpfl.data.options import alternatives
from udpfl.errors import InvalidInput

_TARGETS = ("target", "label", "class", "outcome", "diagnosis", "y")
"""Names that columns to predict often have."""
_OPEN = '["LOW", "HIGH"]'
"""Bounds that the owner has to fill in."""
_REGRESSED = 20
"""Different numbers from which on a target is taken for one to regress on."""


@dataclass(frozen=True)
class Choices:
    """What the columns of a table are for."""

    target: str
    by: str | None = None
    person: str | None = None
    is_said: bool = False
    """Whether the owner named the target."""
    scale: Mapping[str, str] = field(default_factory=dict)
    """Public bounds that the owner names, as they stand in TOML."""

    @classmethod
    def of(
        cls,
        columns: Sequence[ColumnSummary],
        target: str | None = None,
        by: str | None = None,
        person: str | None = None,
        scale: Sequence[str] = (),
    ) -> Choices:
        """What the owner says, and a guess at the target where nothing is said."""
        names = [column.name for column in columns]
        bounds = dict(map(_bounds, scale))
        for option, name in (
            ("target", target),
            ("by", by),
            ("person", person),
            *(("scale", name) for name in bounds),
        ):
            if name is not None and name not in names:
                raise InvalidInput(option, f"no column {name!r}; {alternatives(name, names)}")
        is_said = target is not None
        if target is None:
            likely = [name for name in names if name.lower() in _TARGETS]
            target = likely[0] if likely else names[-1]
        return cls(target, by, person, is_said, bounds)


def _as_said(column: ColumnSummary, bounds: Mapping[str, str]) -> ColumnSummary:
    """A column with bounds is one of numbers, whatever is in its cells."""
    return replace(column, kind="number") if column.name in bounds else column


def _is_unused(column: ColumnSummary) -> bool:
    return column.kind in ("text", "date", "empty") or _is_identity(column)


def _is_identity(column: ColumnSummary) -> bool:
    """Whether a column only tells rows apart."""
    name = column.name.lower()
    named = name == "id" or name.endswith(("_id", " id", "-id"))
    return named and column.distinct == column.rows


def _why_unused(column: ColumnSummary) -> str:
    return "tells rows apart" if _is_identity(column) else column.kind


def _bounds(said: str) -> tuple[str, str]:
    """The column and its bounds in "age=0,110", or "x=none"."""
    name, _, value = said.rpartition("=")
    low, _, high = value.partition(",")
    numbers = parse_number(low.strip()), parse_number(high.strip())
    if value.strip() == "none":
        return name, '"none"'
    if not name or None in numbers or not float(low) < float(high):
        raise InvalidInput("scale", f"must look like age=0,110 or age=none, got {said!r}")
    return name, f"[{low.strip()}, {high.strip()}]"


def beginning(
    files: Sequence[Path], dialect: Dialect, columns: Sequence[ColumnSummary], choices: Choices
) -> str:
    """A commented configuration for a table, in TOML.

    Numbers that were found in the table are not in it: bounds are published with the results, so
    their places are left open, as "LOW" and "HIGH".
    """
    features = [
        own for own in columns if own.name not in (choices.target, choices.by, choices.person)
    ]
    target = next(own for own in columns if own.name == choices.target)
    is_regression = target.kind == "number" and target.distinct > _REGRESSED
    features = [_as_said(own, choices.scale) for own in features]
    scaled = [own for own in features if own.kind == "number" and not _is_unused(own)]
    lines = [
        "# A run on a table of your own, from `udpfl init`. Fill in what is left open, then:",
        "#",
        "#     udpfl run THIS_FILE --dry-run    # what would happen, and what it would cost",
        "#     udpfl run THIS_FILE",
        "#",
        "# Everything in this file is public: write down what everybody may know of the data.",
        "",
        *_data(files, columns, choices),
        "",
        "[data.options]",
        *_options(files, dialect, choices, target, is_regression),
        *_ignored(features),
        *_missing([*features, target]),
        "",
        *_categories([own for own in features if own.kind == "category"]),
        *_scale([*scaled, *([target] if is_regression else [])], choices.scale),
        "[model]",
        'name = "logistic"              # a linear model; or "mlp"',
        "",
        "[privacy]",
        "epsilon = 4.0                  # budget of each client over all rounds",
        "delta = 1e-5                   # well below one over the number of records",
        '# ledger = "budget.sqlite"     # a ledger that several runs share',
        "",
        "[training]",
        "rounds = 40",
        "sampling_rate = 0.2            # share of the records that a step takes, by chance",
        "learning_rate = 1.0",
    ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _data(files: Sequence[Path], columns: Sequence[ColumnSummary], choices: Choices) -> list[str]:
    lines = ["[data]", 'name = "table"']
    if choices.by is not None:
        lines += [
            'partition = "column"',
            f"by = {_text(choices.by)}  # every value is one client",
            f"clients = {next(own.distinct for own in columns if own.name == choices.by)}",
        ]
    elif len(files) > 1:
        lines.append(f"clients = {len(files)}                   # one for each file")
    else:
        lines += [
            "clients = 3                    # simulated: the rows are dealt out at random.",
            '# For real sites: partition = "column" and by = "COLUMN", or a file for each of them.',
        ]
    if choices.person is not None:
        lines += [
            f"person = {_text(choices.person)}  # all rows of a person are hidden together",
            "# rows_per_person = 10         # TODO: most rows of a person that are used, public",
        ]
    else:
        lines.append('# person = "COLUMN"            # if a person may have several rows')
    lines.append("# declared_sizes = TODO        # public: about how many records a client has")
    return lines


def _options(
    files: Sequence[Path],
    dialect: Dialect,
    choices: Choices,
    target: ColumnSummary,
    is_regression: bool,
) -> list[str]:
    paths = [_text(str(file)) for file in files]
    lines = [f"path = {paths[0] if len(paths) == 1 else '[' + ', '.join(paths) + ']'}"]
    usual = Dialect()
    for key in ("delimiter", "decimal", "encoding"):
        if (own := getattr(dialect, key)) != getattr(usual, key):
            lines.append(f"{key} = {_text(own)}")
    guessed = "" if choices.is_said else "  # TODO: is this the column to predict?"
    lines.append(f"target = {_text(choices.target)}{guessed}")
    if is_regression:
        return [*lines, 'task = "regression"']
    labels = ", ".join(map(_text, target.values)) or "TODO"
    return [*lines, f"labels = [{labels}]  # found in the file: TODO: every label there may be"]


def _ignored(features: Sequence[ColumnSummary]) -> list[str]:
    unused = [own for own in features if _is_unused(own)]
    if not unused:
        return []
    why = ", ".join(f"{own.name}: {_why_unused(own)}" for own in unused)
    return [f"ignore = [{', '.join(_text(own.name) for own in unused)}]  # {why}"]


def _missing(columns: Sequence[ColumnSummary]) -> list[str]:
    if not any(own.missing for own in columns):
        return []
    return [
        "# TODO: some cells are missing. Leave such rows out, or give a public constant by column:",
        '# missing = "drop"',
        "# missing = { COLUMN = 0 }",
    ]


def _categories(columns: Sequence[ColumnSummary]) -> list[str]:
    if not columns:
        return []
    return [
        "[data.options.categories]",
        "# Found in the file. TODO: every category there may be, whether it occurs or not.",
        *(f"{toml_key(own.name)} = [{', '.join(map(_text, own.values))}]" for own in columns),
        "",
    ]


def _scale(columns: Sequence[ColumnSummary], bounds: Mapping[str, str]) -> list[str]:
    if not columns:
        return []
    is_open = any(own.name not in bounds for own in columns)
    return [
        "[data.options.scale]",
        f"# {'TODO: p' if is_open else 'P'}ublic bounds of every number, mapped to [-1, 1]; values "
        "beyond are clamped.",
        "# Not the range in the file, which is private, but limits that everybody may know;",
        '# "none" says that a column lies in [-1, 1] already. `udpfl data describe` shows ranges.',
        *(f"# {own.name}: {own.odd} values are no numbers" for own in columns if own.odd),
        *(f"{toml_key(own.name)} = {bounds.get(own.name, _OPEN)}" for own in columns),
        "",
    ]
