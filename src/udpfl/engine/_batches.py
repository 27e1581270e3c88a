"""The records of every step of a round, on the device, in passes of one width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Batches:
    """Index sets of any size: one for every step and lane.

    Args:
        records: For each step those of every lane.
        device: Where passes are computed.
    """

    def __init__(self, records: Sequence[Sequence[Tensor]], device: torch.device) -> None:
        self.sizes = [[len(own) for own in batch] for batch in records]
        # At the end there is what is looked up where nothing is real.
        last = torch.zeros(1, dtype=torch.int64, device=device)
        self._flat = torch.cat([*(own.long() for batch in records for own in batch), last])
        sizes = torch.tensor(self.sizes)
        starts = (sizes.flatten().cumsum(0) - sizes.flatten()).view_as(sizes)
        self._sizes, self._starts = (t.to(device, non_blocking=True) for t in (sizes, starts))

    def __len__(self) -> int:
        return len(self.sizes)

    def longest(self, step: int) -> int:
        """Records of the lane that has most of them in this step."""
        return max(self.sizes[step])

    def rows(self, step: int, start: int, width: int) -> tuple[Tensor, Tensor]:
        """So many records of every lane from its record `start` on [L, width], and which of them
        are real: where a lane has fewer there is record 0 in their place."""
        place = torch.arange(start, start + width, device=self._flat.device)
        real = place < self._sizes[step].unsqueeze(1)
        where = torch.where(real, self._starts[step].unsqueeze(1) + place, -1)
        return self._flat[where], real
