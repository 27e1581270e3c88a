"""Runs of a comparison that train together: each in a thread, their rounds as lanes of one call.

That pays where a round is too small to fill the device, as on a GPU. On a CPU a run keeps every
core busy by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from udpfl.comparison.jobs import Hears, Job
from udpfl.engine.together import Together
from udpfl.federation.interrupts import patient_interrupt
from udpfl.federation.parts import device_of

AUTO = 4
"""Runs that train together on a GPU, unless somebody wants another number."""


def automatic(device: str) -> int:
    """How many runs to train together where nobody said."""
    return AUTO if device_of(device).type == "cuda" else 1


def batches(waiting: Sequence[Job], most: int) -> list[list[Job]]:
    """Runs of one model and one data set side by side, at most that many; in the order given."""
    found: list[list[Job]] = []
    for job in waiting:
        for batch in found:
            if len(batch) < most and _alike(batch[0], job):
                batch.append(job)
                break
        else:
            found.append([job])
    return found


def _alike(one: Job, other: Job) -> bool:
    sections = ("model", "data", "device")
    return all(getattr(one.config, name) == getattr(other.config, name) for name in sections)


def train_batch(batch: Sequence[Job], progress: Hears) -> None:
    """Train these runs, together if there are several.

    An interrupt lets everybody's round finish, and is raised when all have stopped.
    """
    if len(batch) == 1:
        (job,) = batch
        progress.hears(job, 0.0)
        progress.ends(job, job.train(partial(progress.hears, job)))
        return
    table = Together(len(batch))
    raised: list[BaseException] = []

    def trained(job: Job) -> None:
        try:
            with table.seat() as engine:
                if not asked.is_set():  # what was not begun need not be
                    progress.hears(job, 0.0)
                    progress.ends(job, job.train(partial(progress.hears, job), engine))
        except BaseException as reason:  # an interrupt, or a fault of whoever hears of progress
            raised.append(reason)

    threads = [threading.Thread(target=trained, args=(job,), daemon=True) for job in batch]
    with patient_interrupt() as asked:
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            table.close()  # the second one: nobody waits for their rounds, all that counts is kept
            raise
    if raised:
        raise raised[0]
    if asked.is_set():  # too late for any round to hear of it
        raise KeyboardInterrupt
