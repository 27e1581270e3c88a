"""`udpfl site`: the policy of a site, and the service that answers for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from udpfl.errors import InvalidInput

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

    Nothing is trained or released.

    Example:

    udpfl site check policy.toml
    """
    from udpfl.accounting.statement import shown
    from udpfl.site import Gate, Policy

    gate = Gate(Policy.read(policy))
    own, facts = gate.policy, gate.describe()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    shape = "×".join(map(str, facts.input_shape))
    rows = {
        "site": own.name,
        "records": f"{own.data.name}, inputs {shape}, {facts.outputs} outputs, "
        f"declared {own.data.declared_size:,}",
        "budget": f"ε = {own.budget.epsilon:g} at δ = {own.budget.delta:g}, "
        f"{own.budget.runs} run{'s' if own.budget.runs == 'many' else ''}",
        "releases": f"{own.releases.in_all:,} in all, {own.releases.per_round:,} in a round, "
        f"clip up to {own.releases.clip:g} ({', '.join(own.releases.norms)}), sampling rate "
        f"{own.releases.sampling_rate:g}",
        "noise": ", ".join(own.releases.mechanisms),
        "models": ", ".join(model.name for model in own.server.models),
        "methods": ", ".join(own.server.methods),
        "ledger": f"{own.ledger}, {facts.head.number:,} charges",
    }
    account = gate.ledger.account_of(own.name, own.data.block or "")
    if account is not None:
        statement = gate.ledger.statement(account)
        rows["spent"] = (
            str(statement) if statement.kind == "none" else f"ε = {shown(statement.epsilon)}"
        )
    if own.server.seeded_noise:
        rows["warning"] = "noise from a seed is allowed: what is released is not private"
    if own.server.adds_noise:
        rows["warning"] = "a server is trusted to add the noise to what this site sends"
    for name, text in rows.items():
        table.add_row(name, escape(text))
    gate.close()
    Console(emoji=False).print(table, highlight=False, soft_wrap=True)


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

    The process that speaks to the network (Flower's SuperNode) needs this socket and nothing else:
    run it as another user, who cannot read the records.

    Example:

    udpfl site serve policy.toml --socket /run/udpfl/site.sock
    """
    from udpfl.site import Gate, Policy
    from udpfl.site.service import longest_request
    from udpfl.site.service import serve as answer

    own = Policy.read(policy)
    gate = Gate(own)
    gate.describe()  # reads the records now, not when the first request comes
    answer(gate, socket or Path(own.state) / "site.sock", longest_request(gate))
