"""The records of several calls of the engine in one pair of tensors, equal ones once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from udpfl.errors import InvalidInput


class _Place(NamedTuple):
    """Where the records of one pair of tensors begin among those of its kind."""

    kind: tuple[object, ...]
    start: int


class RecordPool:
    """Joins records that calls bring in tensors of their own.

    What was handed over once is known again by identity: nothing is compared or copied twice, and
    joined records stay where they are in memory until further ones are noted. So it is for tensors
    that nobody changes, and it keeps all of them alive.

    Example:
        >>> import torch
        >>> from udpfl.engine.pooling import RecordPool
        >>> pool, labels = RecordPool(), torch.zeros(2)
        >>> one, other = torch.zeros(2, 3), torch.ones(2, 3)
        >>> pool.note(one, labels), pool.note(other, labels)
        (None, None)
        >>> pool.joined(one, labels)[0].shape, pool.places(other, labels, [torch.tensor([1])])
        (torch.Size([4, 3]), [tensor([3])])
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Place] = {}
        self._parts: dict[tuple[object, ...], list[tuple[Tensor, Tensor]]] = {}
        self._joined: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}
        self._rows: dict[tuple[int, int, int], Tensor] = {}
        self._alive: list[Tensor] = []  # so that no other tensor gets the identity of a known one

    def note(self, inputs: Tensor, targets: Tensor) -> None:
        """Take in these records, unless equal ones are there."""
        known = id(inputs), id(targets)
        if known in self._known:
            return
        kind = tuple((t.device, t.dtype, t.shape[1:]) for t in (inputs, targets))
        parts, start = self._parts.setdefault(kind, []), 0
        for own in parts:
            if all(map(_are_same, own, (inputs, targets))):
                break
            start += len(own[0])
        else:
            parts.append((inputs, targets))
            self._joined.pop(kind, None)
        self._known[known] = _Place(kind, start)
        self._alive += [inputs, targets]

    def joined(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """All records that were noted of the kind of these."""
        kind = self._known[id(inputs), id(targets)].kind
        if kind not in self._joined:
            parts = self._parts[kind]
            several = len(parts) > 1
            columns = zip(*parts, strict=True)
            one, other = (torch.cat(own) if several else own[0] for own in columns)
            self._joined[kind] = one, other
        return self._joined[kind]

    def places(self, inputs: Tensor, targets: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
        """Where rows of these records are among the joined ones.

        Raises:
            InvalidInput: A row is beyond the records that it is said to be of.
        """
        start = self._known[id(inputs), id(targets)].start
        return [self._moved(own, start, len(inputs)) for own in rows]

    def _moved(self, rows: Tensor, start: int, size: int) -> Tensor:
        known = id(rows), start, size
        if known not in self._rows:
            moved = rows.long() + start
            if len(rows) and not start <= int(moved.min()) <= int(moved.max()) < start + size:
                raise InvalidInput("records", f"must lie between 0 and {size - 1}")
            self._rows[known] = moved
            self._alive.append(rows)
        return self._rows[known]


def _are_same(one: Tensor, other: Tensor) -> bool:
    """To the last bit: zeros of two signs are equal numbers, and not the same records."""
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(*(own.contiguous().view(-1).view(torch.uint8) for own in (one, other)))
