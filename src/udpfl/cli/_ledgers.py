"""Ledgers, accounts and balances as the commands of `udpfl budget` look for them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from udpfl.accounting import PrivacyStatement
from udpfl.accounting.budget import Budget
from udpfl.errors import InvalidInput, Unsupported
from udpfl.ledger.accounts import Account
from udpfl.ledger.ledger import Ledger
from udpfl.runs.files import RunFiles, has_begun, read_identity
from udpfl.runs.ledgers import ledger_at


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
    versions: tuple[tuple[str, int], ...] = ()
    """The fingerprint of each version of its data, and the releases made of it."""
    reserved: tuple[str, ...] = ()
    """Runs that have reserved more than they have spent so far."""
    is_accounted: bool = True
    """Whether what was spent could be computed."""

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
            "block": self.account.block,
            "data": [{"fingerprint": own, "releases": count} for own, count in self.versions],
            "releases": self.releases,
            "imported": self.imported,
            "statement": self.statement.to_dict(),
            "budget": None if self.budget is None else asdict(self.budget),
            "left": self.left,
            "runs": list(self.runs),
            "reserved": list(self.reserved),
        }


def open_ledger(path: Path, *, read_only: bool = True) -> Ledger:
    """The ledger of that name, or of that run's folder; never a new one."""
    return Ledger(ledger_at(path), read_only=read_only)


def run_named(ledger: Ledger, name: str) -> str:
    """The id of a run, given by itself or by the run's folder."""
    try:
        return read_identity(Path(name)).id
    except InvalidInput:  # the ledger knows it by its folder or by its id
        pass
    named = [run for run, folder in ledger.folders().items() if folder == Path(name).name]
    if len(named) > 1:
        raise InvalidInput("run", f"{name!r} is the folder of {len(named)} runs: give the run's id")
    return named[0] if named else name


def contradictions(ledger: Ledger, folder: Path) -> list[str]:
    """What a run folder says of itself and this ledger contradicts."""
    from udpfl.report.mismatches import mismatches

    if not has_begun(folder):
        raise InvalidInput("against", f"{str(folder)!r} is not a run folder: it has no run.json")
    found: list[str] = []
    try:
        files = RunFiles.read(folder)
        if files.summary is None:
            return [f"{folder} is not finished: its last charge is not known"]
        for each in mismatches(ledger, files):
            if each.contradicts:
                found.append(f"{folder}: {each.said}")
        if files.summary.head is None and not found:
            found.append(f"{folder} does not name its last charge: an older version wrote it")
    except InvalidInput as error:
        found.append(f"{folder} cannot be read: {error}")
    return found


def accounts_of(ledger: Ledger, client: str | None) -> list[Account]:
    """Every account, or those of one client, which has to exist."""
    if client is None:
        return ledger.accounts()
    accounts = ledger.find(client)
    if not accounts:
        names = sorted({account.client for account in ledger.accounts()})
        known = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        raise InvalidInput("client", f"{client!r} is not in this ledger; its clients are {known}")
    return accounts


def only_account(ledger: Ledger, client: str, block: str) -> Account:
    """The account of a client, or of a block of it."""
    for account in accounts_of(ledger, client):
        if account.block == block:
            return account
    known = ", ".join(account.block or "none" for account in ledger.find(client))
    raise InvalidInput("block", f"must be a block of {client}; its blocks are: {known}")


def account_to_charge(ledger: Ledger, client: str, block: str, fingerprint: str) -> Account:
    """The account to charge; opened where the client is new and its data is named in full."""
    if not fingerprint:
        return only_account(ledger, client, block)
    if not re.fullmatch("[0-9a-f]{32}", fingerprint):  # as `udpfl.data.Records.fingerprint` gives
        raise InvalidInput("fingerprint", f"must be 32 hexadecimal digits, got {fingerprint!r}")
    if known := ledger.other_names(client, fingerprint, block):
        raise InvalidInput(
            "fingerprint", f"the ledger knows this data as {known[0]}: charge that client"
        )
    ledger.account(client, fingerprint, block=block)
    return only_account(ledger, client, block)


def balance_of(ledger: Ledger, account: Account, delta: float) -> Balance:
    """What the account has spent, at the delta of its budget or, without one, at this."""
    own = ledger.budget(account.id)
    entries, is_accounted = list(ledger.history(account.id)), True
    try:
        statement = ledger.statement(account.id, own.delta if own else delta)
    except (Unsupported, InvalidInput) as reason:
        # A problem with one client must not hide the spending of the others.
        statement, is_accounted = PrivacyStatement.none(f"cannot be accounted: {reason}"), False
    runs = tuple(dict.fromkeys(entry.run for entry in entries if not entry.imported))
    releases = sum(entry.releases for entry in entries)
    imported = sum(entry.releases for entry in entries if entry.imported)
    versions = dict.fromkeys(ledger.versions(account.id), 0)
    for entry in entries:
        versions[entry.fingerprint] = versions.get(entry.fingerprint, 0) + entry.releases
    reserved = tuple(ledger.reserved(account.id))
    return Balance(
        account, releases, runs, statement, own, imported, tuple(versions.items()), reserved,
        is_accounted,
    )  # fmt: skip
