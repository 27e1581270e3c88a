"""Ids and labels that a model has no place for are found before anything is planned or charged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from udpfl.engine import LaneModel
from udpfl.engine.memory import first_line
from udpfl.errors import InvalidInput

_CPU = torch.device("cpu")


def require_range(model: LaneModel, splits: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Refuse an input or a label outside of what the model and its loss can take.

    `splits` are inputs and targets by the parameter they came from. Only the least and the largest
    number at every position are tried, and the least and the largest label: what lies between them
    is in range if they are, unless a model makes ids of several numbers. On the CPU, where an index
    out of range is an error; on CUDA it is the end of the process. A model that computes none of
    the records is left to the trial, which says why it does not fit the data.
    """
    probe = _Probe(model)
    fitting = probe.fitting([inputs for inputs, _ in splits.values()])
    if fitting is None:
        return
    for parameter, (inputs, targets) in splits.items():
        probe.require_inputs(fitting, inputs, parameter)
        if not targets.is_floating_point():
            probe.require_labels(fitting, targets, parameter)


class _Probe:
    """A copy of the model on the CPU."""

    def __init__(self, model: LaneModel) -> None:
        self._model = model.copied(torch.float32).to(_CPU)
        self._start = self._model.initial()

    def fitting(self, several: list[Tensor]) -> Tensor | None:
        """A record that the model computes; None if there seems to be none."""
        for inputs in several:
            for i in _moderate(inputs):
                if self._failure(inputs[i : i + 1]) is None:
                    return inputs[i]
        return None

    def require_inputs(self, fitting: Tensor, inputs: Tensor, parameter: str) -> None:
        """Put extreme numbers into a record that the model computes, all at once, then one by one.

        A row of extremes may be odd for other reasons than a single number: then it is no proof.
        """
        low, high = inputs.amin(0), inputs.amax(0)
        if self._failure(torch.stack([low, high])) is None:
            return
        columns = inputs.flatten(1)
        for extremes, find in ((high, torch.argmax), (low, torch.argmin)):
            for place, value in enumerate(extremes.flatten()):
                row = fitting.clone(memory_format=torch.contiguous_format)
                row.view(-1)[place] = value
                if reason := self._failure(row.unsqueeze(0)):
                    raise InvalidInput(
                        parameter,
                        f"record {int(find(columns[:, place]))} holds {value.item():g} at position "
                        f"{place}, which the model cannot compute: {reason}",
                    )
        for i in _moderate(inputs):
            if reason := self._failure(inputs[i : i + 1]):
                raise InvalidInput(parameter, f"the model cannot compute record {i}: {reason}")

    def require_labels(self, fitting: Tensor, labels: Tensor, parameter: str) -> None:
        """Try the loss with gradients on the extreme labels; the loss decides what it takes."""
        scores = self._model.outputs(self._start, fitting.cpu().unsqueeze(0))
        records = {int(labels[i]): int(i) for i in (labels.argmax(), labels.argmin())}
        problems = {label: self._problem(scores, label) for label in (*records, 0)}
        if all(problems.values()):  # it is not the label
            return
        for label, record in records.items():
            if reason := problems[label]:
                raise InvalidInput(
                    parameter,
                    f"record {record} has the label {label}, which does not fit the model's "
                    f"outputs of shape {tuple(scores.shape[1:])}: {reason}",
                )

    def _failure(self, rows: Tensor) -> str | None:
        """What the model says of rows that it cannot compute."""
        try:
            self._model.outputs(self._start, rows.to(_CPU, copy=True))
        except Exception as error:  # whatever the user's own code raises
            return first_line(error)
        return None

    def _problem(self, outputs: Tensor, label: int) -> str | None:
        """What is wrong with the loss of a label."""
        scores = outputs.clone().requires_grad_()
        try:
            loss = self._model.losses(scores, torch.tensor([label])).sum()
            if loss.requires_grad:
                (gradient,) = torch.autograd.grad(loss, scores)
                loss = loss + gradient.sum()
        except Exception as error:  # whatever the user's own code raises
            return first_line(error)
        return None if bool(torch.isfinite(loss)) else "the loss is not finite"


def _moderate(inputs: Tensor) -> Iterator[int]:
    """The first record, the one with the least maximum, and the one with the largest minimum."""
    yield 0
    columns = inputs.flatten(1)
    yield int(columns.amax(1).argmin())
    yield int(columns.amin(1).argmax())
