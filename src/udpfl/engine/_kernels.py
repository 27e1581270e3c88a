"""Which kernels a device has beside torch's own operators."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor


def kernels_for(tensor: Tensor) -> Any:
    """The module of kernels for the tensor's device (`_triton.py`), or None where there is none.

    On CUDA without Triton everything is computed by torch's operators, in more passes over memory.
    """
    return _triton() if tensor.is_cuda else None


@cache
def _triton() -> Any:
    try:
        from udpfl.engine import _triton
    except ImportError:
        return None
    return _triton
