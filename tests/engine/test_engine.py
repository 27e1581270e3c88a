"""The engine against automatic differentiation, one sample at a time."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import logging
import math
import os
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from udpfl.engine import (
    Entropy,
    Key,
    Keyed,
    LaneModel,
    Lanes,
    Limits,
    MechanismNoiser,
    Noiseless,
    NormClipper,
    Unclipped,
    train_round,
)
from udpfl.engine.gradients import BookKept
from udpfl.engine.limits import choose_limits
from udpfl.engine.precision import full_precision
from udpfl.engine.randomness import PrivateStream
from udpfl.engine.training import padded
from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms import Gaussian, Laplace, Staircase

QUICK = settings(max_examples=15, deadline=None)


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def squared(outputs, targets):
    return (outputs - targets).flatten(1).square().mean(1)


def oracle_sum(model, layout, parameters, x, y, loss, norm, bound):
    """Clip each sample's autograd gradient by the textbook formula and add them up, in float64."""
    total = torch.zeros(layout.dimension, dtype=torch.float64)
    scale = 0.0
    named = layout.named(parameters)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.copy_(named[name])
    wanted = [p for p in model.parameters() if p.requires_grad]
    for i in range(len(x)):
        grads = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]).sum(), wanted)
        g = torch.cat([p.flatten() for p in grads]).double()
        if norm == "linf":
            clipped = g.clamp(-bound, bound)
        else:
            size = g.abs().sum() if norm == "l1" else g.square().sum().sqrt()
            clipped = g * (bound / max(float(size), bound))
        total += clipped
        scale += float(clipped.abs().max())
    return total, scale


def assert_same_sums(model, x, y, loss=cross_entropy, *, rules=True, bounds=(0.05, 0.7, 40.0)):
    """x, y are [L, B, ...]; every lane gets weights and a clip of its own."""
    model.train()
    lane_model = LaneModel(model, loss)
    lane_model.check(lane_model.initial(), x[0], y[0])
    assert lane_model.book_keeping == rules
    lanes = x.shape[0]
    generator = torch.Generator().manual_seed(3)
    start = lane_model.initial()
    parameters = start + 0.1 * torch.randn(lanes, start.numel(), generator=generator)
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    for norm in ("l2", "l1", "linf"):
        factor = {"l1": 10, "l2": 1, "linf": 0.1}[norm]
        limits = [factor * bounds[i % len(bounds)] for i in range(lanes)]
        gradients = lane_model.gradients(parameters, x, y, real)
        ours = NormClipper(norm, limits).clipped_sum(gradients).sum
        for lane in range(lanes):
            theirs, scale = oracle_sum(
                model,
                lane_model.layout,
                parameters[lane],
                x[lane],
                y[lane],
                loss,
                norm,
                limits[lane] * (1 - 2**-11),  # the documented margin for rounding
            )
            assert ours.dtype == torch.float64
            assert torch.allclose(ours[lane], theirs, rtol=0, atol=8e-5 * scale + 1e-9), norm


def labels(lanes, batch, classes=3):
    return torch.arange(lanes * batch).view(lanes, batch) % classes


class Net(nn.Module):
    """Any layer, then an average over positions and a head."""

    def __init__(self, layer, features, channel_axis=1):
        super().__init__()
        self.layer, self.head, self.axis = layer, nn.Linear(features, 3), channel_axis

    def forward(self, x):
        y = torch.tanh(self.layer(x)).movedim(self.axis, 1)
        return self.head(y.flatten(2).mean(2) if y.dim() > 2 else y)


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


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.block = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(16, 3))

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        return self.head(self.pool(x + self.block(x)))


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


class RawParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x * self.scale)


class PeeksAtWeights(nn.Module):
    """Uses a layer's weight behind the layer's back."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.a(x) @ self.a.weight)


class LooksAtOthers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x - x.mean(0))


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


def small_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3))


def problem(records=60, lanes=4):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(records, 1, 8, 8, generator=generator)
    y = torch.randint(0, 3, (records,), generator=generator)
    cuts = np.array_split(np.arange(records), lanes)
    return x, y, [torch.tensor(cut) for cut in cuts]


def lanes_of(records, *, clipper, noiser, rate=0.5, steps=None, lr=0.5, clients=None):
    n = len(records)
    return Lanes(
        runs=("run",) * n,
        clients=tuple(clients or (f"client-{i}" for i in range(n))),
        records=tuple(records),
        rates=(rate,) * n,
        denominators=torch.tensor([max(rate * len(r), 1.0) for r in records]),
        learning_rates=torch.full((n,), lr),
        steps=tuple(steps or (3,) * n),
        clipper=clipper,
        noiser=noiser,
    )


def test_a_sample_that_is_not_finite_counts_as_zero_and_harms_no_other():
    net = small_net()
    model = LaneModel(net, cross_entropy)
    x, y, _ = problem()
    x = x[:6].view(2, 3, 1, 8, 8).clone()
    y = y[:6].view(2, 3)
    parameters = model.initial().expand(2, -1)
    real = torch.ones(2, 3, dtype=torch.bool)
    for norm in ("l1", "l2", "linf"):
        clipper = NormClipper(norm, [1.0, 1.0])
        broken = x.clone()
        broken[1, 2, 0, 0, 0] = math.nan
        broken[0, 0, 0, 3, 3] = math.inf
        got = clipper.clipped_sum(model.gradients(parameters, broken, y, real)).sum
        absent = real.clone()
        absent[1, 2] = absent[0, 0] = False
        expected = clipper.clipped_sum(model.gradients(parameters, x, y, absent)).sum
        assert torch.isfinite(got).all()
        assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("clipper", [Unclipped, lambda: NormClipper("l2", [1.0] * 3)])
def test_what_fills_up_a_short_batch_changes_nothing(clipper, value):
    """It is some record of the data, whose gradient may not be finite."""
    x, y, _ = problem()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    net[1].weight.data.fill_(0.1)  # so that the largest of these overflows
    model = LaneModel(net, cross_entropy)
    records = [torch.arange(20), torch.arange(20, 25), torch.arange(0)]

    def trained(x):
        lanes = lanes_of(records, clipper=clipper(), noiser=Noiseless(), rate=1.0, steps=(2,) * 3)
        start = model.initial().expand(3, -1)
        return train_round(model, x, y, start, lanes, 1, Entropy(), Limits(3, 64)).parameters

    broken = x.clone()
    broken[0] = value
    before, after = trained(x), trained(broken)
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1:], before[1:])


@pytest.mark.parametrize("rules", [True, False])
def test_what_fills_up_a_batch_has_no_gradient(rules):
    """Whatever a clipper makes of it."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3) if rules else RawParameter()
    model, x = LaneModel(net, cross_entropy), torch.randn(2, 5, 4)
    assert model.book_keeping == rules
    real = torch.ones(2, 5, dtype=torch.bool)
    real[0, 2:] = real[1, 4] = False
    start = model.initial().expand(2, -1)
    found = model.gradients(start, x, labels(2, 5), real)
    whole = model.gradients(start, x, labels(2, 5), torch.ones_like(real))
    assert torch.equal(found.norms(2)[~real], torch.zeros(4, dtype=torch.float64))
    assert not found.written_out()[~real].any()
    assert torch.equal(found.written_out()[real], whole.written_out()[real])
    assert whole.norms(2).min() > 0.1


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_one_record_never_moves_the_sum_by_more_than_the_bound(norm):
    model = LaneModel(small_net(), cross_entropy)
    generator = torch.Generator().manual_seed(5)
    for trial in range(40):
        x = torch.randn(1, 1, 1, 8, 8, generator=generator) * 10.0 ** (trial % 9 - 4)
        bound = 10.0 ** (trial % 5 - 3)
        start = model.initial().unsqueeze(0) * 10.0 ** (trial % 3)
        real = torch.ones(1, 1, dtype=torch.bool)
        gradients = model.gradients(start, x, labels(1, 1), real)
        total = NormClipper(norm, [bound]).clipped_sum(gradients).sum.double()
        size = total.abs().sum() if norm == "l1" else total.square().sum().sqrt()
        assert float(size) <= bound


def test_without_noise_and_clipping_it_is_plain_sgd():
    """The federated average of lanes equals hand-written SGD on the same records."""
    x, y, records = problem()
    net = small_net()
    model = LaneModel(net, cross_entropy)
    start = model.initial()
    lanes = lanes_of(records, clipper=Unclipped(), noiser=Noiseless(), rate=1.0, steps=(5,) * 4)
    out = train_round(
        model, x, y, start.expand(4, -1), lanes, 1, Entropy(), Limits(lanes=2, samples=7)
    )
    for lane, own in enumerate(records):
        copy = small_net()
        optimizer = torch.optim.SGD(copy.parameters(), lr=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(copy(x[own]), y[own]).backward()
            optimizer.step()
        plain = torch.cat([p.detach().flatten() for p in copy.parameters()])
        assert torch.allclose(out.parameters[lane], plain, atol=1e-5)


MIXED = [Gaussian(0.8), Laplace(0.5), Gaussian(0.8), Staircase(1.0, 0.3, 0.4)]


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_chunks_lanes_and_client_order_do_not_matter(norm):
    x, y, records = problem()
    model = LaneModel(small_net(), cross_entropy)
    start = model.initial()

    def trained(limits, order):
        lanes = lanes_of(
            [records[i] for i in order],
            clipper=NormClipper(norm, [(0.3, 0.5, 0.7, 1.0)[i] for i in order]),
            noiser=MechanismNoiser([MIXED[i] for i in order]),
            clients=[f"client-{i}" for i in order],
            steps=[(2, 3, 1, 4)[i] for i in order],
        )
        parameters = start.expand(4, -1)
        for round_ in range(5):
            parameters = train_round(
                model, x, y, parameters, lanes, round_, Keyed(7), limits
            ).parameters
        return parameters[[order.index(i) for i in range(4)]]

    base = trained(Limits(lanes=4, samples=64), [0, 1, 2, 3])
    assert torch.equal(base, trained(Limits(lanes=4, samples=64), [0, 1, 2, 3]))
    for limits, order in (
        (Limits(lanes=1, samples=64), [0, 1, 2, 3]),
        (Limits(lanes=4, samples=2), [0, 1, 2, 3]),
        (Limits(lanes=3, samples=5), [3, 1, 0, 2]),
        (Limits(lanes=1, samples=7, workers=3), [2, 0, 1, 3]),
    ):
        # Where rounding differs, a number may end on the next point of the noise's grid.
        assert torch.allclose(base, trained(limits, order), atol=2e-3)
    # Threads change nothing at all where the stacks are the same.
    alone, beside = (Limits(lanes=1, samples=64, workers=n) for n in (1, 4))
    assert torch.equal(trained(alone, [0, 1, 2, 3]), trained(beside, [0, 1, 2, 3]))


def run_threads(net, workers=2, clipper=None):
    """One round over four lanes, and the threads that computed gradients."""
    x, y, records = problem()
    model = LaneModel(net, cross_entropy)
    used = set()
    gradients = model.gradients

    def noticed(*arguments):
        used.add((threading.get_ident(), torch.get_num_threads()))
        return gradients(*arguments)

    model.gradients = noticed
    lanes = lanes_of(
        records,
        clipper=clipper or NormClipper("l2", [1.0] * 4),
        noiser=MechanismNoiser([Gaussian(1.0)] * 4),
    )
    start = model.initial().expand(4, -1)
    train_round(model, x, y, start, lanes, 0, Entropy(), Limits(1, 64, workers))
    return used


def test_threads_share_the_lanes_only_where_nothing_is_random():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        used = run_threads(small_net())
        assert 1 <= len({thread for thread, _ in used} - {threading.get_ident()}) <= 2
        assert {count for _, count in used} == {1}  # a core for each, not two
        assert torch.get_num_threads() == 2
        random = nn.Sequential(small_net(), nn.Dropout(0.5))
        for case in (run_threads(random), run_threads(small_net(), workers=1)):
            assert case == {(threading.get_ident(), 2)}
    finally:
        torch.set_num_threads(before)


def test_an_error_in_a_thread_is_not_lost():
    class Broken(NormClipper):
        def lanes(self, which):
            return Broken(self.norm, self.bounds[which])

        def clipped_sum(self, gradients):
            raise RuntimeError("broken on purpose")

    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="on purpose"):
        run_threads(small_net(), clipper=Broken("l2", [1.0] * 4))
    assert torch.get_num_threads() == before


def test_memory_is_shared_by_the_threads_and_does_not_grow_with_the_lanes():
    def limits(lanes, threads, dimension=26_010, **more):
        return choose_limits(
            "auto", lanes=lanes, dimension=dimension, bytes_per_sample=200_000,
            memory=2 << 30, chunk=None, device=torch.device("cpu"), threads=threads, **more,
        )  # fmt: skip

    assert limits(10, 2) == Limits(5, limits(10, 2).samples, 2)
    assert limits(1, 8).workers == 1
    assert limits(10, 2, dimension=500_000).lanes == 1
    assert limits(1000, 2).lanes == limits(100, 2).lanes == 16
    for lanes, threads in ((10, 1), (10, 8), (1000, 4)):
        found = limits(lanes, threads)
        assert found.lanes * found.samples * 200_000 <= 256 << 20
        assert found.workers * found.lanes * found.samples * 200_000 <= 2 << 30


class Kept(Noiseless):
    """Keeps the sums that would get noise, step by step."""

    def __init__(self):
        self.sums = []

    def lanes(self, which):
        return self

    def add(self, sums, stream, keys):
        self.sums.append(sums.clone())
        return sums


@pytest.mark.parametrize("stream", [Entropy(), Keyed(3)], ids=["entropy", "keyed"])
def test_every_step_of_every_lane_draws_a_sample_of_its_own(stream):
    """Record i has the i-th unit vector for its gradient, so a sum says which were drawn."""
    n, steps, noiser = 400, 10, Kept()
    model = LaneModel(nn.Linear(n, 1, bias=False), lambda outputs, _: outputs.squeeze(1))
    lanes = lanes_of(
        [torch.arange(n)] * 2, clipper=NormClipper("l2", [9.0] * 2), noiser=noiser,
        steps=(steps,) * 2,
    )  # fmt: skip
    start = model.initial().expand(2, -1)
    train_round(model, torch.eye(n), torch.zeros(n), start, lanes, 1, stream, Limits(2, 512))
    drawn = torch.stack(noiser.sums).flatten(0, 1)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert abs(float(drawn.mean()) - 0.5) < 6 / math.sqrt(4 * drawn.numel())
    signs = 2 * drawn - 1
    together = signs @ signs.T / n - torch.eye(2 * steps)
    assert float(together.abs().max()) < 6.5 / math.sqrt(n)


class Noted(PrivateStream):
    """A seeded stream, and the keys it was asked for."""

    private = False

    def __init__(self):
        self.keys = []

    def _bits(self, key):
        self.keys.append(key)
        return Keyed(5)._bits(key)


def test_no_two_draws_of_a_round_share_a_key():
    """Two trainings of three and of two steps, random layers included."""
    x, y, records = problem()
    model = LaneModel(nn.Sequential(small_net(), nn.Dropout(0.5)), cross_entropy)
    stream, start = Noted(), model.initial().expand(4, -1)
    lanes = lanes_of(
        records, clipper=NormClipper("l2", [1.0] * 4), noiser=MechanismNoiser([Gaussian(1.0)] * 4)
    )
    for first, steps in ((0, 3), (3, 2)):
        own = dataclasses.replace(lanes, steps=(steps,) * 4, first_step=first)
        train_round(model, x, y, start, own, 1, stream, Limits(4, 64))
    asked = [(key.purpose, key.client, key.step) for key in stream.keys]
    assert len(set(stream.keys)) == len(asked) == 5 * (4 + 4 + 1)
    for purpose in ("noise", "sampling"):
        steps = {(client, step) for own, client, step in asked if own == purpose}
        assert steps == {(f"client-{i}", step) for i in range(4) for step in range(5)}


def test_index_sets_become_one_matrix_and_a_mask():
    rows = [torch.tensor(own, dtype=torch.int64) for own in ([7, 9, 4], [], [5], [1, 2, 3, 8])]
    index, real = padded(rows, torch.device("cpu"), 5)
    assert index.tolist() == [[7, 9, 4, 0, 0], [0] * 5, [5, 0, 0, 0, 0], [1, 2, 3, 8, 0]]
    assert real.sum(1).tolist() == [3, 0, 1, 4]
    assert torch.equal(real, torch.arange(5) < real.sum(1, keepdim=True))


def test_a_lane_that_is_done_draws_no_more_samples():
    """It comes out as if no other lane had gone on, what is said of its clipping included."""
    x, y, records = problem()
    model = LaneModel(small_net(), cross_entropy)

    def trained(count, steps):
        lanes = lanes_of(
            records[:count], clipper=NormClipper("l2", [3.0] * count), steps=steps, lr=4.0,
            noiser=MechanismNoiser([Gaussian(0.1)] * count),
        )  # fmt: skip
        stream, start = Noted(), model.initial().expand(count, -1)
        return train_round(model, x, y, start, lanes, 1, stream, Limits(count, 64)), stream.keys

    alone, _ = trained(1, (1,))
    beside, keys = trained(2, (1, 4))
    assert torch.allclose(beside.parameters[:1], alone.parameters, atol=1e-2)
    assert torch.equal(beside.clipped_fraction[:1], alone.clipped_fraction)
    assert 0 < float(alone.clipped_fraction) < 1
    sampled = [(key.client, key.step) for key in keys if key.purpose == "sampling"]
    assert sampled == [("client-0", 0), *(("client-1", step) for step in range(4))]


def test_an_empty_batch_releases_pure_noise():
    x, y, _ = problem()
    model = LaneModel(small_net(), cross_entropy)
    start = model.initial()
    lanes = lanes_of(
        [torch.arange(0)],
        clipper=NormClipper("l2", [1.0]),
        noiser=MechanismNoiser([Gaussian(2.0)]),
        steps=(1,),
        lr=1.0,
    )
    moved = train_round(model, x, y, start.unsqueeze(0), lanes, 0, Entropy(), Limits(1, 8))
    noise = (start - moved.parameters[0]).numpy()
    assert noise.std() == pytest.approx(2.0, rel=0.25)
    assert (noise != 0).all()


@pytest.mark.parametrize(
    "mechanism", [Gaussian(1.5), Laplace(1.1), Staircase(1.0, 0.8, 0.4)], ids=lambda m: m.name
)
def test_noise_scale_is_right_and_the_wrong_ones_are_rejected(mechanism):
    """Released minus clipped sum has the mechanism's variance; x 2/3 and x 3/2 would be caught."""
    sums = torch.zeros(8, 20_000)
    lanes = MechanismNoiser([mechanism] * 8)
    keys = [Key("run", f"client-{i}", 1, 0) for i in range(8)]
    noise = lanes.add(sums, Entropy(), keys).double()
    fourth = float((noise**4).mean()) / float((noise**2).mean()) ** 2
    error = math.sqrt((fourth - 1) / noise.numel())
    ratio = float((noise**2).mean()) / mechanism.variance
    assert abs(ratio - 1) < 6 * error
    assert abs((2 / 3) ** 2 - 1) > 6 * error
    assert abs((3 / 2) ** 2 - 1) > 6 * error
    assert abs(float(noise.mean())) < 6 * mechanism.noise_std / math.sqrt(noise.numel())


def test_every_lane_needs_its_mechanism():
    keys = [Key("run", "client", 1, i) for i in range(3)]
    for mechanisms in ([Gaussian(1.0)] * 2, [Gaussian(1.0)] * 4):
        with pytest.raises(InvalidInput, match="for 3 lanes"):
            MechanismNoiser(mechanisms).add(torch.zeros(3, 5), Entropy(), keys)


def test_the_correction_hook_sees_released_gradients_and_lane_state():
    x, y, records = problem()
    model = LaneModel(small_net(), cross_entropy)
    start = model.initial()
    lanes = lanes_of(records, clipper=Unclipped(), noiser=Noiseless(), rate=1.0, steps=(1,) * 4)
    anchor = torch.zeros(4, start.numel())
    object.__setattr__(lanes, "state", {"anchor": anchor})

    def pull(gradient, parameters, state):
        return gradient + 0.5 * (parameters - state["anchor"])

    plain = train_round(model, x, y, start.expand(4, -1), lanes, 0, Entropy(), Limits(2, 8))
    pulled = train_round(model, x, y, start.expand(4, -1), lanes, 0, Entropy(), Limits(2, 8), pull)
    expected = plain.parameters - 0.5 * 0.5 * start
    assert torch.allclose(pulled.parameters, expected, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("kind", [small_net, Residual, RawParameter])
def test_cuda_agrees_with_the_cpu(kind, norm):
    x = torch.randn(3, 5, 1, 8, 8) if kind is small_net else torch.randn(3, 5, 1, 4, 4)
    x = torch.randn(3, 5, 4) if kind is RawParameter else x
    net, real = kind(), torch.ones(3, 5, dtype=torch.bool)
    sums = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        model = LaneModel(net, cross_entropy).to(device)
        start = model.initial().to(device).expand(3, -1)
        model.check(start[0], x[0].to(device), labels(3, 5)[0].to(device))
        with full_precision(device):
            gradients = model.gradients(
                start, x.to(device), labels(3, 5).to(device), real.to(device)
            )
            sums.append(NormClipper(norm, [0.1, 0.5, 2.0]).clipped_sum(gradients).sum.cpu())
    assert torch.allclose(*sums, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_training_does_not_depend_on_chunks():
    x, y, records = (t.cuda() if isinstance(t, torch.Tensor) else t for t in problem())
    records = [own.cuda() for own in records]
    model = LaneModel(small_net(), cross_entropy).to(torch.device("cuda"))
    start = model.initial().cuda().expand(4, -1)
    results = []
    for limits in (Limits(4, 64), Limits(1, 64), Limits(3, 5)):
        lanes = lanes_of(
            records, clipper=NormClipper("l2", [0.5] * 4), noiser=MechanismNoiser(MIXED)
        )
        lanes = dataclasses.replace(
            lanes,
            denominators=lanes.denominators.cuda(),
            learning_rates=lanes.learning_rates.cuda(),
        )
        parameters = start
        for round_ in range(5):
            parameters = train_round(
                model, x, y, parameters, lanes, round_, Keyed(7), limits
            ).parameters
        results.append(parameters)
    assert torch.allclose(results[0], results[1], atol=1e-4)
    assert torch.allclose(results[0], results[2], atol=1e-4)


def test_reduced_precision_outside_does_not_reach_the_clipped_sum():
    """Norm and sum must agree to the rounding that the clipper allows for."""
    x, y, records = problem()
    model = LaneModel(small_net(), cross_entropy)
    seen = []

    class Watching(NormClipper):
        def lanes(self, which):
            return self

        def clipped_sum(self, gradients):
            seen.append((torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu")))
            seen.append(torch.backends.cudnn.allow_tf32)
            return super().clipped_sum(gradients)

    lanes = lanes_of(records[:1], clipper=Watching("l2", [1.0]), noiser=Noiseless(), steps=(1,))
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = train_round(
                model, x, y, model.initial()[None], lanes, 0, Entropy(), Limits(1, 64)
            )
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == [("highest", False), False]
    assert out.parameters.dtype == torch.float32


@pytest.mark.parametrize(
    "switch", ["fp32", "mkldnn.fp32", "mkldnn.conv.fp32", "mkldnn.matmul.fp32"]
)
def test_precision_that_torch_s_newer_switches_lower_is_refused(switch):
    *path, _ = switch.split(".")
    holder = functools.reduce(getattr, path, torch.backends)
    if not hasattr(holder, "fp32_precision"):
        pytest.skip("this torch has no such switch")
    before, device = holder.fp32_precision, torch.device("cpu")
    with full_precision(device):
        pass
    holder.fp32_precision = "bf16" if path else "tf32"
    try:
        with pytest.raises(Unsupported, match="precision"), full_precision(device):
            pass
    finally:
        holder.fp32_precision = before
    with full_precision(device):
        pass


# A model is tried before it is trusted


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


def one_record(net, x, y, norm, bound, loss=cross_entropy):
    """What a single record contributes to the clipped sum, measured in double."""
    model = LaneModel(net, loss)
    real = torch.ones(1, 1, dtype=torch.bool)
    gradients = model.gradients(model.initial().unsqueeze(0), x[None, None], y[None, None], real)
    total = NormClipper(norm, [bound]).clipped_sum(gradients).sum.double()
    return float(total.abs().sum() if norm == "l1" else total.square().sum().sqrt())


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_long_gradients_keep_the_bound(norm):
    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(3_000_000))

        def forward(self, x):
            return (x * self.w).sum(1, keepdim=True)

    def plain(outputs, targets):
        return outputs.squeeze(1)

    x = 1 + 0.3 * torch.rand(3_000_000, generator=torch.Generator().manual_seed(0))
    assert one_record(Long(), x, torch.tensor(0), norm, 1.0, plain) <= 1.0


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e9])
def test_positions_that_cancel_keep_the_bound(size):
    """The sum of four positions almost vanishes; what float32 leaves of it must be clipped too."""
    torch.manual_seed(0)

    class Cancels(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(64, 64, bias=False)

        def forward(self, x):
            y = self.a(x)
            return y[:, 0] + y[:, 1] - y[:, 2] - y[:, 3]

    def linear(outputs, targets):
        weights = torch.linspace(-1, 1, 64)
        return outputs @ weights * 100

    base = size * torch.randn(2, 64)
    x = torch.cat([base, base.flip(0)]) * (1 + 1e-7 * torch.randn(4, 64))
    assert one_record(Cancels(), x, torch.tensor(0), "l2", 1.0, linear) <= 1.0


@pytest.mark.parametrize("wide", [1, 300])
def test_a_tiny_input_with_a_huge_gradient_keeps_the_bound(wide):
    net = nn.Linear(wide, 1, bias=False)
    x, y = torch.full((wide,), 2.5e-23), torch.tensor([8e18])
    assert one_record(net, x, y, "l2", 1e-3, lambda o, t: (o - t).square().sum(1)) <= 1e-3


def test_a_token_outside_the_table_cannot_reach_another_client():
    net = Net(nn.Embedding(4, 5), 5, channel_axis=2)
    model = LaneModel(net, cross_entropy)
    x = torch.zeros(2, 1, 3, dtype=torch.int64)
    x[0, 0, 1] = 5
    with pytest.raises(Unsupported, match="token id"):
        model.gradients(
            model.initial().expand(2, -1), x, labels(2, 1), torch.ones(2, 1, dtype=torch.bool)
        )


@pytest.mark.parametrize("bound", [0.0, -1.0, 1e-30, 1e30, math.nan, math.inf])
def test_bounds_that_float32_cannot_hold_are_refused(bound):
    with pytest.raises(InvalidInput, match="clip"):
        NormClipper("l2", [bound])


def test_random_layers_draw_from_the_stream():
    def mask(stream, step):
        with stream.layers(Key("run", "client", 1, step, "layers"), torch.device("cpu")):
            return torch.rand(8)

    outside = torch.get_rng_state()
    assert torch.equal(mask(Keyed(1), 0), mask(Keyed(1), 0))
    assert not torch.equal(mask(Keyed(1), 0), mask(Keyed(1), 1))
    assert not torch.equal(mask(Entropy(), 0), mask(Entropy(), 0))
    assert torch.equal(torch.get_rng_state(), outside)


def projected(model, x, scale):
    """Targets that make one sample's positions cancel in the weight gradient, to rounding."""
    double = copy.deepcopy(model).double()
    out = double(x.double())
    weight = next(double.parameters())
    rows = [
        torch.autograd.grad(out.flatten()[i], weight, retain_graph=True)[0].flatten()
        for i in range(out.numel())
    ]
    jacobian = torch.stack(rows)
    wanted = torch.randn(out.numel(), dtype=torch.float64)
    fitted = torch.linalg.lstsq(jacobian, wanted.unsqueeze(1)).solution.squeeze(1)
    return ((wanted - jacobian @ fitted) * scale).view_as(out).float()


def dot(outputs, targets):
    return (outputs.flatten(1) * targets.flatten(1)).sum(1)


def clipped_alone(model, x, t, norm="l2", bound=1.0):
    lane_model = LaneModel(model, dot)
    real = torch.ones(1, len(x), dtype=torch.bool)
    gradients = lane_model.gradients(
        lane_model.initial().unsqueeze(0), x.unsqueeze(0), t.unsqueeze(0), real
    )
    return NormClipper(norm, [bound]).clipped_sum(gradients).sum[0].double()


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv2d(3, 4, 3, padding=1, bias=False), (3, 12, 12)),
        (nn.Conv1d(3, 4, 3, bias=False), (3, 50)),
        (nn.Linear(6, 4, bias=False), (80, 6)),
    ],
    ids=["conv2d", "conv1d", "linear"],
)
def test_a_record_that_is_not_finite_does_not_loosen_the_bound_of_others(model, shape, norm):
    """What was measured is summed: not another float32 product that cancels differently."""
    torch.manual_seed(1)
    for scale in (1e6, 3e7):
        x = torch.randn(1, *shape)
        t = projected(model, x, scale)
        both = torch.cat([x, torch.full_like(x, math.nan)]), torch.cat([t, t])
        size = clipped_alone(model, *both, norm).norm(p=int(norm[1]))
        assert 0.99 < size <= 1


@pytest.mark.parametrize("positions", [2, 3])
@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_rounding_of_the_others_does_not_show_where_positions_cancel(kind, positions):
    torch.manual_seed(2)
    n, inputs, outputs = 512, 64, 96
    signs = torch.tensor([1.0, -1.0] if positions == 2 else [1.0, 1.0, -2.0])
    x = torch.randn(n, 1, inputs).expand(n, positions, inputs).clone()
    t = torch.randn(n, 1, outputs) * 1e9 * signs.view(1, -1, 1)
    x[0], t[0] = torch.randn(positions, inputs), torch.randn(positions, outputs)
    model = nn.Linear(inputs, outputs, bias=False)
    if kind == "conv":
        model = nn.Conv1d(inputs, outputs, 1, bias=False)
        x, t = x.transpose(1, 2).contiguous(), t.transpose(1, 2).contiguous()
    moved = clipped_alone(model, x, t) - clipped_alone(model, x[1:], t[1:])
    assert 0.99 < moved.norm() <= 1


def test_norms_of_inputs_with_gaps_in_memory_are_not_too_small():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2048, 10, bias=False)

        def forward(self, x):
            return self.layer(x[:, :, -1])

    x = torch.full((1, 2048, 5), 2**-12.01)  # each square is lost beside one
    x[:, 0] = 1.0
    t = torch.zeros(1, 10)
    t[:, 0] = 7.0
    assert clipped_alone(Last(), x, t).norm() <= 1 - 3e-5


def test_numbers_too_small_for_full_precision_do_not_break_a_bound():
    model = nn.Linear(784, 10, bias=False)
    for bound in (1e-6, 1e-3):
        for times in (1, 7, 33):
            x, t = torch.full((1, 784), 3e38), torch.full((1, 10), times * 1.4e-45)
            for norm in ("l1", "l2"):
                assert clipped_alone(model, x, t, norm, bound).norm(p=int(norm[1])) <= bound


class ScaledNorm(nn.Module):
    """A layer whose gradients are as large as its input."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(512)

    def forward(self, x):
        return (self.norm(x) * x).sum(1, keepdim=True)


HUGE = {
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 16, 5), nn.Flatten(), nn.Linear(16 * 64, 2)),
        torch.full((1, 12, 12), 1e21),
    ),
    "layer norm": (ScaledNorm, torch.linspace(-1e20, 1e20, 512)),
    "raw parameter": (RawParameter, torch.full((4,), 1e25)),
}


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("kind", HUGE)
def test_how_a_huge_record_is_clipped_does_not_depend_on_the_others(kind, norm):
    """Its square overflows in float32. Whoever else is there, it is clipped and never dropped."""
    make, record = HUGE[kind]
    model = LaneModel(make(), lambda outputs, targets: outputs[:, 0])
    model.check(model.initial(), torch.randn(3, *record.shape), torch.zeros(3))
    start = model.initial()

    def total(lanes):
        size = max(lanes)
        x = record.expand(len(lanes), size, *record.shape)
        real = torch.arange(size) < torch.tensor(lanes).unsqueeze(1)
        gradients = model.gradients(start.expand(len(lanes), -1), x, torch.zeros(real.shape), real)
        return NormClipper(norm, [1.0] * len(lanes)).clipped_sum(gradients).sum

    p = 1 if norm == "l1" else 2
    sums = [total([count])[0] for count in (*range(1, 8), *range(60, 90))]
    assert sums[0].norm(p=p) == pytest.approx(1.0, rel=1e-3)
    for before, after in itertools.pairwise(sums[:7]):
        assert (after - before).norm(p=p) <= 1.0 + 1e-4
    for before, after in itertools.pairwise(sums[7:]):
        assert (after - before).norm(p=p) <= 1.0 + 1e-3
    alone, beside = total([40])[0], total([40, 90])[0]  # nor on another lane
    assert (alone - beside).norm(p=p) <= 1e-3


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_does_not_betray_the_sum_by_the_lattice_it_lies_on(kind):
    """Made in float32, exp(-size) * 2^24 would be a whole number for every second draw."""
    n = 100_000
    sums = torch.zeros(1, n)
    mechanism = Gaussian(1.0) if kind == "gaussian" else Laplace(1.0)
    keys = [Key("run", "client", 1, 1)]
    noise = MechanismNoiser([mechanism]).add(sums, Entropy(), keys)[0]
    assert noise.dtype == torch.float32
    if kind == "laplace":
        size = noise.double().abs()
    else:  # a pair is one value of either half
        first = noise.double()
        size = (first[: n // 2].square() + first[n // 2 :].square()) / 2
    small = size[size < 0.05]
    assert len(small) > 1000
    steps = torch.exp(-small) * 2**24
    off = (steps - steps.round()).abs().mean()
    assert off > 0.2  # a quarter where nothing shows; 0.01 for noise made in float32


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(("chosen", "kept"), [({}, True), ({"GLIBC_TUNABLES": ""}, False)])
def test_freed_memory_is_kept_unless_the_environment_has_chosen(chosen, kept):
    """Then tensors like those before need no pages from the operating system."""
    script = """if True:
        import resource, torch
        from udpfl.engine.allocation import keep_freed_memory
        print(keep_freed_memory())
        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            several = [torch.ones(3 << 20) for _ in range(6)]
            del several
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        print(min(faults() for _ in range(9)))
    """
    clean = {k: v for k, v in os.environ.items() if "MALLOC" not in k and k != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=clean | chosen, capture_output=True, check=True
    )
    said, faults = done.stdout.split()
    assert said == str(kept).encode()
    assert not kept or int(faults) < 100


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
