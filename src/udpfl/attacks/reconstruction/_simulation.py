"""What a client would have sent, had its records been these: the function that attacks invert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from udpfl.engine import LaneModel

Client = Callable[[Tensor, Tensor], Tensor]
"""Inputs [n, ...] and targets [n] or [n, classes] to the signal [d]; differentiable."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """The sum of a client's gradients over its local steps, as a function of its records.

    Every step is taken on the mean loss of its batch, from where the last step led. All of it is
    differentiable, so that an attacker can look for the records that explain what was sent. For one
    step it is the gradient at the model that the client received; for several, how far the client
    moved, over the learning rate.
    """

    model: LaneModel
    """The network."""
    start: Tensor
    """The model that the client received [d]."""
    steps: int = 1
    """Local steps."""
    learning_rate: float = 1.0
    """Of the local steps; it does not matter for one."""
    batches: int = 1
    """Into how many equal batches the records fall; steps take one after the other."""

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        layout = self.model.layout

        def loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.model.plain_losses(layout.named(weights), x, y).mean()

        size = len(inputs) // self.batches
        weights, total = self.start, torch.zeros_like(self.start)
        for step in range(self.steps):
            first = step % self.batches * size
            own = slice(first, first + size)
            gradient = grad(loss)(weights, inputs[own], targets[own])
            weights = weights - self.learning_rate * gradient
            total = total + gradient
        return total


def infer_labels(model: LaneModel, start: Tensor, signal: Tensor, inputs: Tensor) -> Tensor:
    """The labels [n] that a signal of n records gives away, in no order.

    The gradient of the last bias is the mean of p - y over the records: for one record it is
    negative at its label alone (iDLG). For several, y is the mean probability at this model less
    that gradient; an attacker who does not know the records takes random inputs for p.

    Args:
        model: The network.
        start: The model that the client received [d].
        signal: Its gradient, or the mean over its steps [d].
        inputs: Random inputs, as many as there were records [n, ...].

    Returns:
        As many labels as inputs, sorted.

    References:
        Zhao, Mopuri, Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020.
    """
    scores = model.outputs(start, inputs).flatten(1)
    bias = _last_bias(model, signal, scores.shape[1])
    if len(inputs) == 1:
        return bias.argmin().view(1)
    shares = (scores.softmax(1).mean(0) - bias).clamp(min=0)
    wanted = len(inputs) * shares / shares.sum().clamp(min=torch.finfo(shares.dtype).tiny)
    counts = wanted.floor().long()
    rest = len(inputs) - int(counts.sum())
    counts[(wanted - counts).argsort(descending=True)[:rest]] += 1
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def _last_bias(model: LaneModel, signal: Tensor, classes: int) -> Tensor:
    """The gradient of the last bias; without one, the sums over the rows of the last weight."""
    named = model.layout.named(signal)
    last = named[model.layout.names[-1]]
    return last if last.shape == (classes,) else last.reshape(classes, -1).sum(1)
