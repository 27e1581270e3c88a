"""What one record changes in a clipped sum, rounding included.

Sums are looked at where noise would be added to them. The bound is the clip itself: no tolerance.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from udpfl import Sensitivity, Setting, calibrate
from udpfl.engine import (
    Keyed,
    LaneModel,
    Lanes,
    Limits,
    Noiseless,
    NormClipper,
    train_round,
    training,
)
from udpfl.engine._batches import Batches
from udpfl.engine._gradients import WrittenOut
from udpfl.engine.clipping import ROUNDING
from udpfl.engine.layers.rule import gram_norm, put_weighted, sizes
from udpfl.engine.precision import DoubleSum
from udpfl.errors import Unsupported

NORMS = {"l1": 1.0, "l2": 2.0, "linf": math.inf}


class Recorder(Noiseless):
    """Keeps the sums that would get noise."""

    def lanes(self, which):
        return self

    def add(self, sums, stream, keys):
        self.sums = sums.clone()
        return sums


class Itself(nn.Module):
    """A model whose gradient is the record."""

    def __init__(self, dimension):
        super().__init__()
        self.layer = nn.Linear(dimension, 1, bias=False)

    def forward(self, x):
        return self.layer(x)


def total(model, x, rows, norm, bound=1.0, *, samples=512, declared=None):
    """The clipped sum of these rows of x, as the engine hands it to its noiser."""
    noiser, device = Recorder(), x.device
    lanes = Lanes(
        runs=("run",), clients=("client",), records=(rows.to(device),), rates=(1.0,),
        denominators=torch.tensor([float(declared or len(rows))], device=device),
        learning_rates=torch.ones(1, device=device), steps=(1,),
        clipper=NormClipper(norm, [bound]), noiser=noiser,
    )  # fmt: skip
    start = model.initial().to(device).unsqueeze(0)
    targets = torch.zeros(1, device=device).expand(len(x))
    train_round(model, x, targets, start, lanes, 0, Keyed(0), Limits(1, samples))
    assert noiser.sums.dtype == torch.float64
    return noiser.sums[0].cpu()


@cache
def itself(dimension, device="cpu"):
    model = LaneModel(Itself(dimension), lambda outputs, _: outputs.squeeze(1))
    return model.to(torch.device(device))


def change_of_equal_records(count, dimension, norm, size=3.0, device="cpu", **more):
    """Remove one of so many records that are all alike: their roundings all go the same way."""
    each = size / dimension ** (1 / NORMS[norm])
    x = torch.full((1, dimension), each, device=device).expand(count, -1)
    model, more = itself(dimension, device), {"declared": count, **more}
    with_it, without = (total(model, x, torch.arange(n), norm, **more) for n in (count, count - 1))
    return float(torch.linalg.vector_norm(with_it - without, NORMS[norm]))


EQUAL = [
    (count, dimension)
    for count in (300, 10_000, 60_000, 300_000)
    for dimension in (1, 2, 10, 1000)
    if count * dimension <= 10_000_000
]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("count", "dimension"), EQUAL)
def test_one_of_many_equal_records(count, dimension, norm):
    for size in (3.0, 1.0, 0.7):
        change = change_of_equal_records(count, dimension, norm, size)
        assert change <= 1.0
        assert change > 0.999 * min(size, 1.0)
        if count > 10_000:
            break


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_one_of_many_equal_records_in_many_dimensions(norm):
    for count in (60_000, 300_000):
        assert change_of_equal_records(count, 1000, norm) <= 1.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dimension", [1, 2, 10, 1000])
def test_one_of_many_equal_records_on_cuda(dimension, norm):
    for count in (300, 10_000, 60_000, 300_000):
        assert change_of_equal_records(count, dimension, norm, device="cuda") <= 1.0


@pytest.mark.parametrize("samples", [1, 7, 512])
@pytest.mark.parametrize("declared", [10, 5_000, 10**7])
def test_more_records_than_declared_change_nothing(samples, declared):
    """The margin does not know the batch, and no batch is too large for it."""
    change = change_of_equal_records(900, 3, "l2", samples=samples, declared=declared)
    assert 0.999 < change <= 1.0


@pytest.mark.parametrize("count", [300, 60_000, 300_000])
def test_pure_dp_by_staircase_noise_holds_for_the_true_change(count):
    """A change one part in a million beyond the period would cost twice the epsilon."""
    for dimension in (1, 2):
        found = calibrate("staircase", Setting(1.0, 0.0, 1, Sensitivity(1.0, "l2", 1)))
        change = change_of_equal_records(count, dimension, "l2")
        assert float(found.mechanism.renyi(math.inf, change)) <= 1.0 + 1e-12
        assert float(found.mechanism.renyi(math.inf, 1.00001)) == pytest.approx(2.0, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    norm=st.sampled_from(list(NORMS)),
    count=st.integers(1, 80),
    exponents=st.lists(st.integers(-35, 35), min_size=1, max_size=4),
    bound=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_any_record_among_any_others(seed, norm, count, exponents, bound):
    """Records of all sizes, tiny and huge beside each other."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 5)) * 10.0 ** rng.choice(exponents, (count, 1))
    x, rows = torch.from_numpy(x).float(), torch.arange(count)
    model, which = itself(5), int(rng.integers(count))
    with_it = total(model, x, rows, norm, bound, samples=16, declared=40)
    without = total(model, x, rows[rows != which], norm, bound, samples=16, declared=40)
    change = float(torch.linalg.vector_norm(with_it - without, NORMS[norm]))
    own = float(torch.linalg.vector_norm(x[which].double(), NORMS[norm]))
    assert change <= bound
    assert change == pytest.approx(min(own, bound), rel=2e-3, abs=1e-3 * bound)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("samples", [512, 100])
def test_a_sum_is_exact_to_double_precision(norm, samples):
    """Of records that are not clipped, against Python's exact sum of floats."""
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    found = total(itself(6), x, torch.arange(400), norm, 100.0, samples=samples)
    for column, own in zip(x.double().T.tolist(), found.tolist(), strict=True):
        assert own == pytest.approx(math.fsum(column), abs=1e-14 * sum(map(abs, column)))


@pytest.mark.parametrize("positions", [1, 3])
def test_a_sum_over_positions_is_exact_to_double_precision(positions):
    """Gradients that are not written out: products of an input and a number that is known."""
    rng = torch.Generator().manual_seed(0)
    x, out = torch.randn(400, positions, 32, generator=rng), torch.randn(48, generator=rng)
    layer = nn.Linear(32, 48, bias=False)
    model = LaneModel(layer, lambda outputs, _: (outputs * out).flatten(1).sum(1))
    found = total(model, x, torch.arange(400), "l2", 1e4).view(48, 32).numpy()
    inputs, wanted = x.double().numpy().reshape(-1, 32), out.double().numpy()
    exact, size = (np.outer(f(wanted), f(inputs).sum(0)) for f in (np.asarray, np.abs))
    assert (abs(found - exact) <= 1e-13 * size).all()


@pytest.mark.parametrize("length", [1, 255, 256, 257, 700, 1 << 20])
@pytest.mark.parametrize("p", [1, 2])
def test_sizes_are_as_exact_as_they_say(length, p):
    """Within 260 units of rounding, for equal numbers, which all round the same way, and others."""
    rng = torch.Generator().manual_seed(0)
    for full in (torch.full((1, 1, length), 0.1), torch.randn(1, 1, length, generator=rng)):
        exact = math.fsum(abs(x) ** p for x in full.flatten().tolist())
        assert float(sizes(full, p)) == pytest.approx(exact, rel=260 * 2.0**-24)


@pytest.mark.parametrize(("samples", "width"), [(3, 5), (40, 20_000), (3, 200_000)])
def test_weighted_sums_hold_every_sample(samples, width):
    """Also where they are turned into double a few at a time."""
    rng = torch.Generator().manual_seed(0)
    full = torch.randn(2, samples, width, generator=rng)
    factors = torch.rand(2, samples, generator=rng, dtype=torch.float64)
    total = torch.empty(2, width, dtype=torch.float64)
    put_weighted(factors, full, total)
    exact = (factors.unsqueeze(2) * full.double()).sum(1)
    assert torch.allclose(total, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_what_fills_up_a_batch_is_in_no_sum(norm):
    """Whatever it holds: one lane of three records and one of a single record."""
    rng = torch.Generator().manual_seed(0)
    full, real = (
        torch.randn(2, 3, 5, generator=rng),
        torch.tensor([[True] * 3, [True, False, False]]),
    )
    found = NormClipper(norm, [100.0] * 2).clipped_sum(WrittenOut(full.clone(), real))
    exact = torch.stack([full[0].double().sum(0), full[1, 0].double()])
    assert torch.allclose(found.sum, exact, rtol=0, atol=1e-14)
    assert found.clipped.tolist() == [0, 0]
    assert NormClipper(norm, [1e-3] * 2).clipped_sum(WrittenOut(full, real)).clipped.tolist() == [
        3,
        1,
    ]


class Positions(nn.Module):
    """A layer on two positions per record, wide enough to be measured by Gram matrices."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 48, bias=False)

    def forward(self, x):
        return self.layer(x) * torch.tensor([[1.0], [-1.0]])


def test_records_whose_positions_cancel():
    """Two positions pull in opposite ways: what is left of the gradient is a millionth of both."""
    model = LaneModel(Positions(), lambda outputs, _: outputs.flatten(1).sum(1))
    rng = torch.Generator().manual_seed(0)
    row = 1e6 * torch.randn(1, 1, 32, generator=rng)
    x = torch.cat([row, row + torch.randn(1, 1, 32, generator=rng)], 1).expand(4_000, -1, -1)
    with_it, without = (total(model, x, torch.arange(n), "l2") for n in (4_000, 3_999))
    assert float((with_it - without).norm()) <= 1.0


@pytest.mark.parametrize("share", [1.0, 1 / 30, 1e-4, 0.0])
def test_norms_by_gram_matrices_are_never_below_the_truth(share):
    """Against exact fractions, for two positions of which all but a share cancels."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(40):
        first, change, out = (torch.randn(6, generator=rng) for _ in range(3))
        a, b = torch.stack([first, first + share * change]), torch.stack([out, -out])
        found = Fraction(float(gram_norm(a, b)))
        left, right = ([[Fraction(float(x)) for x in row] for row in t] for t in (a, b))
        exact = sum(
            (left[0][i] * right[0][o] + left[1][i] * right[1][o]) ** 2
            for i in range(6)
            for o in range(6)
        )
        assert found >= exact
        sizes = (a.double().norm(dim=1) * b.double().norm(dim=1)).sum()
        floor = (float(sizes) / 128) ** 2
        assert floor * (1 - 1e-9) <= found <= max(float(exact), floor) * (1 + 1e-4)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("odd", [0.0, 1e-30, 1e-12, 1e25, math.inf, math.nan])
def test_no_record_decides_how_another_is_measured(norm, odd):
    """Not even in the last digit: with many records a last digit each is more than the clip."""
    model = LaneModel(
        nn.Linear(700, 3), lambda o, t: nn.functional.cross_entropy(o, t.long(), reduction="none")
    )
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1, 24, 700, generator=rng)
    extreme = x.clone()
    extreme[0, 7] *= odd
    start, real = model.initial()[None], torch.ones(1, 24, dtype=torch.bool)
    measured = [
        model.gradients(start, each, torch.zeros(1, 24), real).norms(int(NORMS[norm]))
        for each in (x, extreme)
    ]
    others = torch.arange(24) != 7
    assert torch.equal(measured[0][0, others], measured[1][0, others])


@pytest.mark.parametrize("samples", [512, 10**6])
def test_passes_have_the_same_length_whatever_was_drawn(monkeypatch, samples):
    """Else one record would change the shape of every pass, and with it everybody's rounding; and
    none is longer than what is proved, whatever a caller asks for."""
    seen = []
    rows = Batches.rows

    def counted(self, *which):
        index, real = rows(self, *which)
        seen.append(int(real.sum()))
        return index, real

    monkeypatch.setattr(Batches, "rows", counted)
    for count in (1_025, 1_024, 1_023):
        change_of_equal_records(count, 2, "l2", samples=samples)
    assert seen == [512, 512, 1, 512, 512, 512, 512, 512, 511, 512, 511, 512, 510]


def test_the_margin_is_what_the_documentation_says():
    assert ROUNDING == 2.0**-11
    for norm in NORMS:
        for dimension in (1, 10, 3_000):
            change = change_of_equal_records(1, dimension, norm)
            assert change == pytest.approx(1 - 2.0**-11, rel=4e-5)


def test_batches_beyond_what_is_proved_are_refused(monkeypatch):
    monkeypatch.setattr(training, "LARGEST_BATCH", 100)
    assert change_of_equal_records(100, 1, "l2") <= 1
    with pytest.raises(Unsupported, match="more than the 100"):
        change_of_equal_records(101, 1, "l2")


class Pooled(nn.Module):
    """Positions are weighted by a column of the record, so that the gradients of a bias cancel."""

    def __init__(self, kind):
        super().__init__()
        self.layer = nn.Linear(64, 200) if kind == "linear" else nn.Conv1d(64, 200, 1)
        self.linear = kind == "linear"

    def forward(self, x):
        inputs = x[..., :-1]
        h = self.layer(inputs) if self.linear else self.layer(inputs.mT).mT
        return (h.sum(-1) * x[..., -1]).sum(1)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_record_that_is_not_finite_changes_nothing_for_the_others(kind):
    """It is dropped after the norms are known, and biases are not added up again."""
    generator, count, positions = torch.Generator().manual_seed(0), 64, 6
    model = LaneModel(Pooled(kind), lambda outputs, _: outputs)
    x = torch.zeros(count + 1, positions, 65)
    weights = 1e6 * torch.randn(count, positions, generator=generator)
    x[:count, :, -1] = weights - weights.double().mean(1, keepdim=True).float()
    x[count] = 3e38
    rows = torch.arange(count + 1)
    assert torch.equal(total(model, x, rows, "l2", 0.1), total(model, x, rows[:count], "l2", 0.1))
    for row in range(count):
        own = total(model, x, torch.tensor([row, count]), "l2", 0.1)
        assert float(own.norm()) <= 0.1


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=300), st.integers(0, 2**32))
def test_sums_of_many_passes_lose_nothing(terms, seed):
    """Against Python's exact sum of floats."""
    found = DoubleSum()
    order = np.random.default_rng(seed).permutation(len(terms))
    for i in order:
        found.add(torch.tensor([terms[i]], dtype=torch.float64))
    exact, size = math.fsum(terms), sum(map(abs, terms))
    assert float(found.value) == pytest.approx(exact, rel=2.0**-52, abs=1e-27 * size)
    plain = sum(terms[i] for i in order)
    assert abs(float(found.value) - exact) <= abs(plain - exact) + 2.0**-52 * abs(exact)
