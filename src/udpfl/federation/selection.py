"""Who is asked in which round: drawn from the public seed before anything is planned."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from udpfl.config import Config

log = logging.getLogger(__name__)

Schedule = Sequence[Sequence[int]]
"""The clients of every round, by their numbers."""


def draw_schedule(config: Config) -> Schedule:
    """The clients of every round.

    Everybody may know it: no amplification by client choice is claimed.
    """
    clients, picked = config.data.clients, config.training.clients_per_round
    if picked is None or picked == clients:
        return [tuple(range(clients))] * config.training.rounds
    rng = np.random.default_rng([*b"selection", config.seed])
    return [
        tuple(sorted(int(i) for i in rng.choice(clients, picked, replace=False)))
        for _ in range(config.training.rounds)
    ]


class ClientSelection:
    """The rounds of a run, and which clients have left it because their budget is used up.

    Args:
        schedule: The clients of every round, by their numbers.
        names: What the clients are called.

    Example:
        >>> from udpfl.federation import ClientSelection
        >>> list(ClientSelection([(0, 1), (1,)], ["clinic", "ward"]).after(1))
        [(2, (1,))]
    """

    def __init__(self, schedule: Schedule, names: Sequence[str]) -> None:
        self.schedule, self._names = schedule, names
        self._left: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.schedule)

    def after(self, done: int) -> Iterator[tuple[int, Sequence[int]]]:
        """The rounds that are left, the first is 1, and the clients that each asks."""
        for round_ in range(done + 1, len(self.schedule) + 1):
            yield round_, self.schedule[round_ - 1]

    def note_refusals(self, round_: int, refused: Mapping[str, str]) -> None:
        """Remember which clients refused to answer, and why; the log says it once of each.

        What a run has reserved nobody else can spend, but a budget can be lowered meanwhile, or
        somebody can free a reservation by hand.
        """
        fresh = [client for client in refused if client not in self._left]
        if fresh:
            log.warning(
                "%s refused to answer from round %d on: %s", list_names(fresh), round_,
                refused[fresh[0]],
            )  # fmt: skip
        self._left |= refused

    def end_of_run(self, round_: int) -> str | None:
        """Why no client is left for the rounds from this one on; None where one may answer."""
        to_come = {client for chosen in self.schedule[round_ - 1 :] for client in chosen}
        asked = [self._names[client] for client in self.schedule[round_ - 1]]
        if not {self._names[client] for client in to_come} <= self._left.keys():
            return None
        return f"no client is left to train: {list_names(asked)}: {self._left[asked[0]]}"


def list_names(names: Sequence[str]) -> str:
    """A few names in full, many by their number."""
    if len(names) <= 3:
        return ", ".join(names)
    return f"{len(names)} clients ({', '.join(names[:2])}, …)"
