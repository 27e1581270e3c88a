"""Does a model give a record the same answer again, whatever it has seen in between?

What a model keeps of one record shows in the gradients of others, so clipping bounds nothing; and
a generator of its own is a memory too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from udpfl.engine._rows import CALM, ROWS, Rows, rows_from
from udpfl.engine.generators import USE_TORCH, Answer, answered
from udpfl.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from udpfl.engine.lanes import LaneModel

MEMORY = (
    "the model or its loss gives the same record two answers: it keeps something of the records it "
    f"saw before, so clipping would bound nothing, or it has a generator of its own; {USE_TORCH}"
)


def steady_rows(
    model: LaneModel, parameters: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Rows, bool]:
    """Rows that fit the model, and whether it draws random numbers outside of dropout layers.

    Refuses models and losses that do not fit the data, that leave something behind, or that give
    another answer the second time although torch's generators are at the same place.
    """
    *telling, plain = rows_from(inputs, targets)
    for rows in telling:
        try:
            if not rows.inputs.is_floating_point():
                _rehearse(model, parameters, rows)
            return _labelled(model, parameters, rows, _is_random(model, parameters, rows))
        except InvalidInput:  # a model may take the numbers for ids, or assert what they are
            continue
    return _labelled(model, parameters, plain, _is_random(model, parameters, plain))


def _labelled(
    model: LaneModel, parameters: Tensor, rows: Rows, is_random: bool
) -> tuple[Rows, bool]:
    """With several labels, if the rows have only one and the loss takes others."""
    if not rows.has_one_label:
        return rows, is_random
    outputs = model.copied(torch.float32).outputs(parameters, rows.of([0])[0])
    others = rows.labelled(outputs.shape[1] if outputs.dim() > 1 else 1)
    try:
        _rehearse(model, parameters, others)
        return others, _is_random(model, parameters, others)
    except InvalidInput:  # the loss decides what a label may be
        return rows, is_random


def _rehearse(model: LaneModel, parameters: Tensor, rows: Rows) -> None:
    """Compute ids and labels that no record has on the CPU first: on CUDA, one out of range is the
    end of the process."""
    if parameters.is_cuda:
        cpu = torch.device("cpu")
        x, y = rows.inputs.to(cpu), rows.targets.to(cpu)
        _losses(model.copied(torch.float32).to(cpu), parameters.to(cpu), x, y)


def _is_random(model: LaneModel, parameters: Tensor, rows: Rows) -> bool:
    copied, other = model.copied(torch.float32), model.copied(torch.float32)
    before = {name: buffer.clone() for name, buffer in copied.buffers().items()}

    def losses(copied: LaneModel, which: Sequence[int], seed: int = 1) -> Answer:
        x, y = rows.of(which)
        answer = answered(lambda: _losses(copied, parameters, x, y), seed, x.device)
        if not torch.equal(x, rows.of(which)[0]):
            raise Unsupported(
                "the model changes its input in place, so the records that it is evaluated on "
                "would be others in every round: let it work on a copy"
            )
        return answer

    # The other copy meets all rows first: some models keep what they see in their first batch.
    first, *_, again, late = (
        losses(copied, CALM), losses(copied, ROWS), losses(other, ROWS),
        losses(copied, CALM), losses(other, CALM),
    )  # fmt: skip
    for name, buffer in copied.buffers().items():
        if not torch.equal(buffer, before[name]):
            raise Unsupported(
                f"buffer {name} changes in the forward pass: statistics of private records "
                "would be released without noise"
            )
    for answer in (again, late):
        if not torch.allclose(answer.value, first.value, rtol=1e-6, equal_nan=True):
            raise Unsupported(MEMORY)
    if first.drew and first.state == losses(copied, CALM, seed=2).state:
        raise Unsupported(f"the model or its loss seeds torch's generator itself: {USE_TORCH}")
    return first.drew


def _losses(model: LaneModel, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """One forward pass as in training; says so where model, data and loss do not fit together."""
    try:
        with torch.enable_grad():
            losses = model.plain_losses(model.layout.named(parameters), x, y).detach()
    except Exception as error:  # whatever the user's own code raises
        raise InvalidInput(
            "model",
            f"does not fit the data (inputs {tuple(x.shape)}, targets {tuple(y.shape)}): "
            f"{first_line(error)}",
        ) from error
    if losses.shape != (len(x),):
        raise InvalidInput(
            "loss", f"must give one number per sample, got shape {tuple(losses.shape)}"
        )
    return losses


def first_line(error: Exception) -> str:
    """What an error says, in short."""
    return (str(error).splitlines() or [type(error).__name__])[0]
