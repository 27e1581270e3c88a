"""What runs are going to spend: reserved when a run begins, so that no other process spends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from udpfl.ledger.decisions import Decision, Decisions


@dataclass(frozen=True)
class Reservation:
    """All that one run may release, what it has released already included."""

    run: str
    totals: Counter[str]
    decision: int
    """The number of the decision that made it."""


class Reservations:
    """Of the accounts of a ledger."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._known: dict[int, tuple[list[Decision], int, dict[str, list[Reservation]]]] = {}
        """What was made of the rows of an account: a list that only grows, or is another one."""

    def make(
        self, account: int, run: str, totals: Mapping[str, int], *, exchanged: bool = False
    ) -> None:
        """Put a reservation on record, inside a transaction."""
        content = {"run": run, "totals": dict(totals)} | ({"exchanged": True} if exchanged else {})
        self._decisions.append("reserve", account, content)

    def end(self, account: int, run: str, reason: str, author: str | None) -> None:
        """Put on record that the rest is free again, inside a transaction."""
        self._decisions.append("give back", account, {"run": run}, reason, author)

    def of(self, account: int) -> list[Reservation]:
        """Those that were made, whether or not the rest was given back; the last of each run."""
        return [made[-1] for made in self._read(account).values()]

    def of_run(self, account: int, run: str) -> Reservation | None:
        """The last one that a run made, whether or not the rest was given back."""
        return next(reversed(self._read(account).get(run, [])), None)

    def first_of_run(self, account: int, run: str) -> Reservation | None:
        """The one that a run began with, which may have been exchanged for others since."""
        return next(iter(self._read(account).get(run, [])), None)

    def held(self, account: int) -> list[Reservation]:
        """Those of which the rest was not given back."""
        return [own for own in self.of(account) if self.is_held(account, own)]

    def is_held(self, account: int, own: Reservation) -> bool:
        """Whether the rest of it was not given back."""
        ends = (d for d in self._decisions.of("give back", account) if d.content["run"] == own.run)
        return all(end.id < own.decision for end in ends)

    def _read(self, account: int) -> dict[str, list[Reservation]]:
        """All that each run made, oldest first."""
        rows = self._decisions.of("reserve", account)
        known = self._known.get(account)
        if known is None or known[0] is not rows or known[1] != len(rows):
            made: dict[str, list[Reservation]] = {}
            for row in rows:
                run, totals = row.content["run"], Counter(row.content["totals"])
                made.setdefault(run, []).append(Reservation(run, totals, row.id))
            known = self._known[account] = (rows, len(rows), made)
        return known[2]
