"""The rows of charges: how they are written, read and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256

from udpfl.accounting.events import Event, leaves, release_count
from udpfl.accounting.serial import event_from_json
from udpfl.errors import InvalidInput, UdpflError
from udpfl.ledger.accounts import Account
from udpfl.ledger.chain import Head, chained, end_problems, head_of, missing_rows
from udpfl.ledger.file import LedgerFile, now
from udpfl.ledger.spending import NO_CLAIM, totals_of

TRUSTED = "noise by a trusted server"
"""The note beside a charge for what a server adds noise to."""
TRUST = (
    "assumes a server that adds the noise, keeps the updates it receives to itself and tells "
    "nobody who took part, and that the number of clients is public"
)
"""What a statement about such charges takes for granted."""
IMPORTED = "imported-"
"""How the runs begin under which spending outside of this package is charged."""


@dataclass(frozen=True)
class Charge:
    """What one client's answer of one round costs, and the answer itself.

    No events means that no privacy is claimed for the answer; a client with a budget refuses that.
    """

    account: int
    run: str
    round: int
    events: tuple[Event, ...]
    message: bytes | None = field(repr=False)
    """What was sent; None where nobody will ask for it again, see `Progress`."""
    state: bytes = field(default=b"", repr=False)
    note: str = ""
    """What else is to be known about it; a part of the chain."""
    fingerprint: str = ""
    """The version of the client's data that it is about."""

    def __post_init__(self) -> None:
        if not hasattr(self.round, "__index__") or isinstance(self.round, bool) or self.round < 0:
            raise InvalidInput("round", f"must be a whole number >= 0, got {self.round!r}")
        object.__setattr__(self, "round", int(self.round))
        object.__setattr__(self, "events", tuple(self.events))
        for name, value in (("message", self.message or b""), ("state", self.state)):
            if not isinstance(value, bytes):
                raise InvalidInput(name, f"must be bytes, got {type(value).__name__}")


def import_id(content: str) -> str:
    """The id of the run under which this is imported."""
    return IMPORTED + sha256(content.encode()).hexdigest()[:16]


def imported_charge(
    owner: Account, event: Event, source: str, note: str, fingerprint: str
) -> Charge:
    """The charge of what was released outside of this package.

    Its run is named after who released what, according to whom, so the same gets the same name.
    """
    for name, value in (("source", source), ("note", note)):
        if not isinstance(value, str) or (name == "source" and not value.strip()):
            raise InvalidInput(name, f"must be a text, got {value!r}")
    if not leaves(event):
        raise InvalidInput("event", "releases nothing: there is nothing to import")
    said = f"imported from {source.strip()}" + (f": {note.strip()}" if note.strip() else "")
    releases = sorted(totals_of([event]).items())
    content = json.dumps([owner.client, owner.block, said, releases])
    return Charge(
        owner.id, import_id(content), 0, (event,), b"", note=said, fingerprint=fingerprint
    )


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: a release, and how often it happened in that round."""

    id: int
    client: str
    block: str
    run: str
    round: int
    count: int
    event_json: str
    note: str
    fingerprint: str
    charged_at: str

    @property
    def event(self) -> Event | None:
        """The release; None where no privacy was claimed."""
        return None if self.event_json == NO_CLAIM else event_from_json(self.event_json)

    @property
    def releases(self) -> int:
        """How many releases a unit may have taken part in: several in one sample of epochs."""
        return self.count * releases_of(self.event_json)

    @property
    def imported(self) -> bool:
        """Whether it happened elsewhere; the note then says where."""
        return self.run.startswith(IMPORTED)


@lru_cache(maxsize=1024)
def releases_of(event_json: str) -> int:
    """How many releases one event stands for; 1 where that cannot be read."""
    if event_json == NO_CLAIM:
        return 1
    try:
        return release_count(event_from_json(event_json))
    except UdpflError:
        return 1


class Chain:
    """The end of the chain of charges, for one transaction."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
        self._last, self._decided = head_of(file, "charges"), head_of(file, "decisions")

    def append(
        self, charge: Charge, owner: Account, randomness: str, totals: Mapping[str, int]
    ) -> None:
        """Write the charges of one answer."""
        who = (owner.id, owner.client, owner.block, charge.run, randomness)
        for text, count in totals.items():
            number = self._last.number + 1
            said = "no privacy claimed" if text == NO_CLAIM else charge.note
            cost = (
                charge.round,
                count,
                text,
                said,
                charge.fingerprint,
                now(),
                self._decided.number,
            )
            chain = chained(self._last.chain, number, *who, *cost, self._decided.chain)
            self._file.insert("charges", number, owner.id, charge.run, *cost, chain)
            self._last = Head(number, chain)


def entries(file: LedgerFile, account: int | None = None) -> list[Entry]:
    """Every charge in the order it was made, of one account or of all."""
    chosen = () if account is None else (account,)
    rows = file.rows(
        "SELECT c.id, a.client, a.block, c.run, c.round, c.count, c.event, c.note, "
        "c.fingerprint, c.charged_at FROM charges c JOIN accounts a ON a.id = c.account "
        f"{'WHERE c.account = ?' if chosen else ''} ORDER BY c.id",
        *chosen,
    )
    return [Entry(*row) for row in rows]


def chain_problems(file: LedgerFile) -> Iterator[str]:
    """Charges that are missing or were edited."""
    upgraded = file.rows("SELECT 1 FROM sqlite_master WHERE name = 'former_accounts'")
    former = (
        "(SELECT f.id FROM former_accounts f "
        "WHERE f.client = a.client AND f.fingerprint = c.fingerprint)"
    )
    expected, previous = 1, ""
    rows = file.each(
        f"SELECT c.id, {former if upgraded else 'NULL'}, c.account, a.client, a.block, c.run, "
        "r.randomness, c.round, c.count, c.event, c.note, c.fingerprint, c.charged_at, "
        "c.decisions, ifnull(d.chain, ''), c.chain "
        "FROM charges c LEFT JOIN accounts a ON a.id = c.account LEFT JOIN runs r ON r.id = c.run "
        "LEFT JOIN decisions d ON d.id = c.decisions ORDER BY c.id"
    )
    for number, old, account, client, block, run, randomness, *cost, decided, tie, chain in rows:
        if number != expected:
            yield missing_rows("charge", expected, number - 1)
        content = (account, client, block, run, randomness, *cost, decided, tie)
        if upgraded and not decided:  # as the former format had it
            *released, fingerprint, when = cost
            # A block is younger than any such charge.
            content = (old if block == "" else None, client, fingerprint, run, randomness)
            content = (*content, *released, when)
        if chained(previous, number, *content) != chain:
            yield f"charge {number} was edited, or is not the one that followed the charge before"
        expected, previous = number + 1, chain
    yield from end_problems(file, "charges", expected - 1)


def event_problems(file: LedgerFile) -> Iterator[str]:
    """Charges whose release cannot be read, one line for each reason."""
    unread: dict[str, list[int]] = {}
    for entry in entries(file):
        try:
            _ = entry.event
        except UdpflError as error:
            unread.setdefault(str(error), []).append(entry.id)
    for why, numbers in unread.items():
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        yield f"charge {numbers[0]}{more} cannot be read: {why}"
