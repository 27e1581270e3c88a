"""Write a formula once, run it on numpy arrays and torch tensors alike.

Torch is never imported here: a caller who hands in a tensor has imported it already.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from udpfl.errors import InvalidInput

Floats = NDArray[np.float64]


def is_torch(x: Any) -> bool:
    """True for a torch tensor, without importing torch to find out."""
    return type(x).__module__.partition(".")[0] == "torch"


def namespace(x: Any) -> Any:
    """The module (numpy or torch) whose functions take `x`."""
    return sys.modules["torch"] if is_torch(x) else np


def box_muller_in_place(radius: Any, angle: Any, std: float) -> None:
    """Turn pairs of uniform numbers in [-1, 1] into pairs of normal ones with deviation `std`.

    Reference: Box and Muller 1958. On a CPU for which numpy has AVX-512 code, its logarithm and
    its tangent of half the angle take half the time of torch's functions.
    """
    is_fast = _HAS_AVX512 and (not is_torch(radius) or radius.device.type == "cpu")
    if is_fast:
        radius, angle = np.asarray(radius), np.asarray(angle)
    xp = namespace(radius)
    xp.log(xp.abs(radius, out=radius), out=radius)
    radius *= -2 * std * std
    xp.sqrt(radius, out=radius)
    if is_fast:
        _turn_by_tangent(radius, angle)
    else:
        _turn(radius, angle)


def _turn(radius: Any, angle: Any) -> None:
    """(r, a) becomes (r cos(pi a), r sin(pi a))."""
    xp = namespace(radius)
    angle *= math.pi
    cosine = xp.cos(angle)
    xp.sin(angle, out=angle)
    angle *= radius
    radius *= cosine


def _turn_by_tangent(radius: Floats, angle: Floats) -> None:
    """The same: with t = tan(x / 2), cos x = (1 - t^2) / (1 + t^2), sin x = 2 t / (1 + t^2)."""
    angle *= math.pi / 2
    np.tan(angle, out=angle)
    square = angle * angle
    angle *= 2
    radius /= square + 1
    angle *= radius
    radius *= np.subtract(1, square, out=square)


def _has_avx512() -> bool:
    """Whether numpy's logarithms and tangents of doubles are vectorised on this CPU."""
    try:
        from numpy.lib.introspect import opt_func_info
    except ImportError:  # before numpy 2.1
        return False
    loops = opt_func_info(func_name="^(log|tan)$", signature="float64")
    used = [own["current"] for loop in loops.values() for own in loop.values()]
    return len(used) == 2 and all(own.startswith(("X86_V4", "AVX512")) for own in used)


_HAS_AVX512 = _has_avx512()


def normal_quantile(u: Any) -> Any:
    """Inverse of the standard normal distribution function, for either kind of array."""
    return namespace(u).special.ndtri(u) if is_torch(u) else special.ndtri(u)


def like(table: Floats, x: Any) -> Any:
    """`table` as an array of the same kind, precision and device as `x`."""
    return namespace(x).asarray(np.ascontiguousarray(table), dtype=x.dtype, device=x.device)


def cell_index(edges: Any, x: Any) -> Any:
    """Index i of the cell with edges[i] <= x < edges[i + 1], ends clipped."""
    index = namespace(x).searchsorted(edges, x, side="right") - 1
    return index.clip(0, len(edges) - 2)


def floats(words: Any, dtype: Any) -> Any:
    """Signed 64-bit random words as floating-point numbers, as they are."""
    xp = namespace(words)
    if words.dtype != xp.int64:
        raise InvalidInput("words", f"must be signed 64-bit integers, got {words.dtype}")
    if xp.finfo(dtype).bits < 32:
        raise InvalidInput("dtype", f"noise needs float32 or better, got {dtype}")
    return words.to(dtype) if is_torch(words) else words.astype(dtype)


def to_unit(signed: Any) -> Any:
    """Turn `floats` of random words into numbers in [-1, 1], never zero, in place.

    The magnitude keeps 63 random bits. Small values keep their full relative precision even in
    float32, so tails far beyond 1e-12 occur with the right frequency.
    """
    signed += 0.5  # the words w and -1 - w become exact opposites, and zero cannot occur
    signed *= 2.0**-63
    return signed
