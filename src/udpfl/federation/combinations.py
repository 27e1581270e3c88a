"""Which settings do not go together; asked before anything is planned."""

from __future__ import annotations

from udpfl.algorithms import Algorithm
from udpfl.config import Config
from udpfl.errors import InvalidInput, Unsupported


def check_combination(config: Config, algorithm: Algorithm) -> None:
    """Refuse a method with stages that it cannot keep its promise with."""
    _check_trust(config, algorithm)
    if config.training.penalty and not algorithm.sends_update:
        raise InvalidInput(
            "training.penalty", f"{config.training.algorithm} sends no updates to be pulled to"
        )
    _check_shuffle(config, algorithm)


def _check_trust(config: Config, algorithm: Algorithm) -> None:
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


def _check_shuffle(config: Config, algorithm: Algorithm) -> None:
    """Refuse what cannot be done without knowing who sent which message."""
    if not config.training.shuffle:
        return
    if algorithm.trusts_server:
        raise InvalidInput(
            "training.shuffle",
            f"{config.training.algorithm} trusts the server with updates before any noise: a "
            "shuffler would see them as well, and hide nothing from whom they are meant for",
        )
    privacy = config.privacy
    nominal = privacy.accounting == "scalar"
    if nominal and privacy.accountant == "pld":
        raise InvalidInput(
            "privacy.accountant",
            "the paper's lemma on shuffling is about Rényi divergences, and pld knows none: set "
            'it to "rdp" or "best"',
        )
