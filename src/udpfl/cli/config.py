"""`udpfl config`: what a configuration may hold, and whether one is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from udpfl.cli._completion import assignments
from udpfl.config import Config, apply, dump, example, load, read, schema
from udpfl.config.models import SECTIONS
from udpfl.errors import InvalidInput, MissingExtra

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
    full: Annotated[
        bool, typer.Option("--full", help="Print the configuration as TOML, with every default.")
    ] = False,
) -> None:
    """Check a configuration, and print what it sets. Every problem is listed at once.

    Nothing is trained and no record is read. Code of your own that the file names is imported.

    Examples:

    udpfl config check my.toml

    udpfl config check my.toml --set seed=3 --set 'privacy.epsilon=[1, 8]'

    udpfl config check my.toml --full > whole.toml
    """
    values = apply(read(path), overrides or ())
    deploy = values.get("deploy")
    whole, is_deployed = dict(values), values.pop("deploy", None) is not None
    settings, problems = _looked_at(values)
    if is_deployed:
        problems += _deploy_problems(whole, alone=bool(problems))
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        typer.echo(f"udpfl: error: {path} has {count}:", err=True)
        for key, why in problems:
            typer.echo(f"  {key}: {why}", err=True)
        raise typer.Exit(2)
    if full:
        typer.echo(dump(settings), nl=False)
    else:
        Console(emoji=False).print(_summary(path, settings, deploy), highlight=False)


def _looked_at(values: dict[str, Any]) -> tuple[Config, list[tuple[str, str]]]:
    """The settings, and everything that is wrong with them.

    Keys that are wrong are taken out to see whether the others fit together. What is only said
    because such a key is missing is left out.
    """
    problems: dict[str, str] = {}
    while True:
        try:
            settings = load(values)
            found = tuple(_method_problems(settings))
        except InvalidInput as error:
            settings, found = Config(), error.problems
        wrong = set(problems)
        problems |= {
            key: why
            for key, why in found
            if key not in wrong and not any(other in why for other in wrong)
        }
        taken_out = [key for key, _ in found if _take_out(values, key)]
        if not taken_out or set(problems) == wrong:
            return settings, list(problems.items())


def _deploy_problems(values: Mapping[str, Any], *, alone: bool) -> list[tuple[str, str]]:
    """What is wrong with the file of a deployed federation, beside what any configuration may say.

    With `alone`, only keys of its section: the others were looked at already.
    """
    from udpfl.deploy.settings import Federation

    try:
        Federation.of(values)
    except InvalidInput as error:
        found = error.problems
        return [own for own in found if not alone or own[0].startswith("deploy")]
    return []


def _take_out(values: dict[str, Any], key: str) -> bool:
    """Remove a key; False where it was not set."""
    *tables, name = key.split(".")
    for table in tables:
        inner = values.get(table)
        if not isinstance(inner, Mapping):
            return values.pop(table, None) is not None
        values[table] = values = dict(inner)
    return values.pop(name, None) is not None


def _method_problems(settings: Config) -> list[tuple[str, str]]:
    """Names, options and settings of methods, which need torch to be looked at."""
    try:
        from udpfl.federation.checking import settings_problems
    except MissingExtra as error:
        typer.echo(f"note: names and options were not checked: {error}", err=True)
        return []
    return settings_problems(settings)


_ALWAYS = {
    "data": ("name", "clients", "partition"),
    "model": ("name",),
    "privacy": ("mechanism", "epsilon", "delta", "unit"),
    "training": ("algorithm", "rounds", "local_steps", "local_epochs", "sampling_rate"),
}


def _summary(path: Path, settings: Config, deploy: Mapping[str, Any] | None = None) -> Table:
    """What a file sets and what matters most, a paragraph for each section.

    With `deploy`, the section of a deployed federation: there the sites have the budgets.
    """
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("right", Text(str(path)))
    sections: dict[str, list[str]] = {}
    chosen, standard = settings.model_dump(exclude_none=True), Config().model_dump()
    for key, value in chosen.items():
        if not isinstance(value, dict):
            if key in SECTIONS:  # privacy = "none"
                sections[key] = [_said(value)]
            elif value != standard[key]:
                sections.setdefault("run", []).append(f"{key} = {_said(value)}")
            continue
        section = sections.setdefault(key, [])
        for name, own in value.items():
            replaced = name == "local_steps" and settings.training.local_epochs is not None
            if not replaced and (name in _ALWAYS[key] or own != standard[key].get(name)):
                section.append(f"{name} = {_said(own)}")
    if deploy is not None:
        sections["deploy"] = [f"{key} = {_said(value)}" for key, value in deploy.items()]
    for key, lines in sections.items():
        if lines:
            table.add_row(key, Text(", ".join(lines)))
    if deploy is not None:
        said = "each site has a budget of its own; [privacy] here can only ask for more noise"
        table.add_row("", Text(said, style="dim"))
    table.add_row("", Text("all else is at its default; --full prints every key", style="dim"))
    return table


def _said(value: Any) -> str:
    """A value on one line, as a file has it, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
