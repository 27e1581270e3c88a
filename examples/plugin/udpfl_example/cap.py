"""A stage of one's own: no client's update counts for more than a few ordinary ones.

An update that is much longer than the median of its round is shortened. It works on what clients
have released, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from udpfl.algorithms import ClientMessage, Tensors
from udpfl.federation import Stage


class Cap(Stage):
    """Shortens updates to twice the median length, which is averaged over rounds."""

    times = 2.0

    def __init__(self) -> None:
        self._median: Tensor | None = None
        self._capped = 0

    def state(self) -> Tensors:
        return {} if self._median is None else {"cap.median": self._median}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        self._median = tensors.get("cap.median")

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        lengths = torch.stack([message.tensors["update"].norm() for message in messages])
        median = lengths.median()
        self._median = median if self._median is None else (self._median + median) / 2
        most = self.times * self._median
        self._capped = int((lengths > most).sum())
        return [
            replace(message, tensors=_shortened(message.tensors, float(min(1, most / length))))
            for message, length in zip(messages, lengths, strict=True)
        ]

    def measure(self) -> dict[str, Any]:
        return {"capped": self._capped}


def _shortened(tensors: Tensors, factor: float) -> Tensors:
    return {**tensors, "update": tensors["update"] * factor}
