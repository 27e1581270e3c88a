"""The closed-form Bezier update: the server steps to a random point of a curve through w and v.

w is the model that was sent, v = w + the weighted mean of the updates. The quadratic Bezier curve
from v (r = 0) to w (r = 1) has the control point theta, r is drawn uniformly from (0, 1) each
round, and the model goes to

    w+ = (1 - r)^2 v + 2 (r - r^2) theta + r^2 w.

All three weights have the mean 1/3, so E[w+] - w is a step s exactly if theta = 2 w - v + 3 s. The
paper arrives at theta = 1.1 w - 0.1 v + 1.2 s because it puts the variance of r, 1/12, where its
second moment, 1/3, belongs. Its s is the number 1/L, added to every weight; a step needs a
direction, and the only one that was released is that of v - w.

References: the UDP-FL paper, Theorem "The average of the optimal choice of parameter" and the
update before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor

from udpfl.algorithms.base import Algorithm, ServerStep, weighted_mean
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.errors import InvalidInput

Constants = Literal["corrected", "paper"]

_OF_THETA: dict[Constants, tuple[float, float, float]] = {
    "corrected": (2.0, -1.0, 3.0),
    "paper": (1.1, -0.1, 1.2),
}
"""What theta has of w, of v and of the step."""


class Bezier(Algorithm):
    """Step to a point of the curve between the old model and the average of the new ones.

    Guarantee: theta and w+ are made of released models alone, so a round costs what federated
    averaging would.

    Args:
        server: How the server moves, to the point of the curve.
        constants: Of the control point: "corrected", or "paper" as printed there.
        smoothness: L: the step s has the length 1/L, in the direction of v - w. Without it s is v -
            w itself: a client's learning rate then is the 1/L of the theorem, and with the
            corrected constants the mean over r is federated averaging.
        r: Fixes the place on the curve, in [0, 1], instead of drawing it.

    Raises:
        InvalidInput: An option is out of range.

    Example:
        >>> import torch
        >>> from udpfl.algorithms import Bezier, ServerStep
        >>> Bezier(ServerStep(), r=0.5).theta(torch.zeros(1), torch.ones(1))
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
        r: float | None = None,
    ) -> None:
        super().__init__(server)
        if constants not in get_args(Constants):
            raise InvalidInput(
                "training.options.constants",
                f"must be {' or '.join(get_args(Constants))}, got {constants!r}",
            )
        if smoothness is not None and not (_number(smoothness) and smoothness > 0):
            raise InvalidInput(
                "training.options.smoothness", f"must be a number above 0, got {smoothness!r}"
            )
        if r is not None and not (_number(r) and 0 <= r <= 1):
            raise InvalidInput("training.options.r", f"must lie between 0 and 1, got {r!r}")
        self.constants, self.smoothness, self.r = constants, smoothness, r

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        r = self.r if self.r is not None else float(self.public.rng(messages[0].round).random())
        w, update = server["model"], weighted_mean(messages, "update")
        v = w + update
        theta = self.theta(w, v)
        after = (1 - r) ** 2 * v + 2 * (r - r**2) * theta + r**2 * w
        return self.server.apply(server, after - w)

    def theta(self, w: Tensor, v: Tensor) -> Tensor:
        """The control point for the old model w and the averaged new one v."""
        of_w, of_v, of_step = _OF_THETA[self.constants]
        return of_w * w + of_v * v + of_step * self._step(v - w)

    def _step(self, update: Tensor) -> Tensor:
        if self.smoothness is None:
            return update
        length = float(update.norm())
        # Nothing released, no direction: stay.
        return update / (length * self.smoothness) if length else update


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
