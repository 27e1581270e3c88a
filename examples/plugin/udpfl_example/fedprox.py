"""A federated method, both halves of it: averaging with a pull towards the global model.

Clients whose records differ drift apart during their local steps. A proximal term mu/2 |w - w0|^2,
where w0 is the model that was sent, holds them back.

References: Li et al. 2020, "Federated optimization in heterogeneous networks", Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from udpfl import InvalidInput
from udpfl.algorithms import (
    Algorithm,
    ClientMessage,
    LocalTraining,
    ServerStep,
    Tensors,
    weighted_mean,
)


class FedProx(Algorithm):
    """Every local step goes along g + mu (w - w0), g the clipped and noised gradient.

    Guarantee: the pull is added to what was released already and touches no record, so it costs
    nothing: a round is charged as one of plain averaging.
    """

    name = "fedprox-example"

    def __init__(self, server: ServerStep, *, mu: float = 0.1) -> None:
        super().__init__(server)
        if not (math.isfinite(mu) and mu >= 0):
            raise InvalidInput("training.options.mu", f"must be a number from 0, got {mu!r}")
        self.mu = mu

    def init(self, parameters: Tensor) -> Tensors:
        return self.server.init(parameters)

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        start = received["model"].expand(len(train.clients), -1)
        # The start goes through lane state, because clients may be computed a few at a time.
        trained = train(start, self._pulled, {"start": start})
        return {"update": trained - start}, state

    def _pulled(self, gradient: Tensor, parameters: Tensor, lane: Mapping[str, Tensor]) -> Tensor:
        return gradient + self.mu * (parameters - lane["start"])

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        return self.server.apply(server, weighted_mean(messages, "update"))
