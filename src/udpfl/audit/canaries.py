"""Canaries: the change that one record makes to a clipped sum, chosen by the adversary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats
from udpfl.sensitivity import Sensitivity

_ORDER = {"l1": 1, "l2": 2, "linf": np.inf}


def canary(name: str, sensitivity: Sensitivity) -> Floats:
    """The shift of a sum by one record, at the bound: "dirac", "dense", or the file of a gradient.

    A dirac changes one coordinate and cannot tell scalar accounting from the truth. A dense one
    changes all of them alike. A file (.npy, or text) holds a gradient, which is clipped.

    Args:
        name: "dirac", "dense", or the path of the file.
        sensitivity: The bound, its norm, and the dimension.

    Returns:
        The shift [d].

    Raises:
        InvalidInput: There is no such file, it does not fit, or the dimension is not known.

    Example:
        >>> from udpfl import Sensitivity
        >>> from udpfl.audit import canary
        >>> canary("dense", Sensitivity(1.0, dimension=4))
        array([0.5, 0.5, 0.5, 0.5])
    """
    dimension = sensitivity.coordinates
    if name == "dirac":
        shift = np.zeros(dimension)
        shift[0] = sensitivity.bound
    elif name == "dense":
        ones = np.ones(dimension)
        shift = ones * (sensitivity.bound / _size(ones, sensitivity))
    else:
        shift = clipped(_read(Path(name)), sensitivity)
        if len(shift) != dimension:
            raise InvalidInput(
                "canary", f"{name} has {len(shift)} numbers, the dimension is {dimension}"
            )
    return shift


def clipped(gradient: Floats, sensitivity: Sensitivity) -> Floats:
    """As the engine clips: scaled down to the bound, or for linf every coordinate by itself."""
    bound = sensitivity.bound
    if sensitivity.norm == "linf":
        return np.clip(gradient, -bound, bound)
    return gradient * (bound / max(_size(gradient, sensitivity), bound))


def _size(gradient: Floats, sensitivity: Sensitivity) -> float:
    return float(np.linalg.norm(gradient, _ORDER[sensitivity.norm]))


def _read(path: Path) -> Floats:
    if not path.is_file():
        raise InvalidInput("canary", f"must be dirac, dense or a file, got {str(path)!r}")
    try:
        read: Any = np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path)
        gradient = np.asarray(read, dtype=np.float64).ravel()
    except (OSError, ValueError) as error:
        raise InvalidInput("canary", f"{str(path)!r} holds no numbers: {error}") from None
    if not np.isfinite(gradient).all() or not gradient.any():
        raise InvalidInput("canary", f"{str(path)!r} must be finite and not all zero")
    return gradient
