"""Which mechanism for this release: calibrate all, rank by expected error, and say why."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass

from udpfl.errors import BudgetExceeded, Infeasible, Unsupported
from udpfl.harmonizer.calibrate import Calibrated, calibrate
from udpfl.harmonizer.setting import Setting
from udpfl.mechanisms import BUILT_IN, Mechanism, Rank

log = logging.getLogger(__name__)

_SAME = 1e-6  # part of an error by which two calibrations of one noise may differ


@dataclass(frozen=True)
class Choice:
    """One mechanism's place in the ranking, or the reason why it has none."""

    name: str
    """Of the mechanism."""
    calibrated: Calibrated | None
    """Its noise; None where it is impossible."""
    why: str
    """Why it has its place, or why it is impossible."""

    def error(self, rank: Rank) -> float:
        """Expected error per coordinate: root mean square (l2) or mean absolute (l1)."""
        return math.inf if self.calibrated is None else self.calibrated.mechanism.error(rank)


def choose(
    setting: Setting,
    mechanisms: Iterable[str | Mechanism] | None = None,
    rank: Rank = "l2",
) -> list[Choice]:
    """All of the mechanisms, least expected error first; impossible ones last, with the reason.

    Every coordinate gets noise of the same law, so ranking by one coordinate's error ranks by the
    expected l1 or squared l2 error of the whole release.

    Args:
        setting: What is released, how often, and the budget.
        mechanisms: Names or instances; the built-in ones that are ranked, if left out.
        rank: "l2" ranks by root mean square error, "l1" by mean absolute error.

    Returns:
        One choice for each mechanism, ranked.

    Raises:
        InvalidInput: A name or `rank` is not known.

    Example:
        >>> from udpfl import Sensitivity, Setting, choose
        >>> setting = Setting(1.0, 1e-5, 10, Sensitivity(1.0, dimension=100))
        >>> [choice.name for choice in choose(setting, ["laplace", "gaussian"])]
        ['gaussian', 'laplace']
    """
    choices = []
    for mechanism in ranked() if mechanisms is None else mechanisms:
        name = mechanism if isinstance(mechanism, str) else mechanism.name
        try:
            choices.append(Choice(name, calibrate(mechanism, setting, rank), ""))
        except (Unsupported, Infeasible, BudgetExceeded) as reason:
            log.info("%s: %s", name, reason)
            choices.append(Choice(name, None, str(reason)))
    choices = _in_order(choices, rank)
    best = choices[0]
    alone = len(choices) == 1
    return [_explained(choice, best, setting, rank, alone) for choice in choices]


def ranked() -> list[str]:
    """The built-in mechanisms that "auto" and "all" try.

    Returns:
        Their names.

    Example:
        >>> from udpfl.harmonizer import ranked
        >>> "laplace" in ranked()
        True
    """
    return [name for name, kind in BUILT_IN.items() if kind.is_ranked]


def _in_order(choices: list[Choice], rank: Rank) -> list[Choice]:
    """Least error first; of two that are one noise under two names, the one that was named first"""
    left, ordered = list(choices), []
    while left:
        least = min(choice.error(rank) for choice in left)
        first = next(choice for choice in left if choice.error(rank) <= least * (1 + _SAME))
        left.remove(first)
        ordered.append(first)
    return ordered


def _explained(choice: Choice, best: Choice, setting: Setting, rank: Rank, alone: bool) -> Choice:
    if choice.calibrated is None or best.calibrated is None:
        return choice
    measure = "standard deviation" if rank == "l2" else "mean absolute noise"
    reason = _reason(choice.calibrated.mechanism, setting)
    if alone:
        text = reason
    elif choice is best:
        text = f"least {measure} for this release. {reason}"
    else:
        extra = choice.error(rank) / best.error(rank) - 1
        more = f"{extra:.1%} more" if extra >= 5e-4 else "practically the same"
        text = f"{more} {measure} {'than' if extra >= 5e-4 else 'as'} {best.name}. "
        mine, other = (c.calibrated.statement.accountant for c in (choice, best) if c.calibrated)
        if mine != other and setting.reference is None:
            text = text[:-2] + f", in part because {other} is a tighter accountant than {mine}. "
        text += reason
    return Choice(choice.name, choice.calibrated, text)


def _reason(mechanism: Mechanism, setting: Setting) -> str:
    if setting.accounting == "scalar":
        return "Scalar accounting bounds one coordinate, not the gradient: nominal only."
    if setting.delta == 0:
        return "Pure DP (delta = 0)."
    return mechanism.explain(setting.sensitivity.norm, setting.sensitivity.dimension)
