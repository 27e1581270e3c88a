"""A server that everyone trusts: it sees clipped updates and lets out one noisy mean a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udpfl.algorithms import Algorithm, ClientMessage, Tensors
from udpfl.config import Config
from udpfl.engine import MechanismNoiser, NormClipper, PrivateStream
from udpfl.engine.randomness import Key
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.participants import Participant
from udpfl.federation.stages.base import Stage
from udpfl.runs.folder import RunFolder

EVERYONE = "everyone"
"""The name on what a trusted server lets out."""


def check_trust(config: Config, algorithm: Algorithm) -> None:
    """Refuse settings under which a trusted server would not keep what it promises."""
    if not algorithm.trusts_server:
        return
    name = config.training.algorithm
    if config.privacy.enabled and config.privacy.unit != "client":
        raise InvalidInput("privacy.unit", f'{name} hides whole clients: set it to "client"')
    for key in ("epsilon", "delta", "mechanism", "clip"):
        if isinstance(getattr(config.privacy, key), list):
            raise InvalidInput(
                f"privacy.{key}",
                f"{name} adds one noise to the sum of all updates: it cannot differ from client to "
                "client",
            )
    if algorithm.trainings != 1:
        raise Unsupported(f"{name} trains {algorithm.trainings} times a round: noise is for once")
    if config.training.clients_per_round is not None:
        raise InvalidInput(
            "training.clients_per_round",
            f"{name} lets clients toss coins in secret: set training.options.participation",
        )
    if config.record_updates:
        raise InvalidInput(
            "record_updates", f"with {name} what a client sends is no release: it must not be kept"
        )


@dataclass(frozen=True)
class TrustedServer(Stage):
    """Adds noise to the sum of a round's updates, once, and divides by a public constant.

    Guarantee: each round has one noisy mean. It is on disk before anybody sees it, and after a
    crash the same one is used again: fresh noise on the same sum would be a second release.
    """

    hides_participation = True  # from how many were clipped one could tell it

    folder: RunFolder
    key: str
    stream: PrivateStream
    person: Participant
    """What every client has planned for."""
    clients: int

    @classmethod
    def of(
        cls, folder: RunFolder, key: str, stream: PrivateStream, people: Sequence[Participant]
    ) -> TrustedServer:
        """For these clients, who must all have planned for the same noise."""
        plans = {(person.release, person.factors, person.participation) for person in people}
        if len(plans) > 1:
            raise Unsupported(
                "a trusted server adds one noise to the sum of all updates: budgets, mechanisms "
                "and clips cannot differ from client to client"
            )
        return cls(folder, key, stream, people[0], len(people))

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        """One message in the place of all: the noisy mean."""
        if (stored := self.folder.read_aggregate(round_)) is not None:
            return [ClientMessage.from_bytes(stored)]
        updates = torch.stack([message.tensors["update"] for message in messages])
        noisy = self.noisy_sum(round_, updates)
        mean = (noisy / (self.clients * self.person.participation)).float()
        merged = ClientMessage(
            EVERYONE, round_, {"update": mean}, messages[0].events, {"declared_size": 1}
        )
        self.folder.write_aggregate(round_, merged.to_bytes())
        return [merged]

    def noisy_sum(self, round_: int, updates: Tensor) -> Tensor:
        """The sum of all updates [clients, d], each clipped, and the noise of this round on it."""
        release = self.person.at(round_).release
        if release is None:
            return updates.double().sum(0)
        # Clipped once more: on its way a clipped update was rounded.
        bounded = release.sensitivity
        clipper = NormClipper(bounded.norm, [bounded.bound] * len(updates))
        total = clipper.clipped_rows(updates).sum.double().sum(0, keepdim=True)
        noiser = MechanismNoiser([release.mechanism])
        return noiser.add(total, self.stream, [Key(self.key, "server", round_, 0)])[0]
