"""Deep leakage: pictures and labels whose gradient equals the one that was sent.

L-BFGS on the squared distance between the two gradients, here over the squared size of the one that
was sent. Labels are looked for as well, as the softmax of free numbers. The distance, unlike an
angle, changes with a clip: a clipped gradient is that of no record.

References: Zhu, Liu, Han, "Deep Leakage from Gradients", NeurIPS 2019. Steps are found by a line
search with the strong Wolfe conditions, where the authors take steps of one.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from udpfl.attacks.reconstruction._gradient_attack import GradientAttack, Told
from udpfl.attacks.reconstruction._observed import GradientOptions, Observed
from udpfl.attacks.reconstruction._pictures import Scale
from udpfl.config.section import Count

_EVALUATIONS = 20
"""Most iterations of L-BFGS between two looks at the result."""


class DlgOptions(GradientOptions):
    """Settings of the search."""

    signals: Count = Field(default=8, description="Fresh gradients that are attacked.")
    iterations: Count = Field(
        default=30, description=f"Times {_EVALUATIONS} iterations of L-BFGS at most."
    )
    optimise_labels: bool = Field(
        default=True, description="Whether labels are looked for too, whatever 'labels' says."
    )


class Dlg(GradientAttack[DlgOptions]):
    """Searches for pictures, and labels, whose gradient is the one that was sent."""

    name = "dlg"
    what = "searches for the pictures and labels whose gradient equals the one that was sent"
    paper = "Zhu et al., Deep Leakage from Gradients, 2019"
    options_type = DlgOptions

    def search(self, seen: Observed, signals: Tensor, scale: Scale, told: Told) -> Tensor:
        """Pictures for each signal [T, n, ...], one signal after the other."""
        options, generator = self.options, torch.Generator().manual_seed(self.seed)
        outputs = seen.client.model.outputs(seen.client.start, seen.originals[0, :1]).shape[1]
        found = []
        for number, signal in enumerate(signals):
            size = seen.labels.shape[1]
            start = torch.randn(size, *seen.originals.shape[2:], generator=generator)
            logits = torch.randn(size, outputs, generator=generator)
            inputs, logits = start.to(signal.device), logits.to(signal.device)
            own = None if options.optimise_labels else seen.labels[number]
            found.append(nearest(seen, signal, inputs, logits, own, options.iterations))
            told(number + 1, len(signals))
        return torch.stack(found)


def nearest(
    seen: Observed,
    signal: Tensor,
    inputs: Tensor,
    logits: Tensor,
    labels: Tensor | None,
    iterations: int,
) -> Tensor:
    """The inputs [n, ...] whose signal is the nearest that the search comes across.

    Args:
        seen: What records make of the model.
        signal: What was sent [d].
        inputs: Where the search begins [n, ...].
        logits: The labels with which it begins [n, classes].
        labels: The true ones [n]; they are looked for if None.
        iterations: How often L-BFGS runs on.
    """
    inputs, logits = inputs.clone().requires_grad_(), logits.clone().requires_grad_()
    free = [inputs, logits] if labels is None else [inputs]
    descent = torch.optim.LBFGS(free, max_iter=_EVALUATIONS, line_search_fn="strong_wolfe")
    size = signal.square().sum().clamp(min=torch.finfo(signal.dtype).tiny)
    best, smallest = inputs.detach().clone(), torch.inf

    def distance() -> Tensor:
        descent.zero_grad()
        own = logits.softmax(1) if labels is None else labels
        far: Tensor = (seen.client(inputs, own) - signal).square().sum() / size
        far.backward()
        return far

    for _ in range(iterations):
        descent.step(distance)
        far = float(distance().detach())
        if not far < smallest:  # stands still, or is no number any more
            break
        best, smallest = inputs.detach().clone(), far
    return best
