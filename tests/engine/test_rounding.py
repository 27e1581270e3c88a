"""No record is rounded in another way when another one leaves the batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.engine.kept_sums import lanes_of, on_the_edge, sums
from tests.small import cross_entropy
from udpfl.engine import Keyed, LaneModel, Limits
from udpfl.engine._operators import Operators
from udpfl.engine._places import places_do_not_show
from udpfl.engine.counting import SENSITIVITY, counted_within

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [13, 50, 64])
@pytest.mark.parametrize("count", [2, 6, 33, 300, 1100])
def test_a_record_that_leaves_changes_no_other(inputs, count, device):
    model, x, y, parameters = on_the_edge(inputs, count, device=device)
    rows = torch.arange(count, device=device)
    whole = sums(model, x, y, parameters, rows)
    for left in (0, count // 2, count - 1):
        less = sums(model, x, y, parameters, rows[rows != left])
        assert float((whole - less).norm()) <= 0.1


def test_nor_does_it_change_other_clients():
    model, x, y, parameters = on_the_edge(50, 300)
    rows = torch.arange(300)
    whole, less = (
        sums(model, x, y, parameters, first, rows[:290])[1] for first in (rows, rows[1:])
    )
    assert torch.equal(whole, less)


def test_nor_a_count():
    model, x, y, parameters = on_the_edge(50, 300)
    counts = []
    for rows in (torch.arange(300), torch.arange(1, 300)):
        lanes = lanes_of([rows], [], clip=1e-3)
        counted = counted_within(
            model, x, y, parameters.expand(1, -1), lanes, 0, Keyed(0), Limits(8, 512)
        )
        counts.append(float(counted))
    assert abs(counts[0] - counts[1]) <= SENSITIVITY
    assert abs(counts[0]) > 10


def binary(outputs, targets):
    return F.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")


@pytest.mark.parametrize("split", range(4))
@pytest.mark.parametrize("inputs", [20, 1000])
def test_numbers_at_the_end_of_a_tensor_are_those_of_another_formula(inputs, split):
    """A sigmoid computes the last numbers of a tensor in another way; about one in fifty differs.

    With targets that are what the model says, a gradient is zero or one unit of rounding.
    """
    generator = torch.Generator().manual_seed(split)
    net = nn.Linear(inputs, 1)
    with torch.no_grad():
        net.weight.copy_(torch.randn(1, inputs, generator=generator) / inputs**0.5)
        net.bias.zero_()
    public = torch.randn(9, inputs, generator=generator)
    model = LaneModel(net, binary)
    model.check(model.initial(), public, torch.rand(9, generator=generator))
    x = torch.randn(64, inputs, generator=generator)
    y = torch.sigmoid(model.outputs(model.initial(), x))[:, 0]
    for count in range(29, 64):
        rows = torch.arange(count)
        whole = sums(model, x, y, model.initial(), rows, clip=1e-7)
        less = sums(model, x, y, model.initial(), rows[1:], clip=1e-7)
        assert float((whole - less).norm()) <= 1e-7


def test_operators_with_two_formulas_get_whole_vectors():
    model = LaneModel(nn.Linear(20, 1), binary)
    x, y = torch.randn(9, 20), torch.rand(9)
    for lanes in (1, 2, 3, 4):
        widths = model.widths(x, y, lanes, 512, 40.0)
        assert all(widths.fit(count) * lanes % 32 == 0 for count in range(2, 300, 7))
    plain = LaneModel(nn.Linear(20, 64), cross_entropy)
    found = {plain.widths(x, y.long(), 1, 512, 40.0).fit(count) for count in range(20, 60)}
    assert len(found) > 20  # products alone leave nearly all widths


@pytest.mark.parametrize(
    ("function", "is_harmless"),
    [
        (torch.relu, True), (torch.abs, True), (torch.sqrt, True), (torch.square, True),
        (lambda t: t * 0.3 + t / 3, True), (lambda t: torch.where(t > 0, t, -t), True),
        (torch.sigmoid, False), (F.silu, False), (F.softplus, False), (F.mish, False),
        (F.elu, False), (lambda t: (t.abs() + 0.1) ** 2.5, False),
    ],
)  # fmt: skip
def test_what_is_said_of_operators_holds_on_this_machine(function, is_harmless):
    """Those that are called harmless give a number the same bits wherever it lies."""
    seen = []
    for width in (31, 3, 33):
        with Operators() as operators:
            function(torch.ones(width))
        seen.append(operators.seen)
    assert places_do_not_show(seen[0], seen[1:], 1) == is_harmless
    numbers = 3 * torch.randn(31 * 500, generator=torch.Generator().manual_seed(0))
    whole = function(numbers.abs() if function is torch.sqrt else numbers)
    if is_harmless:
        for start in range(0, len(numbers), 31):
            part = numbers[start : start + 31].clone()
            found = function(part.abs() if function is torch.sqrt else part)
            assert torch.equal(found, whole[start : start + 31])


@pytest.mark.parametrize("lanes", [1, 2])
def test_large_inputs_are_tried_like_small_ones(lanes):
    """Where a loss is saturated there is nothing to be rounded, and any width would do."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(50, 32), nn.ReLU(), nn.Linear(32, 2))
    x, y = torch.rand(40, 50, generator=generator), torch.arange(40) % 2
    found = []
    for scale in (1.0, 1e6):
        model = LaneModel(net, cross_entropy)
        model.check(model.initial(), scale * x, y)
        widths = model.widths(scale * x, y, lanes, 64, 40.0)
        found.append([widths.fit(count) for count in range(1, 64)])
    assert found[0] == found[1]


@pytest.mark.parametrize("lanes", [1, 4, 24])
def test_rounding_before_a_step_shows_in_no_gradient(lanes):
    """The gradient of a hinge is one of two numbers: what decides on it has to be looked at."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Linear(64, 1)
    model = LaneModel(net, lambda o, t: F.relu(1 - (2 * t - 1) * o[:, 0]))
    public, labels = torch.randn(40, 64, generator=generator), (torch.arange(40) % 2).float()
    model.check(model.initial(), public, labels)
    widths = model.widths(public, labels, lanes, 64, 20.0)
    weight = torch.randn(1, 64, generator=generator)
    for count in (9, 33, 50):
        width = widths.fit(count)
        x = torch.randn(1, 64, generator=generator).expand(lanes, width, 64).contiguous()
        outputs = torch.baddbmm(
            torch.zeros(lanes, 1, 1), x, weight.t().expand(lanes, 64, 1).contiguous()
        )
        assert torch.equal(outputs, outputs[:, :1].expand_as(outputs))


def test_powers_of_tensors_are_no_squares():
    class Power(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(2.0**x + x.abs().pow(torch.full((6,), 2.0)))

    model = LaneModel(Power(), cross_entropy)
    x, y = torch.rand(20, 6), torch.arange(20) % 3
    model.check(model.initial(), x, y)
    assert model.book_keeping
    sums(model, x, y, model.initial(), torch.arange(20))
