"""Small image files in every format that is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def bytes_of(inputs):
    """Undo the scaling: back to the pixels that were stored."""
    return np.rint((inputs.astype(np.float64) / 4 + 0.5) * 255).astype(np.uint8)


def coded(pixels):
    """The published description of the compact form, forwards, with plain loops."""
    planes = pixels.astype(int).transpose(1, 0, 2, 3).copy()
    planes[0] -= planes[1]
    planes[2] -= planes[1]
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=0)
    return (planes % 256).astype(np.uint8)


def npz(path: Path, **members) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **members)


SCANS = ("AbdomenCT", "BreastMRI", "CXR", "ChestCT", "Hand", "HeadCT")


def everything(data):
    """Inputs and targets in the order of their source."""
    both = [(r.positions, r.inputs, r.targets) for r in (data.train, data.test)]
    positions, inputs, targets = (np.concatenate(part) for part in zip(*both, strict=True))
    order = np.argsort(positions)
    return positions[order], inputs[order], targets[order]
