"""What a client answers: named tensors, the events they cost, and public metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from udpfl.errors import InvalidInput, MissingExtra

try:
    from safetensors.torch import load, save
except ImportError:
    raise MissingExtra("safetensors", "train") from None

Tensors = dict[str, Tensor]
_LONGEST_HEADER = 1 << 23
"""Bytes. A text of tables takes many times its length of memory once it is read."""


@dataclass(frozen=True)
class ClientMessage:
    """One client's answer in one round. Nothing else of a client ever reaches the server.

    Example:
        >>> import torch
        >>> from udpfl import ClientMessage
        >>> tensors = {"update": torch.zeros(3)}
        >>> message = ClientMessage("clinic", 1, tensors, metadata={"declared_size": 200})
        >>> message.weight
        200.0
    """

    client: str
    """Its name; empty where a shuffler has taken it off."""
    round: int
    """The first is 1."""
    tensors: Tensors
    """What is released, by name."""
    events: tuple[str, ...] = ()
    """What releasing the tensors cost, as `event_to_json` writes it; empty where no privacy is
    claimed. Only text: whoever receives a message builds nothing from what it names."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Public facts only, such as the declared size: never anything computed from records."""

    @property
    def weight(self) -> float:
        """The client's declared public size."""
        return float(self.metadata["declared_size"])

    def copy(self) -> ClientMessage:
        """The same message with tensors and metadata of its own."""
        tensors = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        return replace(self, tensors=tensors, metadata=dict(self.metadata))

    def to(self, device: torch.device) -> ClientMessage:
        """The same message with its tensors on a device."""
        return replace(self, tensors={n: tensor.to(device) for n, tensor in self.tensors.items()})

    @property
    def size(self) -> int:
        """How many bytes `to_bytes` makes of it."""
        kinds = tuple((name, own.dtype, own.shape) for name, own in self.tensors.items())
        others, plain = _file_sizes(kinds)
        # The events of all clients are mostly the same, so they are measured by themselves.
        public = {"client": self.client, "round": self.round, "metadata": dict(self.metadata)}
        said = _length(_text({**public, "events": []})) - len("[]") + _events_length(self.events)
        return others + -(-(plain + said) // 8) * 8

    @property
    def _header(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "round": self.round,
            "events": [json.loads(event) for event in self.events],
            "metadata": dict(self.metadata),
        }

    def to_bytes(self) -> bytes:
        """A safetensors file with everything else in its header."""
        return tensors_to_bytes(self.tensors, self._header)

    @classmethod
    def from_bytes(cls, data: bytes) -> ClientMessage:
        """The inverse of `to_bytes`. Events stay text, whatever they name."""
        tensors, header = tensors_from_bytes(data)
        events = tuple(json.dumps(event, sort_keys=True) for event in header["events"])
        return cls(header["client"], header["round"], tensors, events, header["metadata"])


def tensors_to_bytes(tensors: Tensors, header: Mapping[str, Any] | None = None) -> bytes:
    """Named tensors as a safetensors file; the header is any JSON object."""
    plain: Tensors = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        tied = any(own.data_ptr() == other.data_ptr() for other in plain.values())
        plain[name] = own.clone() if tied else own  # every name gets its own copy in the file
    return save(plain, {"udpfl": _text(header or {})})


@lru_cache(maxsize=1024)
def _events_length(events: tuple[str, ...]) -> int:
    """Of what a header says of these events."""
    return _length(json.dumps([json.loads(event) for event in events], sort_keys=True))


def _length(text: str) -> int:
    """Of a text in a text, without its quotes."""
    return len(json.dumps(text)) - 2


@lru_cache(maxsize=64)
def _file_sizes(kinds: tuple[tuple[str, torch.dtype, torch.Size], ...]) -> tuple[int, int]:
    """Bytes of a file with such tensors: all but its header, and its header before it is filled up
    to a multiple of 8, with an empty text in it."""
    data = save(
        {name: torch.zeros(shape, dtype=dtype) for name, dtype, shape in kinds}, {"udpfl": ""}
    )
    length = int.from_bytes(data[:8], "little")
    return len(data) - length, len(data[8 : 8 + length].rstrip())


def _text(header: Mapping[str, Any]) -> str:
    return json.dumps(header, sort_keys=True)


def tensors_from_bytes(data: bytes) -> tuple[Tensors, dict[str, Any]]:
    """Named tensors on the CPU, and the header."""
    try:
        length = int.from_bytes(data[:8], "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"its header has {length:,} bytes, more than {_LONGEST_HEADER:,}")
        header = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        return load(data), json.loads(header.get("udpfl", "{}"))
    except Exception as error:  # safetensors raises its own type for each kind of damage
        raise InvalidInput("message", f"is not a readable safetensors file: {error}") from None
