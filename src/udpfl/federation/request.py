"""What the server asks of clients in a round, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from udpfl.algorithms import ClientMessage, Tensors

PULL_TARGET = "weakest"
"""In a request: the last model that the clients with the largest budget released."""
CLIP = "clip"
"""In a request: today's clip over the one that was planned, where it adapts."""
PACE = "pace"
"""In a request: the noise that is enough over the planned one, where it follows results."""
WITHIN = "within"
"""In a message: the noisy share of records within the clip."""


@dataclass(frozen=True)
class Request:
    """What the server asks of some clients in one round.

    Example:
        >>> import torch
        >>> from udpfl.federation import Request
        >>> Request(1, {"model": torch.zeros(10)}, learning_rate=0.1).bytes
        40
    """

    round: int
    """The first is 1."""
    tensors: Tensors
    """The model and what the method and the stages add, by name."""
    learning_rate: float
    """Of the clients in this round."""
    settled: int = -1
    """Rounds up to this one are safe with the server: it will not ask for them again."""
    steps: int | None = None
    """Local steps in this round, where the method shares them out; else those of the plan."""

    @property
    def bytes(self) -> int:
        """What one client downloads."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


@dataclass(frozen=True)
class Answers:
    """Released messages, refusals by client, and diagnostics of a simulation.

    Example:
        >>> from udpfl.federation import Answers
        >>> Answers(refused={"clinic": "its budget is used up"}).messages
        ()
    """

    messages: Sequence[ClientMessage] = ()
    """In the order in which clients were asked."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why a client did not answer, by its own words."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Why what a client sent, or that it sent nothing, is left out of this round."""
    bytes_up: int = 0
    """What all messages take."""
    bytes_down: int = 0
    """What all clients together received."""
    clipped_fraction: float | None = None
    """Share of gradients that were clipped; computed from private data, for simulations only."""
    signal_to_noise: float | None = None
    """Length of a clipped sum over that of its noise; for simulations only as well."""
    seen: Sequence[ClientMessage] | None = None
    """The messages as stages left them, where the server has received them already."""

    def sending(self, messages: Sequence[ClientMessage]) -> Answers:
        """The same with messages, in the order in which clients were asked."""
        return replace(self, messages=messages, bytes_up=sum(own.size for own in messages))

    def measured(self, clipped_fraction: float | None, signal_to_noise: float | None) -> Answers:
        """The same with the diagnostics of a simulation."""
        return replace(self, clipped_fraction=clipped_fraction, signal_to_noise=signal_to_noise)
