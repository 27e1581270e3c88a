"""`udpfl budget`: what was spent, by whom, on what, and what is left."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from udpfl.accounting import Composed, Event, PoissonSampled, PrivacyStatement, PureDP, Release
from udpfl.accounting.accountant import check_choices
from udpfl.accounting.events import Repeated, SecretlySelected, Shuffled, leaves
from udpfl.accounting.imported import read_events, read_opacus
from udpfl.accounting.statement import shown
from udpfl.errors import InvalidInput, LedgerError, UdpflError, Unsupported
from udpfl.harmonizer.budget import Budget
from udpfl.harmonizer.charges import Account, Entry
from udpfl.harmonizer.ledger import Ledger

budget = typer.Typer(
    name="budget", help="What every client has spent of its privacy budget, and what is left."
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


@dataclass(frozen=True)
class Balance:
    """One line of `udpfl budget show`."""

    account: Account
    releases: int
    runs: tuple[str, ...]
    statement: PrivacyStatement
    budget: Budget | None
    imported: int = 0
    """How many of the releases were made elsewhere."""

    @property
    def left(self) -> float | None:
        """The part of the budget's epsilon not spent yet; None where nothing can be said."""
        if self.budget is None or self.statement.kind == "none":
            return None
        return max(0.0, 1 - self.statement.epsilon / self.budget.epsilon)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "client": self.account.client,
            "fingerprint": self.account.fingerprint,
            "releases": self.releases,
            "imported": self.imported,
            "statement": self.statement.to_dict(),
            "budget": None if self.budget is None else asdict(self.budget),
            "left": self.left,
            "runs": list(self.runs),
        }


@budget.command()
def show(
    ledger: LedgerPath,
    client: ClientName = None,
    delta: Annotated[
        float, typer.Option(help="Delta for clients that have no budget of their own.")
    ] = 1e-5,
    json_: Json = False,
) -> None:
    """What every client has spent, over all runs, and what is left of its budget.

    Example:

    udpfl budget show runs/first --client alice
    """
    check_choices(delta, "best", "vector")
    with _opened(ledger) as opened:
        balances = [_balance(opened, account, delta) for account in _chosen(opened, client)]
    if json_:
        typer.echo(json.dumps([balance.to_dict() for balance in balances], indent=2))
        return
    table = Table("client", "data")
    for heading in ("releases", "spent ε", "at δ", "budget ε", "left", "runs"):
        table.add_column(heading, justify="right")
    for balance in balances:
        statement, own, left = balance.statement, balance.budget, balance.left
        claimed = statement.kind != "none"
        table.add_row(
            balance.account.client,
            balance.account.fingerprint[:8],
            f"{balance.releases:,}",
            shown(statement.epsilon) if claimed else "not private",
            f"{statement.delta:g}" if claimed else "–",
            "–" if own is None else f"{own.epsilon:g}",
            "–" if left is None else f"{math.floor(100 * left)} %",
            str(len(balance.runs)),
        )
    console = Console()
    console.print(table)
    for balance in balances:
        notes = list(balance.statement.notes)
        if balance.imported:
            notes.append(f"{balance.imported:,} of the releases were imported from elsewhere")
        for note in notes:
            console.print(f"{balance.account.client}: {note}", highlight=False, markup=False)


@budget.command("set")
def set_(
    ledger: LedgerPath,
    client: Annotated[str, typer.Argument(help="The client's name, or 'all'.")],
    epsilon: Annotated[float, typer.Option(help="The most that all its releases may cost.")],
    delta: Annotated[float, typer.Option(help="At this delta.")],
    fingerprint: Annotated[
        str,
        typer.Option(help="The data it is for, where the client has several: its first letters."),
    ] = "",
) -> None:
    """Set a client's budget, which every later run has to keep. Earlier ones stay on record.

    Example:

    udpfl budget set site.sqlite alice --epsilon 3 --delta 1e-5
    """
    wanted = Budget(epsilon, delta)
    with _opened(ledger, read_only=False) as opened:
        if client == "all" and not opened.find("all"):
            everyone = opened.accounts()
            for account in everyone:
                opened.set_budget(account.id, wanted)
            typer.echo(f"{len(everyone)} clients: budget ε = {epsilon:g} at δ = {delta:g}")
            return
        account = _only(opened, client, fingerprint)
        opened.set_budget(account.id, wanted)
        spent = _balance(opened, account, delta).statement
    typer.echo(f"{client}: budget ε = {wanted.epsilon:g} at δ = {wanted.delta:g}; so far {spent}")


@budget.command("import")
def import_(
    ledger: LedgerPath,
    client: Annotated[str, typer.Argument(help="The client that spent it.")],
    opacus: Annotated[
        Path | None,
        typer.Option(help="JSON of an Opacus accountant's state_dict() or history."),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(help="JSON of one event or a list of them, as event_to_dict writes them."),
    ] = None,
    note: Annotated[str, typer.Option(help="What it was, for whoever reads the ledger.")] = "",
    fingerprint: Annotated[
        str,
        typer.Option(
            help="The data it is about: its first letters where the client has several, all 32 "
            "where the ledger does not know it yet."
        ),
    ] = "",
) -> None:
    """Charge a client for releases that were made outside of this package.

    They count from now on, even beyond the budget: a client that has spent more trains no more.
    An Opacus history is taken to come from Poisson sampling, which is the default there.

    Example:

    udpfl budget import site.sqlite alice --opacus history.json --note pretraining
    """
    if (opacus is None) == (events is None):
        raise InvalidInput("opacus", "exactly one of --opacus and --events is needed")
    if opacus is not None:
        source, event = "opacus, assuming Poisson sampling", read_opacus(opacus)
    else:
        assert events is not None
        source, event = "events", read_events(events)
    with _opened(ledger, read_only=False) as opened:
        if problems := opened.verify():
            raise LedgerError(f"the ledger is not sound, nothing is charged to it: {problems[0]}")
        account = _holder(opened, client, fingerprint)
        opened.import_charge(account.id, event, source=source, note=note)
        balance = _balance(opened, account, 1e-5)
    releases = sum(leaves(event).values())
    typer.echo(f"{client}: imported {releases:,} releases; now {balance.statement}")
    own = balance.budget
    if own is not None and not balance.statement.epsilon <= own.epsilon:
        typer.echo(f"{client}: more than its budget ε = {own.epsilon:g}; it trains no more")


@budget.command()
def history(ledger: LedgerPath, client: ClientName = None, json_: Json = False) -> None:
    """Every charge in the order it was made.

    Example:

    udpfl budget history runs/first --client alice
    """
    with _opened(ledger) as opened:
        entries = [e for account in _chosen(opened, client) for e in opened.history(account.id)]
    entries.sort(key=lambda entry: entry.id)
    if json_:
        typer.echo(json.dumps([_plain(entry) for entry in entries], indent=2))
        return
    table = Table("when", "client", "data", "run")
    table.add_column("round", justify="right")
    table.add_column("times", justify="right")
    table.add_column("release")
    for entry in entries:
        when = entry.charged_at[:19].replace("T", " ")
        table.add_row(
            *(when, entry.client, entry.fingerprint[:8], entry.run, str(entry.round)),
            *(f"{entry.count:,}", _release(entry)),
        )
    Console().print(table)


@budget.command()
def export(
    ledger: LedgerPath,
    file: Annotated[Path, typer.Argument(help="Where to: a name that ends in .csv or .json.")],
) -> None:
    """Write every charge to a file, events in full.

    Example:

    udpfl budget export site.sqlite charges.csv
    """
    if file.suffix.lower() not in (".csv", ".json"):
        raise InvalidInput("file", f"must end in .csv or .json, got {file.name!r}")
    with _opened(ledger) as opened:
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
    typer.echo(f"wrote {len(entries):,} charges to {file}")


@budget.command()
def verify(ledger: LedgerPath) -> None:
    """Check that no charge is missing, edited or unreadable. Exit code 1 if one is.

    Example:

    udpfl budget verify site.sqlite
    """
    try:
        with _opened(ledger) as opened:
            problems = opened.verify()
            if not problems:
                charges, clients = len(list(opened.history())), len(opened.accounts())
    except LedgerError as error:
        problems = [str(error)]
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"sound: {charges:,} charges of {clients:,} clients")


def _opened(path: Path, *, read_only: bool = True) -> Ledger:
    """The ledger of that name, or of that run's folder; never a new one."""
    file = _of_run(path) if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput("ledger", f"there is no ledger {str(file)!r}")
    return Ledger(file, read_only=read_only)


def _of_run(folder: Path) -> Path:
    """The ledger that a run charged: its own, or the shared one it names."""
    try:
        shared = json.loads((folder / "run.json").read_text())["ledger"]
    except (OSError, ValueError, KeyError):
        shared = None
    return Path(shared) if shared else folder / "ledger.sqlite"


def _chosen(ledger: Ledger, client: str | None) -> list[Account]:
    if client is None:
        return ledger.accounts()
    accounts = ledger.find(client)
    if not accounts:
        names = sorted({account.client for account in ledger.accounts()})
        known = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        raise InvalidInput("client", f"{client!r} is not in this ledger, which has {known}")
    return accounts


def _only(ledger: Ledger, client: str, fingerprint: str) -> Account:
    """The one account of the client whose fingerprint begins like this."""
    accounts = [a for a in _chosen(ledger, client) if a.fingerprint.startswith(fingerprint)]
    if len(accounts) != 1:
        known = ", ".join(account.fingerprint for account in ledger.find(client))
        raise InvalidInput(
            "fingerprint", f"must say which data of {client} is meant; there is {known}"
        )
    return accounts[0]


def _holder(ledger: Ledger, client: str, fingerprint: str) -> Account:
    """The account to charge; a new one only for data that is named in full and new here."""
    if not re.fullmatch("[0-9a-f]{32}", fingerprint):  # as `udpfl.data.Records.fingerprint` gives
        return _only(ledger, client, fingerprint)
    if known := ledger.other_names(client, fingerprint):
        raise InvalidInput("fingerprint", f"this data is known as {known[0]}: charge that client")
    return Account(ledger.account(client, fingerprint), client, fingerprint)


def _balance(ledger: Ledger, account: Account, delta: float) -> Balance:
    own = ledger.budget(account.id)
    entries = list(ledger.history(account.id))
    try:
        statement = ledger.statement(account.id, own.delta if own else delta)
    except (
        Unsupported,
        InvalidInput,
    ) as reason:  # one client's trouble hides nobody else's spending
        statement = PrivacyStatement.none(f"cannot be accounted: {reason}")
    runs = tuple(dict.fromkeys(entry.run for entry in entries if not entry.imported))
    releases = sum(entry.count for entry in entries)
    imported = sum(entry.count for entry in entries if entry.imported)
    return Balance(account, releases, runs, statement, own, imported)


def _plain(entry: Entry) -> dict[str, Any]:
    plain = asdict(entry)
    return {**plain, "event": json.loads(plain.pop("event_json"))}


def _release(entry: Entry) -> str:
    try:
        said = [] if entry.event is None else [_described(entry.event)]
        return "; ".join([*said, entry.note] if entry.note else said)
    except UdpflError as error:
        return f"unreadable: {error}"


def _described(event: Event) -> str:
    match event:
        case Release(mechanism, sensitivity, unit):
            values = ", ".join(
                f"{name} {value:.4g}" for name, value in mechanism.parameters.items()
            )
            clip = f"{sensitivity.norm} clip {sensitivity.bound:g} per {unit}"
            return f"{mechanism.name} ({values}), {clip}"
        case PureDP(epsilon):
            return f"any {epsilon:g}-DP answer"
        case PoissonSampled(rate, inner):
            return f"{_described(inner)}, sampled at {rate:g}"
        case SecretlySelected(probability, inner):
            return f"{_described(inner)}, in secret with probability {probability:g}"
        case Shuffled(inner, clients):
            return f"{_described(inner)}, shuffled among {clients:,}"
        case Repeated(inner, count):
            return f"{count:,} times {_described(inner)}"
        case Composed(events):
            return "; ".join(_described(inner) for inner in events)
        case _:
            raise Unsupported(f"not an event that can be stored: {event!r}")
