"""The closed-form Bezier update at the client: each walks along a curve of its own.

A client receives w, as Algorithm 1 of the paper has it ("set local model w_k = w"), and trains. v_k
is where its local steps lead it; with one local step that is the paper's v_k = w_k - eta g_k. Both
ends of the curve are released then: w by the server, v_k by clip and noise of every step. The
client computes theta_k and its point of the curve, w_k+, by `closed_form.py`, and sends how far
that is from w. The server averages.

Each client draws its own r in each round. The paper says that the mean of the w_k+ is the point of
the curve through the mean models at a mean r; that holds only if all clients share one r. Then, and
with s = v_k - w, everything is linear in v_k, and this is the update at the server (`bezier.py`).

L is configured, or estimated from the client's own releases: the slope of its noisy gradients over
the models at which it took them, by least squares,

    L = sum <w - w', g - g'> / sum |w - w'|^2,      ' the time before.

No estimate makes s longer than v_k - w. Without noise the slope is a mean curvature, so it is at
most the smoothness. Noise adds to it: g' and w have the noise of g' in common, which alone would
come to about one over the learning rates of a round.

References: the UDP-FL paper, Section "Mode Connectivity-based Convergence": the update before
Theorem "The average of the optimal choice of parameter", and the sentence after its proof, by which
all clients set their own theta.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from udpfl.algorithms.base import Algorithm, LocalTraining, ServerStep, local_update, weighted_mean
from udpfl.algorithms.closed_form import (
    ClosedForm,
    Constants,
    Step,
    require_place,
    require_smoothness,
)
from udpfl.algorithms.message import ClientMessage, Tensors

ESTIMATED = "estimated"


class ClientBezier(Algorithm):
    """Each client steps to a point of the curve between the model it received and its own.

    Guarantee: theta_k and w_k+ are made of the model that was received and of what a training
    returned, so a round costs what federated averaging would. r is drawn from the public seed. An
    estimate of L is kept by the client, and made of earlier releases.

    Args:
        server: How the server moves, along the mean of the clients' steps.
        constants: Of the control points: "corrected", "paper" as printed there, or "least-loss",
            which minimises the bound on the loss along the curve.
        smoothness: L of the step s, a number or "estimated". Without it s is v_k - w: the learning
            rate then is the 1/L of the theorem.
        step: What s is where L is given: "gradient", -1/L times the client's mean noisy gradient,
            or "length", of length 1/L in the direction of v_k - w.
        r: Fixes the place on the curve, in [0, 1], instead of drawing it.

    Raises:
        InvalidInput: An option is out of range.

    Example:
        >>> from udpfl.algorithms import ClientBezier, ServerStep
        >>> ClientBezier(ServerStep(), smoothness="estimated").trainings
        1
    """

    name = "client-bezier"
    without_records = "stays"
    paper = "the UDP-FL paper, its closed-form update at the client; Garipov et al. 2018"
    releases = "update: how far the point of the client's curve is from the model it received"
    guarantee = (
        "The curve is computed from the received model and from the parameters that a training "
        "returns, which have clip and noise, so it costs nothing more."
    )

    def __init__(
        self,
        server: ServerStep,
        *,
        constants: Constants = "corrected",
        smoothness: float | Literal["estimated"] | None = None,
        step: Step = "gradient",
        r: float | None = None,
    ) -> None:
        super().__init__(server)
        require_smoothness(smoothness, ESTIMATED)
        require_place(r)
        self._form, self.smoothness, self.r = ClosedForm(constants, step), smoothness, r

    def client_init(self, parameters: Tensor) -> Tensors:
        if self.smoothness != ESTIMATED:
            return {}
        # The first difference of models is zero: it adds nothing to the sums.
        zeros = torch.zeros_like(parameters)
        return {"model": parameters.clone(), "gradient": zeros, "sums": zeros.new_zeros(2)}

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        moved = local_update(received, train)
        rate = (train.steps * train.learning_rates).unsqueeze(1)
        smoothness: Tensor | float | None = None
        if self.smoothness == ESTIMATED:
            state = _noted(state, received["model"], -moved / rate)
            smoothness = _slope(state["sums"]).unsqueeze(1).maximum(1 / rate)
        elif self.smoothness is not None:
            smoothness = float(self.smoothness)
        bend = self._form.bend(moved, rate, smoothness)
        return {"update": self._form.point(moved, bend, self._places(train))}, state

    def _places(self, train: LocalTraining) -> Tensor | float:
        """r of every client [L, 1], from what everybody knows: not a random number of its own."""
        if self.r is not None:
            return self.r
        keys = [[*b"curve", self.terms.seed, train.round, *name.encode()] for name in train.clients]
        drawn = [np.random.default_rng(key).random() for key in keys]
        return torch.tensor(drawn, device=train.learning_rates.device).unsqueeze(1)

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        return self.server.apply(server, weighted_mean(messages, "update"))


def _noted(state: Tensors, model: Tensor, gradients: Tensor) -> Tensors:
    """What clients keep after one more gradient each [L, d], all taken at this model [d]."""
    way, change = model - state["model"], gradients - state["gradient"]
    sums = torch.stack([(way * change).sum(1), way.square().sum(1)], dim=1)
    return {
        "model": model.expand_as(gradients).clone(),
        "gradient": gradients,
        "sums": state["sums"] + sums,
    }


def _slope(sums: Tensor) -> Tensor:
    """Least squares of gradients over models [L]; 0 where no model has moved yet."""
    products, squares = sums.unbind(1)
    return torch.where(squares > 0, products / squares, torch.zeros_like(squares))
