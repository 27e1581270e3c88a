"""A whole client's update, let out by the very code that lets it out in a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from udpfl.audit.canaries import clipped
from udpfl.engine import Entropy, Noiser, PrivateStream
from udpfl.engine.randomness import Key
from udpfl.errors import Unsupported
from udpfl.federation.folder import RunFolder
from udpfl.federation.local_training import planned_protection
from udpfl.federation.participants import Participant
from udpfl.federation.trusted import TrustedServer
from udpfl.mechanisms.arrays import Floats

_AT_MOST = {False: 10, True: 2}
"""Rounds that are replayed; a trusted server answers one trial at a time."""


_TOO_LONG = 3.0


def rounds_to_try(person: Participant, trusted: bool) -> list[tuple[int, ...]]:
    """Rounds to be audited together; where noise differs, those with least and most by themselves.

    With the wrong noise in some rounds, one of the two has less than it was charged for.
    """
    if person.factors:
        order = sorted(person.asked, key=lambda round_: person.factors[round_ - 1])
        return [(order[0],), (order[-1],)]
    return [tuple(range(1, 1 + min(person.rounds, _AT_MOST[trusted])))]


class AsReleased(Noiser):
    """Clips and noises updates as a client of the run would, or as its trusted server.

    The update is handed over at three times its length, and has to be clipped back. For the server
    there is another client's in the same sum, turned round, which is known.
    """

    def __init__(
        self, person: Participant, rounds: Sequence[int], update: Floats, trusted: bool
    ) -> None:
        self._person, self._rounds = person, rounds
        kept = update[update != 0]  # elsewhere there is nothing to be told apart
        self._width = len(kept)
        self._server = None
        if trusted:
            self._server = TrustedServer(RunFolder(Path()), "audit", Entropy(), person, clients=2)
        self._other = torch.from_numpy(-_TOO_LONG * kept).float()

    def lanes(self, which: slice) -> Noiser:
        raise Unsupported("updates of a client are replayed one after the other")

    def std(self, device: torch.device) -> Tensor:
        raise Unsupported("updates of a client are replayed one after the other")

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        (key,), updates = keys, _TOO_LONG * sums.view(-1, self._width)
        round_ = self._rounds[key.step]
        person = self._person.at(round_)
        if self._server is None:
            clipper, noiser = planned_protection([person] * len(updates))
            own = [key._replace(client=f"{key.client}, {i}") for i in range(len(updates))]
            return noiser.add(clipper.clipped_rows(updates).sum, stream, own).view(1, -1)
        assert person.release is not None
        known = torch.from_numpy(clipped(self._other.double().numpy(), person.release.sensitivity))
        rows = [
            self._server.noisy_sum(round_, torch.stack([update, self._other])) - known
            for update in updates
        ]
        return torch.cat(rows).view(1, -1)
