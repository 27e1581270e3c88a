"""SCAFFOLD: control variates that take out of each local step what sets its client apart.

Every client keeps c_i, an estimate of its own gradient, and the server keeps c, their mean over all
N clients. A local step goes along g - c_i + c, and after K steps of size eta from x to y_i

    c_i+ = c_i - c + (x - y_i) / (K eta),     c_i = 0 at the start,

the mean of the noisy gradients of this round. The server moves by eta_g times the plain mean of
y_i - x, and c by |S| / N times the mean of c_i+ - c_i, over the clients S that answered.

This is option II of the paper, a function of released gradients. Option I takes a gradient on all
records of the client, which would be a release of its own, and is not offered.

References: Karimireddy et al. 2020, "SCAFFOLD: Stochastic controlled averaging for federated
learning", Algorithm 1, Equations 3 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from udpfl.algorithms.base import Algorithm, LocalTraining, local_update
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.rows import rows_of


class Scaffold(Algorithm):
    """Steps along g - c_i + c, g the gradient, clipped and noised where records are hidden; clients
    send both changes.

    As in the paper every client counts the same, whatever its size. `training.server_learning_rate`
    is its eta_g; `training.server_momentum` is not in the paper and acts on the model alone.

    Guarantee: c_i and c are made of gradients that were clipped and noised before, or of an update
    that was as a whole where clients are hidden, and a message is a function of those and of what
    was received, so it costs exactly what they cost.
    """

    name = "scaffold"
    without_records = "moves"
    paper = (
        "Karimireddy et al. 2020, SCAFFOLD: Stochastic controlled averaging for federated learning"
    )
    releases = "update: how far the client moved; control: the change of its control variate"
    guarantee = (
        "Control variates are computed from gradients that already have clip and noise, or with "
        'privacy.unit = "client" from such updates, so they cost nothing more.'
    )

    def init(self, parameters: Tensor) -> Tensors:
        return {**self.server.init(parameters), "control": torch.zeros_like(parameters)}

    def broadcast(self, server: Tensors) -> Tensors:
        return {"model": server["model"], "control": server["control"]}

    def client_init(self, parameters: Tensor) -> Tensors:
        return {"control": torch.zeros_like(parameters)}

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        own, common = state["control"], received["control"]
        moved = local_update(received, train, _corrected, correction=common - own)
        change = -moved / (train.steps * train.learning_rates).unsqueeze(1) - common
        return {"update": moved, "control": change}, {"control": own + change}

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        share = len(messages) / self.terms.clients
        control = server["control"] + share * rows_of(messages, "control").mean(0)
        return {
            **self.server.apply(server, rows_of(messages, "update").mean(0)),
            "control": control,
        }


def _corrected(gradient: Tensor, parameters: Tensor, lane: Mapping[str, Tensor]) -> Tensor:
    return gradient + lane["correction"]
