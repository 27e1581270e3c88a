"""Downlink noise: on the global model, before clients receive it."""

from __future__ import annotations

from udpfl.algorithms import Tensors
from udpfl.engine import MechanismNoiser, PrivateStream
from udpfl.engine.randomness import Key
from udpfl.federation.stages.base import Stage


class DownlinkNoise(Stage):
    """Adds a method's own noise on the way down.

    It is added to a function of what clients have released, so it costs nothing. For the same
    reason nothing is kept for a crash, as a trusted server has to: fresh noise on the same uploads
    tells nothing that the uploads did not, and whoever the guarantee is about has seen those.
    """

    def __init__(self, key: str, stream: PrivateStream, noiser: MechanismNoiser) -> None:
        self.key, self.stream, self.noiser = key, stream, noiser

    def publish(self, round_: int, server: Tensors) -> Tensors:
        """The server's state with a noisy model."""
        keys = [Key(self.key, "server", round_, 0, "downlink")]
        model = self.noiser.add(server["model"].unsqueeze(0), self.stream, keys)[0]
        return {**server, "model": model}
