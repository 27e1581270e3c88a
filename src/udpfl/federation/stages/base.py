"""What a stage may do: all of it may be left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from udpfl.algorithms import ClientMessage, Tensors


class Stage:
    """One step on the way from clients to server, or from the server to the next request.

    Example:
        >>> from udpfl.federation import Stage
        >>> class First(Stage):
        ...     def receive(self, round_, server, messages):
        ...         return list(messages)[:1]
        >>> First().receive(1, {}, ["one", "two"])
        ['one']
    """

    hides_participation = False
    """Whether figures about a round would tell how many took part, and are left out."""

    def state(self) -> Tensors:
        """Named tensors that a checkpoint keeps."""
        return self.request()

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint has kept, other stages' tensors among it."""

    def request(self) -> Tensors:
        """Named tensors that clients receive beside the method's own."""
        return {}

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        """The round's messages as whoever comes next sees them."""
        return list(messages)

    def sort(self, messages: Sequence[ClientMessage]) -> list[ClientMessage]:
        """The order in which the server reads messages that all stages have received."""
        return list(messages)

    def publish(self, round_: int, server: Tensors) -> Tensors:
        """The server's state after a round, as clients will receive it."""
        return server

    def measure(self) -> dict[str, Any]:
        """What goes into the round's line of metrics."""
        return {}
