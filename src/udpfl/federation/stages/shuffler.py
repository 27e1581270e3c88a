"""The shuffler: between clients and server, it takes names and order off a round's messages.

It is a party of its own, which a simulation runs in the process of the server. Clients hand it what
they have released, so it needs no trust for their privacy: their noise is in the messages already.
What it is trusted with is anonymity alone, that it keeps no list and does not work with the server.
What it hands on has no name, no events (a client's noise would name it) and no metadata but the
public weight, in an order drawn from the operating system's entropy. Names stay on the clients'
side, with the ledger and the checkpoint.

No guarantee becomes smaller by it: see `udpfl.accounting.shuffling` for the conditions that would
be needed, and docs/mathematics.md, section 7.

References: the UDP-FL paper's shuffler; Girgis et al. 2021, "On the Rényi differential privacy of
the shuffle model"; Bittau et al. 2017, "Prochlo: strong privacy for analytics in the crowd".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from secrets import SystemRandom

import torch

from udpfl.algorithms import ClientMessage, Tensors
from udpfl.engine import PrivateStream
from udpfl.engine.randomness import Key
from udpfl.federation.stages.base import Stage

NOTE = "shuffled"
"""What the ledger says beside every charge."""
_WEIGHT = "declared_size"

log = logging.getLogger(__name__)


@dataclass
class Shuffler(Stage):
    """Mixes the messages of one round.

    Guarantee: what it returns depends on who sent what in nothing but tensors and public weight,
    and with `keyed` None every order of it is equally likely, anew in each round.
    """

    key: str
    """What stands for this run in the keys of random numbers."""
    keyed: PrivateStream | None = None
    """For seeded runs, which repeat exactly and hide nothing."""
    _warned: bool = False

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        """The same messages without names, in a new order."""
        if len(messages) == 1 and not self._warned:
            self._warned = True
            log.warning(
                "round %d has a single message: the shuffler cannot hide its sender", round_
            )
        return [anonymous(messages[place]) for place in self._order(round_, len(messages))]

    def sort(self, messages: Sequence[ClientMessage]) -> list[ClientMessage]:
        """An order of the server's own: a round that runs again after a crash ends the same."""
        return by_content(messages)

    def _order(self, round_: int, count: int) -> list[int]:
        order = list(range(count))
        if self.keyed is None:
            SystemRandom().shuffle(order)
            return order
        words = torch.empty(1, count, dtype=torch.int64)
        self.keyed.fill(words, [Key(self.key, "", round_, 0, "shuffle")])
        return sorted(order, key=words[0].tolist().__getitem__)


def anonymous(message: ClientMessage) -> ClientMessage:
    """The message with nothing but its tensors and its public weight."""
    return ClientMessage(
        client="",
        round=message.round,
        tensors=dict(sorted(message.tensors.items())),
        metadata={_WEIGHT: message.metadata[_WEIGHT]},
    )


def by_content(messages: Sequence[ClientMessage]) -> list[ClientMessage]:
    """Messages in an order that nothing but their content decides.

    A round that a crash interrupts is shuffled anew. Sums would then round differently, and
    a method that merges pairs would merge others. In this order both come out as they did before.
    """
    return sorted(messages, key=_digest)


def _digest(message: ClientMessage) -> bytes:
    found = blake2b(repr(message.weight).encode(), digest_size=32)
    for name, tensor in sorted(message.tensors.items()):
        found.update(name.encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found.update(raw.numpy().data)
    return found.digest()
