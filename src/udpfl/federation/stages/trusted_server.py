"""A server that everyone trusts: it sees clipped updates and lets out one noisy mean a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from udpfl.accounting.events import Release
from udpfl.algorithms import ClientMessage, Tensors
from udpfl.engine import MechanismNoiser, NormClipper, PrivateStream
from udpfl.engine.randomness import Key
from udpfl.federation.stages.base import Stage

EVERYONE = "everyone"
"""The name on what a trusted server lets out."""


class Store(Protocol):
    """Keeps what was let out, such as a run folder."""

    def read_aggregate(self, round_: int) -> bytes | None:
        """What was let out in a round; None where nothing was."""

    def write_aggregate(self, round_: int, data: bytes) -> None:
        """Keep it, on disk before this returns."""


@dataclass(frozen=True)
class SumNoise:
    """The noise on the sum of all updates, as every client has planned for."""

    release: Release | None
    """None where no privacy is claimed."""
    clients: int
    participation: float = 1.0
    """Probability with which a client takes part in a round."""
    factors: tuple[float, ...] = ()
    """Noise of every round over that of `release`; empty where all are alike."""

    def at(self, round_: int) -> Release | None:
        """The release of this round, the first is 1."""
        if self.release is None or not self.factors:
            return self.release
        return self.release.scaled(noise=self.factors[round_ - 1])


@dataclass(frozen=True)
class TrustedServer(Stage):
    """Adds noise to the sum of a round's updates, once, and divides by a public constant.

    Guarantee: each round has one noisy mean. It is on disk before anybody sees it, and after a
    crash the same one is used again: fresh noise on the same sum would be a second release.
    """

    hides_participation = True  # from how many were clipped one could tell it

    store: Store
    key: str
    stream: PrivateStream
    noise: SumNoise

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        """One message in the place of all: the noisy mean."""
        if (stored := self.store.read_aggregate(round_)) is not None:
            return [ClientMessage.from_bytes(stored)]
        updates = torch.stack([message.tensors["update"] for message in messages])
        noisy = self.noisy_sum(round_, updates)
        mean = (noisy / (self.noise.clients * self.noise.participation)).float()
        merged = ClientMessage(
            EVERYONE, round_, {"update": mean}, messages[0].events, {"declared_size": 1}
        )
        self.store.write_aggregate(round_, merged.to_bytes())
        return [merged]

    def noisy_sum(self, round_: int, updates: Tensor) -> Tensor:
        """The sum of all updates [clients, d], each clipped, and the noise of this round on it."""
        release = self.noise.at(round_)
        if release is None:
            return updates.double().sum(0)
        # Clipped once more: on its way a clipped update was rounded.
        bounded = release.sensitivity
        clipper = NormClipper(bounded.norm, [bounded.bound] * len(updates))
        total = clipper.clipped_rows(updates).sum.double().sum(0, keepdim=True)
        noiser = MechanismNoiser([release.mechanism])
        return noiser.add(total, self.stream, [Key(self.key, "server", round_, 0)])[0]
