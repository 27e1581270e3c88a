"""The shuffler: between clients and server, it takes names and order off a round's messages.

It is a party of its own. Clients hand it what they have released, so it needs no trust for their
privacy: their noise is in the messages already. What it is trusted with is anonymity alone, that it
keeps no list and does not work with the server. What it hands on has no name, no events (a client's
noise would name it) and no metadata but the public weight, in an order drawn from the operating
system's entropy. Names stay on the clients' side, with the ledger and the checkpoint.

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

from udpfl.accounting import Shuffled
from udpfl.accounting.shuffling import conditions_missing
from udpfl.algorithms import Algorithm, ClientMessage, Tensors
from udpfl.config import Config
from udpfl.engine import PrivateStream
from udpfl.engine.randomness import Key
from udpfl.errors import InvalidInput
from udpfl.federation.participants import Participant, nothing_claimed
from udpfl.federation.stages.base import Stage

NOTE = "shuffled"
"""What the ledger says beside every charge."""
_WEIGHT = "declared_size"

log = logging.getLogger(__name__)


def check_shuffle(config: Config, algorithm: Algorithm) -> None:
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


@dataclass
class Shuffler(Stage):
    """Mixes the messages of one round.

    Guarantee: what it returns depends on who sent what in nothing but tensors and public weight,
    and with `keyed` None every order of it is equally likely, anew in each round.
    """

    run: str
    keyed: PrivateStream | None = None
    """For seeded runs, which repeat exactly and hide nothing."""
    _warned: bool = False

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        """The same messages without names, in a new order."""
        if len(messages) == 1 and not self._warned:
            self._warned = True
            log.warning("round %d has a single message: no shuffler can hide its sender", round_)
        return [_anonymous(messages[place]) for place in self._order(round_, len(messages))]

    def sort(self, messages: Sequence[ClientMessage]) -> list[ClientMessage]:
        """An order of the server's own: a round that runs again after a crash ends the same."""
        return by_content(messages)

    def _order(self, round_: int, count: int) -> list[int]:
        order = list(range(count))
        if self.keyed is None:
            SystemRandom().shuffle(order)
            return order
        words = torch.empty(1, count, dtype=torch.int64)
        self.keyed.fill(words, [Key(self.run, "", round_, 0, "shuffle")])
        return sorted(order, key=words[0].tolist().__getitem__)


def _anonymous(message: ClientMessage) -> ClientMessage:
    return ClientMessage(
        client="",
        round=message.round,
        tensors=dict(sorted(message.tensors.items())),
        metadata={_WEIGHT: message.metadata[_WEIGHT]},
    )


def by_content(messages: Sequence[ClientMessage]) -> list[ClientMessage]:
    """Messages in an order that nothing but their content decides.

    A round that a crash interrupts is shuffled anew. Sums would then round differently, and
    `mode-connectivity` would merge other pairs. In this order both come out as they did before.
    """
    return sorted(messages, key=_digest)


def _digest(message: ClientMessage) -> bytes:
    found = blake2b(repr(message.weight).encode(), digest_size=32)
    for name, tensor in sorted(message.tensors.items()):
        found.update(name.encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found.update(raw.numpy().data)
    return found.digest()


def shuffle_notes(
    config: Config, people: Sequence[Participant], keeps_state: bool = False
) -> tuple[str, ...]:
    """What a statement says about shuffling. It is logged as well, with what gives senders away.

    `keeps_state` says whether the method's clients remember earlier rounds.
    """
    if not config.training.shuffle:
        return ()
    _warn_of_marks(people, keeps_state)
    privacy = config.privacy
    asked = [person for person in people if person.release is not None]
    if nothing_claimed(config) or not asked:
        return ()
    note = f"shuffled: no amplification because {_reason(config, asked[0])}"
    if privacy.accounting == "scalar":
        note = (
            "shuffled: the nominal ε may count on the paper's lemma, whose conditions do not hold "
            "here; the guarantee beside it never does"
            if asked[0].shuffled
            else "shuffled: no amplification, not even a nominal one, because a message holds "
            f"{asked[0].sampled[1] * asked[0].trainings} releases and the lemma is about one"
        )
    log.warning("%s", note)
    return (note,)


def _reason(config: Config, person: Participant) -> str:
    """Which conditions the messages of this run do not meet."""
    assert person.release is not None
    among = config.training.clients_per_round or config.data.clients
    missing = conditions_missing(Shuffled(person.release, among))
    assert missing, "what is charged counts on no amplification"
    return " and ".join(missing)


def _warn_of_marks(people: Sequence[Participant], keeps_state: bool) -> None:
    """Say by what a message can be told from others although its name is gone."""
    if len({person.declared_size for person in people}) > 1:
        log.warning(
            "declared sizes differ and stay with the shuffled messages as their weights: whoever "
            "knows them can tell messages apart; set data.declared_sizes to one number for all"
        )
    if len({person.release for person in people if person.release is not None}) > 1:
        log.warning(
            "clients add different noise, whose size can be read off a shuffled message: give all "
            "of them the same budget, mechanism, clip and number of rounds to be anonymous"
        )
    if keeps_state:
        # scaffold sends c_i+ - c_i, and in c_i is what the client sent before, noise and all.
        log.warning(
            "clients of this method remember earlier rounds, so a shuffled message can be linked "
            "to the one that the same client sent before; fedavg and fedprox remember nothing"
        )
