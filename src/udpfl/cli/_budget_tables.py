"""What `udpfl budget` prints for people: what was spent, what was charged and what was decided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from udpfl.accounting.described import counted, described
from udpfl.accounting.statement import shown
from udpfl.cli._decision_words import describe_decision
from udpfl.cli._ledgers import Balance
from udpfl.errors import UdpflError
from udpfl.ledger.charges import Entry
from udpfl.ledger.decisions import Decision


def spent(balances: Iterable[Balance]) -> Table:
    """One line for every account, and one beneath it for each version of its data."""
    table = Table("client")
    for heading in ("releases", "spent ε", "at δ", "budget ε", "left", "runs"):
        table.add_column(heading, justify="right")
    for balance in balances:
        statement, own, left = balance.statement, balance.budget, balance.left
        claimed = statement.kind != "none"
        unclaimed = "not private" if balance.is_accounted else "not known"
        table.add_row(
            Text(balance.account.name),
            f"{balance.releases:,}",
            shown(statement.epsilon) if claimed else unclaimed,
            f"{statement.delta:g}" if claimed else "–",
            "–" if own is None else f"{own.epsilon:g}",
            "–" if left is None else f"{math.floor(100 * left)} %",
            str(len(balance.runs)),
        )
        for fingerprint, releases in balance.versions:
            version = Text(f"  data {fingerprint[:8] or 'not named'}")
            table.add_row(version, f"{releases:,}", style="dim")
    return table


def notes_on(balances: Iterable[Balance], folders: Mapping[str, str]) -> dict[str, list[str]]:
    """What is to be known about balances, and about whose."""

    def named(run: str) -> str:
        return f"{folders[run]} (run {run})" if run in folders else f"run {run}"

    names: dict[str, list[str]] = {}
    for balance in balances:
        notes = list(balance.statement.remarks)
        unit = balance.statement.unit
        if balance.statement.kind != "none" and unit != "record":
            whole = {"client": "the whole client", "person": "a person with all rows"}[unit]
            notes.append(f"ε is for {whole}, not for one record")
        if balance.imported:
            notes.append(f"{balance.imported:,} of the releases were made outside of this package")
        if balance.reserved:
            notes.append(f"reserved by {', '.join(map(named, balance.reserved))}")
        for note in notes:
            names.setdefault(note, []).append(balance.account.name)
    return names


def charged(entries: Iterable[Entry], folders: Mapping[str, str], *, every: bool) -> Table:
    """Charges in their order: one line for all that differ in their round alone, or for each."""
    table = Table("when", "client")
    table.add_column("run", overflow="fold")  # the end of a name tells runs apart
    table.add_column("rounds", justify="right")
    table.add_column("times", justify="right")
    table.add_column("release")
    for line in _lines(entries, every=every):
        first = line.first
        client, run = _client(first), folders.get(first.run, first.run)
        row = (_second(first.charged_at), client, run, line.span(), f"{line.times:,}")
        table.add_row(*map(Text, row), Text(_release(first)))
    return table


def decided(
    changes: Iterable[Decision],
    names: Mapping[int, str],
    folders: Mapping[str, str],
    *,
    every: bool,
) -> Table:
    """Decisions that people want to see; `names` of accounts by their numbers.

    A decision that was made for several clients in a row is one line, or one for each.
    """
    rows: list[tuple[str, list[str], tuple[str, str, str]]] = []
    for change in changes:
        if (said := describe_decision(change, folders)) is None:
            continue
        who, decision = names.get(change.account or 0, ""), (said, change.author, change.reason)
        if not every and rows and who and rows[-1][2] == decision and who not in rows[-1][1]:
            rows[-1][1].append(who)
        else:
            rows.append((_second(change.decided_at), [who], decision))
    table = Table("when", "client", "change", "by", "reason")
    for when, clients, decision in rows:
        who = clients[0] if len(clients) == 1 else counted(len(clients), "client")
        table.add_row(*map(Text, (when, who, *decision)))
    return table


@dataclass
class _Line:
    """Charges that differ in their round alone."""

    first: Entry
    rounds: set[int]
    times: int = 0

    def span(self) -> str:
        """From the first round to the last, and how many they are where some are missing."""
        low, high = min(self.rounds), max(self.rounds)
        between = "" if high - low < len(self.rounds) else f" ({len(self.rounds)} of them)"
        return str(low) if low == high else f"{low}–{high}{between}"


def _lines(entries: Iterable[Entry], *, every: bool) -> list[_Line]:
    """The lines of a history, in the order in which they begin."""
    lines: dict[tuple[Any, ...], _Line] = {}
    for entry in entries:
        alike = (_client(entry), entry.fingerprint, entry.run, entry.event_json, entry.note)
        line = lines.setdefault((entry.id,) if every else alike, _Line(entry, set()))
        line.rounds.add(entry.round)
        line.times += entry.count
    return list(lines.values())


def _second(time: str) -> str:
    return time[:19].replace("T", " ")


def _client(entry: Entry) -> str:
    return f"{entry.client} (block {entry.block})" if entry.block else entry.client


def _release(entry: Entry) -> str:
    try:
        said = [] if entry.event is None else [described(entry.event)]
        return "; ".join([*said, entry.note] if entry.note else said)
    except UdpflError as error:
        return f"unreadable: {error}"
