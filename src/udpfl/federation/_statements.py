"""What each client of a run has spent: in the ledger, or nominally in this run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from udpfl.accounting import PrivacyStatement
from udpfl.accounting.statement import weakest_kind
from udpfl.federation.client import LocalClient
from udpfl.ledger.ledger import Ledger


@dataclass(frozen=True)
class Statements:
    """States the spending of the clients of one run."""

    ledger: Ledger
    run: str
    clients: Sequence[LocalClient]
    is_scalar: bool
    """Whether the run's own number is nominal; what is guaranteed stands beside it."""
    unclaimed: str | None = None
    """Why no privacy is claimed, whatever the ledger says."""
    assumptions: tuple[str, ...] = ()
    """What the statements take for granted."""
    notes: tuple[str, ...] = ()
    """What else is to be known about them."""

    def of_all(
        self, up_to: int | None = None, *, so_far: bool = False
    ) -> dict[str, PrivacyStatement]:
        """The statement of every client by its name.

        `up_to` is the number of the last charge that counts. `so_far` is for the rounds in between:
        what a run on its own ledger would have cost if it had been planned to end there.
        """
        if self.unclaimed:
            none = PrivacyStatement.none(self.unclaimed)
            return {client.name: none for client in self.clients}
        return {client.name: self._of(client, up_to, so_far) for client in self.clients}

    def _of(self, client: LocalClient, up_to: int | None, so_far: bool) -> PrivacyStatement:
        """Everything in the ledger; where this run is nominal, its own number in front of that."""
        statement = self.ledger.statement(
            client.account,
            self._delta(client),
            self.run if self.is_scalar else None,
            up_to,
            fixed_beforehand=so_far and self.ledger.filter(client.account) is None,
        )
        return statement.adding(assumptions=self.assumptions, notes=self.notes)

    def _delta(self, client: LocalClient) -> float:
        """The delta of the client's budget, in the ledger or in this run; else its own."""
        budget = self.ledger.budget(client.account) or client.plan.budget
        delta = budget.delta if budget else client.plan.delta
        assert delta is not None, "whoever takes part in a private run has a delta"
        return delta

    def spending(self) -> dict[str, Any]:
        """What goes into a round's line of metrics."""
        statements = list(self.of_all(so_far=True).values())
        kind = weakest_kind(statements)
        if kind == "none":
            return {"privacy": "none", "epsilon": None}
        row: dict[str, Any] = {"privacy": kind, "epsilon": spread([s.epsilon for s in statements])}
        if kind == "nominal":
            row["guaranteed_epsilon"] = spread([s.vector_epsilon for s in statements])
        return row


def spread(values: Sequence[float]) -> dict[str, float | str]:
    """A figure of all clients as a line of metrics has it."""
    figures = {"max": max(values), "median": statistics.median(values), "min": min(values)}
    return {name: "inf" if value == float("inf") else value for name, value in figures.items()}
