"""The smallest noise that keeps a budget.

Guarantee: the returned noise is on the private side. Its own statement, computed by the accountant
it names, has epsilon at or below the target; 0.1 % less noise of the same shape would not.

(The paper's Algorithm "Rényi Accountant" says to *lower* the noise when the budget is exceeded and
so never finds it; see docs/mathematics.md, section 8.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from udpfl.accounting.accountant import account
from udpfl.accounting.events import Event
from udpfl.accounting.statement import PrivacyStatement
from udpfl.errors import Infeasible, InvalidInput
from udpfl.harmonizer.levels import Family, family_of, least_level
from udpfl.harmonizer.setting import Setting
from udpfl.harmonizer.staircase_shape import best_staircase
from udpfl.mechanisms import Mechanism

Rank = Literal["l2", "l1"]
"""Which expected error counts: root mean square, or mean absolute."""


@dataclass(frozen=True)
class Calibrated:
    """A noise mechanism, what it is used for, and the statement that holds then."""

    mechanism: Mechanism
    setting: Setting
    statement: PrivacyStatement

    @property
    def event(self) -> Event:
        """All the releases, ready to be accounted or charged."""
        return self.setting.event(self.mechanism)


def calibrate(mechanism: str | Mechanism, setting: Setting, rank: Rank = "l2") -> Calibrated:
    """The smallest noise of one kind that keeps the budget.

    `mechanism` is a name, or an instance whose shape is kept and whose scale is adjusted. Under
    vector accounting "staircase" also chooses period and split, to make the error named by `rank`
    (l2: variance, l1: expected absolute value) small; scalar accounting keeps period = clip and the
    default split, as the paper does.
    """
    if rank not in get_args(Rank):
        raise InvalidInput("rank", f"must be l2 or l1, got {rank!r}")
    if mechanism == "staircase" and setting.accounting == "vector":
        return calibrate_family(best_staircase(setting, rank), setting)
    return calibrate_family(family_of(mechanism, setting.sensitivity.bound), setting)


def calibrate_family(family: Family, setting: Setting) -> Calibrated:
    """The smallest level of a one-parameter family of noises that keeps the budget."""
    level = least_level(family, setting)
    for _ in range(5):
        mechanism = family(level)
        statement = account(
            setting.event(mechanism), setting.delta, setting.accountant, setting.accounting
        )
        if statement.epsilon <= setting.epsilon:
            return Calibrated(mechanism, setting, statement)
        level *= 1 + 1e-4  # the last digit of a search may fall on the wrong side
    raise Infeasible(f"calibration ended at {statement}, above the budget")
