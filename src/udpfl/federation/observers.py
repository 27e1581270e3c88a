"""Taps: what may be watched of a run, read-only, by attacks, trackers and progress bars."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from udpfl.algorithms import ClientMessage


class Observer(Protocol):
    """Override what you want to see. Tensors are copies: changing them changes nothing."""

    def on_message(self, message: ClientMessage) -> None:
        """A client's released message, as the server receives it."""

    def on_model(self, round_: int, model: dict[str, Tensor]) -> None:
        """The global model after a round, by the user's own parameter names."""

    def on_round(self, row: dict[str, Any]) -> None:
        """The round's line of metrics."""
