"""`udpfl budget`: what was spent, by whom, on what, and what is left."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from udpfl.accounting.accountant import check_choices
from udpfl.accounting.described import counted
from udpfl.accounting.events import release_count
from udpfl.accounting.imported import read_events, read_opacus
from udpfl.cli import _budget_tables as tables
from udpfl.cli._ledgers import (
    account_to_charge,
    accounts_of,
    balance_of,
    contradictions,
    open_ledger,
)
from udpfl.cli._options import Trust, trust_all
from udpfl.errors import InvalidInput, LedgerError, LedgerUnavailable
from udpfl.ledger.charges import Entry

budget = typer.Typer(
    name="budget",
    help="Show and change privacy budgets: what each client has spent and what is left.",
)

LedgerPath = Annotated[
    Path, typer.Argument(metavar="LEDGER", help="A ledger file, or the folder of a run.")
]
ClientName = Annotated[
    str | None, typer.Option("--client", help="Only this client.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")]


@budget.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@budget.command()
def show(
    ledger: LedgerPath,
    client: ClientName = None,
    delta: Annotated[float, typer.Option(help="Delta for clients that have no budget.")] = 1e-5,
    trust: Trust = None,
    json_: Json = False,
) -> None:
    """Show what each client has spent over all runs, and what is left of its budget.

    Example:

    udpfl budget show runs/first --client alice
    """
    check_choices(delta, "best", "vector")
    trust_all(trust)
    with open_ledger(ledger) as opened:
        balances = [balance_of(opened, account, delta) for account in accounts_of(opened, client)]
        folders = opened.folders()
    if json_:
        typer.echo(json.dumps([balance.to_dict() for balance in balances], indent=2))
        return
    console = Console()
    console.print(tables.spent(balances))
    for note, names in tables.notes_on(balances, folders).items():
        who = ", ".join(names) if len(names) <= 3 else f"{len(names)} clients"
        console.print(Text(f"{who}: {note}"))


@budget.command("import")
def import_(
    ledger: LedgerPath,
    client: Annotated[str, typer.Argument(help="The client to charge.")],
    opacus: Annotated[
        Path | None,
        typer.Option(help="JSON of an Opacus accountant's state_dict() or history."),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(help="JSON of one event or a list of events, as event_to_dict writes them."),
    ] = None,
    note: Annotated[str, typer.Option(help="What the releases were; kept in the ledger.")] = "",
    block: Annotated[
        str, typer.Option(help="The block of the client's records that was used.")
    ] = "",
    fingerprint: Annotated[
        str,
        typer.Option(
            help="Fingerprint of the data that was used, 32 hexadecimal digits; needed if the "
            "ledger does not know the client."
        ),
    ] = "",
    trust: Trust = None,
    json_: Json = False,
) -> None:
    """Charge a client for releases that were made outside of this package.

    The charge counts from now on, even if it exceeds the budget; a client over its budget trains no
    more. An Opacus history is assumed to come from Poisson sampling, which is Opacus' default.

    Example:

    udpfl budget import site.sqlite alice --opacus history.json --note pretraining
    """
    if (opacus is None) == (events is None):
        raise InvalidInput("opacus", "exactly one of --opacus and --events is needed")
    trust_all(trust)
    with open_ledger(ledger, read_only=False) as opened:
        if problems := opened.verify():
            raise LedgerError(f"the ledger is not sound, so nothing was charged: {problems[0]}")
        if opacus is not None:
            source, event = "opacus, assuming Poisson sampling", read_opacus(opacus)
        else:
            assert events is not None
            source, event = "events", read_events(events)
        account = account_to_charge(opened, client, block, fingerprint)
        opened.import_charge(account.id, event, source=source, note=note, fingerprint=fingerprint)
        balance = balance_of(opened, account, 1e-5)
    if json_:
        typer.echo(json.dumps({"imported": release_count(event), **balance.to_dict()}, indent=2))
        return
    imported = counted(release_count(event), "release")
    typer.echo(f"{client}: imported {imported}; now {balance.statement}")
    own = balance.budget
    if own is not None and not balance.statement.epsilon <= own.epsilon:
        typer.echo(f"{client}: this exceeds its budget ε = {own.epsilon:g}; it trains no more")


@budget.command()
def history(
    ledger: LedgerPath,
    client: ClientName = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print one line for each charge and decision.")
    ] = False,
    trust: Trust = None,
    json_: Json = False,
) -> None:
    """List all charges and all decisions, in the order in which they were made.

    Equal charges of a run share one line, and so does a decision about several clients, unless you
    give --all.

    Example:

    udpfl budget history runs/first --client alice
    """
    trust_all(trust)
    with open_ledger(ledger) as opened:
        accounts = accounts_of(opened, client)
        entries = [entry for account in accounts for entry in opened.history(account.id)]
        names = {account.id: account.name for account in accounts}
        changes = [
            own
            for own in opened.decisions()
            if own.account in names or (own.account is None and client is None)
        ]
        folders = opened.folders()
    entries.sort(key=lambda entry: entry.id)
    if json_:
        plain = {
            "charges": [{**_plain(e), "folder": folders.get(e.run)} for e in entries],
            "changes": [asdict(own) for own in changes],
        }
        typer.echo(json.dumps(plain, indent=2))
        return
    console = Console()
    console.print(tables.charged(entries, folders, every=every))
    console.print(tables.decided(changes, names, folders, every=every))


@budget.command()
def export(
    ledger: LedgerPath,
    file: Annotated[Path, typer.Argument(help="File to write; its name ends in .csv or .json.")],
) -> None:
    """Write every charge to a file, with its full event.

    Example:

    udpfl budget export site.sqlite charges.csv
    """
    if file.suffix.lower() not in (".csv", ".json"):
        raise InvalidInput("file", f"must end in .csv or .json, got {file.name!r}")
    with open_ledger(ledger) as opened:
        entries = list(opened.history())
    if file.suffix.lower() == ".json":
        text = json.dumps([_plain(entry) for entry in entries], indent=2) + "\n"
    else:
        stream = io.StringIO()
        writer = csv.DictWriter(stream, Entry.__dataclass_fields__, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(entry) for entry in entries)
        text = stream.getvalue()
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput("file", f"cannot write {str(file)!r}: {error.strerror}") from None
    typer.echo(f"wrote {counted(len(entries), 'charge')} to {file}")


@budget.command()
def verify(
    ledger: LedgerPath,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="Also check that the ledger holds the last charge of this run, and that the files "
            "of the run were not edited. May be repeated.",
            show_default=False,
        ),
    ] = None,
    trust: Trust = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check that no charge is missing, edited or unreadable. Exit code 1 if one is.

    Exit code 2 means that the file could not be opened: its charges were not checked.

    An older copy of a ledger is sound by itself. To find out whether charges are missing at its
    end, use `--against`: it compares the ledger with what run folders say about it, and the files
    of these folders with the digests in the ledger.

    Examples:

    udpfl budget verify site.sqlite

    udpfl budget verify site.sqlite --against runs/first --against runs/second
    """
    trust_all(trust)
    charges = clients = None
    try:
        with open_ledger(ledger) as opened:
            problems = opened.verify()
            problems += [said for run in against or () for said in contradictions(opened, run)]
            if not problems:
                charges, clients = len(list(opened.history())), len(opened.accounts())
    except LedgerUnavailable:
        raise
    except LedgerError as error:
        problems = [str(error)]
    if json_:
        found = {"sound": not problems, "problems": problems, "charges": charges}
        typer.echo(json.dumps({**found, "clients": clients}, indent=2, ensure_ascii=False))
    for problem in () if json_ else problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    if json_:
        return
    assert charges is not None
    assert clients is not None
    ended = "1 run" if len(against or ()) == 1 else f"{len(against or ())} runs"
    held = f"; holds the last charges of {ended}" if against else ""
    typer.echo(f"sound: {counted(charges, 'charge')} of {counted(clients, 'client')}{held}")


def _plain(entry: Entry) -> dict[str, Any]:
    plain = asdict(entry)
    return {**plain, "event": json.loads(plain.pop("event_json"))}
