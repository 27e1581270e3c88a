"""What stands in a ledger's file, read with plain SQL and checked line by line."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from udpfl.audit._events import NO_CLAIM, Seen, read

TABLES = {"meta", "runs", "accounts", "decisions", "charges", "outbox"}
_GUARDED = ("accounts", "charges", "decisions", "meta", "runs")
_NUMBERED = ("charges", "decisions")
_SKEW = timedelta(seconds=5)
_MOST_NAMED = 5


@dataclass
class Rows:
    """The tables of one moment, and what is wrong with them."""

    accounts: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    """Client, block, and for how many runs."""
    budgets: dict[int, tuple[float, float]] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    simulated: set[str] = field(default_factory=set)
    """Runs that store the server's state in place of messages."""
    charges: list[tuple[Any, ...]] = field(default_factory=list)
    """Number, account, run, round, count, event, note, data, time, decisions, chain."""
    decisions: list[tuple[Any, ...]] = field(default_factory=list)
    """Number, kind, account, content, reason, author, time, charges, chain."""
    former: dict[tuple[str, str], int] = field(default_factory=dict)
    """The account of a client and its data, before accounts were of clients alone."""
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @cached_property
    def _by_account(self) -> dict[int, list[tuple[Any, ...]]]:
        """The charges of each account, once all are read."""
        found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for row in self.charges:
            found[row[1]].append(row)
        return found

    def totals(self, account: int) -> Counter[str]:
        """How often each event was charged to an account, or to one that it took over."""
        found, after = Counter[str](), 0
        for kind, own, content, charges in self._read_decisions:
            if kind == "take over" and own == account:
                found, after = Counter(content["totals"]), charges
        for number, _, _, _, count, event, *_ in self._by_account[account]:
            if number > after and isinstance(count, int):
                found[str(event)] += count
        return found

    def planned(self, account: int) -> Counter[str]:
        """What the one run of an account was going to release; nothing for an account of many."""
        found = Counter[str]()
        for kind, own, content, _ in self._read_decisions:
            if kind == "reserve" and own == account and self.accounts[account][2] == "one":
                found |= Counter(content["totals"])
        return found

    def rule(self, account: int) -> tuple[tuple[float, float], ...]:
        """The Rényi orders of an account of many runs, and the share of delta that each has."""
        found: tuple[tuple[float, float], ...] = ()
        for kind, own, content, _ in self._read_decisions:
            if kind == "orders" and own == account:
                found = tuple(zip(content["orders"], content["shares"], strict=True))
        return found

    @cached_property
    def _read_decisions(self) -> list[tuple[str, int, dict[str, Any], int]]:
        return [(row[1], row[2], json.loads(row[3]), row[7]) for row in self.decisions]

    def unclaimed(self, account: int) -> str:
        """Why no privacy can be claimed for an account; empty where it can."""
        for _, _, run, _, _, event, *_ in self._by_account[account]:
            if event == NO_CLAIM:
                return "an answer was released without noise"
            if self.runs.get(run) != "entropy":
                return "noise of a seeded run can be computed by anyone"
        return ""


def rows_of(db: sqlite3.Connection) -> Rows:
    """Everything in the file; a file that cannot be read has that as its problem."""
    rows = Rows()
    try:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if not tables >= TABLES:
            missing = ", ".join(sorted(TABLES - tables))
            rows.problems.append(f"it is not a ledger: there is no table {missing}")
            return rows
        for (found,) in db.execute("PRAGMA integrity_check"):
            if found != "ok":
                rows.problems.append(f"the file is damaged: {found}")
        rows.accounts = {
            number: (client, block, runs)
            for number, client, block, runs in db.execute("SELECT * FROM accounts")
        }
        if "former_accounts" in tables:
            for number, client, data in db.execute("SELECT * FROM former_accounts"):
                rows.former[client, data] = number
        rows.runs = dict(db.execute("SELECT id, randomness FROM runs"))
        rows.charges = db.execute("SELECT * FROM charges ORDER BY id").fetchall()
        rows.decisions = db.execute("SELECT * FROM decisions ORDER BY id").fetchall()
        sequence = dict(db.execute("SELECT name, seq FROM sqlite_sequence"))
        for check in (
            _order("charge", rows.charges, sequence.get("charges", 0)),
            _order("decision", rows.decisions, sequence.get("decisions", 0)),
            _chain(rows),
            _decisions(rows),
            _owners(rows),
            _events(rows),
            _reserved(rows),
            _stored_states(rows, db) if "progress" in tables else iter(()),
            _messages(rows, db),
            _triggers(db),
        ):
            rows.problems += _few(check)
        rows.remarks += _few(_times(rows))
    except (sqlite3.Error, OverflowError) as error:
        rows.problems.append(f"the file cannot be read: {error}")
    return rows


def _few(found: Iterator[str]) -> list[str]:
    """The first of many like sentences, and how many more there are."""
    sentences = list(found)
    more = len(sentences) - _MOST_NAMED
    return sentences if more <= 1 else [*sentences[:_MOST_NAMED], f"and {more} more like that"]


def _order(word: str, rows: list[tuple[Any, ...]], given_out: int) -> Iterator[str]:
    numbers = [row[0] for row in rows]
    for before, after in pairwise([0, *numbers]):
        if after != before + 1:
            yield f"between {word} {before} and {word} {after}, {after - before - 1} are missing"
    last = numbers[-1] if numbers else 0
    if given_out > last:
        yield f"the last {given_out - last} {word}s are missing: {given_out} were written"
    if given_out < last:
        yield f"{word} {last} was not added by the ledger: {given_out} were written"


def _chain(rows: Rows) -> Iterator[str]:
    before, hashes = "", {row[0]: row[8] for row in rows.decisions}
    for number, account, run, turn, count, event, note, data, when, decided, stored in rows.charges:
        client, block, _ = rows.accounts.get(account, (None, None, None))
        if rows.former and decided == 0:  # written when accounts were of one data set each
            old = None if block else rows.former.get((str(client), data))
            line = [before, number, old, client, data, run, rows.runs.get(run)]
            line += [turn, count, event, note, when]
        else:
            line = [before, number, account, client, block, run, rows.runs.get(run)]
            line += [turn, count, event, note, data, when, decided, hashes.get(decided, "")]
        if _hash(line) != stored:
            yield f"the hash of charge {number} does not follow from it and the charge before"
        before = stored


def _hash(line: list[Any]) -> str:
    return hashlib.sha256(json.dumps(line, default=repr).encode()).hexdigest()


def _decisions(rows: Rows) -> Iterator[str]:
    """What was decided, and that accounts and budgets are what these rows make of them."""
    before, hashes = "", {row[0]: row[-1] for row in rows.charges}
    opened: dict[int, tuple[str, str, str]] = {}
    for number, kind, account, content, reason, author, when, charges, stored in rows.decisions:
        line = [before, number, kind, account, content, reason, author, when, charges]
        if _hash([*line, hashes.get(charges, "")]) != stored:
            yield f"the hash of decision {number} does not follow from it and the one before"
        before = stored
        try:
            said = json.loads(content)
            if kind == "open":
                opened[account] = (said["client"], said["block"], said["runs"])
            if kind == "budget":
                rows.budgets[account] = (said["epsilon"], said["delta"])
        except (ValueError, KeyError, TypeError):
            yield f"decision {number} cannot be read: {content!r}"
    for account, owner in rows.accounts.items():
        if opened.get(account) != owner:
            yield f"account {account} ({owner[0]}) is not the one that was opened"
    for account in sorted(rows.budgets.keys() - rows.accounts.keys()):
        yield f"a budget is of account {account}, which does not exist"


def _owners(rows: Rows) -> Iterator[str]:
    for number, account, run, _, count, *_ in rows.charges:
        if account not in rows.accounts:
            yield f"charge {number} is of account {account}, which does not exist"
        if run not in rows.runs:
            yield f"charge {number} is of run {run}, which does not exist"
        if not isinstance(count, int) or count < 1:
            yield f"charge {number} counts {count!r} releases"


def _events(rows: Rows) -> Iterator[str]:
    for text in dict.fromkeys(row[5] for row in rows.charges):
        if text == NO_CLAIM:
            continue
        try:
            read(text)
        except ValueError as error:
            numbers = [row[0] for row in rows.charges if row[5] == text]
            more = f" (and {len(numbers) - 1} like it)" if len(numbers) > 1 else ""
            yield f"the event of charge {numbers[0]}{more} cannot be read: {error}"


def _reserved(rows: Rows) -> Iterator[str]:
    """Charges of a run beyond what it had reserved at that moment, exchanges included.

    A run that never reserved anything has no plan to keep to.
    """
    plans: dict[tuple[int, str], list[tuple[int, Counter[Seen]]]] = defaultdict(list)
    for number, kind, account, content, *_ in rows.decisions:
        if kind in ("reserve", "give back"):
            try:
                said = json.loads(content)
                totals = _bare(said["totals"] if kind == "reserve" else {})
                plans[account, said["run"]].append((number, totals))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                yield f"the reservation in decision {number} cannot be read: {error}"
    charged: dict[tuple[int, str], Counter[Seen]] = defaultdict(Counter)
    for number, account, run, _, count, event, *_, decided, _ in rows.charges:
        made = [totals for at, totals in plans.get((account, run), []) if at <= decided]
        if made and isinstance(count, int):
            charged[account, run].update(_bare({str(event): count}))
            if not charged[account, run] <= made[-1]:
                yield f"charge {number} is not within what run {run} had reserved"


def _bare(totals: Mapping[str, int]) -> Counter[Seen]:
    """Releases without regard to a shuffle: mixed with fewer messages, they are the same ones."""
    found = Counter[Seen]()
    for text, count in totals.items():
        for seen, times in _known(text):
            found[seen] += times * count
    return found


@lru_cache(maxsize=1024)
def _known(text: str) -> tuple[tuple[Seen, int], ...]:
    """The releases of one event; nothing where it cannot be read, which is a problem by itself."""
    try:
        found = {} if text == NO_CLAIM else read(text)
    except ValueError:
        found = {}
    return tuple(
        (replace(seen, hidden="") if seen.hidden == "a shuffle" else seen, times)
        for seen, times in found.items()
    )


def _messages(rows: Rows, db: sqlite3.Connection) -> Iterator[str]:
    """Answers and charges belong together: both are written at once, and neither is deleted.

    More charges than answers cost too much and hurt nobody. But the ledger refuses to charge a
    round whose answer it has, so where it has one and two charges, somebody changed the file.
    A simulation stores the server's state in place of its messages, which then have no digest.
    """
    paid: dict[tuple[Any, ...], Counter[Any]] = defaultdict(Counter)
    for _, account, run, turn, _, event, *_ in rows.charges:
        paid[run, account, turn][event] += 1
    answered = set()
    for run, account, turn, message, digest in db.execute(
        "SELECT run, account, round, CAST(message AS BLOB), digest FROM outbox"
    ):
        answered.add((run, account, turn))
        name = f"the answer of run {run}, account {account}, round {turn}"
        if (run, account, turn) not in paid:
            yield f"{name} was not charged"
        if message is not None and hashlib.sha256(message).hexdigest() != digest:
            yield f"{name} is not the one that was stored"
        elif run in rows.simulated and (message, digest) == (None, ""):
            continue
        elif not re.fullmatch("[0-9a-f]{64}", str(digest)):
            yield f"{name} has no digest"
    unanswered = 0
    for key, events in paid.items():
        run, account, turn = key
        twice = max(events.values()) > 1
        if twice and key in answered:
            yield f"round {turn} of run {run} was charged to account {account} twice, answered once"
        unanswered += key not in answered and (twice or not str(run).startswith("imported-"))
    if unanswered:
        were = "1 round was" if unanswered == 1 else f"{unanswered:,} rounds were"
        rows.remarks.append(f"{were} charged without an answer: counted too much")


def _stored_states(rows: Rows, db: sqlite3.Connection) -> Iterator[str]:
    """What a simulation stores of the server after its last round, in place of messages."""
    paid = {(run, turn) for _, _, run, turn, *_ in rows.charges}
    for run, turn, state, digest in db.execute(
        "SELECT run, round, CAST(state AS BLOB), digest FROM progress"
    ):
        rows.simulated.add(run)
        name = f"the stored state of run {run} after round {turn}"
        if (run, turn) not in paid:
            yield f"{name} was not charged"
        if state is None or hashlib.sha256(state).hexdigest() != digest:
            yield f"{name} is not the one that was stored"


def _times(rows: Rows) -> Iterator[str]:
    latest: datetime | None = None
    for number, *_, when, _, _ in rows.charges:
        try:
            time = datetime.fromisoformat(when)
            if latest is not None and time < latest - _SKEW:
                yield f"charge {number} is {latest - time} older than one before it"
            latest = time if latest is None else max(latest, time)
        except (TypeError, ValueError):
            yield f"the time of charge {number} cannot be read: {when!r}"


def _triggers(db: sqlite3.Connection) -> Iterator[str]:
    query = "SELECT tbl_name, sql FROM sqlite_master WHERE type = 'trigger'"
    found = [(table, " ".join(str(sql).split())) for table, sql in db.execute(query)]
    stop = r"BEGIN SELECT RAISE ?\(ABORT, '[^']*'\); END"
    order = r"WHEN NEW\.id IS NOT 1 \+ \(SELECT ifnull\(max\(id\), 0\) FROM {}\) "
    wanted = {
        (table, verb): rf"CREATE TRIGGER \w+ BEFORE {verb} ON {table} {stop}"
        for table in _GUARDED
        for verb in ("DELETE", "UPDATE")
    } | {
        (table, "INSERT"): rf"CREATE TRIGGER \w+ BEFORE INSERT ON {table} "
        rf"{order.format(table)}{stop}"
        for table in _NUMBERED
    }
    for (table, verb), pattern in wanted.items():
        if not any(re.fullmatch(pattern, sql) for _, sql in found):
            yield f"nothing keeps {table} from {verb.lower()}: the trigger is missing or another"
    for table, sql in found:
        if not any(re.fullmatch(pattern, sql) for pattern in wanted.values()):
            yield f"there is a trigger on {table} that the ledger did not make"
