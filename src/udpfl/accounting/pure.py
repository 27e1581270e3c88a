"""Pure differential privacy, delta = 0: the largest privacy loss, added up.

References: Dwork and Roth 2014, Theorem 3.16 (composition); Balle, Barthe and Gaboardi 2018,
"Privacy amplification by subsampling", Theorem 8 (Poisson sampling).
"""

from __future__ import annotations

import math

from udpfl.accounting.events import (
    Event,
    Leaf,
    NominallyShuffled,
    PoissonSampled,
    PureDP,
    Release,
    SecretlySelected,
    Shuffled,
    leaves,
)
from udpfl.accounting.worst_case import worst_loss
from udpfl.errors import Unsupported


def _leaf(leaf: Leaf) -> float:
    match leaf:
        case Release(mechanism, sensitivity):
            loss = worst_loss(mechanism, sensitivity)
            if math.isinf(loss):
                raise Unsupported(f"{mechanism.name} noise has no pure-DP guarantee (delta = 0)")
            return loss
        case PureDP(value):
            return value
        case PoissonSampled(rate):
            inner, passes = leaf.passes
            whole = passes * _leaf(inner)
            # log(1 + q (e^x - 1)), without overflow
            if whole < 30:
                return math.log1p(rate * math.expm1(whole))
            return whole + math.log(rate + (1 - rate) * math.exp(-whole))
        case SecretlySelected(event=inner):
            return epsilon(inner)  # the unselected case may sit where neither neighbour has mass
        case Shuffled(event=inner) | NominallyShuffled(event=inner):
            return _leaf(inner)


def epsilon(event: Event) -> float:
    """The largest privacy loss of the whole event."""
    return sum(count * _leaf(leaf) for leaf, count in leaves(event).items())
