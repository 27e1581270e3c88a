"""How a budget is spread over the rounds: the same noise in all, less and less, or more and more.

The noise of a round is a public factor times that of the most generous rounds. Factors change in a
few steps, so that an accountant meets a few kinds of releases and not one for every round.
"""

from __future__ import annotations

from typing import Literal

Pace = Literal["uniform", "increasing", "decaying"]

_STEPS = 8


def noise_factors(pace: Pace, ratio: float, rounds: int) -> tuple[float, ...]:
    """The factor of every round, all 1 or more; empty where all rounds are alike.

    "increasing" spends more and more, so its noise falls, by `ratio` in all.
    """
    if pace == "uniform" or ratio == 1 or rounds == 1:
        return ()
    steps = min(_STEPS, rounds)
    spent = [round_ * steps // rounds / (steps - 1) for round_ in range(rounds)]
    rising = pace == "increasing"
    return tuple(ratio ** (1 - part if rising else part) for part in spent)
