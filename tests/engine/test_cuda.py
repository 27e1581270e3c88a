"""Training on CUDA, in every precision: clips hold, records do not see each other, graphs agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from scipy import stats
from torch import nn

from tests.engine.kept_sums import lanes_of, on_the_edge
from tests.engine.nets import NETS
from tests.small import cross_entropy
from udpfl.engine import (
    Entropy,
    Key,
    Keyed,
    LaneModel,
    Limits,
    MechanismNoiser,
    Noiseless,
    NormClipper,
    Unclipped,
    train_round,
)
from udpfl.engine.clipping import ROUNDING
from udpfl.engine.layers._products import multiply
from udpfl.engine.precision import computing_in, multiplies_into_float32
from udpfl.mechanisms import BUILT_IN, Laplace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CUDA, PRECISIONS = torch.device("cuda"), ["float32", "tf32", "bfloat16"]


def problem(net: str, count: int, precision: str = "float32"):
    build, shape = NETS[net]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator).to(CUDA)
    y = torch.randint(0, 10, (count,), generator=generator).to(CUDA)
    model = LaneModel(build(), cross_entropy, precision).to(CUDA)
    start = model.initial().to(CUDA)
    model.check(start, x[:5], y[:5])
    assert model.book_keeping
    return model, x, y, start


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_record_has_the_same_bits_whoever_else_is_there(net, precision, lanes):
    """In another place, beside others, in a wider pass: each gradient by itself, bit by bit."""
    model, x, y, start = problem(net, 200, precision)
    start = start.expand(lanes, -1).contiguous()
    generator = torch.Generator().manual_seed(2)
    followed, found = 7, []
    with computing_in(precision, CUDA):
        widths = model.widths(x, y, lanes, 512, 60.0)
        for most in (41, 40, 60, 60, 60, 150):
            width = widths.fit(most)
            count = min(most, width)
            index = torch.randint(8, 200, (lanes, width), generator=generator)
            index[0, int(torch.randint(0, count, (), generator=generator))] = followed
            real = torch.arange(width, device=CUDA).expand(lanes, -1) < count
            index = index.to(CUDA)
            gradients = model.gradients(start, x[index], y[index], real)
            here = (index == followed).double()
            sizes = gradients.norms(2)
            own = gradients.weighted_sum(here)[0]
            found.append((sizes[index == followed], own))
    assert len(found[0][1]) == model.layout.dimension
    for size, own in found[1:]:
        assert torch.equal(size, found[0][0])
        assert torch.equal(own, found[0][1])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("count", [33, 300])
def test_a_record_that_leaves_changes_no_other(count, precision):
    model, x, y, parameters = on_the_edge(50, count, device="cuda")
    model.precision = precision
    for left in (0, count // 2):
        kept = []
        for rows in (torch.arange(count), torch.arange(count)[torch.arange(count) != left]):
            lanes = lanes_of([rows.to(CUDA)], kept)
            train_round(model, x, y, parameters[None], lanes, 0, Keyed(0), Limits(8, 512))
        assert float((kept[0] - kept[1]).norm()) <= 0.1


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_no_record_adds_more_than_its_clip(net, precision, norm, size):
    """What is summed is what was measured: of one record alone, and of many equal ones."""
    model, x, y, start = problem(net, 60, precision)
    with computing_in(precision, CUDA):
        for rows in (torch.arange(60), torch.full((60,), 3)):
            index = rows.to(CUDA)[None]
            real = torch.ones(1, 60, dtype=torch.bool, device=CUDA)
            gradients = model.gradients(start[None], x[index] * size, y[index], real)
            sizes = gradients.norms(int(norm[1]))
            assert bool(torch.isfinite(sizes).all())
            bound = 0.3 * float(sizes.median())
            for record in (0, 17):
                one = torch.zeros(1, 60, dtype=torch.float64, device=CUDA)
                one[0, record] = bound * (1 - ROUNDING) / max(float(sizes[0, record]), bound)
                own = gradients.weighted_sum(one)
                length = torch.linalg.vector_norm(own, int(norm[1]))
                assert float(length) <= bound * (1 - ROUNDING / 2)
            total = NormClipper(norm, [bound]).clipped_sum(gradients).sum
            assert float(torch.linalg.vector_norm(total, int(norm[1]))) <= 60 * bound


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
@pytest.mark.parametrize("net", NETS)
def test_a_record_that_is_not_finite_counts_for_nothing(net, bad):
    model, x, y, start = problem(net, 20)
    broken = x.clone()
    broken[4].view(-1)[5] = bad
    index = torch.arange(20, device=CUDA)[None]
    real = torch.ones(1, 20, dtype=torch.bool, device=CUDA)
    for norm in ("l1", "l2", "linf"):
        clipper = NormClipper(norm, [0.1])
        found, without = (
            clipper.clipped_sum(model.gradients(start[None], own[index], y[index], there)).sum
            for own, there in ((broken, real), (x, real & (index != 4)))
        )
        assert torch.equal(found, without)
    padding = real & (index != 4)
    plain = Unclipped().clipped_sum(model.gradients(start[None], broken[index], y[index], padding))
    assert bool(torch.isfinite(plain.sum).all())


def trained(model, x, y, start, rounds: int, lanes: int = 2, private: bool = True):
    own = [torch.arange(lane * 60, lane * 60 + 50, device=CUDA) for lane in range(lanes)]
    settings = lanes_of(own, [])
    settings = replace(
        settings, rates=(0.5,) * lanes, steps=(3,) * lanes, noiser=Noiseless(),
        learning_rates=torch.full((lanes,), 0.5, device=CUDA),
        denominators=torch.full((lanes,), 25.0, device=CUDA),
    )  # fmt: skip
    parameters = start.expand(lanes, -1)
    for round_ in range(rounds):
        bounds = [0.05 * (1 + round_)] * lanes  # as an adaptive clip does
        clipper = NormClipper("l2", bounds) if private else Unclipped()
        own = replace(settings, clipper=clipper)
        trained = train_round(model, x, y, parameters, own, round_, Keyed(3), Limits(8, 512))
        parameters = trained.parameters
    return parameters


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("net", NETS)
def test_a_recorded_pass_gives_the_bits_of_one_that_is_not(net, precision, private, monkeypatch):
    model, x, y, start = problem(net, 120, precision)
    found = trained(model, x, y, start, 4, private=private)
    assert any(recorded is not None for recorded in model.graphs._seen.values())
    monkeypatch.setattr(LaneModel, "recordable", False)
    assert torch.equal(found, trained(model, x, y, start, 4, private=private))


class Looks(nn.Module):
    """Reads a number, which a graph cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) * (2.0 if float(self.layer.weight.sum()) > 1e9 else 1.0)


@pytest.mark.parametrize("kind", ["looks", "drops", "ids"])
def test_what_cannot_be_recorded_is_computed_as_usual(kind):
    net = {
        "looks": Looks,
        "drops": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        "ids": lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3)),
    }[kind]()
    x = torch.randint(0, 9, (120, 6)) if kind == "ids" else torch.randn(120, 6)
    x, y = x.to(CUDA), (torch.arange(120) % 3).to(CUDA)
    model = LaneModel(net, cross_entropy).to(CUDA)
    start = model.initial().to(CUDA)
    model.check(start, x[:5], y[:5])
    parameters = trained(model, x, y, start, 3)
    assert bool(torch.isfinite(parameters).all())
    assert not any(model.graphs._seen.values())


@pytest.mark.parametrize(
    ("net", "precision", "most"),
    [
        ("convolutions", "float32", 1e-5),
        ("positions", "float32", 1e-5),
        ("positions", "bfloat16", 5e-2),
        ("positions", "tf32", 1e-2),  # without units that are on or off by a rounding
    ],
)
def test_gradients_are_those_of_the_cpu_in_double(net, precision, most):
    model, x, y, start = problem(net, 30, precision)
    index = torch.arange(30, device=CUDA)[None]
    with computing_in(precision, CUDA):
        found = model.gradients(start[None], x[index], y[index], index >= 0).written_out()[0].cpu()
    own, each = NETS[net][0]().double(), []
    for record, target in zip(x.cpu().double(), y.cpu(), strict=True):
        loss = F.cross_entropy(own(record[None]), target[None])
        parts = torch.autograd.grad(loss, list(own.parameters()))
        each.append(torch.cat([part.flatten() for part in parts]))
    exact = torch.stack(each)
    assert float((found.double() - exact).norm() / exact.norm()) <= most


@pytest.mark.parametrize("name", BUILT_IN)
def test_noise_of_every_built_in_mechanism_has_its_own_size_and_law(name):
    """Fresh in every lane and step, beside lanes with other noise of the same kind."""
    kind, dimension = BUILT_IN[name], 1000
    own = {"decay": 0.7, "period": 0.7} if "period" in kind.__dataclass_fields__ else {}
    noise = (kind(**own) if own else kind(1.3)).in_dimension(dimension)
    noises, sums = [noise, noise.scaled(4.0), Laplace(1.0), noise], 0.3
    keys = [Key("run", str(lane), 1, 0) for lane in range(4)]
    zeros = torch.full((4, 100 * dimension), sums, dtype=torch.float64, device=CUDA)
    drawn = MechanismNoiser(noises).add(zeros, Entropy(), keys).double().cpu() - sums
    rng = np.random.default_rng(0)
    for row, mechanism in zip(drawn, noises, strict=True):
        exact = mechanism.sample_one(len(row), rng)
        assert stats.ks_2samp(row.numpy(), exact).pvalue > 1e-4
        for wrong in (2 / 3, 3 / 2):
            assert stats.ks_2samp(wrong * row.numpy(), exact).pvalue < 1e-9
    assert np.abs(np.corrcoef(drawn.numpy()) - np.eye(4)).max() < 0.02


def test_factors_are_rounded_only_where_that_is_asked_for():
    a = torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).to(CUDA)
    errors = {}
    for precision in PRECISIONS:
        with computing_in(precision, CUDA):
            errors[precision] = float((a @ a - (a.double() @ a.double())).norm() / (a @ a).norm())
    assert errors["float32"] < 1e-6 < 1e-4 < errors["tf32"]
    assert errors["bfloat16"] == errors["float32"]  # of layers alone, which round them themselves


def test_products_of_bfloat16_are_added_up_in_float32():
    a, b = (torch.randn(3, 40, 4000, device=CUDA).bfloat16() for _ in "12")
    assert multiplies_into_float32(CUDA)  # else they are multiplied as float32, more slowly
    with computing_in("bfloat16", CUDA):
        found = multiply(a, b.mT)
    wanted, terms = a.double() @ b.double().mT, a.double().abs() @ b.double().abs().mT
    assert found.dtype == torch.float32
    assert float(((found - wanted).abs() / terms).max()) < 1e-5
