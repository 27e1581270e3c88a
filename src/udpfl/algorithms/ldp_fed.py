"""LDP-Fed, as the UDP-FL paper cites it: LDP-FL of Sun, Qian and Chen, one bit about every weight.

The table of the UDP-FL paper calls it LDP-Fed; its authors call it LDP-FL. Each client trains, and
of each weight w, clipped to [c - r, c + r], it sends

    c + r coth(epsilon / 2)   with probability 1/2 + (w - c) tanh(epsilon / 2) / (2 r)
    c - r coth(epsilon / 2)   otherwise,

which is unbiased and epsilon-DP for this weight. The range comes from the server. Here the centre c
of a weight is its value in the model that was just sent, and r is `privacy.clip`, so the bits are
about the update; the authors have one c and one r for every layer. That part is a reading.

The authors let a client send its weights one by one, at times drawn at random, so that nobody knows
which of them belong together ("parameter shuffling"), and claim epsilon for a client in all rounds.
That is not repeated here. A client sends d answers in a round, each epsilon-DP: whoever collects
them has d of them about it, in each of T rounds. Behind a server that takes part in collecting them
no bound below that is proved, so d T answers are charged. With epsilon = 1, 26,010 weights and 4
rounds that is epsilon = 49,300 at delta = 1e-5, and 104,040 at delta = 0.

References: Sun, Qian and Chen 2020, "LDP-FL: Practical private aggregation in federated learning
with local differential privacy", arXiv 2007.15789, Algorithms 1 and 2.
"""

from __future__ import annotations

from udpfl.algorithms.base import OwnNoise, Target
from udpfl.algorithms.fedavg import FedAvg
from udpfl.mechanisms import CoordinateResponse


class LdpFed(FedAvg):
    """Clients send one bit about every weight of their update, for privacy.unit = "client".

    `privacy.clip` is r; `privacy.epsilon` is what its authors claim, the epsilon of one weight, and
    no budget: d weights are answered for in every round.

    Guarantee: every answer is epsilon-DP for a client and all its records, exactly and at
    delta = 0; a round has as many as the model has weights.

    Args:
        server: How the server moves.

    Example:
        >>> from udpfl.algorithms import LdpFed, ServerStep
        >>> LdpFed(ServerStep()).name
        'ldp-fed'
    """

    name = "ldp-fed"
    paper = (
        "Sun et al. 2020, LDP-FL: Practical private aggregation in federated learning with local "
        "differential privacy (our interpretation: ranges lie around the model that was sent)"
    )
    releases = "update: in its place, one bit about every weight of the clipped update"
    unit = "client"
    guarantee = (
        "Less than its authors claim: privacy.epsilon is that of one weight, and what is accounted "
        "are all weights of all rounds."
    )

    def own_noise(self, target: Target) -> OwnNoise:
        """The bits about all weights, and what its authors claim for them."""
        weights, rounds = target.dimension, self.terms.rounds
        claim = (
            f"the authors of {self.name} claim ε = {target.epsilon:g}, which is no guarantee: it "
            f"is that of one weight, and a client sends {weights} of them in each of {rounds} "
            f"rounds. That they are sent one by one hides nothing from whoever collects them"
        )
        bits = CoordinateResponse(target.epsilon, target.clip, weights, weights)
        return OwnNoise(bits, None, claim)
