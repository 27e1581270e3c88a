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
            worker.see_out()
        raise
    finally:
        for worker in crew.values():
            worker.process.kill()
            worker.process.join()


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    batch: list[Job] = field(default_factory=list)
    under_way: list[Job] = field(default_factory=list)
    """Those of the batch that have not ended."""

    def begin(self, batch: Sequence[Job]) -> None:
        self.batch, self.under_way = list(batch), list(batch)
        self.connection.send(self.batch)

    def see_out(self) -> None:
        """Wait for its end; what it still has to say is let go, and it gets no more to do."""
        while self.process.is_alive():
            try:
                if self.connection.poll(0.1) and self.connection.recv()[0] == "idle":
                    self.connection.send(None)
            except (EOFError, OSError):
                break
        self.process.join()


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
        number, share = said
        progress.hears(worker.batch[number], share)
    elif kind == "note":
        log.log(*said)
    elif kind == "end":
        number, failed = said
        progress.ends(worker.batch[number], failed)
        worker.under_way.remove(worker.batch[number])
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
            parent.batch = batch
            train_batch(batch, parent)
            parent.send("idle", None)
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        return


class _Parent(logging.Handler, Hears):
    """Sends notes and progress to the parent, who knows where they can be shown."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection, self._one_at_a_time = connection, threading.Lock()
        self.batch: list[Job] = []

    def send(self, kind: str, said: object, patience: float = -1) -> None:
        if self._one_at_a_time.acquire(timeout=patience):
            try:
                self._connection.send((kind, said))
            finally:
                self._one_at_a_time.release()

    def hears(self, job: Job, share: float) -> None:
        self.send("round", (self.batch.index(job), share))

    def ends(self, job: Job, failed: str | None) -> None:
        self.send("end", (self.batch.index(job), failed))

    def emit(self, record: logging.LogRecord) -> None:
        # The note of an interrupt may come in the middle of another message of the same thread.
        self.send("note", (record.levelno, "%s", record.getMessage()), patience=1.0)
