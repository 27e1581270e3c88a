"""The rounds of a run: request, answers, aggregation, and those who watch."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from udpfl.federation._questions import Clients, Question, answered
from udpfl.federation.request import Answers
from udpfl.federation.selection import ClientSelection
from udpfl.federation.server import Server
from udpfl.federation.watchers import FinishedRound, Watcher


def train(
    server: Server, clients: Clients, selection: ClientSelection, watchers: Sequence[Watcher]
) -> str | None:
    """All rounds that are left, until the last one or until no client is left.

    Args:
        server: Has the model and says which round was the last.
        clients: Answer each request, and charge an answer before it leaves.
        selection: Which clients each round asks.
        watchers: See every round, in this order; they do not change what is computed.

    Returns:
        Why the run ended before its last round; None where it did not.

    Example:
        >>> import torch
        >>> from udpfl.algorithms import FedAvg, ServerStep
        >>> from udpfl.federation import ClientSelection, Server, train
        >>> server = Server(FedAvg(ServerStep()), torch.zeros(2))
        >>> train(server, None, ClientSelection([], names=[]), watchers=[]) is None
        True
    """
    return answered(rounds(server, clients, selection, watchers))


def rounds(
    server: Server, clients: Clients, selection: ClientSelection, watchers: Sequence[Watcher]
) -> Generator[Question, Answers, str | None]:
    """The rounds of `train`, for whoever answers: several runs go on side by side that way."""
    stopped = None
    for round_, chosen in selection.after(server.round):
        began = time.perf_counter()
        request = server.request(round_)  # stages may add tensors
        answers = yield Question(clients, request, chosen)  # charged before they leave
        selection.note_refusals(round_, answers.refused)
        if answers.messages:
            seen = answers.seen  # a simulation stores with the charges what has come of them
            if seen is None:
                seen = server.receive(round_, answers.messages)
            for watcher in watchers:
                watcher.after_round(FinishedRound(round_, answers, seen, began))
        elif answers.refused and (stopped := selection.end_of_run(round_)):
            break
        del answers  # the messages of a round need not be there while the next one is computed
        seen = None
        for watcher in watchers:
            watcher.before_next()
    for watcher in watchers:
        watcher.after_last()
    return stopped
