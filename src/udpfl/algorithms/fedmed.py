"""FedMed, federated mediation: averaging or distance-weighted aggregation, whichever seems due.

What could be confirmed of the source (its abstract, and its Algorithm 1 as published with the
article): in every round the server takes the "alteration of two losses" Delta, decides by a switch
S = S_e(Delta) (the "mediation incentive scheme") and then either averages the models weighted by
n_u / n, as fedavg does, or uses an "adaptive aggregation"; a "topK strategy" belongs to it. What
could not be confirmed are the formulas behind these three names. The following is therefore a
reading, chosen to be free under differential privacy:

* The change of the loss. A loss on private records would be a release of its own. But the mean
  update D of this round is, but for noise, the downhill direction at the model w, so that
  -<D, w - w'> has the sign of the loss at w less the loss at the model w' before, to first order;
  its noise is independent of w - w', so that the estimate is not biased. It is divided by |D| and
  |w - w'|, and adaptive aggregation is taken where it is below `threshold`: as long as steps lead
  downhill. Where one led uphill the plain mean, whose rest is known, takes over.
* Adaptive aggregation follows the attentive one of Ji et al. 2019, for want of FedMed's own: their
  weights are a softmax over clients of the distance between the global and the client's model, so
  that the farther model weighs more. Here it is the other way round, the nearer one weighs more,
  since under noise distance is mostly noise; distances are in units of their mean, and `sharpness`
  scales them. Ji et al. do so layer by layer; the server half does not know layers and takes the
  model as a whole.
* topK: only the `top_k` nearest models enter it. Everyone was asked and has paid by then, so this
  saves no communication here.

References: Wu, Liang and Wang 2020, "FedMed: A federated learning framework for language modeling",
Sensors 20(14) 4048, Algorithm 1; Ji et al. 2019, "Learning private neural language modeling with
attentive aggregation". The UDP-FL paper names FedMed among other aggregation functions and gives no
formula either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from udpfl.algorithms.base import (
    NOISY_UPDATE,
    Algorithm,
    ServerStep,
    weighted_mean,
)
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.rows import rows_of
from udpfl.errors import InvalidInput


class FedMed(Algorithm):
    """Weights by distance after a step that led downhill, by declared size after any other.

    The server's learning rate and momentum act on either mean. With `threshold` = -1 this is
    fedavg, with 1 it hardly ever is.

    Guarantee: an update is a sum of clipped and noised gradients, or clipped and noised as a whole
    where clients are hidden, and costs what that costs; what the server makes of it costs nothing.
    """

    name = "fedmed"
    paper = (
        "Wu et al. 2020, FedMed: A federated learning framework for language modeling "
        "(our interpretation: not all of its formulas could be confirmed)"
    )
    releases = "update: how far the client moved in its local steps"
    guarantee = (
        f"{NOISY_UPDATE}; the server decides from the updates alone, never from a loss on records."
    )

    def __init__(
        self,
        server: ServerStep,
        *,
        threshold: float = 0.0,
        sharpness: float = 1.0,
        top_k: int | None = None,
    ) -> None:
        super().__init__(server)
        if not -1 <= threshold <= 1:
            raise InvalidInput(
                "training.options.threshold", f"must be a number from -1 to 1, got {threshold!r}"
            )
        if not (math.isfinite(sharpness) and sharpness >= 0):
            raise InvalidInput(
                "training.options.sharpness", f"must be a number from 0, got {sharpness!r}"
            )
        if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
            raise InvalidInput("training.options.top_k", f"must be a count from 1, got {top_k!r}")
        self.threshold, self.sharpness, self.top_k = threshold, sharpness, top_k

    def init(self, parameters: Tensor) -> Tensors:
        return {**self.server.init(parameters), "before": parameters.clone()}

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        step = weighted_mean(messages, "update")
        if _uphill(step, server["model"] - server["before"]) < self.threshold:
            step = self._adaptive(rows_of(messages, "update"))
        return {**self.server.apply(server, step), "before": server["model"]}

    def _adaptive(self, updates: Tensor) -> Tensor:
        """The mean of the nearest, weighted by how near they are."""
        distances = updates.double().norm(dim=1)
        scores = -self.sharpness * distances / distances.mean().clamp(min=1e-300)
        best = scores.topk(min(len(scores), self.top_k or len(scores)))
        weights = torch.softmax(best.values, 0).to(updates.dtype)
        return weights @ updates[best.indices]


def _uphill(update: Tensor, last: Tensor) -> float:
    """First-order change of the loss along the last step of the model, between -1 and 1."""
    update, last = update.double(), last.double()
    scale = float(update.norm() * last.norm())
    return float(-update @ last) / scale if scale else 0.0
