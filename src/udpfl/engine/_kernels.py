"""Which kernels a device has beside torch's own operators."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor


def kernels_for(tensor: Tensor) -> Any:
    """The module of kernels for the tensor's device (`_triton.py`), or None where there is none.

    On CUDA without Triton everything is computed by torch's operators, in more passes over memory.
    """
    return _module("_triton") if tensor.is_cuda else None


def noise_kernels_for(tensor: Tensor) -> Any:
    """The same for noise (`_triton_noise.py`)."""
    return _module("_triton_noise") if tensor.is_cuda else None


@cache
def _module(name: str) -> Any:
    try:
        return import_module(f"udpfl.engine.{name}")
    except ImportError:
        return None
