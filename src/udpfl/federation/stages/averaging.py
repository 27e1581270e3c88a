"""Averaging: the model of a run is an average over its rounds, which noise moves less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from udpfl.algorithms import Tensors
from udpfl.federation.stages.base import Stage

AVERAGE = "average"


class Averaging(Stage):
    """An exponential average of the global model. Clients train on from the last one, not from it.

    Guarantee: made of models that were published, so it costs nothing.
    """

    def __init__(self, start: Tensor, decay: float) -> None:
        self.model, self.decay = start, decay
        """The average so far; with a decay of 0 the last model."""

    def state(self) -> Tensors:
        return {AVERAGE: self.model} if self.decay else {}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        self.model = tensors.get(AVERAGE, tensors["server.model"])

    def publish(self, round_: int, server: Tensors) -> Tensors:
        model, decay = server["model"], min(self.decay, (1 + round_) / (10 + round_))
        self.model = model if decay == 0 else decay * self.model + (1 - decay) * model
        return server
