"""Adaptive optimisers at the server: each coordinate's step is measured by its own recent size.

With D the mean update of a round, all methods of this file keep m <- beta1 m + (1 - beta1) D, move
the model by eta m / (sqrt(v) + tau), and differ in v, which starts at tau^2:

    fedadagrad   v <- v + D^2
    fedadam      v <- beta2 v + (1 - beta2) D^2
    fedyogi      v <- v - (1 - beta2) D^2 sign(v - D^2)

There is no bias correction. D carries the noise of the clients, and so does v: where the noise
outweighs the signal every coordinate is divided by about the same number.

References: Reddi et al. 2021, "Adaptive federated optimization", Algorithm 2. It writes the plain
mean of the clients; here it is weighted by declared sizes, as in fedavg.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from udpfl.algorithms.base import NOISY_UPDATE, Algorithm, ServerStep, weighted_mean
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.errors import InvalidInput

log = logging.getLogger(__name__)

_LARGE = 0.3
"""A server's learning rate from here on is hardly ever meant: weights are about that large."""


class _FedOpt(Algorithm):
    """The common part. `training.server_learning_rate` is eta, `training.server_momentum` beta1.

    eta is about how far a weight moves in one round, whatever the clients' learning rate: 0.01 is a
    start. Option `tau` is what a step must exceed to count in full.

    Guarantee: an update is a sum of clipped and noised gradients, or clipped and noised as a whole
    where clients are hidden, and costs what that costs; what the server makes of it costs nothing.
    """

    paper = "Reddi et al. 2021, Adaptive federated optimization"
    releases = "update: how far the client moved in its local steps"
    guarantee = f"{NOISY_UPDATE}."

    def __init__(self, server: ServerStep, *, tau: float = 1e-3) -> None:
        super().__init__(server)
        if not 0 < tau < float("inf"):
            raise InvalidInput("training.options.tau", f"must be a positive number, got {tau!r}")
        self.tau = tau
        if server.learning_rate >= _LARGE:
            log.warning(
                "training.server_learning_rate = %g is about the distance by which %s moves every "
                "weight in one round; 0.01 is a better start",
                server.learning_rate,
                self.name,
            )

    def init(self, parameters: Tensor) -> Tensors:
        return {
            "model": parameters.clone(),
            "first": torch.zeros_like(parameters),
            "second": torch.full_like(parameters, self.tau**2),
        }

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        update, beta1 = weighted_mean(messages, "update"), self.server.momentum
        first = beta1 * server["first"] + (1 - beta1) * update
        second = self._second(server["second"], update.square())
        step = self.server.learning_rate * first / (second.sqrt() + self.tau)
        return {"model": server["model"] + step, "first": first, "second": second}

    @abstractmethod
    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        """v after a round, from v before it and D^2."""


class FedAdagrad(_FedOpt):
    """v adds up, so steps only ever get smaller."""

    name = "fedadagrad"

    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return second + square


class _Forgetting(_FedOpt):
    """Those whose v forgets. Option `beta2` is how much of it stays."""

    def __init__(self, server: ServerStep, *, tau: float = 1e-3, beta2: float = 0.99) -> None:
        super().__init__(server, tau=tau)
        if not 0 <= beta2 < 1:
            raise InvalidInput(
                "training.options.beta2", f"must be a number from 0 and below 1, got {beta2!r}"
            )
        self.beta2 = beta2


class FedAdam(_Forgetting):
    """v is a moving average."""

    name = "fedadam"

    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * second + (1 - self.beta2) * square


class FedYogi(_Forgetting):
    """v changes by a bounded amount, so one large round is forgotten no faster than it came."""

    name = "fedyogi"

    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return second - (1 - self.beta2) * square * (second - square).sign()
