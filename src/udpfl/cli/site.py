"""`udpfl site`: the policy of a site, and the service that answers for it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from udpfl.cli._log import is_quiet
from udpfl.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from udpfl.site import Gate, Policy

site = typer.Typer(
    help="Write and check the policy of a site, and answer requests within it.",
)


@site.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


Policy_ = Annotated[Path, typer.Argument(help="The policy of the site (TOML).")]


@site.command()
def init(
    policy: Annotated[Path, typer.Argument(help="File to write.")] = Path("policy.toml"),
) -> None:
    """Write a policy with every key, explained in comments; change it to what the site allows.

    Example:

    udpfl site init clinic-a/policy.toml
    """
    from udpfl.config.documents import example
    from udpfl.site import Policy

    if policy.exists():
        raise InvalidInput("policy", f"{str(policy)!r} exists already")
    title = (
        "What this site allows. Nothing that a server sends can widen it. Keys without a default "
        "have an example: put your own values there."
    )
    policy.parent.mkdir(parents=True, exist_ok=True)
    policy.write_text(example(Policy, title), encoding="utf-8")
    typer.echo(f"wrote {policy}; `udpfl site check {policy}` says whether it works")


@site.command()
def check(policy: Policy_) -> None:
    """Read a policy and the records that it names; say what is allowed and what was spent.

    Nothing is trained or released. Ledger and keys are made in the folder `state` if
    they are not there: call it as the user who will run the service.

    Example:

    udpfl site check policy.toml
    """
    from udpfl.site import Policy
    from udpfl.site.summary import summary_of

    gate = _gate(Policy.read(policy))
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in summary_of(gate).items():
        table.add_row(name, escape(text))
    gate.close()
    Console(emoji=False).print(table, highlight=False, soft_wrap=True)


def _gate(policy: Policy) -> Gate:
    """The gate of a policy, if every name in it stands for something, and its ledger fits it."""
    from udpfl.site import Gate
    from udpfl.site.names import require_names

    gate = Gate(policy)
    require_names(policy)
    try:
        gate.require_account()
    except Refused as refusal:
        raise InvalidInput("policy", str(refusal)) from None
    return gate


@site.command()
def serve(
    policy: Policy_,
    socket: Annotated[
        Path | None,
        typer.Option(
            help="Socket to answer at; by default site.sock in the state folder of the policy.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Answer requests within a policy, at a local socket, until the process is stopped.

    The process that speaks to the network (Flower's SuperNode) needs this socket
    and nothing else: run it as another user, who cannot read the records.

    Example:

    udpfl site serve policy.toml --socket /run/udpfl/site.sock
    """
    from udpfl.site import Policy
    from udpfl.site.service import longest_request
    from udpfl.site.service import serve as answer
    from udpfl.site.summary import left_of

    own = Policy.read(policy)
    if socket is not None and not socket.absolute().parent.is_dir():
        raise InvalidInput(
            "socket", f"there is no folder {str(socket.parent)!r}: make it, or name another socket"
        )
    gate = _gate(own)
    gate.describe()  # reads the records now, not when the first request comes
    place, left = socket or Path(own.state) / "site.sock", left_of(gate)

    def say() -> None:
        if is_quiet():
            return
        typer.echo(f"site {own.name} answers at {place}, within {policy}", err=True)
        typer.echo(
            f"spent: {left.spent}; left: ε = {left.epsilon} and {left.releases:,} releases. Every "
            f"request is noted in {Path(own.state) / 'site.log'}",
            err=True,
        )

    if not is_quiet():  # refusals are lines of the service's own log
        logging.getLogger("udpfl.site").setLevel(logging.INFO)
    answer(gate, place, longest_request(gate), ready=say)
