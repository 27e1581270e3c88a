"""The engine against automatic differentiation, one sample at a time."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.engine.oracle import LooksAtOthers, Net, RawParameter, Residual, assert_same_sums, labels
from tests.small import cross_entropy
from udpfl.engine import LaneModel
from udpfl.engine._gradients import BookKept
from udpfl.errors import Unsupported

QUICK = settings(max_examples=15, deadline=None)


def squared(outputs, targets):
    return (outputs - targets).flatten(1).square().mean(1)


@QUICK
@given(
    lanes=st.integers(1, 3),
    batch=st.integers(1, 4),
    positions=st.integers(1, 6),
    wide=st.integers(1, 6),
    bias=st.booleans(),
)
def test_linear(lanes, batch, positions, wide, bias):
    torch.manual_seed(lanes * 7 + batch)
    x = torch.randn(lanes, batch, positions, 4)
    net = Net(nn.Linear(4, wide, bias=bias), wide, channel_axis=2)
    assert_same_sums(net, x, labels(lanes, batch))


def test_linear_with_few_positions_and_many_features_goes_by_gram_matrices():
    x = torch.randn(2, 3, 2, 40)
    net = Net(nn.Linear(40, 30), 30, channel_axis=2)
    assert_same_sums(net, x, labels(2, 3))
    kept = LaneModel(net, cross_entropy)
    gradients = kept.gradients(
        kept.initial().expand(2, -1), x, labels(2, 3), torch.ones(2, 3, dtype=torch.bool)
    )
    gradients.norms(2)
    assert isinstance(gradients, BookKept)
    assert not any("weight" in tap.use.written for tap in gradients._taps)


@QUICK
@given(
    lanes=st.integers(1, 3),
    batch=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
)
def test_conv2d(lanes, batch, groups, kernel, stride, padding, dilation, bias):
    torch.manual_seed(batch)
    conv = nn.Conv2d(2, 4, kernel, stride, padding, dilation, groups, bias)
    x = torch.randn(lanes, batch, 2, 7, 6)
    assert_same_sums(Net(conv, 4), x, labels(lanes, batch))


@QUICK
@given(
    lanes=st.integers(1, 3),
    groups=st.sampled_from([1, 3]),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.sampled_from([0, 1, "valid"]),
    dilation=st.integers(1, 2),
)
def test_conv1d(lanes, groups, kernel, stride, padding, dilation):
    conv = nn.Conv1d(3, 6, kernel, stride, padding, dilation, groups)
    x = torch.randn(lanes, 2, 3, 11)
    assert_same_sums(Net(conv, 6), x, labels(lanes, 2))


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_with_large_kernels_goes_by_gram_matrices(groups):
    x = torch.randn(2, 3, 8, 4, 4)
    assert_same_sums(Net(nn.Conv2d(8, 16, 3, groups=groups), 16), x, labels(2, 3))


def test_same_padding():
    x = torch.randn(2, 2, 2, 5, 5)
    assert_same_sums(Net(nn.Conv2d(2, 4, 3, padding="same"), 4), x, labels(2, 2))
    uneven = Net(nn.Conv2d(2, 4, 2, padding="same"), 4)
    with pytest.warns(UserWarning, match="even kernel"):
        assert_same_sums(uneven, x, labels(2, 2), rules=False)


@QUICK
@given(lanes=st.integers(1, 3), batch=st.integers(1, 3), groups=st.sampled_from([1, 2, 4]))
def test_group_norm(lanes, batch, groups):
    x = torch.randn(lanes, batch, 4, 3, 3)
    assert_same_sums(Net(nn.GroupNorm(groups, 4), 4), x, labels(lanes, batch))


@QUICK
@given(lanes=st.integers(1, 3), batch=st.integers(1, 3), deep=st.booleans())
def test_layer_norm(lanes, batch, deep):
    x = torch.randn(lanes, batch, 5, 4)
    layer = nn.LayerNorm((5, 4) if deep else 4)
    assert_same_sums(Net(layer, 4, channel_axis=2), x, labels(lanes, batch))


@QUICK
@given(lanes=st.integers(1, 3), batch=st.integers(1, 4), pad=st.booleans(), seed=st.integers(0, 99))
def test_embedding_counts_a_repeated_token_once(lanes, batch, pad, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 4, (lanes, batch, 6), generator=generator)
    layer = nn.Embedding(4, 5, padding_idx=0 if pad else None)
    assert_same_sums(Net(layer, 5, channel_axis=2), x, labels(lanes, batch))


def test_residual_network_and_names():
    net = Residual()
    names = list(net.state_dict())
    assert_same_sums(net, torch.randn(3, 4, 1, 4, 4), labels(3, 4))
    assert list(net.state_dict()) == names


def test_a_layer_used_twice_and_tied_weights():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.b(torch.tanh(self.a(torch.tanh(self.a(x)))))))

    assert_same_sums(Twice(), torch.randn(2, 3, 4), labels(2, 3))


def test_frozen_parameters_stay_out():
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    net[2].requires_grad_(False)
    net[0].weight.requires_grad_(False)
    assert LaneModel(net, cross_entropy).layout.names == ("0.bias", "4.weight", "4.bias")
    assert_same_sums(net, torch.randn(2, 3, 4), labels(2, 3))


def test_regression_loss():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    assert_same_sums(net, torch.randn(2, 3, 4), torch.randn(2, 3, 2), squared)


class PeeksAtWeights(nn.Module):
    """Uses a layer's weight behind the layer's back."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.a(x) @ self.a.weight)


class SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.a(x.transpose(0, 1))).mean(0))


@pytest.mark.parametrize("kind", [RawParameter, PeeksAtWeights, LooksAtOthers, SequenceFirst])
def test_models_that_no_rule_sees_through_fall_back(kind, caplog):
    shape = (2, 3, 5, 4) if kind is SequenceFirst else (2, 3, 4)
    with caplog.at_level(logging.WARNING):
        assert_same_sums(kind(), torch.randn(shape), labels(2, 3), rules=False)
    assert "torch.func" in caplog.text


def test_transformer_layer_falls_back():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.mix(x).mean(1))

    assert_same_sums(Attends(), torch.randn(2, 2, 5, 4), labels(2, 2), rules=False)


def test_what_cannot_be_private_is_refused_by_name():
    with pytest.raises(Unsupported, match=r"1 \(BatchNorm2d\).*replace_batchnorm"):
        LaneModel(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), cross_entropy)
    with pytest.raises(Unsupported, match="running statistics"):
        LaneModel(nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True)), cross_entropy)
    with pytest.raises(Unsupported, match="no trainable"):
        LaneModel(nn.Flatten(), cross_entropy)
    with pytest.raises(Unsupported, match="float32"):
        LaneModel(nn.Linear(2, 2).half(), cross_entropy)

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 3)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += x.sum()
            return self.a(x)

    counting = LaneModel(Counts(), cross_entropy)
    with pytest.raises(Unsupported, match="buffer seen"):
        counting.check(counting.initial(), torch.randn(3, 4), labels(1, 3)[0])

    class Branches(RawParameter):
        def forward(self, x):
            return super().forward(x if x.sum().item() > 0 else -x)

    branching = LaneModel(Branches(), cross_entropy)
    branching.check(branching.initial(), torch.randn(3, 4), labels(1, 3)[0])
    assert branching.one_by_one  # where a record decides for nobody but itself


def test_recurrent_layer_falls_back():
    assert_same_sums(Net(Last(), 4), torch.randn(2, 3, 5, 4), labels(2, 3), rules=False)


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0][:, -1]


class Tempered(nn.Module):
    """Scores times a number that is learned: a parameter without axes."""

    def __init__(self):
        super().__init__()
        self.layer, self.temperature = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.layer(x) * self.temperature.exp()


def test_a_parameter_may_be_a_single_number():
    net = Tempered()
    model = LaneModel(net, cross_entropy)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    model.check(model.initial(), x, y)
    named = model.layout.named(model.initial().expand(2, -1))
    assert named["temperature"].shape == (2,)
    assert torch.equal(model.layout.flat(named), model.initial().expand(2, -1))
    real = torch.ones(1, 6, dtype=torch.bool)
    found = model.gradients(model.initial()[None], x[None], y[None], real).written_out()[0]
    for row in range(6):
        loss = cross_entropy(net(x[row : row + 1]), y[row : row + 1]).sum()
        alone = torch.autograd.grad(loss, list(net.parameters()))
        assert torch.allclose(found[row], torch.cat([g.flatten() for g in alone]), atol=1e-6)
