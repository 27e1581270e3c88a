"""Messages of a randomiser under audit: a client's own update, and the opposite one.

What is charged for a message holds for any two updates, so the adversary takes two that lie as far
apart as the clip lets them. Nothing needs a look at rounding: there is no noise that has any.
"""

from __future__ import annotations

import numpy as np
import torch

from udpfl.audit._tally import Tally, judged
from udpfl.audit.verdict import Verdict
from udpfl.engine import Entropy, Key, RandomisingNoiser
from udpfl.mechanisms import Randomiser
from udpfl.mechanisms.arrays import Floats

_AT_ONCE = 1 << 21
"""Numbers that are drawn at once."""


def audit_message(
    randomiser: Randomiser,
    update: Floats,
    epsilon: float,
    delta: float,
    *,
    claim: str,
    trials: int,
    error: float,
) -> Verdict:
    """Try to refute that one message is (epsilon, delta)-DP, with `trials` in each world.

    Guarantee: a claim that is true is refuted with probability `error` at most.
    """
    there, away = (_scores(randomiser, own, update, trials) for own in (update, -update))
    tests = judged(Tally.of(there, away), epsilon, delta, error, both=True)
    return Verdict(claim, epsilon, delta, tests, error)


def _scores(randomiser: Randomiser, own: Floats, update: Floats, trials: int) -> Floats:
    """Of so many messages about one vector: whether they point to the update or its opposite."""
    size, found = max(1, _AT_ONCE // len(own)), []
    for start in range(0, trials, size):
        count = min(size, trials - start)
        keys = [Key("audit", str(start + i), 0, 0, "update") for i in range(count)]
        rows = torch.from_numpy(own).expand(count, -1)
        messages = RandomisingNoiser([randomiser] * count).add(rows, Entropy(), keys)
        found.append(randomiser.score(messages.double().numpy(), update, -update))
    return np.concatenate(found)
