"""Model inversion: the picture of which the model is surest that it shows a class.

Gradient descent on 1 - p_y from grey. What comes out is at best the mean picture of a class, a
property of all its records together: it is held against that mean, not against any record.

References: Fredrikson, Jha, Ristenpart, "Model Inversion Attacks that Exploit Confidence
Information and Basic Countermeasures", CCS 2015, Algorithm 1 (MI-Face).
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from udpfl.attacks.base import UNTRAINED, Attack, Findings, Progress, silent
from udpfl.attacks.reconstruction._figures import MEAN, Quality, beside, findings
from udpfl.attacks.reconstruction._pictures import Scale, grid
from udpfl.attacks.reconstruction.metrics import Floats
from udpfl.attacks.target import Target
from udpfl.config.section import Count, Positive, Section

GREY = "where the search begins"


class MiFaceOptions(Section):
    """Settings of the descent; the defaults are those of the paper."""

    iterations: Count = Field(default=3000, description="Steps of the descent at most (alpha).")
    patience: Count = Field(
        default=100, description="Steps without progress after which it ends (beta)."
    )
    threshold: float = Field(
        default=0.001, ge=0, description="The cost 1 - p at which it ends (gamma)."
    )
    learning_rate: Positive = Field(default=0.003, description="Of the descent (lambda).")


class MiFace(Attack[MiFaceOptions]):
    """Descends to the picture that the final model takes for a class."""

    name = "mi-face"
    kind = "reconstruction"
    what = "searches for the picture that the final model most surely takes for a class"
    needs = "the final model"
    paper = "Fredrikson et al., Model Inversion Attacks, 2015"
    options_type = MiFaceOptions

    def find(self, target: Target, progress: Progress) -> Findings:
        target.require_classes(self.name)
        scale = Scale.of(target, self.name)
        classes, means = class_means(target, scale)
        grey = np.zeros((len(classes), *target.setup.data.input_shape), dtype=np.float32)

        def inverted(network: nn.Module, stage: str) -> Floats:
            start = torch.from_numpy(grey)
            return scale.pixels(
                descend(network, start, classes, self.options, scale, progress, stage)
            )

        found = inverted(target.network, "inverting the model")
        from_nothing = inverted(target.setup.network, UNTRAINED)
        mean = scale.pixels(target.setup.data.train.inputs.mean(0))
        others = {MEAN: mean, GREY: scale.pixels(grey), UNTRAINED: from_nothing}
        rows = [("mean of the class", means), ("inverted", found), ("untrained", from_nothing)]
        return findings(
            "the final model",
            f"the mean picture of {len(classes)} classes",
            Quality.of(found, means).figures(),
            beside(means, others),
            said="mi-face on the final model, against the mean picture of each class",
            notes=(
                "The mean picture of a class is a property of all its records together; privacy of "
                "single records does not promise to hide it.",
                "The page shows the mean pictures of the training records: a class with very few "
                "of them shows what they look like.",
            ),
            picture=grid("Mean pictures and what the model takes for them", rows),
        )


def class_means(target: Target, scale: Scale) -> tuple[Tensor, Floats]:
    """Classes that clients hold records of [C], and their mean pictures [C, ...]."""
    records = target.setup.data.train.subset(target.members)
    classes = np.unique(records.targets)
    means = [records.inputs[records.targets == label].mean(0) for label in classes]
    return torch.from_numpy(classes), scale.pixels(np.stack(means))


def descend(
    network: nn.Module,
    start: Tensor,
    classes: Tensor,
    how: MiFaceOptions,
    scale: Scale,
    progress: Progress = silent,
    stage: str = "inverting",
) -> Tensor:
    """The picture of the smallest cost 1 - p_y that each descent passes [C, ...].

    A class ends where its cost is at most the threshold, or no smaller than any of the last
    `patience` steps; the others go on.
    """
    network = network.cpu().eval()
    inputs, best = start.clone(), start.clone()
    smallest = torch.full((len(classes),), torch.inf)
    since = torch.zeros(len(classes), dtype=torch.long)
    rows = torch.arange(len(classes))
    for i in range(how.iterations):
        progress(stage, i, how.iterations)
        inputs.requires_grad_()
        costs = 1 - network(inputs).softmax(1)[rows, classes]
        (slope,) = torch.autograd.grad(costs.sum(), inputs)
        costs, inputs = costs.detach(), inputs.detach()
        better = costs < smallest
        best[better], smallest[better] = inputs[better], costs[better]
        since = torch.where(better, 0, since + 1)
        active = (smallest > how.threshold) & (since < how.patience)
        if not active.any():
            break
        moved = (inputs - how.learning_rate * slope).clamp(scale.low, scale.high)
        inputs[active] = moved[active]
    return best
