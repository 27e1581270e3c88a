"""Gradient descent on pictures, many of them at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from udpfl.attacks.reconstruction._simulation import Client

_NUMBERS = 1 << 25
"""Parameters of all signals together that are matched at once."""
_BETAS, _TINY = (0.9, 0.999), 1e-8
_DROPS = (3 / 8, 5 / 8, 7 / 8)
"""After which share of the iterations the step becomes a tenth of what it was."""


@dataclass(frozen=True)
class Descent:
    """How pictures are looked for."""

    iterations: int
    learning_rate: float
    total_variation: float
    """Weight of the total variation: neighbouring pixels are mostly alike."""
    low: float
    """What is black in the inputs of the network."""
    high: float
    """What is white."""


def total_variation(inputs: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across."""
    down = (inputs[..., 1:, :] - inputs[..., :-1, :]).abs().mean()
    across = (inputs[..., 1:] - inputs[..., :-1]).abs().mean()
    variation: Tensor = down + across
    return variation


def distance(client: Client, inputs: Tensor, targets: Tensor, signal: Tensor) -> Tensor:
    """One less the cosine of the angle between what was sent and what these records would send."""
    sent = client(inputs, targets)
    size = (sent.norm() * signal.norm()).clamp(min=torch.finfo(sent.dtype).tiny)
    far: Tensor = 1 - sent @ signal / size
    return far


def match(
    client: Client,
    signals: Tensor,
    targets: Tensor,
    start: Tensor,
    how: Descent,
    told: Callable[[int, int], None],
) -> tuple[Tensor, Tensor]:
    """Records that would have sent such signals.

    Signed Adam: the gradient is replaced by its sign before Adam sees it; pixels are kept between
    black and white.

    Args:
        client: What records make of the model.
        signals: What was sent [T, d].
        targets: The labels of the records [T, n].
        start: Where the search begins [T, n, ...].
        how: Steps and their sizes.
        told: Called with iterations that are done, and all there are.

    Returns:
        Inputs [T, n, ...], and how far what they send is from the signal [T].
    """
    together = max(1, _NUMBERS // signals.shape[1])
    stacks = [slice(first, first + together) for first in range(0, len(signals), together)]
    found = []
    for number, own in enumerate(stacks):

        def told_here(done: int, number: int = number) -> None:
            told(number * how.iterations + done, len(stacks) * how.iterations)

        found.append(
            _match_together(client, signals[own], targets[own], start[own], how, told_here)
        )
    inputs, distances = zip(*found, strict=True)
    return torch.cat(inputs), torch.cat(distances)


def _match_together(
    client: Client,
    signals: Tensor,
    targets: Tensor,
    start: Tensor,
    how: Descent,
    told: Callable[[int], None],
) -> tuple[Tensor, Tensor]:
    def objective(inputs: Tensor, labels: Tensor, signal: Tensor) -> Tensor:
        far = distance(client, inputs, labels, signal)
        return far + how.total_variation * total_variation(inputs)

    slope = vmap(grad_and_value(objective), randomness="different")
    drops = {max(1, int(share * how.iterations)) for share in _DROPS}
    inputs, rate = start.clamp(how.low, how.high), how.learning_rate
    mean, square = torch.zeros_like(inputs), torch.zeros_like(inputs)
    with warnings.catch_warnings():  # slow operators work as well
        warnings.filterwarnings("ignore", "There is a performance drop")
        for i in range(how.iterations):
            if i in drops:
                rate /= 10
            direction = slope(inputs, targets, signals)[0].sign()
            mean = mean.lerp(direction, 1 - _BETAS[0])
            square = square.lerp(direction.square(), 1 - _BETAS[1])
            step = mean / (1 - _BETAS[0] ** (i + 1))
            step /= (square / (1 - _BETAS[1] ** (i + 1))).sqrt() + _TINY
            inputs = (inputs - rate * step).clamp(how.low, how.high)
            told(i + 1)
        far = vmap(lambda *own: distance(client, *own), randomness="different")
        return inputs, far(inputs, targets, signals)
