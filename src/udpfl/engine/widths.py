"""How many rows a pass has, so that no record is rounded in another way when others leave.

A matrix product may round a row by how many rows there are, and by where the row lies. If a record
leaves a batch the others move up, and all their gradients might change: by a last bit, which a ReLU
or a large weight can turn into a whole gradient. So a pass has such widths only at which this model
gives a row the same bits at every place, the same at each of these widths; what is missing is
filled up with rows that count for nothing. Which widths those are is tried on this machine, with
public numbers, when a width is wanted for the first time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from udpfl.engine.lanes import LaneModel

_EVERY, _EVERY_FOURTH, _STEP = 64, 128, 16
"""All widths are candidates up to the first, every fourth one up to the second, then such steps."""
_RECORDS, _NUMBERS = 8, 2_000
"""Records that a width is tried with: fewer, the more parameters there are to show a difference."""


class Widths:
    """Widths of passes with so many lanes, on one device and with the threads of today."""

    def __init__(
        self,
        model: LaneModel,
        records: tuple[Tensor, Tensor],
        lanes: int,
        most: int,
        expected: float,
        order: int,
    ) -> None:
        self._model, self._lanes, self._order = model, lanes, order
        self._candidates = _candidates(most)
        weights = _random_weights(model).to(records[0].device)
        self._parameters = weights.expand(lanes, -1).contiguous()
        enough = max(1, min(_RECORDS, _NUMBERS // model.layout.dimension))
        places = torch.arange(-(-enough // lanes) * lanes, device=weights.device)
        self._records = [
            (records[0][own], records[1][own])
            for own in (places % len(records[0])).split(lanes)  # every lane has one of its own
        ]
        self._known: dict[int, bool] = {}
        self._first, self._reference = self._chosen(expected)

    def _chosen(self, expected: float) -> tuple[int, list[Tensor] | None]:
        """The width that others have to agree with, from a public expectation, and its bits."""
        if not _agree(self._bits(1), self._bits(1)):  # it draws: no two answers are alike
            self._known = dict.fromkeys(self._candidates, True)
            return self._candidates[-1], None
        wanted = self._from(expected + 3 * math.sqrt(expected))[0]
        for width in (wanted, *(w for w in reversed(self._candidates) if w & (w - 1) == 0)):
            bits = self._bits(width)
            if bits is not None:
                self._known[width] = True
                return width, bits
        raise AssertionError("a single row has one place")

    def fit(self, samples: int) -> int:
        """The width of the next pass, of so many samples that are left."""
        for width in self._from(samples):
            if width not in self._known:
                self._known[width] = _agree(self._bits(width), self._reference)
            if self._known[width]:
                return width
        return self._first

    def _from(self, samples: float) -> Sequence[int]:
        """Candidates with room for so many samples; the largest one if none has."""
        return [w for w in self._candidates if w >= samples] or self._candidates[-1:]

    def _bits(self, width: int) -> list[Tensor] | None:
        """What the gradients of some records are made of; None if that changes with the place."""
        found = []
        for inputs, targets in self._records:
            real = torch.ones(self._lanes, width, dtype=torch.bool, device=inputs.device)
            x, y = (
                t.unsqueeze(1).expand(-1, width, *t.shape[1:]).contiguous()
                for t in (inputs, targets)
            )
            gradients = self._model.gradients(self._parameters, x, y, real)
            for piece in gradients.pieces(self._order):
                rows = piece.nan_to_num(0.0)
                if not torch.equal(rows, rows[:, :1].expand_as(rows)):
                    return None
                found.append(rows[:, 0].clone())
        return found


def _agree(some: list[Tensor] | None, others: list[Tensor] | None) -> bool:
    if some is None or others is None:
        return False
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def _candidates(most: int) -> list[int]:
    """Widths up to the longest pass, which is one of them."""
    widths = [*range(1, _EVERY + 1), *range(_EVERY + 4, _EVERY_FOURTH + 1, 4)]
    widths += range(_EVERY_FOURTH + _STEP, most + 1, _STEP)
    return [*(width for width in widths if width < most), most]


def _random_weights(model: LaneModel) -> Tensor:
    """Weights [d] that are neither zero nor alike: else there would be nothing to round."""
    generator, named = torch.Generator().manual_seed(0), {}
    for name, shape in zip(model.layout.names, model.layout.shapes, strict=True):
        inputs = math.prod(shape[1:]) if len(shape) > 1 else 1
        named[name] = torch.randn(shape, generator=generator) / math.sqrt(max(1, inputs))
    return model.layout.flat(named)


def random_records(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Records of nobody, of the same shape and kind as these."""
    generator = torch.Generator().manual_seed(0)

    def like(records: Tensor) -> Tensor:
        shape = (_RECORDS, *records.shape[1:])
        if records.is_floating_point():
            made = torch.randn(shape, generator=generator).to(records.dtype)
        else:
            made = torch.zeros(shape, dtype=records.dtype)  # an id that every table has
        return made.to(records.device)

    return like(inputs), like(targets)
