"""What a method's server half may learn from besides messages: records that are no client's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from udpfl.engine import LaneModel


@dataclass(frozen=True)
class PublicData:
    """The public split (`data.public`), the model it is used with, and the public seed.

    No client holds any of these records, and no guarantee covers them.
    """

    model: LaneModel
    """Computes losses and gradients on these records."""
    inputs: Tensor
    """[n, ...]; n = 0 where nothing was set aside."""
    targets: Tensor
    """Labels [n], or values [n, k]."""
    seed: int
    """Of the run; everybody may know it."""

    def __deepcopy__(self, memo: object) -> PublicData:
        """Copies of a method share it: it is public, and nothing writes to it."""
        return self

    def rng(self, *key: int) -> np.random.Generator:
        """Random numbers for one purpose of one round, the same however often one asks.

        Keyed and not drawn in turn, so that a resumed run goes on as it would have.
        """
        return np.random.default_rng([*b"method", self.seed, *key])
