"""`udpfl budget set`, `block` and `free`: what people decide, on record."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from udpfl.accounting.budget import Budget
from udpfl.accounting.described import counted
from udpfl.cli._ledgers import balance_of, only_account, open_ledger, run_named
from udpfl.cli._options import Trust, trust_all
from udpfl.cli.budget import LedgerPath, budget
from udpfl.errors import InvalidInput

__all__ = ["budget"]

By = Annotated[
    str | None,
    typer.Option(help="Who decides this; the login name if not given.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print what was decided as JSON.")]
BlockName = Annotated[str, typer.Option(help="The block of the client's records, if any.")]


@budget.command("set")
def set_(
    ledger: LedgerPath,
    client: Annotated[str, typer.Argument(help="The client's name, or 'all'.")],
    epsilon: Annotated[float, typer.Option(help="Largest epsilon of all its releases together.")],
    delta: Annotated[float, typer.Option(help="Delta of the budget.")],
    block: BlockName = "",
    reason: Annotated[
        str, typer.Option(help="Why the budget changes; needed to raise it.", show_default=False)
    ] = "",
    by: By = None,
    trust: Trust = None,
    json_: Json = False,
) -> None:
    """Set the budget of a client. Every later run has to keep it. Earlier budgets stay on record.

    Example:

    udpfl budget set site.sqlite alice --epsilon 3 --delta 1e-5 --reason vote-7
    """
    wanted = Budget(epsilon, delta)
    trust_all(trust)
    with open_ledger(ledger, read_only=False) as opened:
        if client == "all" and not opened.find("all"):
            everyone = [account for account in opened.accounts() if account.block == block]
            opened.set_budgets([own.id for own in everyone], wanted, reason=reason, author=by)
            names = [own.name for own in everyone]
            said = f"{counted(len(names), 'client')}: budget ε = {epsilon:g} at δ = {delta:g}"
            _tell(json_, said, clients=names, epsilon=epsilon, delta=delta)
            return
        account = only_account(opened, client, block)
        opened.set_budget(account.id, wanted, reason=reason, author=by)
        spent = balance_of(opened, account, delta).statement
    said = f"{account.name}: budget ε = {epsilon:g} at δ = {delta:g}; spent: {spent}"
    decided = {"clients": [account.name], "epsilon": epsilon, "delta": delta}
    _tell(json_, said, **decided, spent=spent.to_dict())


def _tell(json_: bool, said: str, **decided: Any) -> None:
    """What was decided, for people or for programs."""
    typer.echo(json.dumps(decided, indent=2, ensure_ascii=False) if json_ else said)


block_ = typer.Typer(
    name="block", help="Blocks of a client's records that belong to different people."
)
budget.add_typer(block_)


@block_.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@block_.command()
def add(
    ledger: LedgerPath,
    client: Annotated[str, typer.Argument(help="The client's name, or 'all'.")],
    block: Annotated[str, typer.Argument(help="Name of the block, as in data.block.")],
    reason: Annotated[str, typer.Option(help="Why no person can be in two blocks.")],
    disjoint: Annotated[
        bool,
        typer.Option(
            "--disjoint",
            help="Confirm that no person in this block is in another block. Required.",
        ),
    ] = False,
    by: By = None,
    json_: Json = False,
) -> None:
    """Give a block of a client's records its own budget, because it belongs to other people.

    Every privacy statement about the block repeats this confirmation, with its author and date.

    Example:

    udpfl budget block add site.sqlite alice Q3 --disjoint --reason "new patients"
    """
    if not disjoint:
        raise InvalidInput(
            "disjoint",
            "is required: a block gets its own budget only if no person in it is in another block; "
            "add --disjoint to confirm that",
        )
    with open_ledger(ledger, read_only=False) as opened:
        names = [client]
        if client == "all" and not opened.find("all"):
            names = list(dict.fromkeys(account.client for account in opened.accounts()))
        elif not opened.find(client):
            known = ", ".join(dict.fromkeys(own.client for own in opened.accounts()))
            raise InvalidInput(
                "client", f"{client!r} is not in this ledger; its clients are {known}"
            )
        for name in names:
            opened.declare_block(name, block, reason=reason, author=by)
    who = client if names == [client] else counted(len(names), "client")
    said = f'{who}: block {block} has its own budget; set data.block = "{block}" to use it'
    _tell(json_, said, clients=names, block=block)


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
    reason: Annotated[str, typer.Option(help="Why its records belong to other people.")],
    block: BlockName = "",
    disjoint: Annotated[
        bool,
        typer.Option(
            "--disjoint",
            help="Confirm that no person in its records is at a client of this ledger. Required.",
        ),
    ] = False,
    by: By = None,
    json_: Json = False,
) -> None:
    """Let a new client join with its own budget, because its records belong to other people.

    Every privacy statement about the client repeats this confirmation, with its author and date.

    Example:

    udpfl budget client add site.sqlite carol --disjoint --reason "joined in May"
    """
    if not disjoint:
        raise InvalidInput(
            "disjoint",
            "is required: a new client gets its own budget only if no person in its records is at "
            "a client of this ledger; add --disjoint to confirm that",
        )
    with open_ledger(ledger, read_only=False) as opened:
        opened.declare_client(client, block=block, reason=reason, author=by)
    _tell(json_, f"{client}: may join with its own budget", clients=[client], block=block)


@budget.command()
def free(
    ledger: LedgerPath,
    run: Annotated[str, typer.Argument(help="The run's id, or its folder.")],
    reason: Annotated[str, typer.Option(help="Why, for example that its process died.")],
    by: By = None,
    json_: Json = False,
) -> None:
    """Free the reserved budget of a run that was killed and will not be resumed.

    Example:

    udpfl budget free site.sqlite runs/killed --reason "switched off"
    """
    if not reason.strip():
        raise InvalidInput("reason", "must be a text")
    with open_ledger(ledger, read_only=False) as opened:
        freed = opened.give_back(run_named(opened, run), reason=reason, author=by)
    if not freed:
        raise InvalidInput("run", f"{run!r} holds no reservation in this ledger")
    many = "budget of 1 client is" if freed == 1 else f"budgets of {freed} clients are"
    _tell(json_, f"{run}: the reserved {many} free again", run=run, freed=freed)
