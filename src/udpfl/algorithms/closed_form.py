"""The closed form of a control point, for whoever walks along the curve: server or client.

A quadratic Bezier curve leads from v (r = 0) to w (r = 1) with the control point theta:

    w+ = (1 - r)^2 v + 2 (r - r^2) theta + r^2 w,     r uniform in (0, 1).

theta is made of w, v and a step s, the descent that an L-smooth loss allows from w. All three
weights of the curve have the mean 1/3, so E[w+] - w = s, the paper's criterion, exactly if

    theta = 2 w - v + 3 s                             ("corrected").

The paper arrives at 1.1 w - 0.1 v + 1.2 s because it puts the variance of r, 1/12, where its second
moment, 1/3, belongs ("paper"). Neither minimises the expected loss along the curve, which is how
the paper defines theta. Of the bound F(w) + <grad, w+ - w> + L/2 |w+ - w|^2, in the mean over r,

    theta = 1.75 w - 0.75 v + 2.5 s                   ("least-loss")

is the minimum, because E[b] = 1/3, E[b^2] = 2/15 and E[b (1 - r)^2] = 1/10 for b = 2 (r - r^2).

The paper's s is the number 1/L, added to every weight. The bound that it comes from has its minimum
at the step -1/L times the gradient ("gradient"); the paper also calls 1/L the distance between two
models ("length"). The only direction that was released is that of v - w.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from udpfl.errors import InvalidInput

Constants = Literal["corrected", "paper", "least-loss"]
Step = Literal["gradient", "length"]

_OF_THETA: dict[Constants, tuple[float, float, float]] = {
    "corrected": (2.0, -1.0, 3.0),
    "paper": (1.1, -0.1, 1.2),
    "least-loss": (1.75, -0.75, 2.5),
}
"""What theta has of w, of v and of the step. Those of w and v add up to one."""


@dataclass(frozen=True)
class ClosedForm:
    """Which constants the control point has, and what a step of 1/L is.

    Everything is measured from w, so that nothing cancels: v - w is what a training has moved.
    """

    constants: Constants = "corrected"
    step: Step = "gradient"

    def __post_init__(self) -> None:
        for name, allowed in (("constants", Constants), ("step", Step)):
            value = getattr(self, name)
            if value not in get_args(allowed):
                known = ", ".join(get_args(allowed))
                raise InvalidInput(
                    f"training.options.{name}", f"must be one of {known}, got {value!r}"
                )

    @property
    def reach(self) -> float:
        """theta - w in units of v - w, where the learning rate is the 1/L."""
        _, of_v, of_step = _OF_THETA[self.constants]
        return of_v + of_step

    def bend(
        self, moved: Tensor, rate: Tensor | float, smoothness: Tensor | float | None
    ) -> Tensor:
        """theta - w [..., d] for v - w = -rate * gradient [..., d].

        Args:
            moved: v - w.
            rate: The learning rates of all steps from w to v, added up [..., 1].
            smoothness: L [..., 1]. None where the learning rate is the 1/L: s is v - w then.

        Returns:
            How far the control point lies from w.
        """
        _, of_v, of_step = _OF_THETA[self.constants]
        return of_v * moved + of_step * self._step(moved, rate, smoothness)

    def _step(
        self, moved: Tensor, rate: Tensor | float, smoothness: Tensor | float | None
    ) -> Tensor:
        if smoothness is None:
            return moved
        if self.step == "gradient":
            return moved / (rate * smoothness)
        length = moved.norm(dim=-1, keepdim=True)
        # Nothing released, no direction: stay.
        return torch.where(length > 0, moved / (length * smoothness), moved)

    @staticmethod
    def point(moved: Tensor, bend: Tensor, r: Tensor | float) -> Tensor:
        """w+ - w [..., d], the point of the curve at r [..., 1]."""
        return (1 - r) ** 2 * moved + 2 * (r - r**2) * bend


def require_place(r: Any) -> None:
    """Raise where an option names a place that is not on the curve."""
    if r is not None and not (_is_number(r) and 0 <= r <= 1):
        raise InvalidInput("training.options.r", f"must lie between 0 and 1, got {r!r}")


def require_smoothness(smoothness: Any, *words: str) -> None:
    """Raise where an option is neither a number above 0 nor one of these words."""
    if smoothness is None or smoothness in words:
        return
    if not (_is_number(smoothness) and smoothness > 0):
        otherwise = "".join(f" or {word!r}" for word in words)
        raise InvalidInput(
            "training.options.smoothness",
            f"must be a number above 0{otherwise}, got {smoothness!r}",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
