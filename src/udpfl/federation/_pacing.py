"""How much noise a client adds in a round, where that follows results.

The server says how much noise is enough (`stages/plateau.py`). A client takes that much, or as much
more as its budget needs: the least at which all its rounds to come still fit into what the run has
reserved. What it is going to release is reserved in the ledger before it trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from udpfl.accounting.accountant import account as account_for
from udpfl.accounting.budget import Budget, rounds_left
from udpfl.accounting.events import Composed, Event, Repeated
from udpfl.accounting.filter import Filter
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.request import PACE, Request
from udpfl.ledger.ledger import Ledger


@dataclass(frozen=True)
class Pacing:
    """Chooses the noise of each round of a run, in the place of its clients.

    Guarantee: whatever the server asks for, a client's noise is one of its levels, and all rounds
    of the run together cost no more than what it reserved when the run began.
    """

    ledger: Ledger
    run: str

    def at(self, request: Request, plans: Mapping[int, ReleasePlan]) -> dict[int, ReleasePlan]:
        """The plans of these accounts with the noise of this round."""
        chosen = {account: plan for account, plan in plans.items() if not plan.levels}
        waiting = {account: plan for account, plan in plans.items() if plan.levels}
        asked = float(request.tensors.get(PACE, math.inf))
        enough = math.inf if math.isnan(asked) else asked
        for level in sorted({level for plan in waiting.values() for level in plan.levels}):
            trying = {
                account: plan
                for account, plan in waiting.items()
                if level in plan.levels and level >= min(enough, plan.levels[0])
            }
            if trying:
                held = self._holding(request.round, level, trying)
                chosen |= {account: waiting.pop(account).at_level(level) for account in held}
        # The ledger refuses whoever cannot pay for as much noise as there is.
        most = {account: plan.at_level(plan.levels[0]) for account, plan in waiting.items()}
        return chosen | most

    def _holding(self, round_: int, level: float, plans: Mapping[int, ReleasePlan]) -> list[int]:
        """The accounts that hold this noise for all rounds to come, reserved if need be."""
        rests = {account: _rest(plan.at_level(level), round_) for account, plan in plans.items()}
        there = self.ledger.within_reservation(self.run, rests)
        others = {account: rest for account, rest in rests.items() if account not in there}
        spared = {
            account: self._with_spare(account, plans[account], rest, round_)
            for account, rest in others.items()
        }
        there += self.ledger.exchange(self.run, spared) if spared else []
        left = {account: rest for account, rest in others.items() if account not in there}
        return there + (self.ledger.exchange(self.run, left) if left else [])

    def _with_spare(self, account: int, plan: ReleasePlan, rest: Event, round_: int) -> Event:
        """The rest of the run, and as many planned rounds as it saves for less noise later on."""
        rule, budget = self.ledger.filter(account), self.ledger.budget(account)
        whole, planned = plan.rest_event(), plan.round_event(round_)
        if rule is None or budget is None or whole is None or planned is None:
            return rest
        charged = self.ledger.spent(account, self.run)
        coming = rest if charged is None else Composed((charged, rest))
        saved = _saved(coming, planned, whole, budget.delta, rule)
        return Composed((rest, Repeated(planned, saved))) if saved else rest


def _rest(plan: ReleasePlan, round_: int) -> Event:
    """All rounds from this one on with the noise of the plan."""
    event = plan.round_event(round_)
    assert event is not None, "a plan with levels is private"
    return Repeated(event, max(1, plan.asked_from(round_)))


@lru_cache(maxsize=1024)
def _saved(coming: Event, planned: Event, whole: Event, delta: float, rule: Filter) -> int:
    """How many planned rounds fit beside what is coming, into what the whole run may cost."""
    allowed = account_for(whole, delta, rule).epsilon
    return rounds_left([coming], planned, Budget(allowed, delta), rule)
