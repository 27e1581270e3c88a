"""How far noise carries a model: the sum of what each release errs by, and where it ends up.

T releases add X_1, ..., X_T to each of d coordinates. The paper's theorem adds up the sizes,
E sum |X_t| = T d E|X|, which grows like T. The releases are added to one model, though, where
positive and negative noise cancel: the error of the model is |X_1 + ... + X_T|. Its mean square is
T d Var for any noise, so its l1 norm is at most d sqrt(T Var), and by the central limit theorem

    E |X_1 + ... + X_T|_1  ->  d sqrt(2 T Var / pi),

exactly so for Gaussian noise. It grows like sqrt(T).

References: the UDP-FL paper, Theorem "The expectation of the l1 distance" (whose closed form for
Staircase noise has mixed dimensions; `Mechanism.mean_abs` is right, see docs/mathematics.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from udpfl.errors import InvalidInput
from udpfl.mechanisms import Mechanism

_DRAWS = 1 << 21


@dataclass(frozen=True)
class ErrorRow:
    """After some releases: formula and sample of both errors, in l1 over all coordinates."""

    releases: int
    summed: float
    """T d E|X|, the paper's."""
    summed_sampled: float
    accumulated: float
    """d sqrt(2 T Var / pi): the limit for many releases, exact for Gaussian noise."""
    accumulated_sampled: float
    accumulated_spread: float
    """Standard error of the sampled figure."""
    bound: float
    """d sqrt(T Var), which the accumulated error never exceeds."""

    def to_dict(self) -> dict[str, float]:
        """Plain data."""
        return asdict(self)


def milestones(releases: int) -> list[int]:
    """1, 2, 5, 10, ... up to the number of releases, itself included."""
    if isinstance(releases, bool) or not isinstance(releases, int) or releases < 1:
        raise InvalidInput("rounds", f"must be a whole number from 1, got {releases!r}")
    steps = [m * 10**k for k in range(len(str(releases))) for m in (1, 2, 5)]
    return [step for step in steps if step < releases] + [releases]


def errors(
    noise: Mechanism,
    places: Sequence[int],
    *,
    dimension: int,
    scale: float = 1.0,
    trials: int = 4000,
    seed: int = 0,
) -> list[ErrorRow]:
    """Both errors after each number of releases in `places` (rising), formula beside sample.

    Coordinates are alike, so `trials` of one are drawn and stand for all `dimension`.

    Args:
        noise: On every coordinate.
        places: Numbers of releases, rising; `milestones` makes some.
        dimension: Coordinates of a release.
        scale: What noise is multiplied by on its way into the model: learning rate over sampling
            rate times declared size.
        trials: Coordinates that are drawn, at least 2.
        seed: Of the sample.

    Returns:
        One row for each number of releases.

    Raises:
        InvalidInput: A number is out of range.

    Example:
        >>> from udpfl import Gaussian
        >>> from udpfl.analysis.errors import errors
        >>> [row.bound for row in errors(Gaussian(2.0), [1, 100], dimension=3, trials=50)]
        [6.0, 60.0]
    """
    _require_numbers(dimension, trials, scale)
    rng = np.random.default_rng(seed)
    total, size = np.zeros(trials), np.zeros(trials)
    unit = dimension * scale
    rows, done = [], 0
    for place in places:
        while done < place:
            count = min(place - done, max(1, _DRAWS // trials))
            drawn = noise.sample_one((count, trials), rng)
            total += drawn.sum(0)
            size += np.abs(drawn).sum(0)
            done += count
        drift = np.abs(total)
        rows.append(
            ErrorRow(
                releases=place,
                summed=unit * place * noise.mean_abs,
                summed_sampled=unit * float(size.mean()),
                accumulated=unit * math.sqrt(2 * place * noise.variance / math.pi),
                accumulated_sampled=unit * float(drift.mean()),
                accumulated_spread=unit * float(drift.std(ddof=1)) / math.sqrt(trials),
                bound=unit * math.sqrt(place * noise.variance),
            )
        )
    return rows


def _require_numbers(dimension: int, trials: int, scale: float) -> None:
    for name, value, least in (("dimension", dimension, 1), ("trials", trials, 2)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidInput(name, f"must be a whole number from {least}, got {value!r}")
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidInput("scale", f"must be a finite number above 0, got {scale!r}")
