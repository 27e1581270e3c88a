"""`udpfl budget set`, `block` and `free`: what people decide, on record."""

from __future__ import annotations

from typing import Annotated

import typer

from udpfl.accounting.budget import Budget
from udpfl.cli.budget import LedgerPath, budget
from udpfl.cli.ledgers import balance_of, only_account, open_ledger, run_named
from udpfl.cli.options import Trust, trust_all
from udpfl.errors import InvalidInput

__all__ = ["budget"]

By = Annotated[
    str | None,
    typer.Option(help="Who decides it; the login name if not given.", show_default=False),
]
BlockName = Annotated[str, typer.Option(help="The block of the client's records it is for.")]


@budget.command("set")
def set_(
    ledger: LedgerPath,
    client: Annotated[str, typer.Argument(help="The client's name, or 'all'.")],
    epsilon: Annotated[float, typer.Option(help="The most that all its releases may cost.")],
    delta: Annotated[float, typer.Option(help="At this delta.")],
    block: BlockName = "",
    reason: Annotated[
        str, typer.Option(help="Why; needed where a budget rises.", show_default=False)
    ] = "",
    by: By = None,
    trust: Trust = None,
) -> None:
    """Set a client's budget, which every later run has to keep. Earlier ones stay on record.

    Example:

    udpfl budget set site.sqlite alice --epsilon 3 --delta 1e-5 --reason vote-7
    """
    wanted = Budget(epsilon, delta)
    trust_all(trust)
    with open_ledger(ledger, read_only=False) as opened:
        if client == "all" and not opened.find("all"):
            everyone = [account for account in opened.accounts() if account.block == block]
            opened.set_budgets([own.id for own in everyone], wanted, reason=reason, author=by)
            typer.echo(f"{len(everyone)} clients: budget ε = {epsilon:g} at δ = {delta:g}")
            return
        account = only_account(opened, client, block)
        opened.set_budget(account.id, wanted, reason=reason, author=by)
        spent = balance_of(opened, account, delta).statement
    typer.echo(
        f"{account.name}: budget ε = {wanted.epsilon:g} at δ = {wanted.delta:g}; so far {spent}"
    )


block_ = typer.Typer(name="block", help="Records of a client that are of other people.")
budget.add_typer(block_)


@block_.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@block_.command()
def add(
    ledger: LedgerPath,
    client: Annotated[str, typer.Argument(help="The client's name, or 'all'.")],
    block: Annotated[str, typer.Argument(help="The block's name, as data.block has it.")],
    reason: Annotated[str, typer.Option(help="Why nobody can be in two blocks.")],
    disjoint: Annotated[
        bool,
        typer.Option(
            "--disjoint",
            help="That nobody whose record is in this block is in another one: has to be said.",
        ),
    ] = False,
    by: By = None,
) -> None:
    """Give a block of a client's records a budget of its own, because it is of other people.

    Every statement about the block carries what is said here, by whom and when.

    Example:

    udpfl budget block add site.sqlite alice Q3 --disjoint --reason "new patients"
    """
    if not disjoint:
        raise InvalidInput(
            "disjoint",
            "is what gives a block its own budget: say --disjoint if nobody whose record is in it "
            "is in another block",
        )
    with open_ledger(ledger, read_only=False) as opened:
        names = [client]
        if client == "all" and not opened.find("all"):
            names = list(dict.fromkeys(account.client for account in opened.accounts()))
        elif not opened.find(client):
            known = ", ".join(dict.fromkeys(own.client for own in opened.accounts()))
            raise InvalidInput("client", f"{client!r} is not in this ledger, which has {known}")
        for name in names:
            opened.declare_block(name, block, reason=reason, author=by)
    who = client if names == [client] else f"{len(names)} clients"
    typer.echo(
        f'{who}: block {block} has a budget of its own; set data.block = "{block}" to use it'
    )


client_ = typer.Typer(name="client", help="Clients that join later.")
budget.add_typer(client_)


@client_.callback(invoke_without_command=True)
def _client_root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@client_.command("add")
def add_client(
    ledger: LedgerPath,
    client: Annotated[str, typer.Argument(help="The new client's name.")],
    reason: Annotated[str, typer.Option(help="Why its records are of other people.")],
    block: BlockName = "",
    disjoint: Annotated[
        bool,
        typer.Option(
            "--disjoint",
            help="That nobody whose record it holds is at a client known here: has to be said.",
        ),
    ] = False,
    by: By = None,
) -> None:
    """Let a new client join with a budget of its own, because its records are of other people.

    Every statement about the client carries what is said here, by whom and when.

    Example:

    udpfl budget client add site.sqlite carol --disjoint --reason "joined in May"
    """
    if not disjoint:
        raise InvalidInput(
            "disjoint",
            "is what gives a new client its own budget: say --disjoint if nobody whose record it "
            "holds is at a client that this ledger knows",
        )
    with open_ledger(ledger, read_only=False) as opened:
        opened.declare_client(client, block=block, reason=reason, author=by)
    typer.echo(f"{client}: may join with a budget of its own")


@budget.command()
def free(
    ledger: LedgerPath,
    run: Annotated[str, typer.Argument(help="The run's id, or its folder.")],
    reason: Annotated[str, typer.Option(help="Why, such as that its process died.")],
    by: By = None,
) -> None:
    """Free what a run has reserved and will not spend: one that was killed and nobody resumes.

    Example:

    udpfl budget free site.sqlite runs/killed --reason "switched off"
    """
    if not reason.strip():
        raise InvalidInput("reason", "must be a text")
    with open_ledger(ledger, read_only=False) as opened:
        freed = opened.give_back(run_named(opened, run), reason=reason, author=by)
    if not freed:
        raise InvalidInput("run", f"{run!r} holds no reservation in this ledger")
    typer.echo(f"{run}: what it had reserved is free again for {freed} clients")
