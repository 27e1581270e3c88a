"""Pieces of work that do not depend on each other, by several processes of this machine at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any


def each(
    work: Callable[..., Any], pieces: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[Any]:
    """What `work` makes of each piece, as soon as it is there.

    With one worker it happens here, in order. Otherwise `work` is a function that a new process
    can import, and its arguments can be pickled.
    """
    if workers == 1:
        for piece in pieces:
            yield work(*piece)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(work, *piece) for piece in pieces]
        try:
            for done in as_completed(waiting):
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
