"""How a model is judged on test records."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from udpfl.engine import LaneModel
from udpfl.federation.evaluation import breakdown, evaluate


def binary(outputs, targets):
    return F.binary_cross_entropy_with_logits(
        outputs.reshape(len(targets)), targets.float(), reduction="none"
    )


@pytest.mark.parametrize("labels", [torch.int64, torch.bool])
@pytest.mark.parametrize("end", [nn.Identity(), nn.Flatten(0)])
def test_one_output_is_the_logit_of_the_second_class(end, labels):
    """Outputs [B, 1] and [B] alike."""
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[5.0, 0.0]]))
        layer.bias.zero_()
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [3.0, 0.0]])
    y = torch.tensor([1, 1, 0, 0]).to(labels)
    model = LaneModel(nn.Sequential(layer, end), binary)
    found = evaluate(model, model.initial(), x, y, "classification")
    assert found.accuracy == 0.75
    confusion = breakdown(model, model.initial(), x, y, 2)["confusion"]
    assert confusion == [[1, 1], [0, 2]]


def test_of_several_outputs_the_largest_counts():
    model = LaneModel(nn.Linear(3, 3), lambda o, t: F.cross_entropy(o, t, reduction="none"))
    parameters = torch.cat([torch.eye(3).flatten(), torch.zeros(3)])
    x, y = torch.eye(3), torch.tensor([0, 1, 1])
    assert evaluate(model, parameters, x, y, "classification").accuracy == pytest.approx(2 / 3)
    confusion = breakdown(model, parameters, x, y, 3)["confusion"]
    assert confusion == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
