"""A model is tried before it is trusted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.engine.oracle import LooksAtOthers, labels
from tests.small import cross_entropy
from udpfl.engine import LaneModel
from udpfl.errors import Unsupported


class DividesByTheLargest(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x / x.abs().max().item())


class LooksAtOthersBehindDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop = nn.Linear(4, 3), nn.Dropout(0.5)

    def forward(self, x):
        return self.a(self.drop(x - x.mean(0) if self.training else x))


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.before = nn.Linear(4, 3), 0.0

    def forward(self, x):
        out = self.a(x + self.before)
        self.before = self.before + 1.0
        return out


class SortsRows(nn.Module):
    """Permutes the batch by content: sums are right, the owners of the gradients are not."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.a(x[order])[order.argsort()]


def checked(net, rows=3):
    model = LaneModel(net, cross_entropy)
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(rows, 4, generator=generator)
    model.check(model.initial(), inputs, labels(1, rows)[0])
    return model


@pytest.mark.parametrize("rows", [1, 3])
def test_models_that_mix_samples_never_go_by_the_rules(rows):
    for kind in (DividesByTheLargest, Remembers):
        with pytest.raises(Unsupported):
            checked(kind(), rows)
    for kind in (LooksAtOthers, LooksAtOthersBehindDropout, SortsRows):
        assert not checked(kind(), rows).book_keeping
    assert checked(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3))).book_keeping


def test_reparametrised_layers_are_refused_or_go_one_by_one():
    with pytest.raises(Unsupported, match="buffer"):
        checked(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))
    assert not checked(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))).book_keeping


def test_submodules_in_evaluation_mode_stay_there():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9), nn.Linear(4, 3))
    net[1].eval()
    model = checked(net)
    model.outputs(model.initial(), torch.randn(2, 4))
    assert [module.training for module in model._plain.modules()] == [True, True, False, True]
