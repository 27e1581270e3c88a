"""Federated gradient descent: one gradient of every client a round, and one step along their mean.

References: McMahan et al. 2017, "Communication-efficient learning of deep networks from
decentralized data", Section 2 (FedSGD), w <- w - eta sum_k (n_k / n) g_k.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpfl.algorithms.base import Algorithm, LocalTraining, Terms, local_update, weighted_mean
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.errors import InvalidInput


class FedSGD(Algorithm):
    """Clients send the noisy mean gradient at the global model; the server steps along the mean.

    The step is `training.learning_rate` times `training.server_learning_rate`, and
    `training.server_momentum` is that of the descent. The mean is weighted by declared sizes.

    Guarantee: the gradient was clipped and noised when it was made; there is one of them a round,
    so a run of T rounds costs T releases.
    """

    name = "fedsgd"
    paper = (
        "McMahan et al. 2017, Communication-efficient learning of deep networks from "
        "decentralized data (FedSGD)"
    )
    sends_update = False
    without_records = "stays"
    releases = "gradient: the noisy mean gradient of one step"
    guarantee = (
        'The gradient is clipped record by record and noised, or with privacy.unit = "client" as a '
        "whole: one release a round."
    )

    def agree(self, terms: Terms) -> None:
        if terms.local_steps != 1:
            raise InvalidInput(
                "training.local_steps",
                f"fedsgd takes one step per round, got {terms.local_steps} (local steps, or epochs "
                "times batches); use fedavg for several",
            )
        super().agree(terms)

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        moved = local_update(received, train)
        return {"gradient": -moved / train.learning_rates.unsqueeze(1)}, state

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        rate = self.terms.learning_rate(messages[0].round)
        return self.server.apply(server, -rate * weighted_mean(messages, "gradient"))
