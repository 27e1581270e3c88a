"""Averaging with a pull towards the global model, for clients whose records differ.

Clients drift apart during their local steps. A proximal term mu/2 |w - w0|^2, where w0 is the model
that was sent, holds them back: every step goes along g + mu (w - w0).

References: Li et al. 2020, "Federated optimization in heterogeneous networks", Algorithm 2 and
Equation 2; Yuan and Li 2022, "On convergence of FedProx", which the UDP-FL paper cites. Li et al.
pick clients in proportion to their size and take the plain mean; clients are picked evenly here, so
the mean is weighted by declared sizes, for the same objective.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from udpfl.algorithms.base import (
    Algorithm,
    LocalTraining,
    ServerStep,
    Terms,
    local_update,
    weighted_mean,
)
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.errors import InvalidInput

log = logging.getLogger(__name__)


class FedProx(Algorithm):
    """Every local step goes along g + mu (w - w0), g the gradient, clipped and noised where records
    are hidden.

    Option `mu` is the strength of the pull; with 0, or with one local step, this is fedavg. The
    server's learning rate and momentum act as they do there.

    Guarantee: the pull touches no record. It is added to what was released already, or where whole
    clients are hidden to what is yet to be clipped and noised, so it costs nothing: a round is
    charged as one of plain averaging.
    """

    name = "fedprox"
    without_records = "stays"
    paper = "Li et al. 2020, Federated optimization in heterogeneous networks"
    releases = "update: how far the client moved in its local steps"
    guarantee = (
        "The pull uses no record: it is added to gradients that already have clip and noise, or "
        'with privacy.unit = "client" before the update is clipped and gets noise, so it costs '
        "nothing more."
    )

    def __init__(self, server: ServerStep, *, mu: float = 0.1) -> None:
        super().__init__(server)
        if not (math.isfinite(mu) and mu >= 0):
            raise InvalidInput("training.options.mu", f"must be a number from 0, got {mu!r}")
        self.mu = mu

    def agree(self, terms: Terms) -> None:
        largest = max(map(terms.learning_rate, range(1, terms.rounds + 1)))
        if terms.local_steps > 1 and self.mu * largest >= 2:
            raise InvalidInput(
                "training.options.mu",
                f"{self.mu:g} times the learning rate of {largest:g} is 2 or more: each step "
                f"would overshoot the global model by more than its distance to it",
            )
        if terms.local_steps == 1 and self.mu:
            # A step from the model that was sent has nothing to be pulled back from.
            log.warning(
                "training.options.mu = %g of %s has no effect with training.local_steps = 1: it "
                "acts from the second local step on",
                self.mu,
                self.name,
            )
        super().agree(terms)

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        # The start goes through lane state, because clients may be computed a few at a time.
        start = received["model"].expand(len(train.clients), -1)
        return {"update": local_update(received, train, self._pulled, start=start)}, state

    def _pulled(self, gradient: Tensor, parameters: Tensor, lane: Mapping[str, Tensor]) -> Tensor:
        return gradient + self.mu * (parameters - lane["start"])

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        return self.server.apply(server, weighted_mean(messages, "update"))
