"""Jobs in processes of their own, a few at a time.

A worker trains one job after the other and sends its parent messages through a pipe: rounds done,
notes, the end of a job. Interrupts reach the workers through the parent only, as a request to end
the round and stop; a worker whose parent is gone stops at its next message.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from udpfl.comparison._jobs import Job, Progress

log = logging.getLogger(__name__)


def train_side_by_side(waiting: Sequence[Job], jobs: int, progress: Progress) -> None:
    """Train all jobs, that many at a time."""
    todo = deque(waiting)
    crew: dict[Connection, _Worker] = {}
    try:
        while todo or crew:
            while todo and len(crew) < jobs:
                worker = _started(jobs)
                crew[worker.connection] = worker
                worker.begin(todo.popleft(), progress)
            for connection in wait(list(crew)):
                assert isinstance(connection, Connection)
                if not _receive(crew[connection], todo, progress):
                    crew.pop(connection).process.join()
    except KeyboardInterrupt:
        log.warning(
            "interrupted: the current rounds are finished first; interrupt again to stop now"
        )
        for worker in crew.values():
            worker.process.terminate()
        for worker in crew.values():
            worker.await_end()
        raise
    finally:
        for worker in crew.values():
            worker.process.kill()
            worker.process.join()


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    job: Job = field(init=False)

    def begin(self, job: Job, progress: Progress) -> None:
        self.job = job
        self.connection.send(job)
        progress.advance(job, 0.0)

    def await_end(self) -> None:
        """Wait until the process has ended. Its messages are dropped, and it gets no other job."""
        with suppress(EOFError, OSError):  # the pipe ends with the process
            while True:
                kind, _ = self.connection.recv()
                if kind == "end":  # the request to stop came too late for this job
                    self.connection.send(None)
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


def _receive(worker: _Worker, todo: deque[Job], progress: Progress) -> bool:
    """Take in one message; whether the worker goes on."""
    try:
        kind, content = worker.connection.recv()
    except (EOFError, OSError):
        worker.process.join()
        progress.end(worker.job, f"its process ended with exit code {worker.process.exitcode}")
        return False
    if kind == "round":
        progress.advance(worker.job, content)
    elif kind == "note":
        log.log(*content)
    else:
        progress.end(worker.job, content)
        if not todo:
            worker.connection.send(None)
            return False
        worker.begin(todo.popleft(), progress)
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
        while (job := connection.recv()) is not None:
            parent.send("end", job.train(partial(parent.send, "round")))
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        return


class _Parent(logging.Handler):
    """Sends messages to the parent, who knows where notes can be shown."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection, self._is_sending = connection, False

    def send(self, kind: str, content: object) -> None:
        self._is_sending = True
        try:
            self._connection.send((kind, content))
        finally:
            self._is_sending = False

    def emit(self, record: logging.LogRecord) -> None:
        # An interrupt may come while a message is half sent; the note of it would tear that message
        # apart, and the parent has told of the interrupt already.
        if not self._is_sending:
            self.send("note", (record.levelno, "%s", record.getMessage()))
