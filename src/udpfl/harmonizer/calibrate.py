"""The smallest noise that keeps a budget.

Guarantee: the returned noise is on the private side. Its own statement, computed by the accountant
it names, has epsilon at or below the target; 0.1 % less noise of the same shape would not.

(The paper's Algorithm "Rényi Accountant" says to *lower* the noise when the budget is exceeded and
so never finds it; see docs/mathematics.md, section 8.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from udpfl.accounting.accountant import account
from udpfl.accounting.events import Event
from udpfl.accounting.statement import PrivacyStatement
from udpfl.errors import Infeasible, InvalidInput
from udpfl.harmonizer.levels import built_in, by_rdp, family_of, least_level
from udpfl.harmonizer.setting import Setting
from udpfl.mechanisms import Family, Mechanism, Rank

_COARSE = 3e-4  # tolerance of the noise level while a shape is searched for


@dataclass(frozen=True)
class Calibrated:
    """A noise mechanism, what it is used for, and the statement that holds then."""

    mechanism: Mechanism
    """The noise, with its scale."""
    setting: Setting
    """What it was calibrated for."""
    statement: PrivacyStatement
    """What all releases cost; within the budget of `setting`."""

    @property
    def event(self) -> Event:
        """All the releases, ready to be accounted or charged."""
        return self.setting.event(self.mechanism)


def calibrate(mechanism: str | Mechanism, setting: Setting, rank: Rank = "l2") -> Calibrated:
    """The smallest noise of one kind that keeps the budget.

    Args:
        mechanism: A name, or an instance whose shape is kept and whose scale is adjusted. Under
            vector accounting a name also chooses the shape, where the mechanism has several (the
            period and split of "staircase"); scalar accounting keeps its usual one (period = clip,
            as in the paper).
        setting: What is released, how often, and the budget.
        rank: The error that the shape is to make small: "l2" is the variance, "l1" the expected
            absolute value.

    Returns:
        The noise, and the statement that holds for all releases.

    Raises:
        InvalidInput: The name or `rank` is not known.
        Infeasible: No amount of noise of this kind keeps the budget.
        Unsupported: The accountant has no proved bound for this noise.

    Example:
        >>> from udpfl import Sensitivity, Setting, calibrate
        >>> setting = Setting(2.0, 1e-5, 1000, Sensitivity(1.0), rate=0.01)
        >>> round(calibrate("gaussian", setting).mechanism.std, 2)
        0.96
    """
    if rank not in get_args(Rank):
        raise InvalidInput("rank", f"must be l2 or l1, got {rank!r}")
    if isinstance(mechanism, str) and setting.accounting == "vector":
        family = built_in(mechanism).tuned_family(_ShapeSearch(setting, rank))
    else:
        family = family_of(mechanism, setting.sensitivity.bound)
    return calibrate_family(family, setting)


@dataclass(frozen=True)
class _ShapeSearch:
    """What a mechanism may ask while it searches for its best shape."""

    setting: Setting
    rank: Rank

    @property
    def clip(self) -> float:
        return self.setting.sensitivity.bound

    @property
    def shift(self) -> float:
        sensitivity = self.setting.sensitivity
        if sensitivity.norm == "l2":
            return sensitivity.bound / math.sqrt(sensitivity.coordinates)
        return sensitivity.bound

    @property
    def is_pure(self) -> bool:
        return self.setting.delta == 0

    def least_level(self, family: Family, guess: float | None = None) -> float:
        return by_rdp(family, self.setting, _COARSE, guess)


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
