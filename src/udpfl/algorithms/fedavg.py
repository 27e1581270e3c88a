"""Federated averaging: local steps at each client, the weighted mean of what they learned.

References: McMahan et al. 2017, "Communication-efficient learning of deep networks from
decentralized data", Algorithm 1; server momentum as in Hsu et al. 2019, "Measuring the effects of
non-identical data distribution", Section 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpfl.algorithms.base import NOISY_UPDATE, Algorithm, weighted_mean
from udpfl.algorithms.message import ClientMessage, Tensors


class FedAvg(Algorithm):
    """Clients send how far they moved; the server moves by the mean, weighted by declared sizes.

    Guarantee: a message is a function of the client's noisy releases and of what it received, so it
    costs exactly what those releases cost.

    Args:
        server: How the server moves.

    Example:
        >>> import torch
        >>> from udpfl.algorithms import FedAvg, ServerStep
        >>> FedAvg(ServerStep()).init(torch.zeros(2))
        {'model': tensor([0., 0.])}
    """

    name = "fedavg"
    paper = (
        "McMahan et al. 2017, Communication-efficient learning of deep networks from "
        "decentralized data"
    )
    releases = "update: how far the client moved in its local steps"
    guarantee = f"{NOISY_UPDATE}."

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        return self.server.apply(server, weighted_mean(messages, "update"))
