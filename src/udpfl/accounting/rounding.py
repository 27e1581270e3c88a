"""What the rounding of noise adds to the epsilon and the delta of an event."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from udpfl.accounting.events import Event, PureDP, Release, Repeated, leaves
from udpfl.mechanisms import Mechanism
from udpfl.mechanisms.grid import Rounding, rounding_of


@lru_cache(maxsize=256)
def rounding_of_event(event: Event, epsilon: float) -> Rounding:
    """For releases that are rounded to the grid of their mechanism, as those of a run are.

    Cached, because the clients of a run often release the same.

    `epsilon` is what the event costs with exact noise. A release whose dimension is not known, and
    an event of which nothing but its epsilon is known, are left out.
    """
    return rounding_of(_noises(event), epsilon)


def _noises(event: Event) -> Iterator[tuple[Mechanism, int]]:
    for leaf, count in leaves(event).items():
        inner: Event = leaf
        while not isinstance(inner, Release | PureDP):
            assert hasattr(inner, "event")
            count *= inner.count if isinstance(inner, Repeated) else 1
            inner = inner.event
        if isinstance(inner, Release) and inner.sensitivity.dimension is not None:
            yield inner.mechanism, count * inner.sensitivity.dimension
