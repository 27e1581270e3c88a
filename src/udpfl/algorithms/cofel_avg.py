"""COFEL-AVG: clients send the layers that changed most, the server averages layer by layer.

What could be confirmed of the source is its abstract: COFEL saves communication by a layer-based
selection of parameters, protects the selected ones by local differential privacy, and aggregates by
an algorithm called COFEL-AVG. By which measure a layer is valuable, how many are sent, and how the
noise is scaled could not be confirmed. So this is a reading:

* A layer is one of the model's parameter tensors, and it is worth as much as the root mean square
  of its update; the layers worth most are sent, a share `keep` of them.
* The mean of a layer is taken over the clients that sent it, weighted by declared sizes. A layer
  that nobody sent stays as it is.
* Noise comes first. The source selects and then adds Laplace noise to what it selected; but which
  layers changed most is itself a fact about records, and no noise hides it there. Here the update
  has its noise already (`privacy.mechanism`, "laplace" as in the source), and the layers are chosen
  by what has noise. That costs nothing.

Messages keep the size of the model, with zeros for what is not sent, and a bit for every layer:
this saves no communication here.

References: Lian, Wang and Su 2021, "COFEL: Communication-efficient and optimized federated learning
with local differential privacy", IEEE ICC 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from udpfl.algorithms.base import (
    NOISY_UPDATE,
    Algorithm,
    LocalTraining,
    ServerStep,
    local_update,
)
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.rows import rows_of
from udpfl.errors import InvalidInput


class CofelAvg(Algorithm):
    """Clients send their most valuable layers; each layer has a mean of its own.

    Guarantee: an update costs what its noise costs; which of its layers are sent is computed from
    the noisy update, and costs nothing.

    Args:
        server: How the server moves.
        keep: Share of the layers that a client sends, in (0, 1]. With 1 this is fedavg.

    Raises:
        InvalidInput: `keep` is out of range.

    Example:
        >>> from udpfl.algorithms import CofelAvg, ServerStep
        >>> CofelAvg(ServerStep(), keep=0.25).keep
        0.25
    """

    name = "cofel-avg"
    paper = (
        "Lian et al. 2021, COFEL: Communication-efficient and optimized federated learning with "
        "local differential privacy (our interpretation: its formulas could not be confirmed)"
    )
    without_records = "stays"
    releases = "update: how far the client moved, zero in layers that are not sent; sent: which are"
    guarantee = f"{NOISY_UPDATE}; layers are chosen by the noisy update."

    def __init__(self, server: ServerStep, *, keep: float = 0.5) -> None:
        super().__init__(server)
        if isinstance(keep, bool) or not 0 < keep <= 1:
            raise InvalidInput(
                "training.options.keep", f"must be a share above 0, up to 1, got {keep!r}"
            )
        self.keep = float(keep)

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        update = local_update(received, train)
        parts = update.split(self._sizes, dim=1)
        worth = torch.stack([part.square().mean(1) for part in parts], dim=1)
        best = worth.topk(math.ceil(self.keep * len(parts)), dim=1).indices
        sent = torch.zeros_like(worth).scatter_(1, best, 1.0)
        return {"update": update * self._spread(sent), "sent": sent}, state

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        update = rows_of(messages, "update")
        weights = [message.weight / sum(own.weight for own in messages) for message in messages]
        weight = torch.tensor(weights, dtype=update.dtype, device=update.device)
        share = self._spread((weight @ rows_of(messages, "sent")).unsqueeze(0))[0]
        return self.server.apply(server, torch.where(share > 0, weight @ update / share, 0.0))

    @property
    def _sizes(self) -> list[int]:
        return self.public.model.layout.sizes

    def _spread(self, layers: Tensor) -> Tensor:
        """One number for every layer [L, layers] as one for every parameter [L, d]."""
        sizes = torch.tensor(self._sizes, device=layers.device)
        return layers.repeat_interleave(sizes, dim=1)
