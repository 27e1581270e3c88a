"""How good a global model is, on test records that no client trains on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from udpfl.data.records import Task
from udpfl.engine import LaneModel

_BATCH = 1024


@dataclass(frozen=True)
class Evaluation:
    """Accuracy is None for regression, mae and mse are None for classification."""

    loss: float
    accuracy: float | None = None
    mae: float | None = None
    mse: float | None = None

    def to_dict(self) -> dict[str, float | str | None]:
        """Plain data: the figures of the task, accuracy always."""
        row = {"accuracy": self.accuracy, "loss": self.loss}
        if self.mae is not None:
            row |= {"mae": self.mae, "mse": self.mse}
        return {name: _plain(value) for name, value in row.items()}


def _plain(value: float | None) -> float | str | None:
    """A number that JSON knows; a model that diverged has a loss of "inf" or "nan"."""
    return value if value is None or math.isfinite(value) else str(value)


def evaluate(
    model: LaneModel, parameters: Tensor, inputs: Tensor, targets: Tensor, task: Task
) -> Evaluation:
    """Means over all test records."""
    loss = correct = absolute = squared = torch.zeros((), dtype=torch.float64)
    for start in range(0, len(inputs), _BATCH):
        y = targets[start : start + _BATCH]
        outputs = model.outputs(parameters, inputs[start : start + _BATCH])
        loss = loss + model.losses(outputs, y).sum().double().cpu()
        if task == "classification":
            correct = correct + (outputs.argmax(1) == y).sum().cpu()
        else:
            gap = (outputs - y).double()
            absolute = absolute + gap.abs().mean(1).sum().cpu()
            squared = squared + gap.square().mean(1).sum().cpu()
    n = len(inputs)
    if task == "classification":
        return Evaluation(float(loss) / n, accuracy=float(correct) / n)
    return Evaluation(float(loss) / n, mae=float(absolute) / n, mse=float(squared) / n)
