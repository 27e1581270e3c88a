"""What a message of a site has to look like before the server uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from udpfl.algorithms import ClientMessage, Tensors
from udpfl.engine import Correct
from udpfl.errors import UdpflError
from udpfl.federation.request import WITHIN
from udpfl.federation.single_server import ServerSetup

_HEADER = 1 << 20
"""Bytes that a message may have beside its tensors."""
_LARGEST = 1e16
"""Of the numbers in a message: squares and sums of larger ones would not be finite."""


class BadReply(UdpflError):
    """A reply that cannot be used."""


@dataclass(frozen=True)
class ReplyCheck:
    """Reads the messages of a run."""

    shapes: Mapping[str, tuple[torch.Size, torch.dtype]]
    """Of the tensors that every message has."""
    sizes: Mapping[str, int]
    """What each site has declared."""

    @classmethod
    def of(cls, setup: ServerSetup, sizes: Mapping[str, int]) -> ReplyCheck:
        """The check for a run: the method itself says what a client would send."""
        found = {name: (own.shape, own.dtype) for name, own in _sent(setup).items()}
        if setup.config.privacy.clip_quantile is not None:
            found[WITHIN] = (torch.Size([]), torch.float32)
        return cls(found, sizes)

    @property
    def most(self) -> int:
        """Bytes of the longest message."""
        each = (shape.numel() * dtype.itemsize for shape, dtype in self.shapes.values())
        return sum(each) + _HEADER

    def require_short(self, data: bytes) -> None:
        """Refuse what is longer than any message, sealed or not.

        Raises:
            BadReply: It is.
        """
        if len(data) > self.most:
            raise BadReply(f"a message of {len(data):,} bytes, where {self.most:,} are enough")

    def __call__(self, site: str, round_: int, data: bytes) -> ClientMessage:
        """The message of a site in a round; of a site without a name where it was mixed.

        Raises:
            BadReply: It is another one, or cannot be aggregated.
        """
        self.require_short(data)
        try:
            message = ClientMessage.from_bytes(data)
            weight = message.metadata["declared_size"]
        except Exception as error:
            raise BadReply(f"not a message: {error}") from None
        if (message.client, message.round) != (site, round_):
            raise BadReply(f"a message of {message.client!r} in round {message.round!r}")
        if weight not in ([self.sizes[site]] if site else list(self.sizes.values())):
            raise BadReply(f"it declares {weight!r} records, which it did not declare before")
        if message.tensors.keys() != self.shapes.keys():
            raise BadReply(f"the tensors {sorted(message.tensors)}, not {sorted(self.shapes)}")
        for name, tensor in message.tensors.items():
            shape, dtype = self.shapes[name]
            if tensor.shape != shape or tensor.dtype != dtype:
                raise BadReply(f"{name} has the shape {tuple(tensor.shape)}, not {tuple(shape)}")
            if tensor.is_floating_point() and not (tensor.abs() <= _LARGEST).all():
                raise BadReply(f"{name} is not finite, or too large to be added up")
        return message


def _sent(setup: ServerSetup) -> Tensors:
    """What one client would send that does not move."""
    ones = torch.ones(1, device=setup.device)
    method, still = setup.algorithm, _Still(ones, ones.long())
    received = method.broadcast(method.init(setup.start))
    state = {name: own.unsqueeze(0) for name, own in method.client_init(setup.start).items()}
    sent, _ = method.client_step(received, state, still)
    return {name: tensor[0] for name, tensor in sent.items()}


@dataclass
class _Still:
    """Local training in which nobody moves: to see which tensors a method sends."""

    learning_rates: Tensor
    steps: Tensor
    clients: tuple[str, ...] = ("",)
    round: int = 1

    def __call__(
        self,
        start: Tensor,
        correct: Correct | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        return start.clone()
