"""What shadows and the target say of each record: what the attacks with shadows work with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from udpfl.attacks.base import Progress
from udpfl.attacks.membership._signals import log_odds, log_probabilities, logits
from udpfl.attacks.membership.statistics import Bools
from udpfl.attacks.pool import Pool
from udpfl.attacks.shadows import ShadowModels
from udpfl.attacks.target import Target
from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats

_SHIFT = 4
"""Pixels by which shifted queries are moved, as in the paper of LiRA."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Scores of every class from the shadows and from the target, for every query."""

    keep: Bools
    """[shadows, n]: whether a record was in a shadow."""
    shadows: Floats
    """[shadows, queries, n, classes]."""
    target: Floats
    """[queries, n, classes]."""
    labels: Tensor
    """[n]."""

    def log_odds(self) -> tuple[Floats, Floats]:
        """φ of every record and query, of the shadows [K, Q, n] and of the target [Q, n]."""
        return log_odds(self.shadows, self.labels), log_odds(self.target, self.labels)

    def probabilities(self, temperature: float = 1.0) -> tuple[Floats, Floats]:
        """p of the label, mean over queries, of the shadows [K, n] and of the target [n]."""
        shadows = np.exp(log_probabilities(self.shadows / temperature, self.labels))
        seen = np.exp(log_probabilities(self.target / temperature, self.labels))
        return shadows.mean(axis=1), seen.mean(axis=0)

    def without_pair(self, shadow: int) -> Evidence:
        """The same with a shadow as the target.

        Its complement goes as well: the number of shadows with a record would tell who was in.
        """
        pair = shadow // 2
        rest = [k for k in range(len(self.keep)) if k // 2 != pair]
        return Evidence(self.keep[rest], self.shadows[rest], self.shadows[shadow], self.labels)


def gather(
    target: Target,
    pool: Pool,
    shadows: ShadowModels,
    queries: int,
    progress: Progress,
) -> Evidence:
    """Ask every model about every query of every record."""
    asked = list(augmented(pool.inputs, queries))
    rows = []
    for number, parameters in enumerate((*shadows.parameters, target.parameters)):
        progress("asking the models", number, len(shadows) + 1)
        rows.append(np.stack([logits(target, parameters, x) for x in asked]))
    progress("asking the models", len(rows), len(rows))
    return Evidence(shadows.keep, np.stack(rows[:-1]), rows[-1], pool.targets)


def augmented(inputs: Tensor, queries: int) -> list[Tensor]:
    """The records themselves, their mirror images, and both shifted: 1, 2 or 18 queries.

    Args:
        inputs: [n, ...].
        queries: 1; for images [n, channels, height, width] also 2 or 18.

    Raises:
        InvalidInput: There is no such number of queries, or the records are no images.
    """
    if queries == 1:
        return [inputs]
    if queries not in (2, 18):
        raise InvalidInput("queries", f"must be 1, 2 or 18, got {queries}")
    if inputs.dim() != 4:
        raise InvalidInput("queries", "must be 1: the records are no images that could be mirrored")
    mirrored = [inputs, inputs.flip(-1)]
    if queries == 2:
        return mirrored
    steps = (-_SHIFT, 0, _SHIFT)
    moves = [(0, 0), *((y, x) for y in steps for x in steps if (y, x) != (0, 0))]
    return [shifted(image, *move) for image in mirrored for move in moves]


def shifted(images: Tensor, down: int, right: int) -> Tensor:
    """Images that are moved; what comes in at the edge is their reflection."""
    if not (down or right):
        return images
    height, width = images.shape[-2:]
    padded = torch.nn.functional.pad(images, (_SHIFT,) * 4, mode="reflect")
    top, left = _SHIFT - down, _SHIFT - right
    return padded[..., top : top + height, left : left + width]
