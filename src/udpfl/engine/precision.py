"""Arithmetic in which a norm and the sum it clips agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Float32 means float32, whatever switches are set outside.

    A norm and the sum it clips may take different routes through the hardware. With products
    rounded to ten bits (TF32, bfloat16) they would differ by a thousandth, and the clipped sum
    would break its bound.
    """
    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    torch.set_float32_matmul_precision("highest")
    try:
        with (
            torch.autocast(device.type, enabled=False),
            cudnn.flags(
                enabled=cudnn.enabled,
                benchmark=cudnn.benchmark,
                deterministic=cudnn.deterministic,
                allow_tf32=False,
            ),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
