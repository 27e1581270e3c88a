"""Options that several verbs have: keys of the configuration, where the data lies, what is trusted.

Keys have no options of their own, and whoever tries one is told how the key is set.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from udpfl.cli._completion import assignments, one_of

if TYPE_CHECKING:
    from udpfl.data.csv_files import Dialect

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with data files; by default UDPFL_DATA_DIR.", show_default=False),
]

Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="Import this code, because a run folder, a ledger or a file of events names it. "
        "May be repeated.",
        show_default=False,
    ),
]


def trust_all(places: Sequence[str] | None) -> None:
    """Import what `--trust` names: nothing else lets a file name code."""
    from udpfl.plugins import trust

    for place in places or ():
        trust(place)


def set_option(help: str) -> Any:
    """`--set KEY=VALUE`, with what it is good for in this verb."""
    return typer.Option("--set", metavar="KEY=VALUE", help=help, autocompletion=assignments)


def mechanism_option(help: str, *words: str) -> Any:
    """`--mechanism`: a built-in one, one of these words, or one's own by its place."""

    from udpfl.mechanisms import BUILT_IN

    def names() -> list[str]:
        return [*BUILT_IN, *words]

    def check(value: str) -> str:
        from udpfl.plugins import offered

        if ":" in value or value in names() or value in offered("mechanisms"):
            return value
        known = ", ".join(names())
        raise typer.BadParameter(
            f"{value!r} is not one of {known}; your own mechanism is given as module:Name"
        )

    return typer.Option(
        metavar=f"<{'|'.join(names())}|module:Name>",
        help=help,
        callback=check,
        autocompletion=lambda incomplete: one_of(names())(incomplete),
    )


def overrides_of(set_: Sequence[str] | None, data_dir: Path | None) -> list[str]:
    """What goes on top of a configuration."""
    folder = [] if data_dir is None else [f"data.dir={json.dumps(str(data_dir))}"]
    return [*(set_ or []), *folder]


GLOBAL = ("--quiet", "-q", "--verbose", "-v", "--version")
"""Options of the command itself, which come before a verb."""
_NEAR = 0.8
"""How alike an option and a key have to be: a hint that is wrong is worse than none."""


def chosen_dialect(
    own: Dialect, delimiter: str | None, decimal: str | None, encoding: str | None
) -> Dialect:
    """How a file is written: as the options say, and else as `own` does."""
    tab = "\t" if delimiter in ("\\t", "tab") else delimiter
    return replace(
        own,
        delimiter=tab or own.delimiter,
        decimal=decimal or own.decimal,
        encoding=encoding or own.encoding,
    )


def unknown_option(error: Any, arguments: Sequence[str]) -> str:
    """The message of a usage error; an option that is meant for a key says how to set that key."""
    message = str(error.format_message())
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option in GLOBAL and context is not None and context.parent is not None:
        words: list[str] = []
        while context.parent is not None:
            words, context = [context.info_name, *words], context.parent
        called = " ".join(["udpfl", option, *words])
        return f"No such option: {option}. It belongs before the verb: {called}"
    if option is None or context is None or not option.startswith("--"):
        return message
    takes_keys = any("--set" in parameter.opts for parameter in context.command.params)
    similar = [str(each) for each in getattr(error, "possibilities", None) or ()]
    if not takes_keys or any(each.startswith(option) for each in similar):
        return message
    keys = list(_keys(option.removeprefix("--"))) or _nearer(option, similar)
    if not keys:
        return message
    value = _value(option, arguments)
    ways = " or ".join(f"--set {shlex.quote(f'{key}={value}')}" for key in keys)
    if len(keys) > 1 and option == "--epochs":
        return (
            f"No such option: {option}. A run has rounds, and in each round local epochs of every "
            f"client; use {ways}"
        )
    return f"No such option: {option}. It is a configuration key; use {ways}"


def _keys(name: str) -> Iterator[str]:
    """The keys that somebody who writes --name means: by their last part, or in full."""
    from udpfl.config.documents import known_keys
    from udpfl.config.explaining import SYNONYMS

    leaf = name.replace("-", "_")
    if f"{leaf}.name" in known_keys():
        yield f"{leaf}.name"
    elif leaf == "epochs":
        yield from ("training.rounds", "training.local_epochs")
    elif leaf in SYNONYMS:
        yield SYNONYMS[leaf]
    elif leaf != "training":  # a section with nothing that stands for it
        yield from (key for key in known_keys() if leaf in (key, key.rpartition(".")[2]))


def _nearer(option: str, similar: Sequence[str]) -> list[str]:
    """The key that a slip of the pen is nearest to, unless an option is as near."""
    from udpfl.config.explaining import nearest

    near = nearest(option.removeprefix("--"))
    if near is None:
        return []
    names = [f"--{near.rpartition('.')[2]}", *similar]
    likeness = [difflib.SequenceMatcher(None, option, name).ratio() for name in names]
    is_near = likeness[0] >= _NEAR and likeness[0] > max(likeness[1:], default=0.0)
    return list(_keys(near)) if is_near else []


def _value(option: str, arguments: Sequence[str]) -> str:
    """What was given to the option, as far as that can be told."""
    for place, word in enumerate(arguments):
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
        if word == option and place + 1 < len(arguments):
            following = arguments[place + 1]
            return "VALUE" if following.startswith("--") else following
    return "VALUE"
