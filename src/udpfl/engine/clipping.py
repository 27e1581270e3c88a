"""Clippers: bound what one record can change, sum what is left, and say what the bound is.

The noise is calibrated to what `sensitivity` returns, so clip and noise cannot disagree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udpfl.engine._gradients import Gradients
from udpfl.errors import InvalidInput, Unsupported
from udpfl.sensitivity import Norm, Sensitivity

LARGEST_BATCH, LONGEST_PASS = 1 << 22, 1 << 9
"""Records of one lane in a step, and in one pass of it, for which `ROUNDING` is proved."""

ROUNDING = 2.0**-11
"""How far below the bound is clipped, as a part of it.

A third covers the rounding of norms and sums, which is proved in docs/mathematics.md, section 9;
the rest is spare. A constant: a margin that followed the batch would let one record change
everybody's clip.
"""

SMALLEST, LARGEST = 1e-10, 1e10
"""Bounds between which float32 squares neither vanish nor overflow unnoticed."""


@dataclass
class Clipped:
    """The clipped sum of a chunk [L, d], in double where anything was clipped, and how many samples
    were clipped [L] (a diagnostic)."""

    sum: Tensor
    clipped: Tensor


class Clipper(ABC):
    """Turns per-sample gradients into a sum that no single record moves by more than the bound."""

    @property
    def order(self) -> int:
        """Of the norms that it takes of gradients."""
        return 2

    @abstractmethod
    def lanes(self, which: slice) -> Clipper:
        """The same clipper for some of the lanes."""

    @abstractmethod
    def sensitivity(self, lane: int, dimension: int) -> Sensitivity:
        """What one record changes at most in this lane's sum."""

    @abstractmethod
    def clipped_sum(self, gradients: Gradients) -> Clipped:
        """Clip every sample, then sum.

        Guarantee: one record changes the sum by at most `sensitivity`, the rounding of its norm
        and of the sum included. A gradient that is not finite counts as zero.
        """

    def clipped_rows(self, rows: Tensor) -> Clipped:
        """Clip every lane's row [L, d] by itself, such as a whole client's update.

        Guarantee: as of `clipped_sum`, with a row in the place of a record.
        """
        raise Unsupported(f"{type(self).__name__} clips the gradients of records only")


class NormClipper(Clipper):
    """l1 and l2 scale a gradient down to the bound, linf clamps every coordinate."""

    def __init__(self, norm: Norm, bounds: Sequence[float]) -> None:
        self.norm: Norm = norm
        self.bounds = tuple(bounds)
        self._lowered_on: dict[torch.device, Tensor] = {}
        for bound in self.bounds:
            if not SMALLEST <= bound <= LARGEST:
                raise InvalidInput(
                    "clip", f"must lie between {SMALLEST:g} and {LARGEST:g}, got {bound!r}"
                )

    @property
    def order(self) -> int:
        return 2 if self.norm == "l2" else 1

    def lanes(self, which: slice) -> NormClipper:
        return NormClipper(self.norm, self.bounds[which])

    def sensitivity(self, lane: int, dimension: int) -> Sensitivity:
        return Sensitivity(self.bounds[lane], self.norm, dimension)

    def clipped_sum(self, gradients: Gradients) -> Clipped:
        if self.norm == "linf":
            return self._clamped_sum(gradients)
        sizes = finite_norms(gradients, self.order)
        bound = self.lowered(sizes.device)
        factors = bound / torch.maximum(sizes, bound) * gradients.real
        clipped = ((sizes > bound) & gradients.real).sum(1)
        return Clipped(gradients.weighted_sum(factors), clipped)

    def clipped_rows(self, rows: Tensor) -> Clipped:
        exact = rows.double()
        finite = torch.isfinite(exact).all(1, keepdim=True)
        exact = torch.where(finite, exact, 0.0)
        bound = self.lowered(exact.device)
        if self.norm == "linf":
            return Clipped(torch.clamp(exact, -bound, bound), (exact.abs() > bound).any(1))
        sizes = exact.norm(p=1 if self.norm == "l1" else 2, dim=1, keepdim=True)
        factors = bound / torch.maximum(sizes, bound)
        return Clipped(exact * factors, (sizes > bound).squeeze(1))

    def lowered(self, device: torch.device) -> Tensor:
        """The bounds [L, 1], lowered by the margin for rounding, in double."""
        if device not in self._lowered_on:
            bounds = [bound * (1 - ROUNDING) for bound in self.bounds]
            lowered = torch.tensor(bounds, dtype=torch.float64, device=device)
            self._lowered_on[device] = lowered.unsqueeze(1)
        return self._lowered_on[device]

    def set_lowered(self, lowered: Tensor) -> None:
        """Take the lowered bounds from this tensor, whose numbers change from pass to pass."""
        self._lowered_on[lowered.device] = lowered

    def _clamped_sum(self, gradients: Gradients) -> Clipped:
        finite_norms(gradients, 1)
        full = gradients.written_out()
        bound = self.lowered(full.device).to(full.dtype).unsqueeze(2)
        over = ((full.abs() > bound).any(2) & gradients.real).sum(1)
        kept = torch.where(gradients.real.unsqueeze(2), torch.clamp(full, -bound, bound), 0.0)
        return Clipped(kept.sum(1, dtype=torch.float64), over)


class BallClipper(NormClipper):
    """Clips whole rows to a ball, of which any point may take the place of any other.

    All that stands behind a row together moves it by the diameter at most: by twice the bound.
    """

    def lanes(self, which: slice) -> BallClipper:
        return BallClipper(self.norm, self.bounds[which])

    def sensitivity(self, lane: int, dimension: int) -> Sensitivity:
        return Sensitivity(2 * self.bounds[lane], self.norm, dimension)

    def clipped_sum(self, gradients: Gradients) -> Clipped:
        raise Unsupported("BallClipper clips whole rows, not the gradients of records")


class Unclipped(Clipper):
    """The plain sum, for training without privacy. It has no sensitivity."""

    def lanes(self, which: slice) -> Unclipped:
        return self

    def sensitivity(self, lane: int, dimension: int) -> Sensitivity:
        raise Unsupported("gradients that are not clipped have no sensitivity")

    def clipped_sum(self, gradients: Gradients) -> Clipped:
        factors = gradients.real.to(torch.float32)
        total = gradients.weighted_sum(factors)
        if not (total.is_cuda or bool(torch.isfinite(total).all())):
            # A batch is filled up with some record of the data, whoever it belongs to: not even
            # 0 * inf of it may reach this lane. (On CUDA a factor of zero sees to that.)
            gradients.drop(~gradients.real)
            total = gradients.weighted_sum(factors)
        return Clipped(total, torch.zeros_like(factors[:, 0]).long())

    def clipped_rows(self, rows: Tensor) -> Clipped:
        return Clipped(rows, torch.zeros_like(rows[:, 0]).long())


def finite_norms(gradients: Gradients, p: int) -> Tensor:
    """Norms [L, B]; samples whose gradient is not finite are zeroed as a whole."""
    sizes = gradients.norms(p)
    bad = ~torch.isfinite(sizes)
    if sizes.is_cuda or bool(bad.any()):  # where to look costs more than to do it
        gradients.drop(bad)
        sizes = sizes.masked_fill(bad, 0.0)
    return sizes
