"""What the statements of all clients rest on: equal notes once, with the clients they are about."""

from __future__ import annotations

from collections.abc import Sequence

from udpfl.report.read import RunRecord

_MOST_NAMES = 10


def notes_of_all(run: RunRecord) -> tuple[str, ...]:
    """The notes of the run and of every client; one that is not about all names its clients."""
    everyone = [client for client in run.clients if client.statement is not None]
    about: dict[str, list[str]] = {note: [] for note in run.statement.remarks}
    for client in everyone:
        for note in dict.fromkeys(client.statement.remarks if client.statement else ()):
            about.setdefault(note, []).append(client.name)
    return tuple(
        note if len(names) in (0, len(everyone)) else f"{note} ({_listed(names)})"
        for note, names in about.items()
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
