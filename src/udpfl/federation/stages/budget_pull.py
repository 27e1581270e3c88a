"""Budget pull: clients with small budgets are pulled towards what those with the largest released.

See `training.penalty`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from udpfl.algorithms import ClientMessage, Tensors, weighted_mean
from udpfl.errors import Unsupported
from udpfl.federation.request import PULL_TARGET
from udpfl.federation.stages.base import Stage


class BudgetPull(Stage):
    """Keeps the model that the clients with the largest budget have released last.

    Guarantee: made of released messages alone, so it costs nothing.
    """

    def __init__(self, towards: Collection[str]) -> None:
        self.towards = frozenset(towards)
        """The names of those clients."""
        self._pull_target: Tensor | None = None

    def restore(self, tensors: Mapping[str, Any]) -> None:
        self._pull_target = tensors.get(PULL_TARGET)

    def request(self) -> Tensors:
        return {} if self._pull_target is None else {PULL_TARGET: self._pull_target}

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        largest = [message for message in messages if message.client in self.towards]
        if any("update" not in message.tensors for message in largest):
            raise Unsupported("training.penalty needs a method whose clients send updates")
        if largest:
            self._pull_target = server["model"] + weighted_mean(largest, "update")
        return list(messages)
