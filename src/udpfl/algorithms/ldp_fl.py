"""LDP-FL, as the UDP-FL paper cites it: CLDP-SGD in the linf norm, accounted by Rényi divergences.

The table of the UDP-FL paper has a method "LDP-FL" with a reference to the work of Girgis and
others on Rényi divergences of the shuffle model. There is no method of that name in it: what it
trains is CLDP-SGD, one message of each client a round, and what is new is the accounting. (Sun,
Qian and Chen 2020 call their method LDP-FL; the paper's table has that one as LDP-Fed, see
`ldp_fed.py`.) So this is a reading: `cldp_sgd.py` with the randomiser for the linf ball, which asks
some coordinates, drawn at random, for one bit each (`udpfl.mechanisms.CoordinateResponse`). That
the authors' experiments clip in this norm could not be confirmed.

The authors' accounting gains by a shuffler over ten thousand clients and more. With fewer its
conditions are not met, and nothing of it is counted here.

References: Girgis, Data, Diggavi, Suresh and Kairouz 2021, "On the Rényi differential privacy of
the shuffle model" (CCS); Girgis, Data and Diggavi 2021, "Rényi differential privacy of the
subsampled shuffle model in distributed learning" (NeurIPS), Algorithm 1 and its experiments.
"""

from __future__ import annotations

from udpfl.algorithms.base import Target
from udpfl.algorithms.cldp_sgd import CldpSgd
from udpfl.errors import InvalidInput
from udpfl.mechanisms import CoordinateResponse, Randomiser


class LdpFl(CldpSgd):
    """Clients send one bit about each of some coordinates of one clipped step.

    `privacy.clip` bounds every coordinate; `privacy.epsilon` is epsilon_0, what one message costs,
    and no budget.

    Guarantee: a message is epsilon_0-DP for a client and all its records, exactly and at delta = 0.

    Args:
        server: How the server moves.
        answers: Coordinates that are asked; about epsilon_0 / 2 of them if left out.

    Raises:
        InvalidInput: `answers` is not a whole number from 1.

    Example:
        >>> from udpfl.algorithms import LdpFl, ServerStep
        >>> LdpFl(ServerStep()).name
        'ldp-fl'
    """

    name = "ldp-fl"
    paper = (
        "Girgis et al. 2021, On the Rényi differential privacy of the shuffle model (our "
        "interpretation: it analyses CLDP-SGD and has no method of this name)"
    )
    releases = "update: in its place, one bit about each of some coordinates of one clipped step"

    def _randomiser(self, epsilon: float, target: Target, answers: int) -> Randomiser:
        if answers > target.dimension:
            raise InvalidInput(
                "training.options.answers",
                f"must be at most the {target.dimension} parameters of the model, got {answers}",
            )
        return CoordinateResponse(epsilon, target.clip, target.dimension, answers)
