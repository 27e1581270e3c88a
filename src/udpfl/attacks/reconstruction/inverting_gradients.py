"""Inverting gradients: pictures whose gradient points where the one that was sent points.

The search minimises one less the cosine between the two gradients, over all parameters together,
plus a small weight times the total variation of the picture, by signed Adam within black and white.
A clip does not change the direction of one record's gradient: only noise, and other records, do.
For several local steps the attack takes them itself, differentiates through all of them, and
compares updates.

References: Geiping, Bauermeister, Dröge, Moeller, "Inverting Gradients - How easy is it to break
privacy in federated learning?", NeurIPS 2020.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from udpfl.attacks.reconstruction._gradient_attack import GradientAttack, Told
from udpfl.attacks.reconstruction._observed import GradientOptions, Observed
from udpfl.attacks.reconstruction._pictures import Scale
from udpfl.attacks.reconstruction._search import Descent, match
from udpfl.config.section import Count, Positive


class InvertingOptions(GradientOptions):
    """Settings of the search."""

    iterations: Count = Field(default=2400, description="Steps of the search.")
    restarts: Count = Field(
        default=1, description="Searches for each gradient, of which the closest counts."
    )
    learning_rate: Positive = Field(
        default=0.1,
        description="Of signed Adam, in inputs of the network; it falls to a tenth three times.",
    )
    total_variation: float = Field(
        default=1e-2, ge=0, description="Weight of the total variation of the picture."
    )


class InvertingGradients(GradientAttack[InvertingOptions]):
    """Searches for pictures whose gradient has the direction of the one that was sent."""

    name = "inverting-gradients"
    what = "searches for the pictures whose gradient points where the one that was sent points"
    paper = "Geiping et al., Inverting Gradients, 2020"
    options_type = InvertingOptions

    def search(self, seen: Observed, signals: Tensor, scale: Scale, told: Told) -> Tensor:
        """The closest of all restarts for each signal [T, n, ...]."""
        options = self.options
        generator = torch.Generator().manual_seed(self.seed)
        shape = (options.restarts, *seen.labels.shape, *seen.originals.shape[2:])
        start = torch.randn(shape, generator=generator).flatten(0, 1).to(signals.device)
        inputs, distances = match(
            seen.client,
            signals.repeat(options.restarts, 1),
            seen.labels.repeat(options.restarts, 1),
            start,
            Descent(
                options.iterations, options.learning_rate, options.total_variation,
                scale.low, scale.high,
            ),
            told,
        )  # fmt: skip
        best = distances.view(options.restarts, -1).nan_to_num(torch.inf).argmin(0)
        return inputs.view(shape)[best, torch.arange(len(signals), device=best.device)]
