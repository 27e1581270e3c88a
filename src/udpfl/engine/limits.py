"""How much to compute at once: lanes stacked or one by one, and how many samples of each."""

from __future__ import annotations

from typing import Literal

import torch

from udpfl.engine.clipping import LONGEST_PASS
from udpfl.engine.training import Limits

Stacking = Literal["auto", "stacked", "single"]

_SMALL_MODEL = 100_000
"""Parameters up to which stacking pays on a CPU: below it, calling overhead is what costs; above
it the matrices of one lane fill the cores, and padding batches to one length is a loss."""
MOST_LANES = 16
"""Lanes stacked on a CPU; more are not faster, and memory should not grow with the clients."""
_CACHE_FRIENDLY = 256 << 20
"""Bytes per pass on a CPU; larger passes are not faster."""
_ON_CPU, _SHARE_OF_CARD = 2 << 30, 0.4
"""Bytes that are used unless a caller says how many, and the share of what a card has free: a pass
that is recorded as a CUDA graph has the same memory once more."""


def choose_limits(
    stacking: Stacking,
    *,
    lanes: int,
    dimension: int,
    bytes_per_sample: int,
    memory: int | None,
    chunk: int | None,
    device: torch.device,
    threads: int = 1,
) -> Limits:
    """Lanes and samples per pass that keep per-sample work within `memory` bytes; None for 2 GiB on
    a CPU, and for two fifths of what is free on a card.

    On a CPU the lanes are shared out to `threads`.
    """
    memory = _usual_memory(device) if memory is None else memory
    on_cpu = device.type == "cpu"
    workers = min(threads, lanes) if on_cpu and stacking != "stacked" else 1
    together = {"stacked": lanes, "single": 1, "auto": lanes}[stacking]
    if on_cpu and stacking == "auto":
        small = dimension <= _SMALL_MODEL
        together = min(MOST_LANES, -(-lanes // workers)) if small else 1
    # Random words (8 bytes) and a few copies (4 bytes) of every parameter live at the same time.
    per_lane = 24 * dimension
    memory = memory // workers
    together = max(1, min(together, memory // (2 * per_lane) if per_lane else together))
    room = min(memory, _CACHE_FRIENDLY) if on_cpu else memory
    samples = max(1, (room - min(room // 2, together * per_lane)) // (together * bytes_per_sample))
    samples = min(samples, LONGEST_PASS)
    return Limits(together, min(samples, chunk) if chunk else samples, workers)


def _usual_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return _ON_CPU
    free, _ = torch.cuda.mem_get_info(device)
    return int(_SHARE_OF_CARD * free)
