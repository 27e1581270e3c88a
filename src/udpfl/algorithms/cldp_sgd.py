"""CLDP-SGD: clients answer questions about their gradient by randomised response.

In every round some clients take one step from the global model, clip how far it leads to norm C,
and send answers of a randomiser about it in place of it: `epsilon_0`-DP for all that a client
holds, whoever sees the message. The server averages the messages, which are unbiased.

What is the authors': a round of K among N clients, one step each, a clip in some norm, one message
of a pure epsilon_0-LDP randomiser that takes few bits, and a mean of the messages. Their l2
randomiser quantises what the one of Duchi, Jordan and Wainwright 2018 sends; here that one is used
as it is (`udpfl.mechanisms.DirectionResponse`). With a large epsilon_0 several answers of
epsilon_0 / k each are better than a single one: their variance is coth^2(epsilon_0 / 2k) / k, which
is least near k = epsilon_0 / 2.2. The authors sample single records of a client and hide those; a
client's whole sample enters here, and the whole client is hidden.

The authors' total for T rounds rests on a shuffler and on nobody knowing which clients and records
a round takes ("amplification"). It is not repeated here: the theorem needs far more messages in a
round than there are, and the public seed says who is asked. What is stated are the messages as they
are, added up over the rounds.

References: Girgis, Data, Diggavi, Kairouz and Suresh 2021, "Shuffled model of differential privacy
in federated learning" (AISTATS), Algorithm 1.
"""

from __future__ import annotations

import math

from udpfl.accounting import PureDP, Repeated, rdp
from udpfl.accounting.events import NominallyShuffled
from udpfl.algorithms.base import OwnNoise, ServerStep, Target, Terms
from udpfl.algorithms.fedavg import FedAvg
from udpfl.errors import InvalidInput
from udpfl.mechanisms import DirectionResponse, Randomiser


class CldpSgd(FedAvg):
    """Clients send answers about one clipped step, for privacy.unit = "client".

    `privacy.clip` is C; `privacy.epsilon` is epsilon_0, what one message costs, and no budget: a
    run costs as many of them as a client is asked for.

    Guarantee: a message is epsilon_0-DP for a client and all its records, exactly and at delta = 0.

    Args:
        server: How the server moves.
        answers: Answers in a message; about epsilon_0 / 2 if left out.

    Raises:
        InvalidInput: `answers` is not a whole number from 1.

    Example:
        >>> from udpfl.algorithms import CldpSgd, ServerStep
        >>> CldpSgd(ServerStep(), answers=3).unit
        'client'
    """

    name = "cldp-sgd"
    paper = "Girgis et al. 2021, Shuffled model of differential privacy in federated learning"
    releases = "update: in its place, answers on which side of random planes one clipped step lies"
    unit = "client"
    guarantee = (
        "A message is pure DP with privacy.epsilon for all records of a client, and a run costs "
        "all its messages; what its authors gain by shuffling and sampling is not counted."
    )

    def __init__(self, server: ServerStep, *, answers: int | None = None) -> None:
        super().__init__(server)
        whole = isinstance(answers, int) and not isinstance(answers, bool)
        if answers is not None and not (whole and answers >= 1):
            raise InvalidInput(
                "training.options.answers", f"must be a whole number from 1, got {answers!r}"
            )
        self._answers = answers

    def agree(self, terms: Terms) -> None:
        if terms.local_steps != 1:
            raise InvalidInput(
                "training.local_steps",
                f"{self.name} takes one step per round, got {terms.local_steps} (local steps, or "
                "epochs times batches)",
            )
        super().agree(terms)

    def own_noise(self, target: Target) -> OwnNoise:
        """The randomiser of a message, and what its authors claim for a run."""
        answers = self._answers or min(target.dimension, max(1, round(target.epsilon / 2)))
        each = target.epsilon / answers
        return OwnNoise(self._randomiser(each, target, answers), None, self._claim(target))

    def _randomiser(self, epsilon: float, target: Target, answers: int) -> Randomiser:
        return DirectionResponse(epsilon, target.clip, target.dimension, answers)

    def _claim(self, target: Target) -> str:
        """The lemma on shuffling, without its conditions, and which condition is not met."""
        among, rounds = self.terms.clients_per_round, self.terms.rounds
        message = PureDP(target.epsilon, "client", discrete=True)
        claimed = "nothing below that"
        if among > 1 and target.delta:
            nominal = Repeated(NominallyShuffled(message, among), rounds)
            claimed = f"ε = {rdp.epsilon(nominal, target.delta):.4g} at δ = {target.delta:g}"
        needed = 144 * math.exp(min(5 * target.epsilon, 700.0))
        return (
            f"the authors of {self.name} count on a shuffler: by their lemma, read without its "
            f"conditions, {rounds} rounds of {among} messages with ε = {target.epsilon:g} each "
            f"would cost {claimed}. That is no guarantee: the lemma needs more than {needed:.2g} "
            f"messages in a round"
        )
