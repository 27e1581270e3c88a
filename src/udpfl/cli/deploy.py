"""`udpfl deploy`: the same federation on Flower, across machines."""

from __future__ import annotations

import json
import math
import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from udpfl.cli._log import is_quiet
from udpfl.errors import InvalidInput

if TYPE_CHECKING:
    from udpfl.deploy.local import LocalFederation, Process
    from udpfl.deploy.starting import App

deploy = typer.Typer(
    help="Run the same federation on Flower, across machines: app, keys, demo, status.",
)


@deploy.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_RECORDS = 4000
"""Training records of the embedded default."""
_SECONDS_A_ROUND = 5
"""What Flower takes for a round of three nodes on two cores; see docs/performance.md."""
_SECONDS_TO_START = 40
"""Until the first round begins, and from the last one until all processes have ended."""


@deploy.command()
def init(
    dir_: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the app; its name is the app's name.")
    ],
    sites: Annotated[int, typer.Option(help="Number of sites.", min=2)] = 3,
    rounds: Annotated[int, typer.Option(help="Rounds of a run.", min=1)] = 80,
) -> None:
    """Write a Flower app and a policy for each of its sites, ready to run.

    Examples:

    udpfl deploy init my-federation

    udpfl deploy init my-federation --sites 5 --rounds 20
    """
    app = _new_app(dir_, "DIR", sites, rounds)
    typer.echo(f"wrote {app.folder}: read {app.folder / 'README.md'} first")
    typer.echo(f"what is trained: {app.federation}")
    typer.echo(f"what a site allows: {app.policy(app.sites[0])}")


def _new_app(folder: Path, said_as: str, sites: int, rounds: int) -> App:
    """An app in a folder that the command line has named as `said_as`."""
    from udpfl.deploy.starting import part_sizes, write_app

    try:
        return write_app(folder, sizes=part_sizes(_RECORDS, sites), rounds=rounds)
    except InvalidInput as error:
        name = said_as if error.parameter == "folder" else error.parameter
        raise InvalidInput(name, error.message) from None


@deploy.command()
def keys(
    dir_: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the keys.")] = Path(
        "keys"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address under which sites reach the server. May be repeated."),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="Name of a site that gets a key. May be repeated."),
    ] = None,
    days: Annotated[float, typer.Option(help="How long certificates hold, in days.", min=1)] = 365,
    seal: Annotated[
        bool,
        typer.Option("--seal", help="Also make the keys by which a shuffler knows the sites."),
    ] = False,
    shuffler: Annotated[
        bool, typer.Option("--shuffler", help="Make the key with which a shuffler opens messages.")
    ] = False,
) -> None:
    """Make a CA, a certificate for the server, and a key for every site; keep what is there.

    A site that makes its own key, with --site alone, never gives its private half away.

    Examples:

    udpfl deploy keys keys --host fl.example.org --host 10.0.0.5

    udpfl deploy keys keys --site clinic-a
    """
    from udpfl.deploy.keys import SHUFFLER, Keys, check_names, make_keys, make_seal

    hosts, sites = host or [], site or []
    check_names(hosts, sites)
    if shuffler:
        path, public = make_seal(dir_, SHUFFLER)
        typer.echo(f"shuffler: {path}; for the policies of the sites: public_key = {public!r}")
        if not hosts and not sites:
            return
    there = Keys(dir_)
    made_for = there.hosts()
    kept = {name for name in sites if there.site(name).exists()}
    made = make_keys(dir_, hosts, sites, days)
    if hosts:
        typer.echo(f"CA: {made.ca}, for everybody (its key lies beside it: keep it off the server)")
        holds = f" (kept, made for {', '.join(made_for)})" if made_for else ""
        typer.echo(f"server: {made.certificate} and {made.key}{holds}")
    for name in sites:
        own = "kept, " if name in kept else ""
        typer.echo(f"{name}: {made.site(name)}, {own}for this site alone; to register: ", nl=False)
        typer.echo(f"flwr supernode register {made.public(name)} SUPERLINK --name {name}")
        if seal:
            path, public = make_seal(dir_ / "sites", name)
            typer.echo(f"  to seal: {path}; for the shuffler: {name} = {public!r}")


@deploy.command()
def demo(
    nodes: Annotated[int, typer.Option(help="Number of sites.", min=2, max=50)] = 3,
    tls: Annotated[
        bool, typer.Option("--tls/--no-tls", help="Use certificates and keys of nodes.")
    ] = True,
    rounds: Annotated[
        int, typer.Option(help="Rounds; fewer are quicker and less accurate.", min=1)
    ] = 80,
    dir_: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="Folder for everything; by default a new one under deployments/.",
            show_default=False,
        ),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Train the embedded default on Flower: a server and sites as processes on this machine.

    SuperLink and SuperNodes are started with certificates and node keys. Beside
    every SuperNode runs the service that holds the site's records, policy and
    ledger. All of them end with the command, also if it is interrupted.

    Examples:

    udpfl deploy demo --rounds 10

    udpfl deploy demo --nodes 5 --no-tls
    """
    from udpfl.deploy.local import LocalFederation, ended_by_signals

    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    folder = dir_ or Path("deployments") / f"demo-{stamp}-{os.getpid() % 10_000:04d}"
    app = _new_app(folder, "dir", nodes, rounds)
    _say(f"{nodes} sites, {rounds} rounds, {_time_for(rounds)}; logs in {folder / 'logs'}")
    out = folder.absolute() / "run"
    with ended_by_signals(), LocalFederation(app, tls=tls) as federation:
        _say("starting the SuperLink, and a service and a SuperNode for every site")
        federation.start()
        _follow(federation.submit(out=str(out)))
    result = _result(app, out)
    if json_:
        typer.echo(json.dumps(result))
    else:
        _show(result, federation)
    if result["rounds"] < rounds:
        raise typer.Exit(1)


def _time_for(rounds: int) -> str:
    """How long a demo takes on an idle machine, in whole minutes."""
    minutes = math.ceil((_SECONDS_TO_START + rounds * _SECONDS_A_ROUND) / 60)
    return f"about {minutes} minute{'' if minutes == 1 else 's'}, longer on a busy machine"


def _say(text: str) -> None:
    if not is_quiet():
        typer.echo(text, err=True)


def _follow(process: Process) -> None:
    """Print what the server logs, until the run is over."""
    seen = 0
    while True:
        is_running = process.is_running
        lines = process.text().splitlines()
        for line in lines[seen:] if not is_running else lines[seen:-1]:
            plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
            found = re.match(r"(INFO|WARNING|ERROR)\s*:\s*(\S.*)", plain)
            if found and not found[2].startswith("Start"):
                _say(found[2])
        seen = max(seen, len(lines) if not is_running else len(lines) - 1)
        if not is_running:
            return
        time.sleep(0.3)


def _result(app: App, out: Path) -> dict[str, Any]:
    """What came of a demo, by the server's folder and by the ledgers of the sites."""
    from udpfl.ledger.ledger import Ledger
    from udpfl.runs.files import read_metrics, read_summary
    from udpfl.site import Policy

    summary = read_summary(out) if out.is_dir() else None
    rows = read_metrics(out) if out.is_dir() else ()
    sites: dict[str, Any] = {}
    for name in app.sites:
        policy = Policy.read(app.policy(name))
        if not policy.ledger.is_file():
            continue
        with Ledger(policy.ledger, read_only=True) as ledger:
            account = ledger.account_of(name)
            stated = None if account is None else ledger.statement(account)
            sites[name] = {
                "privacy": None if stated is None else stated.to_dict(),
                "statement": None if stated is None else str(stated),
                "charges": ledger.head()[0],
                "problems": ledger.verify(),
                "ledger": str(policy.ledger),
            }
    return {
        "accuracy": None if summary is None else summary.outcome.get("accuracy"),
        "rounds": len(rows),
        "seconds": None if summary is None else summary.seconds,
        "sites": sites,
        "run": str(out),
    }


def _show(result: dict[str, Any], federation: LocalFederation) -> None:
    accuracy = result["accuracy"]
    if accuracy is None:
        typer.echo(f"the run did not end; what the processes say is in {federation.logs}")
    else:
        typer.echo(f"accuracy  {accuracy:.4f}, by the server's test records")
    for name, own in result["sites"].items():
        found = own["problems"]
        typer.echo(f"{name}  {own['statement']}")
        typer.echo(f"  ledger  {own['ledger']} ({own['charges']} charges, ", nl=False)
        typer.echo("verified)" if not found else f"NOT SOUND: {found[0]})")
    typer.echo(f"run       {result['run']}, {result['rounds']} rounds")


@deploy.command()
def shuffler(
    config: Annotated[Path, typer.Argument(help="Key, sites and minimum of the shuffler (TOML).")],
    socket: Annotated[Path, typer.Option(help="Socket to answer at.")] = Path("shuffler.sock"),
) -> None:
    """Mix sealed messages, so that the server gets those of a round without names.

    It runs on a host of its own, with a SuperNode beside it that gets this socket as site-socket.

    Example:

    udpfl deploy shuffler shuffler.toml --socket /run/udpfl/shuffler.sock
    """
    from udpfl.deploy.shuffling import ShufflerConfig, ShufflerParty
    from udpfl.site.service import serve

    own = ShufflerConfig.read(config)
    party = ShufflerParty(own)
    said = f"shuffler of {', '.join(own.sites)} answers at {socket}, mixes {own.minimum} or more"
    serve(party, socket, most=1 << 32, ready=lambda: _say(said))


@deploy.command()
def status(
    run: Annotated[Path, typer.Argument(help="Folder of the run, at the server.")],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say how far a deployed run is, and what its sites have reported.

    Budgets are as the sites report them: the ledgers are theirs, and are not here.

    Example:

    udpfl deploy status runs/deployed-20260101-120000-ab12
    """
    from udpfl.deploy.status import status_of

    found = status_of(run)
    if json_:
        typer.echo(json.dumps(found.to_dict()))
        return
    console = Console(emoji=False)
    done = f"round {found.round} of {found.rounds}"
    quality = "" if found.accuracy is None else f", accuracy {found.accuracy:.4f}"
    console.print(f"{escape(str(run))}: {found.state}, {done}{quality}", highlight=False)
    table = Table()
    for column in (
        "site",
        "last seen",
        "round",
        "said",
        "ε (as reported)",
        "charges (as reported)",
    ):
        table.add_column(column)
    for site in found.sites:
        table.add_row(*(escape(text) for text in site.cells()))
    console.print(table, highlight=False)


@deploy.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of the run, as the server sees it.")],
    app: Annotated[Path, typer.Option(help="Folder of the Flower app.")] = Path("."),
    superlink: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Connection of Flower's configuration with which the run was begun; by default "
            "Flower's default one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Go on with a deployed run after its last checkpoint, as a new run of Flower.

    Sites that have answered a round already send the same message again, at no cost.

    Example:

    udpfl deploy resume runs/first --app my-federation --superlink mine
    """
    from udpfl.deploy.resuming import resume_run

    resume_run(run, app, superlink, typer.echo)
