"""A federated method, both halves of it: every local step keeps some of everybody's last direction.

With D the mean direction of the last round, a local step goes along alpha g + (1 - alpha) D. It
pulls clients whose records differ the same way, and averages the noise of g over rounds.

References: Xu et al. 2021, "FedCM: Federated learning with client-level momentum", Algorithm 2. It
takes the plain mean of the clients; here it is weighted by declared sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from udpfl import InvalidInput
from udpfl.algorithms import (
    Algorithm,
    ClientMessage,
    LocalTraining,
    ServerStep,
    Tensors,
    local_update,
    weighted_mean,
)


class FedCM(Algorithm):
    """Every local step goes along alpha g + (1 - alpha) D, g the clipped and noised gradient.

    Guarantee: D is made of earlier releases and is added to what was released already, so it costs
    nothing: a round is charged as one of plain averaging.
    """

    name = "fedcm"
    without_records = "moves"
    paper = "Xu et al. 2021, FedCM: Federated learning with client-level momentum"
    releases = "update: how far the client moved in its local steps"

    def __init__(self, server: ServerStep, *, alpha: float = 0.5) -> None:
        super().__init__(server)
        if not 0 < alpha <= 1:
            raise InvalidInput(
                "training.options.alpha", f"must be a number above 0 and up to 1, got {alpha!r}"
            )
        self.alpha = alpha

    def init(self, parameters: Tensor) -> Tensors:
        return {**self.server.init(parameters), "direction": torch.zeros_like(parameters)}

    def broadcast(self, server: Tensors) -> Tensors:
        return {"model": server["model"], "direction": server["direction"]}

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        # It goes through lane state, because clients may be computed a few at a time.
        common = received["direction"].expand(len(train.clients), -1)
        return {"update": local_update(received, train, self._mixed, direction=common)}, state

    def _mixed(self, gradient: Tensor, parameters: Tensor, lane: Mapping[str, Tensor]) -> Tensor:
        return self.alpha * gradient + (1 - self.alpha) * lane["direction"]

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        update = weighted_mean(messages, "update")
        # How long the way was that a client went: its steps times its learning rate, both public.
        length = self.terms.local_steps * self.terms.learning_rate(messages[0].round)
        return {**self.server.apply(server, update), "direction": -update / length}
