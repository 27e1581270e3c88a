"""Plateau: the noise of later rounds falls when what was released stops improving.

It asks clients for less noise; how much noise a client adds is the client's own decision, which its
budget limits (`federation.pacing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from udpfl.algorithms import ClientMessage, Tensors
from udpfl.federation.request import PACE
from udpfl.federation.stages.base import Stage

Follow = Callable[[Tensor, Tensor], float]
"""What is followed, by the model before a round and after it [d]; the smaller the better."""
_BEST, _STALLED = "pace.best", "pace.stalled"
_LEAST_GAIN = 0.01
"""By what share of itself the followed number has to fall, to count as improved."""


def loss_by(loss: Callable[[Tensor], float]) -> Follow:
    """The loss of the model after a round."""
    return lambda before, after: loss(after)


def step_length(before: Tensor, after: Tensor) -> float:
    """How far a round has moved the model; it is as short as noise allows once nothing improves."""
    return float((after - before).double().norm())


class Plateau(Stage):
    """Goes down one level of noise when the followed number has not improved for some rounds.

    Guarantee: made of published models and public records alone, so it costs nothing.

    Args:
        levels: Noise over the planned noise, the largest first.
        patience: Rounds without improvement after which it goes down.
        follow: The number, such as the loss on public records.
    """

    def __init__(self, levels: Sequence[float], patience: int, follow: Follow) -> None:
        self._levels, self._patience, self._follow = levels, patience, follow
        self._level = levels[0]
        self._best, self._stalled = math.inf, 0
        self._before: Tensor | None = None
        self._followed = math.nan

    def state(self) -> Tensors:
        named = {PACE: self._level, _BEST: self._best, _STALLED: self._stalled}
        return {name: torch.tensor(own, dtype=torch.float64) for name, own in named.items()}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        self._level, self._best = float(tensors[PACE]), float(tensors[_BEST])
        self._stalled = int(tensors[_STALLED])

    def request(self) -> Tensors:
        return {PACE: torch.tensor(self._level, dtype=torch.float64)}

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        self._before = server["model"]
        return list(messages)

    def publish(self, round_: int, server: Tensors) -> Tensors:
        assert self._before is not None, "a round is received before it is published"
        self._followed = self._follow(self._before, server["model"])
        gained = self._best - self._followed
        if gained > _LEAST_GAIN * abs(self._followed):  # not, where it is not a number
            self._best, self._stalled = self._followed, 0
        else:
            self._stalled += 1
        if self._stalled >= self._patience:
            lower = [level for level in self._levels if level < self._level]
            self._level, self._stalled = (lower or [self._level])[0], 0
        return server

    def measure(self) -> dict[str, Any]:
        value = self._followed
        followed = value if math.isfinite(value) else str(value)
        return {"pace": {"followed": followed, "next": round(self._level, 6)}}
