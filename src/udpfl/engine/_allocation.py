"""How the C library treats memory that training gives back.

A step of training makes large tensors and drops them again. By default glibc returns their pages to
the operating system, which clears them anew for the next step (`benchmarks/training.py` measures
rounds with and without that).
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_MOST = {_TRIM_THRESHOLD: (1 << 31) - 1, _MMAP_THRESHOLD: 1 << 25}
_CHOSEN_OUTSIDE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory it frees, for its next tensors; whether that was done.

    Tensors of up to 32 MiB are meant. Nothing is changed where another C library is used, or where
    the environment has settings of its own.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _CHOSEN_OUTSIDE):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    done = [mallopt(option, value) == 1 for option, value in _MOST.items()]
    return all(done)
