"""Gradients of rows alone and in batches, and when two of them agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from udpfl.engine._gradients import BookKept, Layout, Tap
from udpfl.engine._modes import InDouble
from udpfl.engine._rows import LARGE, ROWS, Rows
from udpfl.engine.layers import Use
from udpfl.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from udpfl.engine.lanes import LaneModel

_EXACT, _HUGE, _ROUNDED, _REPEATED = 1e-9, 1e-6, 1e-3, 1e-5
"""Which part of its largest number an answer may differ by: in double, for a huge row in double,
in float32, and between two computations of the same in float32."""
_FLOOR = 1e-5
"""The least such number, for inputs of size 1: below it there may be nothing but rounding, as in
the difference of a probability and one."""
_PLACES = 1 << 16
"""Numbers of one parameter that are compared, evenly spaced: all of them but in large models."""
_AT_ONCE = 1 << 23
"""Numbers of gradients written out at a time: in a large model those of all rows are too many."""

Batch = tuple[tuple[int, ...], ...]
"""For each lane the rows that it holds. Where there are two lanes the first one's last is padding,
as it is where a lane has fewer records than another."""


def agree(found: Tensor, expected: Tensor, tolerance: float, floor: float) -> bool:
    """Whether two answers are one, up to a part of the largest number or of the floor.

    An answer that is not finite agrees with any other one that is not.
    """
    if not bool(torch.isfinite(expected).all()):
        return not bool(torch.isfinite(found).all())
    return float((found - expected).abs().max()) <= tolerance * max(
        float(expected.abs().max()), floor
    )


class Bench:
    """A copy of a model, two lanes of parameters [2, d], and each row's gradient alone.

    In double everything is compared. In float32, rows of another scale than the record's own are
    left out: there an honest model may be little more than rounding.
    """

    def __init__(self, model: LaneModel, lanes: Tensor, rows: Rows, dtype: torch.dtype) -> None:
        self.model, self._rows = model, rows.to(dtype)
        self._lanes, self._exact = lanes.to(dtype), dtype == torch.float64
        self.device = lanes.device
        self._places = _compared(model.layout).to(self.device)
        self._floor = _FLOOR * rows.size
        self._alone: dict[tuple[int, int], Tensor] = {}
        self._losses: dict[int, Tensor] = {}
        self.bytes_per_sample = 0
        """Memory that a sample took in the last batch by the layer rules."""

    def compute_alone(self, which: Iterable[Sequence[int]]) -> None:
        """The gradients of some rows of each lane, each in a batch of one, by plain autograd."""
        for lane, rows in enumerate(which):
            weights = self._lanes[lane].clone().requires_grad_()
            for row in rows:
                x, y = self._rows.of([row])
                with torch.enable_grad(), self._precision():
                    loss = self.model.plain_losses(self.model.layout.named(weights), x, y)
                    loss = _one_each(loss, 1).sum()
                    (gradient,) = torch.autograd.grad(loss, weights)
                self._alone[lane, row] = gradient[self._places]
                if lane == 0:
                    self._losses[row] = loss.detach()

    def gradients_alone(self, rows: Sequence[int]) -> Tensor:
        """The gradients of some rows of the first lane, as `compute_alone` finds them [1, B, d]."""
        self.compute_alone([rows])
        return torch.stack([self._alone[0, row] for row in rows]).unsqueeze(0)

    def require_gradients(self) -> None:
        """Refuse a model of which nothing was compared, because nothing is finite."""
        ordinary = [g for (_, row), g in self._alone.items() if self._rows.scales[row] == 1]
        if not any(bool(torch.isfinite(gradient).all()) for gradient in ordinary):
            raise InvalidInput(
                "model",
                "has no finite gradient at any of the test records it was tried on, so nobody can "
                "tell whether records see each other in it",
            )

    def gradients(self, batch: Batch) -> Tensor:
        """The rows' gradients [L, B, places] by the path that training takes."""
        x, y = (torch.stack(t) for t in zip(*map(self._rows.of, batch), strict=True))
        real = self._real(batch)
        with self._precision():
            found = self.model.gradients(self._lanes[: len(batch)], x, y, real)
            if not isinstance(found, BookKept):
                return found.written_out()[..., self._places]
        self.bytes_per_sample = found.bytes_per_sample()
        layout, few = self.model.layout, max(1, _AT_ONCE // self.model.layout.dimension)
        starts = range(0, real.numel(), few)
        rows = [_rows(found, slice(i, i + few), layout)[:, self._places] for i in starts]
        return torch.cat(rows).view(*real.shape, -1)

    def agrees(self, batch: Batch, found: Tensor) -> bool:
        """Whether these are the gradients that the rows have alone."""
        real = self._real(batch)
        return all(
            self._agree(found[lane, place], alone, row)
            for lane, rows in enumerate(batch)
            for place, row in enumerate(rows)
            if (alone := self._alone.get((lane, row))) is not None and real[lane, place]
        )

    def _agree(self, found: Tensor, alone: Tensor, row: int) -> bool:
        scale = abs(self._rows.scales[row])
        if not self._exact:
            return scale != 1 or agree(found, alone, _ROUNDED, self._floor)
        tolerance = _HUGE if scale > LARGE else _EXACT
        return agree(found, alone, tolerance, self._floor * max(1.0, scale))

    def repeats(self, first: Tensor, again: Tensor) -> bool:
        """Whether a second computation of the same rows gave the same."""
        tolerance = _EXACT if self._exact else _REPEATED
        pairs = zip(again.flatten(0, 1), first.flatten(0, 1), strict=True)
        return all(agree(new, old, tolerance, self._floor) for new, old in pairs)

    def agrees_in_a_crowd(self, size: int) -> bool:
        """Whether rows have the losses in a large batch that they have alone."""
        which = [3 * i % len(ROWS) for i in range(size)]
        x, y = self._rows.of(which)
        with torch.enable_grad(), self._precision():
            found = self.model.plain_losses(self.model.layout.named(self._lanes[0]), x, y)
            losses = _one_each(found, size)
        return all(map(self._agree, losses, [self._losses[row] for row in which], which))

    def _real(self, batch: Batch) -> Tensor:
        real = torch.ones(len(batch), len(batch[0]), dtype=torch.bool, device=self.device)
        if len(batch) > 1:
            real[0, -1] = False
        return real

    def _precision(self) -> AbstractContextManager[object]:
        return InDouble() if self._exact else nullcontext()


def _one_each(losses: Tensor, samples: int) -> Tensor:
    if losses.shape != (samples,):
        raise Unsupported(
            f"the loss must give one number per sample, got shape {tuple(losses.shape)}"
        )
    return losses


def _rows(found: BookKept, which: slice, layout: Layout) -> Tensor:
    """The gradients [n, d] of some rows of the flat batch, from what the layers noted of them."""
    taps, samples = [], found.real.numel()
    for tap in found._taps:
        use = tap.use
        if len(use.x) != samples or len(use.g) != samples:
            raise Unsupported("a layer does not see the samples of a batch one by one")
        if use.g.dtype not in (torch.float32, torch.float64) and not use.rounded:
            raise Unsupported(f"a layer computes in {use.g.dtype}")
        part = Use(use.x[which], 1, use.g[which], rounded=use.rounded)
        taps.append(Tap(tap.rule, tap.parameters, part))
    return BookKept(taps, found.real.view(1, -1)[:, which], layout).written_out()[0]


def _compared(layout: Layout) -> Tensor:
    """Where the numbers are that are compared, in the flat vector."""
    starts, start = [], 0
    for size in layout.sizes:
        starts.append(torch.arange(start, start + size, -(-size // _PLACES)))
        start += size
    return torch.cat(starts)
