"""Memory for numbers that are needed for a moment.

On a CPU a large tensor gets new pages from the operating system each time it is made, which costs
more than to compute what is in it, and threads wait for each other while they get them.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor


class _Scratch(threading.local):
    """One piece of memory for every thread, as large as was ever asked for."""

    def __init__(self) -> None:
        self._held = torch.empty(0, dtype=torch.float64)

    def take(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Room for so many doubles, whatever they were before; the next call takes it again."""
        if device.type != "cpu":
            return torch.empty(shape, dtype=torch.float64, device=device)
        if self._held.numel() < math.prod(shape):
            self._held = torch.empty(math.prod(shape), dtype=torch.float64)
        return self._held[: math.prod(shape)].view(shape)


SCRATCH = _Scratch()
