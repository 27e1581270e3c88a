"""Factors rounded to bfloat16: clips hold, records do not see each other, the rest is float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.engine import nets
from tests.engine.kept_sums import lanes_of, on_the_edge, sums
from tests.engine.oracle import RawParameter
from tests.small import cross_entropy
from udpfl.engine import Keyed, LaneModel, Limits, Noiseless, NormClipper, Unclipped, train_round
from udpfl.engine.clipping import ROUNDING
from udpfl.engine.layers._products import multiply
from udpfl.engine.precision import computing_in, multiplies_into_float32
from udpfl.errors import Unsupported

CPU = torch.device("cpu")


def grouped() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 2, stride=2, dilation=2),
        nn.Flatten(), nn.Linear(100, 10),
    )  # fmt: skip


def large() -> nn.Module:
    """Of images so large that torch's own convolution is used."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(72, 10)
    )


NETS = {**nets.NETS, "grouped": (grouped, (2, 14, 14)), "large": (large, (8, 24, 24))}


def problem(net: str, count: int):
    build, shape = NETS[net]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    model = LaneModel(build(), cross_entropy, "bfloat16")
    model.check(model.initial(), x[:5], y[:5])
    assert model.book_keeping  # in double nothing is rounded: all gradients agreed
    return model, x, y, model.initial()


def gradients_of(model, start, x, y):
    with computing_in("bfloat16", CPU):
        return model.gradients(start[None], x[None], y[None], torch.ones(1, len(x)) > 0)


@pytest.mark.parametrize("shape", [(3, 5, 7, 4), (1, 16, 1000, 9)])
def test_products_are_exact_but_for_adding_up_in_float32(shape):
    n, i, k, j = shape
    a, b = torch.randn(n, i, k).bfloat16(), torch.randn(n, k, j).bfloat16()
    wanted, terms = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    for plus in (None, torch.randn(n, 1, j)):
        found = multiply(a, b, plus)
        assert found.dtype == torch.float32
        more = 0 if plus is None else plus.double()
        assert float(((found - wanted - more).abs() / (terms + 1)).max()) < 1e-6
    assert not multiplies_into_float32(CPU)


@pytest.mark.parametrize("net", ["linear", "positions", "convolution"])
def test_gradients_are_products_of_rounded_factors(net):
    """Of layers' inputs and output gradients, each rounded once; outputs of rounded weights."""
    torch.manual_seed(0)
    layer, x = {
        "linear": (nn.Linear(30, 6), torch.randn(8, 30)),
        "positions": (nn.Linear(30, 6), torch.randn(8, 5, 30)),
        "convolution": (nn.Conv1d(4, 6, 3), torch.randn(8, 4, 9)),
    }[net]
    target = torch.randn_like(layer(x))
    outputs = []

    def loss(found, wanted):
        outputs.append(found.detach())
        return (found * wanted).flatten(1).sum(1)

    model = LaneModel(layer, loss, "bfloat16")
    found = gradients_of(model, model.initial(), x, target).written_out()[0]
    own = type(layer)(4, 6, 3) if net == "convolution" else nn.Linear(30, 6)
    own = own.double()
    with torch.no_grad():
        own.weight.copy_(layer.weight.bfloat16())
        own.bias.copy_(layer.bias)
    each, plain = [], []
    for record, wanted in zip(x, target, strict=True):
        for rows, factors in ((each, "rounded"), (plain, "as they are")):
            a, b = record[None], wanted[None]
            if factors == "rounded":
                a, b = a.bfloat16(), b.bfloat16()
            total = (own(a.double()) * b.double()).sum()
            rows.append(
                torch.cat([g.flatten() for g in torch.autograd.grad(total, own.parameters())])
            )
    exact, unrounded = torch.stack(each), torch.stack(plain)
    size = float(exact.norm())
    assert float((found - exact).norm()) < 1e-6 * size < 1e-4 * size
    assert float((found - unrounded).norm()) > 1e-3 * size
    assert outputs[0].dtype == torch.float32
    with torch.no_grad():
        assert float((outputs[0] - own(x.bfloat16().double())).abs().max()) < 1e-5


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_record_has_the_same_bits_whoever_else_is_there(net, lanes):
    """In another place, beside others, in a wider pass: each gradient by itself, bit by bit."""
    model, x, y, start = problem(net, 60)
    start = start.expand(lanes, -1).contiguous()
    generator, followed, found = torch.Generator().manual_seed(2), 7, []
    with computing_in("bfloat16", CPU):
        widths = model.widths(x, y, lanes, 64, 20.0)
        assert widths.first > 1
        for most in (11, 10, 20, 20, 40):
            width = widths.fit(most)
            index = torch.randint(8, 60, (lanes, width), generator=generator)
            place = int(torch.randint(0, min(most, width), (), generator=generator))
            index[0, place] = followed
            real = torch.arange(width).expand(lanes, -1) < most
            gradients = model.gradients(start, x[index], y[index], real)
            here = (index == followed).double()
            sizes = gradients.norms(2)
            found.append((sizes[0, place], gradients.weighted_sum(here)[0]))
    for size, own in found[1:]:
        assert torch.equal(size, found[0][0])
        assert torch.equal(own, found[0][1])


@pytest.mark.parametrize("count", [33, 300])
def test_a_record_that_leaves_changes_no_other(count):
    model, x, y, parameters = on_the_edge(50, count)
    model.precision = "bfloat16"
    rows = torch.arange(count)
    whole = sums(model, x, y, parameters, rows)
    for left in (0, count // 2, count - 1):
        less = sums(model, x, y, parameters, rows[rows != left])
        assert 0 < float((whole - less).norm()) <= 0.1


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_no_record_adds_more_than_its_clip(net, norm, size):
    """What is summed is what was measured: of one record alone, and of many equal ones."""
    model, x, y, start = problem(net, 20)
    order = {"l1": 1, "l2": 2, "linf": torch.inf}[norm]
    for rows in (torch.arange(20), torch.full((20,), 3)):
        whole = gradients_of(model, start, x[rows] * size, y[rows])
        bound = 0.3 * float(whole.norms(2).median()) * {"l1": 10, "l2": 1, "linf": 0.01}[norm]
        bound = min(max(bound, 1e-9), 1e9)
        whole, less = (
            sums(model, x * size, y, start, some, norm=norm, clip=bound)
            for some in (rows, rows[1:])
        )
        assert float(torch.linalg.vector_norm(whole - less, order)) <= bound
        alone = gradients_of(model, start, x[rows[:1]] * size, y[rows[:1]])
        one = NormClipper(norm, [bound]).clipped_sum(alone).sum
        assert float(torch.linalg.vector_norm(one, order)) <= bound * (1 - ROUNDING / 2)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("order", [1, 2])
def test_what_is_measured_is_what_is_summed(net, order):
    model, x, y, start = problem(net, 6)
    gradients = gradients_of(model, start, x, y)
    sizes = gradients.norms(order)
    for record in range(6):
        one = torch.zeros(1, 6, dtype=torch.float64)
        one[0, record] = 1.0
        whole = gradients.weighted_sum(one)
        own = torch.linalg.vector_norm(whole, order)
        assert abs(float(own / sizes[0, record]) - 1) < 3.2e-5
        part = gradients.weighted_sum(one / 3)
        torch.testing.assert_close(part, whole / 3, rtol=1e-12, atol=1e-15 * float(own))


@pytest.mark.parametrize("bad", [torch.inf, torch.nan, 3.4028e38])
@pytest.mark.parametrize("net", NETS)
def test_a_record_that_is_not_finite_counts_for_nothing(net, bad):
    """Nor one that bfloat16 cannot hold."""
    model, x, y, start = problem(net, 12)
    broken = x.clone()
    broken[4].view(-1)[5] = bad
    real = torch.ones(1, 12, dtype=torch.bool)
    for norm in ("l1", "l2", "linf"):
        clipper = NormClipper(norm, [0.1])
        found, without = (
            clipper.clipped_sum(model.gradients(start[None], own[None], y[None], there)).sum
            for own, there in ((broken, real), (x, real & (torch.arange(12) != 4)))
        )
        torch.testing.assert_close(found, without, rtol=1e-6, atol=1e-9)
    padding = real & (torch.arange(12) != 4)
    plain = Unclipped().clipped_sum(model.gradients(start[None], broken[None], y[None], padding))
    assert bool(torch.isfinite(plain.sum).all())


@pytest.mark.parametrize("net", NETS)
def test_gradients_are_near_those_in_double(net):
    model, x, y, start = problem(net, 6)
    found = gradients_of(model, start, x, y).written_out()[0].double()
    own, each = NETS[net][0]().double(), []
    for record, target in zip(x.double(), y, strict=True):
        loss = nn.functional.cross_entropy(own(record[None]), target[None])
        parts = torch.autograd.grad(loss, list(own.parameters()))
        each.append(torch.cat([part.flatten() for part in parts]))
    exact = torch.stack(each)
    assert 1e-5 < float((found - exact).norm() / exact.norm()) < 0.05


def test_normalisation_and_other_layers_are_in_float32():
    torch.manual_seed(0)
    net = nn.Sequential(nn.GroupNorm(2, 8), nn.LayerNorm(5), nn.Flatten(), nn.Linear(40, 3))
    model = LaneModel(net, cross_entropy, "bfloat16")
    x, y = torch.randn(4, 8, 5), torch.arange(4) % 3
    gradients = gradients_of(model, model.initial(), x, y)
    uses = {type(tap.rule).__name__: tap.use for tap in gradients._taps}
    assert {name: use.x.dtype for name, use in uses.items()} == {
        "GroupNorm": torch.float32, "LayerNorm": torch.float32, "Linear": torch.bfloat16,
    }  # fmt: skip
    assert {name: use.g.dtype for name, use in uses.items()} == {
        "GroupNorm": torch.float32, "LayerNorm": torch.float32, "Linear": torch.bfloat16,
    }  # fmt: skip


class InLess(nn.Module):
    """Asks for bfloat16 itself, in which nothing is measured."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x.bfloat16()).float()


@pytest.mark.parametrize("kind", [RawParameter, InLess])
def test_models_without_rules_are_refused(kind):
    x, y = torch.randn(6, 6 if kind is InLess else 4), torch.arange(6) % 3
    model = LaneModel(kind(), cross_entropy, "bfloat16")
    why = "rounds factors in layers that have a rule" if kind is RawParameter else "torch.func"
    with pytest.raises(Unsupported, match=why):
        model.check(model.initial(), x, y)


def test_training_does_not_depend_on_how_lanes_are_stacked():
    model, x, y, start = problem("positions", 90)
    records = [torch.arange(30 * lane, 30 * lane + 30 - lane) for lane in range(3)]
    settings = replace(
        lanes_of(records, []), rates=(0.5,) * 3, steps=(3,) * 3, noiser=Noiseless(),
        learning_rates=torch.full((3,), 0.5), denominators=torch.full((3,), 15.0),
    )  # fmt: skip
    results = [
        train_round(model, x, y, start.expand(3, -1), settings, 0, Keyed(3), limits).parameters
        for limits in (Limits(3, 64), Limits(1, 64), Limits(2, 8), Limits(1, 64, workers=2))
    ]
    assert not torch.equal(results[0], start.expand(3, -1))
    for other in results[1:]:
        assert torch.allclose(results[0], other, atol=2e-3)
    assert torch.equal(results[1], results[3])


def test_a_pass_of_one_record_is_rounded_as_well():
    model, x, y, start = problem("positions", 5)
    real = torch.ones(1, 1, dtype=torch.bool)
    found = model.pass_gradients(start[None], x[None, :1], y[None, :1], real).written_out()
    beside = gradients_of(model, start, x, y).written_out()[:, :1]
    exact = LaneModel(NETS["positions"][0](), cross_entropy)
    plain = exact.gradients(start[None], x[None, :1], y[None, :1], real).written_out()
    torch.testing.assert_close(found, beside, rtol=1e-4, atol=1e-6)
    assert float((found - plain).norm() / plain.norm()) > 1e-4


class Half(nn.Module):
    """Hands its layer bfloat16 whatever is asked for."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        if x.dtype == torch.float64:
            return self.layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(torch.mm(x, torch.eye(6)))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_bfloat16_that_a_model_asks_for_is_noticed(precision):
    x, y = torch.randn(6, 6), torch.arange(6) % 3
    model = LaneModel(Half(), lambda o, t: cross_entropy(o.to(torch.float64), t), precision)
    if precision == "bfloat16":
        with pytest.raises(Unsupported, match=r"computes in torch\.bfloat16"):
            model.check(model.initial(), x, y)
    else:
        model.check(model.initial(), x, y)
        assert "computes in torch.bfloat16" in (model.why_alone or "")
