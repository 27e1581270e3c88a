"""How a budget is spread over the rounds: the same noise in all, or a noise that changes.

The noise of a round is a public factor times the planned noise. "increasing" and "decaying" fix the
factors of all rounds beforehand. With "plateau" they follow what was released: a factor is one of a
few levels, which were fixed beforehand, and which of them a round has is not. In both cases there
are few factors, so that an accountant meets a few kinds of releases and not one for every round.
"""

from __future__ import annotations

from typing import Literal

Pace = Literal["uniform", "increasing", "decaying", "plateau"]

_STEPS = 8


def noise_factors(pace: Pace, ratio: float, rounds: int) -> tuple[float, ...]:
    """The factor of every round, all 1 or more; empty where all are planned alike.

    "increasing" spends more and more, so its noise falls, by `ratio` in all.
    """
    if pace in ("uniform", "plateau") or ratio == 1 or rounds == 1:
        return ()
    steps = min(_STEPS, rounds)
    spent = [round_ * steps // rounds / (steps - 1) for round_ in range(rounds)]
    rising = pace == "increasing"
    return tuple(ratio ** (1 - part if rising else part) for part in spent)


def noise_levels(pace: Pace, ratio: float) -> tuple[float, ...]:
    """The factors that a round may have where they follow results, the largest first; else none.

    The largest is `ratio` times the smallest, and 1, the planned noise, lies in the middle.
    """
    if pace != "plateau":
        return ()
    return tuple(ratio ** (0.5 - step / _STEPS) for step in range(_STEPS + 1))
