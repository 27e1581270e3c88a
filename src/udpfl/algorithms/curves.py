"""Curves of low loss between two models: find one, walk along it, measure the barrier.

Two trained networks lie in valleys with a ridge on the straight line between them. A curve with a
single bend can often lead around it. The ends stay where they are; only the bend theta is trained,
to make E[loss(point(p))] small for p uniform in (0, 1).

References: Garipov et al. 2018, "Loss surfaces, mode connectivity, and fast ensembling of DNNs",
Section 3 (both curves, and the loss with p drawn uniformly, their equation 2); the UDP-FL paper's
"Mode Connectivity Curve Finding Procedure".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from udpfl.engine import LaneModel
from udpfl.errors import InvalidInput

Kind = Literal["bezier", "chain"]
T = TypeVar("T")

_BATCH = 1024
Ending = Literal["converged", "steps", "not finite"]
"""Why a search ended: nothing left to find, no steps left, or a step that cannot be taken."""
_MOMENTUM = 0.9
_CHECKED = 11
"""Points of a curve whose mean loss decides whether the search has converged."""


@dataclass(frozen=True)
class Curve:
    """From `start` (p = 0) to `end` (p = 1) by way of `bend`, each a parameter vector [d].

    The chain reaches its bend at p = 1/2; a Bezier curve is only drawn towards it.
    """

    kind: Kind
    start: Tensor
    bend: Tensor
    end: Tensor

    @classmethod
    def straight(cls, kind: Kind, start: Tensor, end: Tensor) -> Curve:
        """The bend at the midpoint: either kind is then the straight line."""
        return cls(kind, start, (start + end) / 2, end)

    def point(self, p: float) -> Tensor:
        """The parameters at p in [0, 1]."""
        if not 0 <= p <= 1:
            raise InvalidInput("p", f"must lie between 0 and 1, got {p!r}")
        a, b, c = shares(self.kind, p)
        return a * self.start + b * self.bend + c * self.end


def shares(kind: Kind, p: float) -> tuple[float, float, float]:
    """How much of start, bend and end the point at p is made of; they add up to one."""
    if kind == "bezier":
        return (1 - p) ** 2, 2 * p * (1 - p), p**2
    if p <= 0.5:
        return 1 - 2 * p, 2 * p, 0.0
    return 0.0, 2 - 2 * p, 2 * p - 1


@dataclass(frozen=True)
class Search:
    """How a bend is looked for: SGD with momentum 0.9, one p and one batch for each step.

    The learning rate stays for half of the steps and then falls in a line to a hundredth, as
    Garipov et al. do. After each `every` steps the mean loss at eleven evenly spaced points is
    checked. Converged means: two checks in a row did not bring the least one so far down by more
    than `tolerance` of itself. The bend of the least check is kept, the midpoint among them.
    """

    steps: int = 1000
    """At most so many."""
    learning_rate: float = 0.01
    batch: int = 128
    every: int = 50
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("batch", 1), ("every", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInput(name, f"must be a whole number from {least}, got {value!r}")
        for name in ("learning_rate", "tolerance"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value > 0):
                raise InvalidInput(name, f"must be a finite number above 0, got {value!r}")

    def rate(self, step: int) -> float:
        """The learning rate of a step, the first is 0."""
        done = step / self.steps
        return self.learning_rate * (1.0 if done <= 0.5 else 1 - 0.99 * (done - 0.5) / 0.5)


class Landscape(Protocol):
    """A loss over parameter vectors [d]."""

    def loss(self, parameters: Tensor) -> float:
        """The whole loss."""

    def slope(self, parameters: Tensor, rng: np.random.Generator) -> tuple[float, Tensor]:
        """An unbiased estimate of the loss and its gradient [d], on records that `rng` picks."""


@dataclass(frozen=True)
class RecordLoss:
    """The mean loss of a model over records that are no client's: nothing here is private.

    The first `kept` records are only for `loss`, the others only for `slope`: a bend has as many
    weights as the model and soon knows a few hundred records by heart. With 0 all are for both.
    """

    model: LaneModel
    inputs: Tensor
    targets: Tensor
    batch: int
    kept: int = 0

    def loss(self, parameters: Tensor) -> float:
        total, count = 0.0, self.kept or len(self.inputs)
        for first in range(0, count, _BATCH):
            rows = slice(first, min(first + _BATCH, count))
            outputs = self.model.outputs(parameters, self.inputs[rows])
            total += float(self.model.losses(outputs, self.targets[rows]).sum().double())
        return total / count

    def slope(self, parameters: Tensor, rng: np.random.Generator) -> tuple[float, Tensor]:
        rows = torch.from_numpy(rng.integers(self.kept, len(self.inputs), size=self.batch))
        rows = rows.to(self.inputs.device)
        loss, gradient = self.model.public_gradient(
            parameters, self.inputs[rows], self.targets[rows]
        )
        return float(loss), gradient


@dataclass(frozen=True)
class Found:
    """A trained curve and how the search for it went."""

    curve: Curve
    steps: int
    """How many were taken; the bend may be that of an earlier check."""
    ended: Ending
    losses: tuple[float, ...]
    """Of every step, at its own p and on its own batch."""
    checks: tuple[float, ...]
    """The mean loss along the curve, before the first step and every so often after it."""

    @property
    def converged(self) -> bool:
        """Whether the search ended because there was nothing left to find."""
        return self.ended == "converged"


def find_curve(
    kind: Kind,
    start: Tensor,
    end: Tensor,
    landscape: Landscape,
    rng: np.random.Generator,
    search: Search | None = None,
) -> Found:
    """Train the bend between two parameter vectors [d], from their midpoint on.

    Ends at convergence, at the cap, or before a step that is not finite.
    """
    if kind not in get_args(Kind):
        raise InvalidInput("curve", f"must be one of {', '.join(get_args(Kind))}, got {kind!r}")
    search = search or Search()
    bend = best = (start + end) / 2
    velocity = torch.zeros_like(bend)
    losses: list[float] = []
    checks: list[float] = []
    checked = search.steps >= search.every  # a shorter search has nothing to compare
    ended: Ending = "steps"
    if checked:
        checks.append(_mean_loss(Curve(kind, start, bend, end), landscape))
    for step in range(search.steps):
        a, b, c = shares(kind, float(rng.random()))
        loss, slope = landscape.slope(a * start + b * bend + c * end, rng)
        if not (math.isfinite(loss) and bool(slope.isfinite().all())):
            ended = "not finite"
            break
        losses.append(loss)
        velocity = _MOMENTUM * velocity + b * slope
        bend = bend - search.rate(step) * velocity
        if checked and (step + 1) % search.every == 0:
            checks.append(_mean_loss(Curve(kind, start, bend, end), landscape))
            if checks[-1] == min(checks):
                best = bend
            if len(checks) > 2 and not _still_falling(checks, search.tolerance):
                ended = "converged"
                break
    curve = Curve(kind, start, best if checked else bend, end)
    return Found(curve, len(losses), ended, tuple(losses), tuple(checks))


def _still_falling(checks: Sequence[float], tolerance: float) -> bool:
    least = min(checks[:-2])
    return min(checks[-2:]) < least - tolerance * abs(least)


def _mean_loss(curve: Curve, landscape: Landscape) -> float:
    return sum(loss for _, loss in along(curve, landscape.loss, _CHECKED)) / _CHECKED


def along(curve: Curve, measure: Callable[[Tensor], T], points: int) -> list[tuple[float, T]]:
    """(p, measured) at evenly spaced points, both ends among them."""
    if points < 2:
        raise InvalidInput("points", f"must be at least 2, got {points!r}")
    places = [i / (points - 1) for i in range(points)]
    return [(p, measure(curve.point(p))) for p in places]


def barrier(losses: Sequence[float]) -> float:
    """How far the loss at evenly spaced p rises above the line between the losses at the ends.

    max over p of loss(p) - ((1 - p) loss(0) + p loss(1)): zero where the way is downhill or flat.

    References: Frankle et al. 2020, "Linear mode connectivity and the lottery ticket hypothesis",
    Section 2, with the line in place of the mean of the ends, as in Entezari et al. 2022.
    """
    last = len(losses) - 1
    line = [((last - i) * losses[0] + i * losses[last]) / last for i in range(last + 1)]
    return max(loss - level for loss, level in zip(losses, line, strict=True))
