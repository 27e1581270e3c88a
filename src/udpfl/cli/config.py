"""`udpfl config`: what a configuration may hold, and whether one is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from udpfl.cli._completion import assignments
from udpfl.config import dump, example, load, schema

config = typer.Typer(help="Show all configuration keys, and check a configuration file.")


@config.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@config.command("schema")
def show_schema() -> None:
    """Print the JSON schema of a configuration, for editors and other programs.

    Example:

    udpfl config schema > udpfl.schema.json

    Put that file next to your configuration and write "#:schema udpfl.schema.json" as the first
    line of the configuration: many editors then complete and check its keys.
    """
    typer.echo(json.dumps(schema(), indent=2, ensure_ascii=False))


@config.command("example")
def show_example() -> None:
    """Print a configuration with every key at its default, explained in comments.

    Example:

    udpfl config example > my.toml

    Keep the lines that you change and delete the others: missing keys have their defaults.
    """
    typer.echo(example(), nl=False)


@config.command("check")
def check(
    path: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The file to check.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one key of the file. May be repeated.",
            show_default=False,
            autocompletion=assignments,
        ),
    ] = None,
) -> None:
    """Check a configuration and print it in full, with every default filled in.

    Nothing is trained and no record is read.

    Examples:

    udpfl config check my.toml

    udpfl config check my.toml --set seed=3 --set 'privacy.epsilon=[1, 8]'
    """
    typer.echo(dump(load(path, overrides=overrides or ())), nl=False)
