"""What runs are going to spend: reserved when a run begins, so that no other process spends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from udpfl.ledger.decisions import Decisions


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

    def make(self, account: int, run: str, totals: Mapping[str, int]) -> None:
        """Put a reservation on record, inside a transaction."""
        self._decisions.append("reserve", account, {"run": run, "totals": dict(totals)})

    def end(self, account: int, run: str, reason: str, author: str | None) -> None:
        """Put on record that the rest is free again, inside a transaction."""
        self._decisions.append("give back", account, {"run": run}, reason, author)

    def of(self, account: int) -> list[Reservation]:
        """Those that were made, whether or not the rest was given back; the last of each run."""
        made = {
            found.content["run"]: Reservation(
                found.content["run"], Counter(found.content["totals"]), found.id
            )
            for found in self._decisions.of("reserve", account)
        }
        return list(made.values())

    def held(self, account: int) -> list[Reservation]:
        """Those of which the rest was not given back."""
        ended = {f.content["run"]: f.id for f in self._decisions.of("give back", account)}
        return [own for own in self.of(account) if ended.get(own.run, 0) < own.decision]
