"""`udpfl attack`: what somebody learns of the records of a finished run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from udpfl.attacks import BUILT_IN
from udpfl.cli._completion import one_of
from udpfl.cli._options import DataDir, Trust, trust_all
from udpfl.cli._stages import ShowProgress, stages
from udpfl.errors import InvalidInput, UdpflError, Unsupported

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from udpfl.attacks import AttackResult, Target

ALL = "all"
LIST = "list"


class Command(TyperCommand):
    """Its help has the options of the attack that is named, if any is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note the words, as help is printed before they are read."""
        ctx.meta[__name__] = list(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Help of the verb, then the options of the attack."""
        super().format_help(ctx, formatter)
        for name in ctx.meta.get(__name__, ()):
            if name in BUILT_IN:
                formatter.write("\n".join(("", *_in_words(_described(name)), "")))
                return


def attack(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|all|list",
            help="The attack; 'list' lists them, 'list NAME' one of them with its options, 'all' "
            "runs every one that fits the run.",
            autocompletion=lambda incomplete: one_of([*BUILT_IN, ALL, LIST])(incomplete),
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False),
    ] = None,
    shadows: Annotated[
        int | None,
        typer.Option(
            help="Number of shadow models, for attacks that train some: more are stronger, and "
            "take longer. Those that are there already are used again.",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one option of the attack; 'list' shows them. May be repeated.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what the attack chooses at random.")] = 0,
    data_dir: DataDir = None,
    trust: Trust = None,
    json_: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the result as JSON, with the file that has the points of its curves.",
        ),
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="With --json: print the points of curves and the pictures as well."
        ),
    ] = False,
    save: Annotated[
        bool,
        typer.Option(
            help="Add the result and its page to the run folder, in attacks/, for `udpfl report`. "
            "Nothing else in the folder changes. Shadow models are kept there either way."
        ),
    ] = True,
    progress: ShowProgress = None,
) -> None:
    """Attack a finished run, and say what its model or an update tells of the records.

    `udpfl attack NAME --help` lists the options of one attack, for --set.

    The result stands beside what the privacy statement allows. Exit code 1 if an attack got past
    that. What attacks show is a lower bound: a weak result proves nothing about a better attacker.

    Examples:

    udpfl attack list

    udpfl attack lira runs/first --shadows 16

    udpfl attack all runs/first --shadows 8 --json
    """
    if name == LIST:
        _list(json_, only=None if run is None else str(run))
        return
    names = list(BUILT_IN) if name == ALL else [name]
    if run is None:
        raise InvalidInput("run", _without_run(name))
    trust_all(trust)
    given = options_of(set_ or ())
    if shadows is not None:
        if "shadows" in given:
            raise InvalidInput("shadows", "is given twice: leave --set shadows out")
        given["shadows"] = shadows
    from udpfl.attacks import Target, attack_class, build

    for own in names:
        attack_class(own)  # a wrong name is refused before anything is loaded
    found = []
    with stages(progress) as told:
        told("loading the run", 0, 1)
        target = Target.open(run, data_dir=data_dir)
        for own in names:
            known = attack_class(own).options_type.model_fields
            options = {k: v for k, v in given.items() if name != ALL or k in known}
            try:
                found.append(build(own, options, seed).run(target, told))
            except Unsupported as reason:
                if name != ALL:
                    raise
                typer.echo(f"{own}: left out, {reason}", err=True)
    files = _save(target, found) if save and json_ else []
    if json_:
        _print_json(found, files, full=full, single=name != ALL)
    else:
        _say(found)
    if save and not json_:
        _save(target, found)
    if any(own.exceeded for own in found):
        raise typer.Exit(1)


def options_of(assignments: Sequence[str]) -> dict[str, Any]:
    """Options from `KEY=VALUE`; a value is TOML, or else text."""
    import tomllib

    found: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise InvalidInput("set", f"must look like key=value, got {assignment!r}")
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def _list(json_: bool, only: str | None) -> None:
    """Every attack, or one: what it does, what it needs, where it comes from, its options."""
    rows = [_described(name) for name in (BUILT_IN if only is None else [only])]
    if json_:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for row in rows:
        typer.echo("\n".join(_in_words(row)))


def _described(name: str) -> dict[str, Any]:
    """One attack with its options, as plain data."""
    from udpfl.attacks import attack_class

    kind = attack_class(name)
    options = {
        key: {"default": field.default, "meaning": field.description, **_choices(field)}
        for key, field in kind.options_type.model_fields.items()
    }
    return {
        "name": name, "kind": kind.kind, "what": kind.what, "needs": kind.needs,
        "paper": kind.paper, "options": options,
    }  # fmt: skip


def _in_words(row: Mapping[str, Any]) -> list[str]:
    """The same as lines for people."""
    lines = [
        f"{row['name']} ({row['kind']}): {row['what']}",
        f"  needs: {row['needs']}",
        f"  paper: {row['paper']}",
    ]
    for key, about in row["options"].items():
        choices = f" One of {', '.join(about['choices'])}." if "choices" in about else ""
        lines.append(f"  --set {key}={_default(about['default'])}: {about['meaning']}{choices}")
    return lines


def _default(value: Any) -> str:
    """As it would be typed; nothing where there is none."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def _without_run(name: str) -> str:
    """What to say to somebody who has not named a run."""
    lines = [
        "an attack needs the folder of a finished run",
        f"usage: udpfl attack {name} RUN [--set KEY=VALUE]...",
    ]
    return "\n".join(lines if name == ALL else [*lines, *_in_words(_described(name))])


def _choices(field: FieldInfo) -> dict[str, list[str]]:
    """The values that an option may have, where they are few."""
    is_choice = get_origin(field.annotation) is Literal
    return {"choices": [str(own) for own in get_args(field.annotation)]} if is_choice else {}


def _say(found: Sequence[AttackResult]) -> None:
    """The results for people; the verdict comes last."""
    for own in found:
        typer.echo(f"{own.attack}: {own.attacked.view}, {own.attacked.records}")
        for figure in own.figures:
            typer.echo(f"  {figure}")
        for figure in own.baselines:
            typer.echo(f"  baseline: {figure}")
        for note in own.notes:
            typer.echo(f"  note: {note}")
        typer.echo(own.verdict)


def _print_json(
    found: Sequence[AttackResult], files: Sequence[Path], *, full: bool, single: bool
) -> None:
    """The results for programs, each with the file that it was kept in."""
    rows = []
    for own, file in zip_longest(found, files):
        plain = own.to_dict()
        if not full:
            plain["curves"] = [_without_points(curve) for curve in plain["curves"]]
            plain["pictures"] = [{"title": picture["title"]} for picture in plain["pictures"]]
        rows.append({**plain, "file": None if file is None else str(file)})
    typer.echo(json.dumps(rows[0] if single else rows, indent=2, ensure_ascii=False))


def _without_points(curve: Mapping[str, Any]) -> dict[str, Any]:
    """A curve with the number of its points in their place."""
    kept = {key: value for key, value in curve.items() if key not in ("x", "y", "cap")}
    return {**kept, "points": len(curve["x"])}


def _save(target: Target, found: Sequence[AttackResult]) -> list[Path]:
    """Keep results and pages in the run folder; one that cannot be written to is no failure."""
    from udpfl.report.attacks import write_attack_page
    from udpfl.runs.attacks import AttackRecord, write_attack

    paths: list[Path] = []
    try:
        for own in found:
            path = write_attack(target.folder, own.to_dict())
            record = AttackRecord.read(path)
            paths.append(path)
            write_attack_page(record)
            typer.echo(f"kept in {path}, its page is {record.page.name} beside it", err=True)
    except UdpflError as problem:
        typer.echo(f"note: the result was not kept: {problem}", err=True)
        return paths
    typer.echo(f"`udpfl report {target.folder}` shows it", err=True)
    return paths
