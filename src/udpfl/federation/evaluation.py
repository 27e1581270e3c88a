"""How good a global model is, on test records that no client trains on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from udpfl.data.records import DataSet, Task
from udpfl.engine import LaneModel

_BATCH = 1024


@dataclass(frozen=True)
class Evaluation:
    """Accuracy is None for regression, mae and mse are None for classification."""

    loss: float
    accuracy: float | None = None
    mae: float | None = None
    mse: float | None = None

    @property
    def rmse(self) -> float | None:
        """Root of the mean squared error."""
        return None if self.mse is None else math.sqrt(self.mse)

    def to_dict(self) -> dict[str, float | str | None]:
        """Plain data: the figures of the task, accuracy always."""
        row = {"accuracy": self.accuracy, "loss": self.loss}
        if self.mae is not None:
            row |= {"mae": self.mae, "mse": self.mse, "rmse": self.rmse}
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
            correct = correct + (_predicted(outputs) == y).sum().cpu()
        else:
            gap = (outputs - y).double()
            absolute = absolute + gap.abs().mean(1).sum().cpu()
            squared = squared + gap.square().mean(1).sum().cpu()
    n = len(inputs)
    if task == "classification":
        return Evaluation(float(loss) / n, accuracy=float(correct) / n)
    return Evaluation(float(loss) / n, mae=float(absolute) / n, mse=float(squared) / n)


def _predicted(outputs: Tensor) -> Tensor:
    """The class with the largest score; a score alone is the logit of the second of two."""
    if outputs[0].numel() == 1:
        return (outputs.flatten() > 0).long()
    return outputs.argmax(1)


def breakdown(
    model: LaneModel, parameters: Tensor, inputs: Tensor, targets: Tensor, classes: int | None
) -> dict[str, Any]:
    """Where the model is right and wrong: by class, or by position of the regressed value.

    "confusion"[i][j] counts test records of class i that were taken for class j. A model may have
    more outputs than there are classes, so rows can be longer than the matrix is high.
    """
    outputs = torch.cat(
        [model.outputs(parameters, inputs[i : i + _BATCH]) for i in range(0, len(inputs), _BATCH)]
    )
    if classes is None:
        gap = (outputs - targets).double()
        mae, rmse = gap.abs().mean(0), gap.square().mean(0).sqrt()
        return {
            "mae_by_output": [_plain(float(value)) for value in mae],
            "rmse_by_output": [_plain(float(value)) for value in rmse],
        }
    predicted = _predicted(outputs)
    width = max(2, outputs[0].numel())
    pairs = targets * width + predicted
    counts = torch.bincount(pairs, minlength=classes * width).reshape(classes, width)
    return {"confusion": counts.tolist()}


def final_evaluation(
    model: LaneModel, parameters: Tensor, inputs: Tensor, targets: Tensor, data: DataSet
) -> dict[str, Any]:
    """Everything known about the final model on the test split, for `evaluation.json`."""
    names = None if data.class_names is None else list(data.class_names)
    return {
        "task": data.task,
        "test_records": len(inputs),
        **evaluate(model, parameters, inputs, targets, data.task).to_dict(),
        **({} if data.classes is None else {"class_names": names}),
        **breakdown(model, parameters, inputs, targets, data.classes),
        "references": {name: dict(figures) for name, figures in data.references.items()},
    }
