"""Mean, sample standard deviation and range of one figure over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Some values of one figure, at least one."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        """Infinite, or not a number, where a model diverged."""
        return statistics.fmean(self.values)

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; None for a single value and where a model diverged."""
        known = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "mean": plain(self.mean),
            "sd": self.sd,
            "min": plain(min(self.values)),
            "max": plain(max(self.values)),
        }


def plain(value: float | None) -> float | str | None:
    """A number that JSON knows; a model that diverged has "inf" or "nan"."""
    return value if value is None or math.isfinite(value) else str(value)
