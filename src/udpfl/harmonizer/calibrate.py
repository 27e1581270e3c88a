"""The smallest noise that keeps a budget, or that matches a reference Gaussian.

Guarantee: the returned noise is on the private side. Its own statement, computed by the accountant
it names, has epsilon at or below the target; 0.1 % less noise of the same shape would not. Where
the setting has a reference, the divergence of a release is at or below that of the reference at
every order, which 0.2 % less noise would not be; and what all releases cost is within the budget.

(The paper's Algorithm "Rényi Accountant" says to *lower* the noise when the budget is exceeded and
so never finds it; see docs/mathematics.md, section 8.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import get_args

from udpfl.accounting.accountant import account
from udpfl.accounting.events import Event
from udpfl.accounting.statement import PrivacyStatement, shown
from udpfl.errors import BudgetExceeded, Infeasible, InvalidInput
from udpfl.harmonizer._levels import (
    built_in,
    by_match,
    by_rdp,
    family_of,
    in_dimension,
    least_level,
)
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
    """The smallest noise of one kind that keeps the budget, or that matches the reference.

    Args:
        mechanism: A name, or an instance whose shape is kept and whose scale is adjusted. Under
            vector accounting a name also chooses the shape, where the mechanism has several (the
            period and split of "staircase"); scalar accounting keeps its usual one (period = clip,
            as in the paper).
        setting: What is released, how often, and the budget; perhaps a reference.
        rank: The error that the shape is to make small: "l2" is the variance, "l1" the expected
            absolute value.

    Returns:
        The noise, and the statement that holds for all releases.

    Raises:
        InvalidInput: The name or `rank` is not known.
        Infeasible: No amount of noise of this kind keeps the budget or matches the reference.
        BudgetExceeded: The noise matches the reference, and costs more than the budget.
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
        family = family_of(mechanism, setting.accounted_sensitivity)
    return calibrate_family(in_dimension(family, setting.sensitivity.dimension), setting)


@dataclass(frozen=True)
class _ShapeSearch:
    """What a mechanism may ask while it searches for its best shape."""

    setting: Setting
    rank: Rank

    @property
    def clip(self) -> float:
        return self.setting.sensitivity.bound

    @property
    def radius(self) -> float:
        return self.setting.sensitivity.largest("l1")

    @property
    def dimension(self) -> int:
        return self.setting.sensitivity.coordinates

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
        fitting = in_dimension(family, self.setting.sensitivity.dimension)
        if (reference := self.setting.reference) is not None:
            return by_match(fitting, self.setting, reference, _COARSE, guess)
        return by_rdp(fitting, self.setting, _COARSE, guess)


def calibrate_family(family: Family, setting: Setting) -> Calibrated:
    """The noise of the smallest level of a one-parameter family that does."""
    level = least_level(family, setting)
    for _ in range(5):
        mechanism = family(level)
        statement = account(
            setting.event(mechanism), setting.delta, setting.accountant, setting.accounting
        )
        if statement.epsilon <= setting.epsilon:
            return Calibrated(mechanism, setting, statement)
        level *= 1 + 1e-4  # the last digit of a search may fall on the wrong side
    if setting.reference is not None:
        raise BudgetExceeded(_beyond(setting, setting.reference, statement))
    raise Infeasible(f"calibration ended at {statement}, above the budget")


@lru_cache(maxsize=64)
def least_reference(setting: Setting) -> float:
    """The noise multiplier of the smallest reference that keeps the budget by Rényi accounting.

    Noise that matches it keeps the budget as well.
    """
    if setting.sensitivity.dimension is None:  # under l1 or l2 a Gaussian is alike in all
        setting = replace(setting, sensitivity=setting.sensitivity.scalar())
    return by_rdp(setting.reference_noise, setting)


def _beyond(setting: Setting, reference: float, statement: PrivacyStatement) -> str:
    """Why a matched noise is refused, and which reference would not be."""
    fits = least_reference(setting)
    digits = 10.0 ** (math.floor(math.log10(fits)) - 2)
    costs, proved = "costs", ""
    if statement.kind == "nominal":
        costs = "nominally costs"
        proved = f" (guaranteed is ε = {shown(statement.vector_epsilon)})"
    return (
        f"noise that matches a Gaussian with noise multiplier {reference:g} {costs} "
        f"ε = {shown(statement.epsilon)}{proved} at δ = {setting.delta:g}, more than the budget of "
        f"ε = {setting.epsilon:g}; matched to a Gaussian with noise multiplier "
        f"{math.ceil(fits / digits) * digits:.3g} it would fit"
    )
