"""What the server asks of clients in a round, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field

from udpfl.algorithms import ClientMessage, Tensors

WEAKEST = "weakest"
"""In a request: the last model that the clients with the largest budget released."""
CLIP = "clip"
"""In a request: today's clip over the one that was planned, where it adapts."""
WITHIN = "within"
"""In a message: the noisy share of records within the clip."""


@dataclass(frozen=True)
class Request:
    """What the server asks of some clients in one round."""

    round: int
    received: Tensors
    learning_rate: float
    settled: int = -1
    """Rounds up to this one are safe with the server: it will not ask for them again."""

    @property
    def bytes(self) -> int:
        """What one client downloads."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.received.values())


@dataclass
class Answers:
    """Released messages, refusals by client, and diagnostics of a simulation."""

    messages: list[ClientMessage] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Why a client did not answer."""
    bytes_up: int = 0
    bytes_down: int = 0
    clipped_fraction: float | None = None
    """Simulation only, as the next one."""
    signal_to_noise: float | None = None
