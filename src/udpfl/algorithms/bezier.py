"""The closed-form Bezier update at the server: it steps to a random point of a curve.

w is the model that was sent, v = w + the weighted mean of the updates. `closed_form.py` has the
curve between them and its control point; r is drawn anew in each round.

References: the UDP-FL paper, Theorem "The average of the optimal choice of parameter" and the
update before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from udpfl.algorithms.base import Algorithm, ServerStep, weighted_mean
from udpfl.algorithms.closed_form import (
    ClosedForm,
    Constants,
    Step,
    require_place,
    require_smoothness,
)
from udpfl.algorithms.message import ClientMessage, Tensors


class Bezier(Algorithm):
    """Step to a point of the curve between the old model and the average of the new ones.

    Guarantee: theta and w+ are made of released models alone, so a round costs what federated
    averaging would.

    Args:
        server: How the server moves, to the point of the curve.
        constants: Of the control point: "corrected", "paper" as printed there, or "least-loss",
            which minimises the bound on the loss along the curve.
        smoothness: L of the step s. Without it s is v - w: a client's learning rate then is the 1/L
            of the theorem, and with the corrected constants the mean over r is federated averaging.
        step: What s is where L is given: "gradient", -1/L times the mean gradient of the local
            steps, or "length", of length 1/L in the direction of v - w.
        r: Fixes the place on the curve, in [0, 1], instead of drawing it.

    Raises:
        InvalidInput: An option is out of range.

    Example:
        >>> import torch
        >>> from udpfl.algorithms import Bezier, ServerStep
        >>> Bezier(ServerStep(), r=0.5).theta(torch.zeros(1), torch.ones(1), 0.1)
        tensor([2.])
    """

    name = "bezier"
    paper = "the UDP-FL paper, its closed-form update; curves of Garipov et al. 2018"
    releases = "update: how far the client moved in its local steps"
    guarantee = "The curve is computed from released models only, so it costs nothing more."

    def __init__(
        self,
        server: ServerStep,
        *,
        constants: Constants = "corrected",
        smoothness: float | None = None,
        step: Step = "gradient",
        r: float | None = None,
    ) -> None:
        super().__init__(server)
        require_smoothness(smoothness)
        require_place(r)
        self._form, self.smoothness, self.r = ClosedForm(constants, step), smoothness, r

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        round_ = messages[0].round
        r = self.r if self.r is not None else float(self.public.rng(round_).random())
        moved = weighted_mean(messages, "update")
        bend = self._form.bend(moved, self._rate(round_), self.smoothness)
        return self.server.apply(server, self._form.point(moved, bend, r))

    def theta(self, w: Tensor, v: Tensor, rate: float) -> Tensor:
        """The control point for the old model w and the averaged new one v, which local steps with
        learning rates of this sum have led to."""
        return w + self._form.bend(v - w, rate, self.smoothness)

    def _rate(self, round_: int) -> float:
        """The learning rates of a client's local steps in this round, added up."""
        if self.smoothness is None:  # then nobody asks
            return 1.0
        return self.terms.local_steps * self.terms.learning_rate(round_)
