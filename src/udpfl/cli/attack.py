"""`udpfl attack`: what somebody learns of the records of a finished run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

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
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
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
    if run is None:
        raise InvalidInput("run", "an attack needs the folder of a finished run")
    trust_all(trust)
    names = list(BUILT_IN) if name == ALL else [name]
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
    _say(found, json_, single=name != ALL)
    if save:
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
    from udpfl.attacks import attack_class

    rows: list[dict[str, Any]] = []
    for name in BUILT_IN if only is None else [only]:
        kind = attack_class(name)
        options = {
            key: {"default": field.default, "meaning": field.description, **_choices(field)}
            for key, field in kind.options_type.model_fields.items()
        }
        rows.append(
            {
                "name": name, "kind": kind.kind, "what": kind.what, "needs": kind.needs,
                "paper": kind.paper, "options": options,
            }
        )  # fmt: skip
    if json_:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for row in rows:
        typer.echo(f"{row['name']} ({row['kind']}): {row['what']}")
        typer.echo(f"  needs: {row['needs']}")
        typer.echo(f"  paper: {row['paper']}")
        for key, about in row["options"].items():
            choices = f" One of {', '.join(about['choices'])}." if "choices" in about else ""
            typer.echo(f"  --set {key}={json.dumps(about['default'])}: {about['meaning']}{choices}")


def _choices(field: FieldInfo) -> dict[str, list[str]]:
    """The values that an option may have, where they are few."""
    is_choice = get_origin(field.annotation) is Literal
    return {"choices": [str(own) for own in get_args(field.annotation)]} if is_choice else {}


def _say(found: Sequence[AttackResult], json_: bool, *, single: bool) -> None:
    """The results for people or programs; for people the verdict comes last."""
    if json_:
        plain: Any = [own.to_dict() for own in found]
        typer.echo(json.dumps(plain[0] if single else plain, indent=2, ensure_ascii=False))
        return
    for own in found:
        typer.echo(f"{own.attack}: {own.attacked.view}, {own.attacked.records}")
        for figure in own.figures:
            typer.echo(f"  {figure}")
        for figure in own.baselines:
            typer.echo(f"  baseline: {figure}")
        for note in own.notes:
            typer.echo(f"  note: {note}")
        typer.echo(own.verdict)


def _save(target: Target, found: Sequence[AttackResult]) -> None:
    """Keep results and pages in the run folder; one that cannot be written to is no failure."""
    from udpfl.report.attacks import write_attack_page
    from udpfl.runs.attacks import AttackRecord, write_attack

    try:
        for own in found:
            path = write_attack(target.folder, own.to_dict())
            record = AttackRecord.read(path)
            write_attack_page(record)
            typer.echo(f"kept in {path}, its page is {record.page.name} beside it", err=True)
    except UdpflError as problem:
        typer.echo(f"note: the result was not kept: {problem}", err=True)
        return
    typer.echo(f"`udpfl report {target.folder}` shows it", err=True)
