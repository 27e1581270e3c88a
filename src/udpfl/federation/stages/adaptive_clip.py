"""Adaptive clip: a clip that follows a quantile of the records' norms.

Reference: Andrew et al. 2021, "Differentially private learning with adaptive clipping", Section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from udpfl.algorithms import ClientMessage, Tensors, weighted_mean
from udpfl.federation.request import CLIP, WITHIN
from udpfl.federation.stages.base import Stage


class AdaptiveClip(Stage):
    """Moves the clip by a factor: up where too few records were within it, down where too many.

    Guarantee: made of noisy counts alone, so it costs what those cost.
    """

    def __init__(self, quantile: float, rate: float) -> None:
        self.quantile, self.rate = quantile, rate
        self._factor: Tensor | None = None
        """Today's clip over the one that was planned; None before the first round."""

    def restore(self, tensors: Mapping[str, Any]) -> None:
        self._factor = tensors.get(CLIP)

    def request(self) -> Tensors:
        return {} if self._factor is None else {CLIP: self._factor}

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        within = weighted_mean(messages, WITHIN).clamp(0.0, 1.0)
        before = torch.ones_like(within) if self._factor is None else self._factor
        moved = before * torch.exp(-self.rate * (within - self.quantile))
        self._factor = moved.clamp(1e-3, 1e3)
        return list(messages)

    def measure(self) -> dict[str, Any]:
        return {} if self._factor is None else {"clip_factor": round(float(self._factor), 6)}
