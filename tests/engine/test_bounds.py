"""Records that are huge, tiny, broken or cancel each other keep the bound of the clipper."""

from __future__ import annotations

import copy
import itertools
import math
import sys
from functools import partial

import pytest
import torch
from torch import nn

from tests.engine.oracle import Net, RawParameter, labels
from tests.small import cross_entropy
from udpfl.engine import Entropy, Key, Keyed, LaneModel, MechanismNoiser, NormClipper
from udpfl.engine.layers.linear import Linear
from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms import Gaussian, Laplace


@pytest.fixture(params=["float32", "bfloat16"])
def precision(request, monkeypatch):
    """Lane models of this test in either precision."""
    kept = partial(LaneModel, precision=request.param)
    monkeypatch.setattr(sys.modules[__name__], "LaneModel", kept)
    return request.param


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
@pytest.mark.usefixtures("precision")
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
@pytest.mark.usefixtures("precision")
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
@pytest.mark.usefixtures("precision")
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
@pytest.mark.usefixtures("precision")
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


@pytest.mark.usefixtures("precision")
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


@pytest.mark.usefixtures("precision")
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
def test_how_a_huge_record_is_clipped_does_not_depend_on_the_others(kind, norm, precision):
    """Its square overflows in float32. Whoever else is there, it is clipped and never dropped."""
    if precision == "bfloat16" and kind == "raw parameter":
        pytest.skip("no rule, no bfloat16")
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


class SharedBias(nn.Module):
    """Two layers on several positions that share their bias and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(48, 48), nn.Linear(48, 48)
        self.two.bias = self.one.bias

    def forward(self, x):
        return (self.one(x) + self.two(x.flip(2))).tanh().sum((1, 2)).unsqueeze(1)


def test_where_a_bias_is_shared_the_weights_that_are_summed_are_those_that_were_measured(
    monkeypatch,
    precision,
):
    """Sharing makes a layer write its weight out, with other roundings than Gram matrices."""
    kept = Linear.each

    def rounded(self, use):
        return {name: 1.01 * full for name, full in kept(self, use).items()}

    model = LaneModel(SharedBias(), lambda outputs, _: outputs.squeeze(1))
    monkeypatch.setattr(Linear, "each", rounded)
    x, real = torch.randn(1, 5, 3, 48), torch.ones(1, 5, dtype=torch.bool)
    for norm in (1, 2):
        gradients = model.gradients(model.initial()[None], x, torch.zeros(1, 5), real)
        sizes = gradients.norms(norm)
        for record in range(5):
            one = torch.zeros(1, 5, dtype=torch.float64)
            one[0, record] = 1.0
            own = torch.linalg.vector_norm(gradients.weighted_sum(one), norm)
            assert abs(float(own / sizes[0, record]) - 1) < 1e-5
