"""Tables of what is built in, made from the registries: what is registered is in the table.

`python docs/tables.py` prints them; the site has them on the pages about what is built in and about
the command line.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from udpfl.mechanisms import BUILT_IN, Mechanism

MARK = re.compile(r"^<!-- table: ([a-z-]+) -->$", re.MULTILINE)


def filled(markdown: str) -> str:
    """A page with the tables in place of its marks."""
    return MARK.sub(lambda mark: TABLES[mark[1]](), markdown)


def mechanisms() -> str:
    """Every noise for `privacy.mechanism`."""
    return _table(
        ("mechanism", "what it is", "parameters", "depends on the dimension", "pure DP"),
        (
            (
                f"`{name}`",
                kind.summary,
                ", ".join(f"`{field.name}`" for field in fields(kind)),
                "only under ℓ∞" if kind.is_isotropic else "yes",
                _pure(kind),
            )
            for name, kind in BUILT_IN.items()
        ),
    )


def _pure(kind: type[Mechanism]) -> str:
    if not kind.has_pure_guarantee:
        return "no"
    bounded = kind.one_coordinate_is_worst or math.isfinite(kind.family(1.0)(1.0).steepest)
    return "yes" if bounded else "in one dimension"


def methods() -> str:
    """Every method for `training.algorithm`."""
    from udpfl.cli.methods import known

    return _table(
        ("method", "what a client releases", "options", "paper"),
        (
            (f"`{row['name']}`", row["releases"], _code(row["options"]), row["paper"])
            for row in known()
            if not row["from"]  # those of installed packages are not the project's
        ),
    )


def models() -> str:
    """Every network for `model.name`."""
    from udpfl.models import BUILT_IN as MODELS

    return _table(
        ("model", "what it is", "options"),
        (
            (f"`{name}`", _first_line(model), _code(list(inspect.signature(model).parameters)[2:]))
            for name, model in MODELS.items()
        ),
    )


def data_sets() -> str:
    """Every data set for `data.name`."""
    from udpfl.data import sources

    return _table(
        ("data set", "what it is", "records", "licence"),
        (
            (f"`{name}`", source.title, source.samples, source.licence)
            for name, source in sources().items()
        ),
    )


def attacks() -> str:
    """Every attack for `udpfl attack`."""
    from udpfl.attacks import BUILT_IN as ATTACKS
    from udpfl.attacks import attack_class

    return _table(
        ("attack", "on", "what it does", "what it needs", "paper"),
        (
            (f"`{name}`", kind.kind, kind.what, kind.needs, kind.paper)
            for name, kind in ((name, attack_class(name)) for name in ATTACKS)
        ),
    )


def commands() -> str:
    """Every verb of the command, by what its help begins with."""
    import typer

    from udpfl.cli.app import app

    def verbs(command: Any, words: tuple[str, ...]) -> Iterable[tuple[str, str]]:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                yield from verbs(inner, (*words, name))
        else:
            does = " ".join(command.help.partition("\n\n")[0].split())
            yield f"`{' '.join(words)}`", does

    return _table(("command", "does"), verbs(typer.main.get_command(app), ("udpfl",)))


TABLES: dict[str, Callable[[], str]] = {
    "mechanisms": mechanisms,
    "methods": methods,
    "models": models,
    "data-sets": data_sets,
    "commands": commands,
    "attacks": attacks,
}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.stdout.write("\n\n".join(table() for table in TABLES.values()) + "\n")
