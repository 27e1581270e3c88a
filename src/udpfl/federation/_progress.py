"""A simulation's round as it is stored: the server's state after it, in place of all messages.

One process holds clients and server here, so the server may receive a round in memory before the
round is charged. Nothing leaves that memory until the charges and the state are on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from udpfl.algorithms import BUILT_IN, Algorithm
from udpfl.algorithms.message import tensors_from_bytes, tensors_to_bytes
from udpfl.config import Config
from udpfl.federation.observers import Observer, sees_messages
from udpfl.federation.request import Answers
from udpfl.federation.server import Server
from udpfl.federation.watchers import FinishedRound
from udpfl.ledger.progress import Progress


def needs_messages(config: Config, algorithm: Algorithm, observers: Sequence[Observer]) -> bool:
    """Whether a run has to store its messages.

    So it does where somebody sees them, again after a crash; where the server half is not ours, so
    that nobody knows what it does with them before they are charged; and where a trusted server
    writes down what it lets out.
    """
    return (
        bool(config.record_updates)
        or any(map(sees_messages, observers))
        or bool(config.training.stages)
        or type(algorithm) not in BUILT_IN.values()
        or algorithm.trusts_server
    )


@dataclass(frozen=True)
class ProgressWriter:
    """Lets the server receive a round before it is charged, to store what comes of it."""

    server: Server
    facts: Callable[[FinishedRound], dict[str, Any]]
    """A round's line of metrics, without an evaluation."""

    @contextmanager
    def received(self, round_: int, answers: Answers) -> Iterator[tuple[Answers, Progress]]:
        """The answers as received, and what to store of them.

        Where charging raises, the server is what it was before.
        """
        began = time.perf_counter()
        with self.server.provisionally():
            seen = self.server.receive(round_, answers.messages)
            done = replace(answers, seen=seen)
            row = self.facts(FinishedRound(round_, done, seen, began))
            state = tensors_to_bytes(self.server.state(), {"row": row})
            yield done, Progress(round_, state)


def restore_progress(server: Server, progress: Progress) -> dict[str, Any]:
    """Put the server where it was after that round; returns the round's line of metrics."""
    tensors, header = tensors_from_bytes(progress.state)
    server.restore(progress.round, tensors)
    row: dict[str, Any] = header["row"]
    return row
