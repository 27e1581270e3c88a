"""The rows that a model is tried on, made of public records.

Rows of a kind hide what records do to each other: a mean over equal rows is the row, a loss over
pairs of classes needs two classes, and padding is cut only where lengths differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_SCALES = (1.0, 1.0, 1.0, 30.0, -1e6, 0.0, 1e6, 1e-6, math.inf, math.nan)
"""What the rows are multiplied by. A small share of a huge row is large, and a share of what is not
finite is not finite. Where there is nothing in a record, huge rows have something."""
ROWS = range(len(_SCALES) - 2)
"""The rows that are finite."""
CALM = (1, 7, 0)
"""Two ordinary rows and a tiny one."""
_RECORDS = 8
"""Records that the rows are made of."""
_TARGETS = (0, 1, 2, 3, 4, 0, 5, 1, 2, 3)
"""Which of the targets a row has: there are rows with the same one and with others."""
_CHANGED = [3, 4]
"""Rows whose target is another number: a batch of equal targets would hide their mean."""
LARGE = 1e3
"""Rows that are multiplied by more are huge."""


class Rows(NamedTuple):
    """Records to try a model on, and what each was multiplied by."""

    inputs: Tensor
    targets: Tensor
    scales: tuple[float, ...]

    @property
    def size(self) -> float:
        """The largest number in a record as it was, or 1; ids and labels have no size."""
        if not self.inputs.is_floating_point():
            return 1.0
        unscaled = [row for row, scale in zip(self.inputs, self.scales, strict=True) if scale == 1]
        return max(1.0, *(float(row.abs().max()) for row in unscaled))

    def of(self, which: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Copies of some rows: a model that writes to its input does not change them."""
        index = torch.tensor(which, device=self.inputs.device)
        return self.inputs[index], self.targets[index]

    def to(self, dtype: torch.dtype) -> Rows:
        """In another precision; ids and labels stay what they are."""
        x, y = (t.to(dtype) if t.is_floating_point() else t for t in (self.inputs, self.targets))
        return Rows(x, y, self.scales)

    @property
    def has_one_label(self) -> bool:
        """Whether targets are labels and all the same."""
        labels = self.targets
        is_label = not labels.is_floating_point() and labels.dtype != torch.bool
        return is_label and labels.dim() == 1 and bool((labels == labels[0]).all())

    def labelled(self, outputs: int) -> Rows:
        """With other labels beside the only one.

        Labels below the number of outputs are public; where there is one output there are two.
        """
        steps = torch.tensor(_TARGETS, device=self.targets.device)
        others = (self.targets + steps) % max(outputs, 2)
        return Rows(self.inputs, others.to(self.targets.dtype), self.scales)


def rows_from(inputs: Tensor, targets: Tensor) -> Iterator[Rows]:
    """Rows made of one or more records [n, ...], the most telling ones first.

    Numbers are scaled. Token ids are moved about and cut short: other ids than the record's own
    would need its vocabulary, of which only the padding is known, if it is 0. A model that asserts
    what its input is may need the rows that come last, which are as the records are.
    """
    rows = inputs[_spread(targets, _RECORDS)][[i % _RECORDS for i in range(len(_SCALES))]]
    wanted = targets[_spread(targets, 1 + max(_TARGETS))][list(_TARGETS)]
    plain = (1.0,) * len(_SCALES)
    if wanted.is_floating_point():
        some = wanted[_CHANGED]
        wanted[_CHANGED] = torch.where((some == 0) | (some == 1), 1 - some, 0.5 * some)
    if rows.is_floating_point():
        by = torch.tensor(_SCALES, device=rows.device).view(-1, *([1] * (rows.dim() - 1)))
        yield Rows(by * torch.where(by.abs() > LARGE, rows.abs() + 1, rows), wanted, _SCALES)
    else:
        if rows.dim() > 1:
            rows = torch.stack([row.roll(i, dims=-1) for i, row in enumerate(rows)])
        yield Rows(_shortened(rows), wanted, plain)
    yield Rows(rows, wanted, plain)


def _spread(targets: Tensor, count: int) -> list[int]:
    """Records with as many distinct targets as may be, the least and the largest among them.

    Those with the same target are taken in turn and evenly over their places, again and again if
    there are too few.
    """
    _, kind = torch.unique(targets, dim=0, return_inverse=True)
    last = int(kind.max())
    most = min(count, last + 1)
    kinds = [i * last // max(most - 1, 1) for i in range(most)]
    alike = [(kind == wanted).nonzero()[:, 0] for wanted in kinds]
    turns = -(-count // most)
    each = [int(own[turn * len(own) // turns]) for turn in range(turns) for own in alike]
    return each[:count]


def _shortened(rows: Tensor) -> Tensor:
    """Ids as if some records were shorter: their end, or their beginning, is padding.

    Padding is 0, or the least id in the record.
    """
    short = rows.clone(memory_format=torch.contiguous_format)
    ids = short.view(len(rows), -1)
    least, half = ids.amin(1), -(-ids.shape[1] // 2)
    ids[3, half:], ids[5, : ids.shape[1] - half], ids[6, 1:] = 0, 0, 0
    ids[4, 1:], ids[7, half:] = least[4], least[7]
    return short
