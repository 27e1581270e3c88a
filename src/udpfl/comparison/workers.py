"""Batches of jobs in processes of their own, a few at a time.

A worker trains one batch after the other and sends what it has to say through a pipe: rounds done,
notes, the end of a job. Interrupts reach the workers through the parent only, as a request to end
the round and stop; a worker whose parent is gone stops at its next word.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from udpfl.comparison.jobs import Hears, Job, Progress
from udpfl.comparison.lanes import train_batch

log = logging.getLogger(__name__)


def train_side_by_side(waiting: Sequence[Sequence[Job]], jobs: int, progress: Progress) -> None:
    """Train all batches, that many at a time."""
    todo = deque(waiting)
    crew: dict[Connection, _Worker] = {}
    try:
        while todo or crew:
            while todo and len(crew) < jobs:
                worker = _started(jobs)
                crew[worker.connection] = worker
                worker.begin(todo.popleft())
            for connection in wait(list(crew)):
                assert isinstance(connection, Connection)
                if not _heard(crew[connection], todo, progress):
                    crew.pop(connection).process.join()
    except KeyboardInterrupt:
        log.warning("interrupted: finishing the rounds under way, once more to stop at once")
        for worker in crew.values():
            worker.process.terminate()
        for worker in crew.values():
            worker.process.join()
        raise
    finally:
        for worker in crew.values():
            worker.process.kill()
            worker.process.join()


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    under_way: list[Job] = field(default_factory=list)

    def begin(self, batch: Sequence[Job]) -> None:
        self.under_way = list(batch)
        self.connection.send(self.under_way)


def _started(jobs: int) -> _Worker:
    # A fork of a process whose torch has begun threads may hang.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    level = logging.getLogger().getEffectiveLevel()
    process = context.Process(target=_serve, args=(theirs, jobs, level), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends with the worker
    return _Worker(process, ours)


def _heard(worker: _Worker, todo: deque[Sequence[Job]], progress: Progress) -> bool:
    """Take in one message; whether the worker goes on."""
    try:
        kind, said = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        for job in worker.under_way:
            progress.ends(job, f"its process ended with exit code {worker.process.exitcode}")
        return False
    if kind == "round":
        progress.hears(*said)
    elif kind == "note":
        log.log(*said)
    elif kind == "end":
        progress.ends(*said)
        worker.under_way.remove(said[0])
    elif not todo:
        worker.connection.send(None)
        return False
    else:
        worker.begin(todo.popleft())
    return True


# In the worker


def _serve(connection: Connection, jobs: int, level: int) -> None:
    """Train what comes through the pipe until nothing more does."""
    # Ctrl-C reaches the whole group of processes; here the parent is the one who answers to it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    parent = _Parent(connection)
    logging.basicConfig(level=level, handlers=[parent])
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    try:
        while (batch := connection.recv()) is not None:
            train_batch(batch, parent)
            parent.send("idle", None)
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return


class _Parent(logging.Handler, Hears):
    """Sends notes and progress to the parent, who knows where they can be shown."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection, self._one_at_a_time = connection, threading.Lock()

    def send(self, kind: str, said: object) -> None:
        with self._one_at_a_time:
            self._connection.send((kind, said))

    def hears(self, job: Job, share: float) -> None:
        self.send("round", (job, share))

    def ends(self, job: Job, failed: str | None) -> None:
        self.send("end", (job, failed))

    def emit(self, record: logging.LogRecord) -> None:
        self.send("note", (record.levelno, "%s", record.getMessage()))
