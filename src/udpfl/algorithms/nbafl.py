"""NbAFL, noising before model aggregation: clients add noise to their parameters themselves.

A client trains with the proximal term of FedProx, clips all of its parameters to norm C and adds
Gaussian noise to them; the server averages, and adds noise of its own to what it sends down. With
c = sqrt(2 ln(1.25 / delta)), N clients of m records or more of which K are asked in a round, T
rounds, and L uploads of a client that are seen, the authors' standard deviations are

    up      c L (2 C / m) / epsilon
    down    2 c C sqrt((T / b)^2 - L^2 K) / (m K epsilon)   where T > epsilon / g, none elsewhere,

    b = -(T / epsilon) ln(1 - N/K + N/K e^(-epsilon / T))
    g = -ln(1 - K/N + K/N e^(-epsilon / (L sqrt(K)))).

With K = N this is b = 1 and T > L sqrt(N), their Theorem 1. Down is added what the noise of K equal
shares lacks of that of T exposures of the mean; where sizes differ and the mean is weighted by
them, the authors' own argument would ask for more than they say. With K = N and L = T, which is
what happens, there is never any; with K < N less is added, because the authors count on nobody
knowing who was asked. Here the public seed says who was.

The noise is theirs and their (epsilon, delta) for one record is not repeated here. It rests on a
sensitivity of 2 C / m, as if trained parameters were the mean of one vector of norm C for each
record. They are not: a single record may move all of them from one end of the ball to the other.
What holds is said by our own accountant: an upload is Gaussian noise on a vector that all records
of a client together move by 2 C at most.

References: Wei et al. 2020, "Federated learning with differential privacy: algorithms and
performance analysis", Algorithm 1, Section III (up), Theorem 1 and Section V (down, for all clients
and for K of them).
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
        unit = math.sqrt(2 * math.log(1.25 / target.delta)) * target.moved / target.epsilon
        lacking = self._lacking(target.epsilon)
        down = Gaussian(unit * lacking / self.terms.clients_per_round) if lacking else None
        return OwnNoise(Gaussian(unit * self.exposures), down, self._claim(target))

    def _lacking(self, epsilon: float) -> float:
        """sqrt((T / b)^2 - L^2 K), or 0 where the clients' own noise is enough.

        The condition T > epsilon / g says just when the root is of a number above 0; below it the
        logarithm in b may not exist.
        """
        seen, rounds, asked = self.exposures, self.terms.rounds, self.terms.clients_per_round
        share = asked / self.terms.clients
        own = seen * math.sqrt(asked)
        if share == 1:
            return math.sqrt(max(0.0, rounds**2 - own**2))
        if rounds * -math.log1p(share * math.expm1(-epsilon / own)) <= epsilon:
            return 0.0
        exposures = epsilon / -math.log1p(math.expm1(-epsilon / rounds) / share)  # T / b
        return math.sqrt(max(0.0, exposures**2 - own**2))

    def _claim(self, target: Target) -> str:
        reasons = [
            "it takes for granted that one record moves the trained parameters by at most "
            f"2C/m = {target.moved:.3g}, and nothing in the training sees to that"
        ]
        if self.exposures < self.terms.rounds:
            uploads = "1 upload" if self.exposures == 1 else f"{self.exposures} uploads"
            reasons.append(
                f"it counts {uploads} of a client, which may be asked in all {self.terms.rounds} "
                "rounds"
            )
        if self.terms.clients_per_round < self.terms.clients:
            reasons.append(
                f"its noise on the way down counts on nobody knowing which "
                f"{self.terms.clients_per_round} of {self.terms.clients} clients a round asks, but "
                f"the public seed and the uploads show it"
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
