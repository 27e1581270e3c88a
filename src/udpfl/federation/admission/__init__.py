"""May this run begin, or go on? Budgets, accounts and records are looked at before any training.

`plan_within` fits the plan to what budgets have left, `admit` opens accounts and reserves it, and
`require_charges` holds a run that goes on to what it was charged for.
"""

from udpfl.federation.admission.fitting import past_of_client, plan_within
from udpfl.federation.admission.holding import Holding
from udpfl.federation.admission.reserving import admit, released_in
from udpfl.federation.admission.resuming import require_charges

__all__ = ["Holding", "admit", "past_of_client", "plan_within", "released_in", "require_charges"]
