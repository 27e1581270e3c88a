"""How far one record can move a release: a norm, a bound and a dimension.

The clipper that enforces the bound returns this object, so clip and noise cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from udpfl.errors import InvalidInput
from udpfl.mechanisms.base import positive

Norm = Literal["l1", "l2", "linf"]
_LARGEST = 10**12


def whole(name: str, value: int) -> int:
    """A whole number from 1 to 10^12 as a plain int, or an error."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InvalidInput(name, f"must be a whole number >= 1, got {value!r}")
    if value > _LARGEST:
        raise InvalidInput(name, f"must be at most 10^12, got {value!r}")
    return int(value)


@dataclass(frozen=True)
class Sensitivity:
    """One record changes the sum by a vector v with ||v|| <= bound in `dimension` coordinates.

    `dimension` may stay unknown (None) only where the answer does not depend on it: Gaussian noise
    under l1 or l2.

    Raises:
        InvalidInput: The norm is not known, or a number is out of range.

    Example:
        >>> from udpfl import Sensitivity
        >>> Sensitivity(1.0, "l2", dimension=100).largest("l1")
        10.0
    """

    bound: float
    """The clip: from 1e-100 to 1e100."""
    norm: Norm = "l2"
    """In which it is measured: "l1", "l2" or "linf"."""
    dimension: int | None = None
    """How many coordinates the sum has; None where it is not known."""

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise InvalidInput("norm", f"must be l1, l2 or linf, got {self.norm!r}")
        positive("clip", self.bound)
        if not 1e-100 <= self.bound <= 1e100:
            raise InvalidInput("clip", f"must lie between 1e-100 and 1e100, got {self.bound!r}")
        if self.dimension is not None:
            object.__setattr__(self, "dimension", whole("dimension", self.dimension))

    @property
    def coordinates(self) -> int:
        """The dimension, or an error where it is needed and missing."""
        if self.dimension is None:
            raise InvalidInput(
                "dimension",
                "is required: except for Gaussian noise under l1 or l2, privacy depends on it",
            )
        return self.dimension

    def scalar(self) -> Sensitivity:
        """The paper's reading: the whole bound on a single coordinate. Nominal, not a guarantee."""
        return replace(self, dimension=1)

    def largest(self, norm: Norm) -> float:
        """The largest `norm` of a vector inside this bound."""
        if self.norm == norm or self.dimension == 1:
            return self.bound
        power = {"l1": 1.0, "l2": 0.5, "linf": 0.0}
        gain = max(0.0, power[norm] - power[self.norm])
        return self.bound * float(self.coordinates) ** gain if gain else self.bound
