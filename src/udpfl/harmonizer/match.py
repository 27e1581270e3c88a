"""Another noise that leaks no more than a given Gaussian."""

from __future__ import annotations

import math

import numpy as np

from udpfl.accounting.worst_case import worst_case
from udpfl.errors import InvalidInput
from udpfl.harmonizer.levels import family_of, least_root
from udpfl.mechanisms import Gaussian, Mechanism
from udpfl.sensitivity import Sensitivity

ORDERS = np.arange(1.0, 1025.0)
"""Order 1 is the Kullback-Leibler divergence; then every integer order up to 1024."""
_KNOTS = np.unique(np.round(np.concatenate([ORDERS[:32], 32 * 1.03 ** np.arange(118), [1024.0]])))


def match(mechanism: str | Mechanism, reference: Gaussian, sensitivity: Sensitivity) -> Mechanism:
    """The least noise whose leakage exceeds the reference's at none of `ORDERS`.

    Both sides are worst cases over all gradients that `sensitivity` allows. What holds for one
    release holds for any number of them, sampled or not: both accountings only ever add and mix
    these divergences.

    Args:
        mechanism: The kind of noise: a name, or an instance whose shape is kept and whose scale is
            adjusted. Staircase by name has period = clip.
        reference: The Gaussian noise that may not be exceeded.
        sensitivity: Bounds the gradients; needs a dimension unless `mechanism` is Gaussian.

    Returns:
        The matched noise.

    Raises:
        InvalidInput: `reference` is no Gaussian, the name is not known, or the dimension is
            missing.
        Infeasible: No amount of this noise leaks as little.

    Example:
        >>> from udpfl import Gaussian, Sensitivity, match
        >>> noise = match("laplace", Gaussian(5.0), Sensitivity(1.0, dimension=10))
        >>> noise.noise_std > 5.0
        True
    """
    family = family_of(mechanism, sensitivity.bound)
    if not isinstance(reference, Gaussian):
        raise InvalidInput("reference", f"must be a Gaussian, got {reference!r}")
    allowed = worst_case(reference, sensitivity, ORDERS)

    def excess(level: float) -> float:
        at_knots = worst_case(family(level), sensitivity, _KNOTS)
        # (a-1) D(a) is convex in the order, so chords between knots bound it from above.
        moments = np.interp(ORDERS[1:], _KNOTS, (_KNOTS - 1) * at_knots)
        leaked = np.append(at_knots[0], moments / (ORDERS[1:] - 1))
        ratio = float(np.max(leaked / allowed))  # not a number counts as too much
        return min(30.0, max(-30.0, math.log(ratio))) if 0 < ratio < math.inf else 30.0

    start = reference.std / sensitivity.bound
    return family(least_root(excess, start, 1e-6, slope=-2.0))
