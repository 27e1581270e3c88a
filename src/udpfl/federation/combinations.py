"""Which settings do not go together; asked before anything is planned."""

from __future__ import annotations

from udpfl.algorithms import Algorithm
from udpfl.config import Config
from udpfl.errors import InvalidInput
from udpfl.federation.stages.shuffler import check_shuffle
from udpfl.federation.stages.trusted_server import check_trust


def check_combination(config: Config, algorithm: Algorithm) -> None:
    """Refuse a method with stages that it cannot keep its promise with."""
    check_trust(config, algorithm)
    if config.training.penalty and not algorithm.sends_update:
        raise InvalidInput(
            "training.penalty", f"{config.training.algorithm} sends no updates to be pulled to"
        )
    check_shuffle(config, algorithm)
