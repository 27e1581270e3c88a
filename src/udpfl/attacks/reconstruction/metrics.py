"""How alike two pictures are, and which reconstruction is to be held against which original.

Pictures are arrays [n, channels, height, width] of numbers from 0 (black) to 1 (white); what lies
outside is cut off before anything is measured. Every figure is one number per picture.

References: Wang, Bovik, Sheikh, Simoncelli, "Image Quality Assessment: From Error Visibility to
Structural Similarity", IEEE TIP 2004; here as scikit-image computes it by default: a uniform window
of 7 by 7 pixels, sample covariances, windows that lie within the picture, the mean over channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import uniform_filter
from scipy.optimize import linear_sum_assignment

from udpfl.errors import InvalidInput

Floats = NDArray[np.float64]
WINDOW = 7
"""Pixels on each side of a window of the structural similarity."""
_C1, _C2 = 0.01**2, 0.03**2
_SMALLEST_ERROR = 1e-12
"""Below it two pictures are the same, and the peak signal-to-noise ratio is 120 dB."""


def mse(found: ArrayLike, original: ArrayLike) -> Floats:
    """Mean squared error over pixels and channels.

    Args:
        found: Pictures.
        original: As many pictures.

    Returns:
        One number per picture.
    """
    a, b = _pictures(found, original)
    errors: Floats = np.square(a - b).mean(axis=(1, 2, 3))
    return errors


def mae(found: ArrayLike, original: ArrayLike) -> Floats:
    """Mean absolute error over pixels and channels.

    Args:
        found: Pictures.
        original: As many pictures.

    Returns:
        One number per picture.
    """
    a, b = _pictures(found, original)
    errors: Floats = np.abs(a - b).mean(axis=(1, 2, 3))
    return errors


def psnr(found: ArrayLike, original: ArrayLike) -> Floats:
    """Peak signal-to-noise ratio in dB, -10 log10 of the mean squared error.

    Args:
        found: Pictures.
        original: As many pictures.

    Returns:
        One number per picture, at most 120.
    """
    ratios: Floats = -10 * np.log10(np.maximum(mse(found, original), _SMALLEST_ERROR))
    return ratios


def ssim(found: ArrayLike, original: ArrayLike, window: int = WINDOW) -> Floats:
    """Structural similarity: 1 for equal pictures, about 0 for unrelated ones.

    Args:
        found: Pictures.
        original: As many pictures.
        window: Pixels on each side of the window, odd; no picture may be smaller.

    Returns:
        One number per picture.

    Raises:
        InvalidInput: The window is even, or larger than the pictures.
    """
    a, b = _pictures(found, original)
    if window % 2 == 0 or window > min(a.shape[2:]):
        raise InvalidInput(
            "window",
            f"must be odd and at most {min(a.shape[2:])}, the smaller side of the pictures, "
            f"got {window}",
        )

    def mean(values: Floats) -> Floats:
        filtered: Floats = uniform_filter(values, size=(1, 1, window, window))
        return filtered

    sample = window**2 / (window**2 - 1)
    mean_a, mean_b = mean(a), mean(b)
    var_a = sample * (mean(a * a) - mean_a * mean_a)
    var_b = sample * (mean(b * b) - mean_b * mean_b)
    both = sample * (mean(a * b) - mean_a * mean_b)
    above = (2 * mean_a * mean_b + _C1) * (2 * both + _C2)
    below = (mean_a**2 + mean_b**2 + _C1) * (var_a + var_b + _C2)
    edge = window // 2
    inner = (above / below)[:, :, edge : a.shape[2] - edge, edge : a.shape[3] - edge]
    likeness: Floats = inner.mean(axis=(1, 2, 3))
    return likeness


def pair(found: ArrayLike, originals: ArrayLike) -> NDArray[np.int64]:
    """Which original each reconstruction of a batch is held against.

    The order of a batch does not show in its gradient. Reconstructions and originals are paired so
    that the sum of squared errors is as small as possible (the Hungarian method).

    Args:
        found: Reconstructions [n, ...].
        originals: Pictures [m, ...], at least as many.

    Returns:
        The number of the original for each reconstruction [n]; no original is named twice.

    Raises:
        InvalidInput: There are fewer originals than reconstructions.
    """
    a, b = (np.clip(np.asarray(own, dtype=np.float64), 0, 1) for own in (found, originals))
    if len(a) > len(b) or a.shape[1:] != b.shape[1:]:
        raise InvalidInput("originals", f"must be at least as many as {len(a)}, got {len(b)}")
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    costs = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
    chosen: NDArray[np.int64] = np.asarray(linear_sum_assignment(costs)[1], dtype=np.int64)
    return chosen


def _pictures(found: ArrayLike, original: ArrayLike) -> tuple[Floats, Floats]:
    a, b = (np.asarray(own, dtype=np.float64) for own in (found, original))
    if a.shape != b.shape or a.ndim != 4 or not a.size:
        raise InvalidInput(
            "pictures",
            f"must be two arrays [n, channels, height, width] of one shape, got {a.shape} and "
            f"{b.shape}",
        )
    return _cut(a), _cut(b)


def _cut(pictures: NDArray[Any]) -> Floats:
    """Within black and white; a number that is not finite counts as grey."""
    cut: Floats = np.clip(np.nan_to_num(pictures, nan=0.5), 0, 1)
    return cut
