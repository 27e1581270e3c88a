"""The server's journal of its sites: what each of them said in every round, on disk at once.

What a site says of its ledger is kept here before its message is used, so that a site whose ledger
was put back later shows. `udpfl deploy status` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from udpfl.accounting import PrivacyStatement
from udpfl.errors import UdpflError
from udpfl.ledger.chain import Head
from udpfl.site.wire import NO_HEAD, head_from
from udpfl.writing import append_line

JOURNAL = "sites.jsonl"
"""The name of its file."""


@dataclass(frozen=True)
class Note:
    """One line."""

    site: str
    round: int
    what: str
    """Either "answered", "refused" or "ignored"."""
    why: str = ""
    head: Head = NO_HEAD
    privacy: Mapping[str, Any] | None = None
    time: str = ""

    @property
    def statement(self) -> PrivacyStatement | None:
        """What the site said that it has spent."""
        try:
            return None if self.privacy is None else PrivacyStatement.from_dict(self.privacy)
        except UdpflError:
            return None


@dataclass(frozen=True)
class Journal:
    """In the folder of a server's run."""

    folder: Path

    def add(self, note: Note) -> None:
        """One more line, on disk before the call returns."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "site": note.site,
            "round": note.round,
            "what": note.what,
            **({"why": note.why} if note.why else {}),
            **({"head": list(note.head)} if note.head.number else {}),
            **({"privacy": dict(note.privacy)} if note.privacy else {}),
        }
        append_line(self.folder / JOURNAL, json.dumps(line))

    def notes(self) -> Iterator[Note]:
        """Every line; one that a crash cut short is left out."""
        path = self.folder / JOURNAL
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                own = json.loads(line)
                yield Note(
                    site=str(own["site"]),
                    round=int(own["round"]),
                    what=own["what"],
                    why=str(own.get("why", "")),
                    head=head_from(own.get("head")),
                    privacy=own.get("privacy"),
                    time=str(own.get("time", "")),
                )
            except (ValueError, KeyError, TypeError):
                continue

    def heads(self) -> dict[str, Head]:
        """The last charge of every site that it told the server of."""
        found: dict[str, Head] = {}
        for note in self.notes():
            if note.head.number >= found.get(note.site, NO_HEAD).number:
                found[note.site] = note.head
        return {site: head for site, head in found.items() if head.number}

    def statements(self) -> dict[str, PrivacyStatement]:
        """What every site said last that it has spent."""
        stated = ((note.site, note.statement) for note in self.notes())
        return {site: own for site, own in stated if own is not None}
