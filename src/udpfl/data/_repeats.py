"""Pictures that are in a data set more than once.

A repeated picture is several records, and record-level privacy hides one of them at a time; beside
that, a repeat may stand on both sides of a random split and flatter the accuracy. What is removed
is decided by the records, before they are dealt out: the guarantee is about those that remain.
"""

from __future__ import annotations

import logging

import numpy as np

from udpfl.data.records import Array, Indices

log = logging.getLogger(__name__)


def first_of_each(name: str, pixels: Array, targets: Array) -> Indices:
    """Positions of the pictures that repeat no earlier one exactly; says how many do."""
    first: dict[bytes, int] = {}
    earlier = np.fromiter(
        (first.setdefault(picture.tobytes(), i) for i, picture in enumerate(pixels)),
        dtype=np.int64,
        count=len(pixels),
    )
    repeats = earlier != np.arange(len(pixels))
    if removed := int(repeats.sum()):
        differ = int((targets != targets[earlier]).sum())
        log.warning(
            "%s: %d of %d pictures are exact copies of an earlier one and are left out; "
            "%d of them have another target than the first one",
            name,
            removed,
            len(pixels),
            differ,
        )
    return np.flatnonzero(~repeats)
