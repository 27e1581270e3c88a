"""The two worlds an adversary has to tell apart: with a record, and without it.

Noise and sampling come from the very code that training uses. In either world the adversary sees
every release and computes how much more probable it is with the record than without: if the noise
is what it is said to be, no other score tells the worlds apart better (Neyman and Pearson 1933).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from udpfl.engine.noise import MechanismNoiser, Noiser
from udpfl.engine.randomness import Entropy, Key, PrivateStream, poisson_indices
from udpfl.mechanisms import Mechanism, Radial
from udpfl.mechanisms.arrays import Floats

_AT_ONCE = 1 << 21
"""Numbers that are drawn at once."""


@dataclass(frozen=True)
class Releases:
    """What is repeated: a sum that one record shifts, plus noise, a number of times.

    Example:
        >>> import numpy as np
        >>> from udpfl import Gaussian
        >>> from udpfl.audit import Releases
        >>> Releases(Gaussian(1.0), np.ones(3), steps=2).scores(5, present=True).shape
        (5,)
    """

    mechanism: Mechanism
    """The noise that is claimed; the adversary's score is about this."""
    shift: Floats
    """What the record adds to the sum whenever it takes part."""
    steps: int = 1
    """How many releases an adversary sees in one trial."""
    rate: float = 1.0
    """Probability with which the record takes part in a release."""

    def scores(
        self,
        trials: int,
        *,
        present: bool,
        stream: PrivateStream | None = None,
        noiser: Noiser | None = None,
    ) -> Floats:
        """The log-likelihood ratio of every trial, in the world with or without the record.

        `noiser` adds the noise in place of the engine's own, to see whether a wrong one is caught.
        """
        used = coordinates_that_tell(self.mechanism, self.shift)
        shift = torch.from_numpy(self.shift[used]).float()
        source = stream or Entropy()
        adds = noiser or MechanismNoiser([self.mechanism])
        size = max(1, _AT_ONCE // max(1, len(used)))
        found = []
        for start in range(0, trials, size):
            count, world = min(size, trials - start), f"{present} from {start}"
            total = np.zeros(count)
            for step in range(self.steps):
                sums = torch.zeros(count, len(used))
                if present:
                    key = Key("audit", world, 0, step, "sampling")
                    sums[poisson_indices(source, key, torch.arange(count), self.rate)] = shift
                # All these trials in one row: noise does not know where a trial ends.
                noisy = adds.add(sums.view(1, -1), source, [Key("audit", world, 0, step)])
                seen = noisy.view(count, -1).double().numpy()
                score = likelihood_ratio(self.mechanism, seen, shift.double().numpy())
                total += by_chance(score, self.rate)
            found.append(total)
        return np.concatenate(found)


def coordinates_that_tell(mechanism: Mechanism, shift: Floats) -> NDArray[np.intp]:
    """Those in which the two worlds differ: with noise of whole vectors, all of them."""
    return np.arange(shift.size) if isinstance(mechanism, Radial) else np.flatnonzero(shift)


def likelihood_ratio(mechanism: Mechanism, released: Floats, shift: Floats) -> Floats:
    """How much more probable each release [trials, d] is with the shift, as a logarithm."""
    ratio: Floats = mechanism.log_density(released - shift) - mechanism.log_density(released)
    return ratio if isinstance(mechanism, Radial) else ratio.sum(1)


def by_chance(score: Floats, rate: float) -> Floats:
    """The same where the record takes part with probability `rate`."""
    return score if rate == 1 else np.logaddexp(np.log1p(-rate), np.log(rate) + score)
