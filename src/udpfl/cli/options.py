"""Options that several verbs have: keys of the configuration, and where the data lies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from udpfl.cli.completion import assignments

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with data files; UDPFL_DATA_DIR does the same.", show_default=False),
]


def set_option(help: str) -> Any:
    """`--set KEY=VALUE`, with what it is good for in this verb."""
    return typer.Option("--set", metavar="KEY=VALUE", help=help, autocompletion=assignments)


def overrides_of(set_: Sequence[str] | None, data_dir: Path | None) -> list[str]:
    """What goes on top of a configuration."""
    folder = [] if data_dir is None else [f"data.dir={json.dumps(str(data_dir))}"]
    return [*(set_ or []), *folder]
