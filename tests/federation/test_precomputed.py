"""Fixed features are computed once, one record at a time, and train the same model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.federation.samples import blobs
from udpfl import InvalidInput, Unsupported
from udpfl.federation import _fixed_part

pytestmark = pytest.mark.usefixtures("one_thread")


class Prepared(nn.Module):
    """A fixed first step, then one layer; counts how many records the fixed step has seen."""

    seen = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def precompute(self, x):
        Prepared.seen += len(x)
        return torch.cat([x + self.shift, x * x], 1)

    def forward(self, x):
        return self.layer(self.precompute(x) if x.shape[1] == 4 else x)


class Mixing(Prepared):
    def precompute(self, x):
        return super().precompute(torch.cumsum(x, 0))


class Remembering(Prepared):
    def precompute(self, x):
        self.shift += x.abs().mean() * 1e-3
        return super().precompute(x)


class Random(Prepared):
    def precompute(self, x):
        return super().precompute(x + torch.randn(4))


def test_fixed_features_are_computed_once_and_train_the_same_model(federate):
    x, y = blobs()
    features = np.concatenate([x + 1, x * x], 1)
    Prepared.seen = 0
    plain = nn.Linear(8, 3)
    nn.init.zeros_(plain.weight)
    nn.init.zeros_(plain.bias)
    training = {"sampling_rate": 1.0, "local_steps": 3}
    once = federate("none", training, given=(x, y), net=Prepared())
    # Traced for two splits: a try, two records before, huge, all at once, two records after.
    assert Prepared.seen == 2 * (1 + 2 + 1 + 1 + 2)
    direct = federate("none", training, given=(features, y), net=plain)
    assert torch.allclose(once.model.layer.weight, direct.model.weight, atol=1e-6)
    assert set(load_file(once.folder / "model.safetensors")) == {"layer.weight", "layer.bias"}
    assert once.model(torch.from_numpy(x[:2])).shape == (2, 3)  # the plain model takes plain inputs


def test_features_see_one_record_at_a_time(federate):
    """What mixes the records of a batch has nothing to mix."""
    once = federate("none", {"sampling_rate": 1.0}, given=blobs(), net=Prepared())
    mixing = federate("none", {"sampling_rate": 1.0}, given=blobs(), net=Mixing())
    assert torch.equal(once.model.layer.weight, mixing.model.layer.weight)


@pytest.mark.parametrize("kind", [Remembering, Random])
def test_features_that_answer_the_same_record_in_two_ways_are_refused(federate, kind):
    with pytest.raises(Unsupported, match="two different results"):
        federate(given=blobs(), net=kind())


def test_all_batches_are_as_wide_as_each_other(monkeypatch):
    """Products are rounded by the width of a batch: a record that leaves must not change it."""
    widths = []
    computed = _fixed_part.FixedPart._computed

    def counted(self, records, rows):
        widths.append(len(records[rows]))
        return computed(self, records, rows)

    monkeypatch.setattr(_fixed_part.FixedPart, "_computed", counted)
    fixed = _fixed_part.FixedPart(Prepared(), torch.device("cpu"), "data")
    records = torch.randn(130, 4)
    for count in (130, 129, 100, 3):
        widths.clear()
        features = fixed.features(records[:count])
        assert set(widths) - {1} == {_fixed_part._BATCH}
        assert torch.equal(features, Prepared().precompute(records[:count]))


def test_a_record_that_cannot_be_computed_is_named_in_the_last_batch_too():
    class Refusing(Prepared):
        def precompute(self, x):
            if x.is_floating_point() and bool((x[..., :1] > 1e8).any()):
                raise RuntimeError("too large")
            return super().precompute(x)

    records = torch.randn(103, 4)
    records[101, 0] = 1e9
    fixed = _fixed_part.FixedPart(Refusing(), torch.device("cpu"), "data")
    with pytest.raises(InvalidInput, match="record 101"):
        fixed.features(records)
