"""Jobs in processes of their own, a few at a time.

A worker trains one job after the other and sends what it has to say through a pipe: rounds done,
notes, the end of a job. Interrupts reach the workers through the parent only, as a request to end
the round and stop; a worker whose parent is gone stops at its next word.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from udpfl.comparison.running import Job, Progress

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
    job: Job | None = None

    def begin(self, job: Job, progress: Progress) -> None:
        self.job = job
        self.connection.send(job)
        progress.hears(job, 0.0)


def _started(jobs: int) -> _Worker:
    # A fork of a process whose torch has begun threads may hang.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    level = logging.getLogger().getEffectiveLevel()
    process = context.Process(target=_serve, args=(theirs, jobs, level), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends with the worker
    return _Worker(process, ours)


def _heard(worker: _Worker, todo: deque[Job], progress: Progress) -> bool:
    """Take in one message; whether the worker goes on."""
    job = worker.job
    assert job is not None
    try:
        kind, said = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        progress.ends(job, f"its process ended with exit code {worker.process.exitcode}")
        return False
    if kind == "round":
        progress.hears(job, said)
    elif kind == "note":
        log.log(*said)
    else:
        progress.ends(job, said)
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
    logging.basicConfig(level=level, handlers=[_Notes(connection)])
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    try:
        while (job := connection.recv()) is not None:
            failed = job.train(lambda share: connection.send(("round", share)))
            connection.send(("end", failed))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return


class _Notes(logging.Handler):
    """Sends notes to the parent, who knows where they can be shown."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        self._connection.send(("note", (record.levelno, "%s", record.getMessage())))
