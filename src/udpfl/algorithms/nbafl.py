"""NbAFL, noising before model aggregation: clients add noise to their parameters themselves.

A client trains with the proximal term of FedProx, clips all of its parameters to norm C and adds
Gaussian noise to them; the server averages, and adds noise of its own to what it sends down. With
c = sqrt(2 ln(1.25 / delta)), N clients of m records or more, T rounds, and L uploads of a client
that are seen, the authors' standard deviations are

    up      c L (2 C / m) / epsilon
    down    2 c C sqrt(T^2 - L^2 N) / (m N epsilon)   where T > L sqrt(N), none elsewhere.

Down is added what the noise of N equal shares lacks of that of T exposures of the mean; where sizes
differ and the mean is weighted by them, the authors' own argument would ask for more than Theorem 1
says. With L = T, which is what happens, there is never any.

The noise is theirs and their (epsilon, delta) for one record is not repeated here. It rests on a
sensitivity of 2 C / m, as if trained parameters were the mean of one vector of norm C for each
record. They are not: a single record may move all of them from one end of the ball to the other.
What holds is said by our own accountant: an upload is Gaussian noise on a vector that all records
of a client together move by 2 C at most.

References: Wei et al. 2020, "Federated learning with differential privacy: algorithms and
performance analysis", Algorithm 1, Section III (up) and Theorem 1 (down).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from udpfl.algorithms.base import (
    LocalTraining,
    OwnNoise,
    ServerStep,
    Target,
    Terms,
    weighted_mean,
)
from udpfl.algorithms.fedprox import FedProx
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Gaussian


class NbAFL(FedProx):
    """Clients send clipped and noised parameters, for privacy.unit = "client".

    `privacy.clip` is C; `privacy.epsilon` and `privacy.delta` are what the authors' formulas aim
    at, and no budget: this noise could not keep it.

    Guarantee: what the accountant says of Gaussian noise on a vector that moves by 2 C, once in
    every round, for a client and all its records. Noise on the way down changes nothing for whoever
    sees the uploads: it is added to a function of them.

    Args:
        server: Its learning rate and momentum, 1 and 0 in the paper, act on the step to the mean.
        exposures: L; all rounds if left out, since the server sees every upload.
        mu: Strength of the pull to the global model.

    Raises:
        InvalidInput: An option is out of range.

    Example:
        >>> from udpfl.algorithms import NbAFL, ServerStep
        >>> NbAFL(ServerStep(), exposures=5).sends_update
        False
    """

    name = "nbafl"
    paper = (
        "Wei et al. 2020, Federated learning with differential privacy: algorithms and "
        "performance analysis"
    )
    sends_update = False
    without_records = "stays"
    releases = "parameters: clipped as a whole and noised by the authors' formula"
    unit = "client"
    guarantee = (
        "Less than its authors claim for one record: the guarantee is that of Gaussian noise on "
        "all parameters of a client, which is accounted, but not bounded by privacy.epsilon."
    )

    def __init__(
        self, server: ServerStep, *, exposures: int | None = None, mu: float = 0.1
    ) -> None:
        super().__init__(server, mu=mu)
        whole = isinstance(exposures, int) and not isinstance(exposures, bool)
        if exposures is not None and not (whole and exposures >= 1):
            raise InvalidInput(
                "training.options.exposures", f"must be a whole number from 1, got {exposures!r}"
            )
        self._exposures = exposures

    def agree(self, terms: Terms) -> None:
        if terms.clients_per_round < terms.clients:
            raise InvalidInput(
                "training.clients_per_round",
                f"{self.name} needs all clients in every round: the noise of its authors for some "
                f"clients per round is not implemented",
            )
        if self._exposures is not None and self._exposures > terms.rounds:
            raise InvalidInput(
                "training.options.exposures",
                f"must be at most training.rounds = {terms.rounds}, got {self._exposures}",
            )
        super().agree(terms)

    @property
    def exposures(self) -> int:
        """How many uploads of a client are taken to be seen."""
        return self._exposures or self.terms.rounds

    def own_noise(self, target: Target) -> OwnNoise:
        """The authors' noise up and down, and what they claim for it."""
        if target.delta == 0:
            raise InvalidInput("privacy.delta", f"must be above 0 for {self.name}")
        seen, rounds, clients = self.exposures, self.terms.rounds, self.terms.clients
        unit = math.sqrt(2 * math.log(1.25 / target.delta)) * target.moved / target.epsilon
        down = None
        if rounds > seen * math.sqrt(clients):
            down = Gaussian(unit * math.sqrt(rounds**2 - seen**2 * clients) / clients)
        return OwnNoise(Gaussian(unit * seen), down, self._claim(target))

    def _claim(self, target: Target) -> str:
        reasons = [
            "it takes for granted that one record moves the trained parameters by at most "
            f"2C/m = {target.moved:.3g}, and nothing in the training sees to that"
        ]
        if self.exposures < self.terms.rounds:
            reasons.append(
                f"it counts {self.exposures} of the {self.terms.rounds} uploads that are seen"
            )
        if target.epsilon >= self.exposures:
            reasons.append("its noise formula is proved for less than ε = 1 in an upload")
        return (
            f"NbAFL's own claim of ε = {target.epsilon:g} at δ = {target.delta:g} for one record "
            f"is no guarantee: {'; '.join(reasons)}"
        )

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        start = received["model"].expand(len(train.clients), -1)
        return {"parameters": train(start, self._pulled, {"start": start})}, state

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        mean = weighted_mean(messages, "parameters")
        return self.server.apply(server, mean - server["model"])
