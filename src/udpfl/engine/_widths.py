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
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from udpfl.engine._operators import PRODUCTS, Look, Operators, Seen
from udpfl.engine._places import places_do_not_show

if TYPE_CHECKING:
    from udpfl.engine._gradients import Gradients
    from udpfl.engine.lanes import LaneModel

_EVERY, _EVERY_FOURTH, _STEP = 64, 128, 16
"""All widths are candidates up to the first, every fourth one up to the second, then such steps."""
_NUMBERS = 48
"""Numbers of the narrowest layer that a width is tried with, at every place and in every lane
together: if sums are made in another order, about every third number shows it."""
_HIDDEN = 16
"""Records to try where the widths of layers are not known."""
_FEWEST = 4
"""Records to try however many numbers they have."""
_SHOWN = 8
"""One of so many numbers of a product has to be other than zero."""
_POOL = 96
"""Records that are made to choose from."""
_PROBES = (3, 5, 33)
"""Widths whose shapes say which axes of a tensor depend on the width."""


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
        self._candidates = _candidates(most, records[0].device)
        weights = _random_weights(model).to(records[0].device)
        self._parameters = weights.expand(lanes, -1).contiguous()
        self._known: dict[int, bool] = {}
        self._most = most
        self._records = self._chosen_records(*records)
        self.first, self._reference = self._chosen(expected)
        """The width that others have to agree with."""
        if self.first > 1 and self._reference is not None:  # a record alone is an end by itself
            self._known[1] = False

    def _chosen_records(self, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Public and random records with a gradient to look at, one for every lane at a time."""
        inputs, targets = _pool(inputs, targets, self._lanes)
        found: list[Tensor] = []
        for places in torch.arange(len(inputs), device=inputs.device).split(self._lanes):
            gradients, seen = self._watched(inputs[places], targets[places], 1)
            pieces = gradients.pieces(self._order)
            sizes = pieces[0].flatten()
            found += places[torch.isfinite(sizes) & (sizes > 0)]  # else nothing would be rounded
            narrowest = min((piece.shape[2] for piece in pieces[1:]), default=1)
            if len(pieces) == 2:  # torch.func hides its layers
                narrowest = max(1, _NUMBERS // _HIDDEN)
            # Products outside of layers have nothing but these numbers to show what they do.
            sizes_of_products = [
                math.prod(form.shape) // self._lanes
                for own in seen
                if own.operator in PRODUCTS
                for form in own.results
            ]
            narrowest = max(1, min([narrowest, *filter(None, sizes_of_products)]))
            enough = max(_FEWEST, self._lanes, -(-_NUMBERS // narrowest))
            if len(found) >= enough:
                break
        if not found:
            return []
        groups = -(-len(found) // self._lanes)
        chosen = torch.stack(found).repeat(self._lanes)[: groups * self._lanes].split(self._lanes)
        return [(inputs[own], targets[own]) for own in chosen]

    def _chosen(self, expected: float) -> tuple[int, list[Tensor] | None]:
        """A width from a public expectation, and its bits."""
        if not self._records:  # nothing can be seen of what places do
            self._known = dict.fromkeys(self._candidates, False)
            return 1, None
        wanted = self._from(expected + 3 * math.sqrt(expected))
        if not _agree(self._bits(1), self._bits(1)):  # it draws in ways that are not known
            self._known = dict.fromkeys(self._candidates, False)
            return 1, None
        above = [next((w for w in wanted if w % step == 0), wanted[0]) for step in (1, 4, 16, 32)]
        for width in (*above, *(w for w in reversed(self._candidates) if w & (w - 1) == 0)):
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
        return self.first

    def _from(self, samples: float) -> Sequence[int]:
        """Candidates with room for so many samples; the largest one if none has."""
        return [w for w in self._candidates if w >= samples] or self._candidates[-1:]

    def _bits(self, width: int) -> list[Tensor] | None:
        """What the gradients of some records are made of; None if that changes with the place."""
        found: list[Tensor] = []
        usual: list[Seen] | None = None
        for x, y in self._records:
            rows = _Rows(self._lanes, width)
            gradients, seen = self._watched(x, y, width, rows.look)
            if usual is None and width > 1 and x.device.type == "cpu":
                if not self._is_by_record(seen, width):
                    return None
                usual = seen
            if usual not in (None, seen):  # a record decides on what is computed
                return None
            for piece in gradients.pieces(self._order):
                rows.add(piece)
            if not rows.alike:
                return None
            found += rows.first
        return found

    def _is_by_record(self, ran: Sequence[Seen], width: int) -> bool:
        """Whether none of the operators of a pass rounds a record by its place."""
        others = {probe: seen for probe, seen in self._probed.items() if probe != width}
        lanes = 1 if self._model.book_keeping or self._model.lanes_apart else self._lanes
        return places_do_not_show(
            ran, list(others.values()), torch.get_num_threads(), lanes, [width, *others]
        )

    @cached_property
    def _probed(self) -> dict[int, list[Seen]]:
        """What runs in passes of some widths."""
        widths = {min(probe, max(self._most, _PROBES[1])) for probe in _PROBES}
        return {width: self._watched(*self._records[0], width)[1] for width in widths}

    def _watched(
        self,
        inputs: Tensor,
        targets: Tensor,
        width: int,
        look: Look | None = None,
    ) -> tuple[Gradients, list[Seen]]:
        """The gradients of these records, one for each lane, at every place of a pass, and what
        ran. Where numbers are read, other records may have others: passes are to be watched."""
        real = torch.ones(self._lanes, width, dtype=torch.bool, device=inputs.device)
        x, y = (
            t.unsqueeze(1).expand(-1, width, *t.shape[1:]).contiguous() for t in (inputs, targets)
        )
        with Operators(look, draws=False) as operators:
            gradients = self._model.gradients(self._parameters, x, y, real)
        self._model.reads |= any(own.reads for own in operators.seen)
        return gradients, operators.seen


class SingleRows:
    """Widths of a model whose records are computed one by one."""

    first = 1

    def fit(self, samples: int) -> int:
        """The width of the next pass."""
        return 1


class _Rows:
    """What is computed of the rows of a pass that are all the same."""

    def __init__(self, lanes: int, width: int) -> None:
        self._shape = (lanes, width)
        self.alike = True
        """Whether all rows of a lane had the same bits, in all that was shown."""
        self.first: list[Tensor] = []
        """The bits of the first rows."""

    def look(
        self,
        operator: str,
        computed: Tensor,
        compute: Callable[[Callable[[Tensor], Tensor]], list[Tensor]],
    ) -> None:
        """Look at what an operator gave.

        A product of zeros has nothing to round, and other records may have something else: then it
        is computed once more with random numbers, the same for all rows.
        """
        self.add(computed)
        if operator in PRODUCTS and computed.count_nonzero() * _SHOWN < computed.numel():
            for result in compute(self._random):
                self.add(result)

    def _random(self, like: Tensor) -> Tensor:
        """Random numbers in the form of a tensor; equal rows where it has one for each record."""
        if not like.is_floating_point():
            return like
        lanes, width = self._shape
        shape = list(like.shape)
        if shape[:1] == [lanes * width]:
            shape[0] = 1
        elif shape[:2] == [lanes, width]:
            shape[:2] = [1, 1]
        generator = torch.Generator(like.device).manual_seed(like.numel())
        made = torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
        return torch.empty_like(like).copy_(made.expand(like.shape))

    def add(self, computed: Tensor) -> None:
        """Look at [lanes * width, ...] or [lanes, width, ...]; of others nothing is known."""
        lanes, width = self._shape
        is_flat = computed.shape[:1] == (lanes * width,)
        if not self.alike or not (is_flat or computed.shape[:2] == self._shape):
            return
        rows = computed.detach().reshape(lanes, width, -1).nan_to_num(0.0)
        self.alike = torch.equal(rows, rows[:, :1].expand_as(rows))
        self.first.append(rows[:, 0].clone())


def _agree(some: list[Tensor] | None, others: list[Tensor] | None) -> bool:
    if some is None or others is None or len(some) != len(others):
        return False
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def _candidates(most: int, device: torch.device) -> list[int]:
    """Widths up to the longest pass, which is one of them."""
    if device.type == "cpu":
        widths = [*range(1, _EVERY + 1), *range(_EVERY + 4, _EVERY_FOURTH + 1, 4)]
        widths += range(_EVERY_FOURTH + _STEP, most + 1, _STEP)
    else:  # a few: each is tried and recorded, and a GPU is wide
        widths = [1, *range(8, 32, 8), *range(32, 128, 16), *range(128, most + 1, 32)]
    return [*(width for width in widths if width < most), most]


def _random_weights(model: LaneModel) -> Tensor:
    """Weights [d] that are neither zero nor alike: else there would be nothing to round."""
    generator, named = torch.Generator().manual_seed(0), {}
    for name, shape in zip(model.layout.names, model.layout.shapes, strict=True):
        inputs = math.prod(shape[1:]) if len(shape) > 1 else 1
        named[name] = torch.randn(shape, generator=generator) / math.sqrt(max(1, inputs))
    return model.layout.flat(named)


def _pool(inputs: Tensor, targets: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """Records to choose from: public ones in turns with random ones, because the former may
    saturate a loss, and then nothing is rounded."""
    count = -(-_POOL // lanes) * lanes
    places = torch.arange(count, device=inputs.device)
    x, y = inputs[places % len(inputs)], targets[places % len(targets)]
    if x.is_floating_point():
        drawn = random_records(inputs, targets, count)[0]
        x = torch.where((places % 2 == 0).view(-1, *[1] * (x.dim() - 1)), x, drawn)
    return x, y


def random_records(inputs: Tensor, targets: Tensor, count: int = _POOL) -> tuple[Tensor, Tensor]:
    """Records of nobody, of the same shape and kind as these."""
    generator = torch.Generator().manual_seed(0)

    def like(records: Tensor) -> Tensor:
        shape = (count, *records.shape[1:])
        if records.is_floating_point():
            made = torch.randn(shape, generator=generator).to(records.dtype)
        else:
            made = torch.zeros(shape, dtype=records.dtype)  # an id that every table has
        return made.to(records.device)

    return like(inputs), like(targets)
