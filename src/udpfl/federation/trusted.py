"""A server that everyone trusts: it sees clipped updates and lets out one noisy mean a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from udpfl.algorithms import Algorithm, ClientMessage
from udpfl.config import Config, PrivacyConfig
from udpfl.engine import MechanismNoiser, Noiseless, Noiser, PrivateStream
from udpfl.engine.randomness import Key
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.folder import RunFolder
from udpfl.federation.participants import Participant

EVERYONE = "everyone"
"""The name on what a trusted server lets out."""
ASSUMPTION = (
    "assumes a server that adds the noise, keeps the updates it receives to itself and tells "
    "nobody who took part"
)


def check_trust(config: Config, algorithm: Algorithm) -> None:
    """Refuse settings under which a trusted server would not keep what it promises."""
    if not algorithm.trusts_server:
        return
    name = config.training.algorithm
    if isinstance(config.privacy, PrivacyConfig) and config.privacy.unit != "client":
        raise InvalidInput("privacy.unit", f'{name} hides whole clients: set it to "client"')
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
class TrustedServer:
    """Adds noise to the sum of a round's updates, once, and divides by a public constant.

    Guarantee: each round has one noisy mean. It is on disk before anybody sees it, and after a
    crash the same one is used again: fresh noise on the same sum would be a second release.
    """

    folder: RunFolder
    key: str
    stream: PrivateStream
    noiser: Noiser
    expected: float
    """Clients that take part in a round, on average."""

    @classmethod
    def of(
        cls, folder: RunFolder, key: str, stream: PrivateStream, people: Sequence[Participant]
    ) -> TrustedServer:
        """For these clients, who must all have planned for the same noise."""
        releases = {person.release for person in people}
        if len(releases) > 1:
            raise Unsupported(
                "a trusted server adds one noise to the sum of all updates: budgets, mechanisms "
                "and clips cannot differ from client to client"
            )
        release = releases.pop()
        noiser = Noiseless() if release is None else MechanismNoiser([release.mechanism])
        return cls(folder, key, stream, noiser, len(people) * people[0].participation)

    def merged(self, round_: int, messages: Sequence[ClientMessage]) -> list[ClientMessage]:
        """One message in the place of all: the noisy mean."""
        if stored := self.folder.read_aggregate(round_):
            return [ClientMessage.from_bytes(stored)]
        total = torch.stack([message.tensors["update"] for message in messages]).double().sum(0)
        keys = [Key(self.key, "server", round_, 0)]
        noisy = self.noiser.add(total.float().unsqueeze(0), self.stream, keys)[0]
        merged = ClientMessage(
            EVERYONE,
            round_,
            {"update": noisy / self.expected},
            messages[0].events,
            {"declared_size": 1},
        )
        self.folder.write_aggregate(round_, merged.to_bytes())
        return [merged]
