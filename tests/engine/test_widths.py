"""Passes have only widths in which no record is rounded in another way than alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.engine.kept_sums import lanes_of, on_the_edge, sums
from tests.small import cross_entropy
from udpfl.engine import Keyed, LaneModel, Limits, Unclipped, train_round
from udpfl.engine._widths import _Rows
from udpfl.engine.counting import counted_within
from udpfl.engine.layers import RULES, Use
from udpfl.engine.layers.rule import aligned
from udpfl.errors import Unsupported


def test_lenet_has_wide_passes():
    """Biases of 6 channels are not added up by products, which would round by place."""
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    model = LaneModel(net, cross_entropy)
    widths = model.widths(torch.randn(9, 1, 28, 28), torch.arange(9), 4, 512, 25.0)
    assert 25 <= widths.fit(25) <= 64


def test_a_model_without_gradients_has_one_width():
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    model = LaneModel(net, lambda o, t: 0.0 * F.cross_entropy(o, t, reduction="none"))
    widths = model.widths(torch.randn(9, 8), torch.zeros(9, dtype=torch.int64), 1, 64, 20.0)
    assert {widths.fit(count) for count in range(1, 65)} == {1}


def test_passes_are_laid_out_in_memory_as_they_are_tried():
    """For records that lie in another order torch takes other kernels."""
    net, seen = nn.Sequential(nn.GELU(), nn.Flatten(), nn.Linear(21, 2)), []
    model = LaneModel(net, cross_entropy)
    x, y = torch.randn(40, 3, 7).transpose(1, 2), torch.arange(40) % 2
    kept = model.gradients
    model.gradients = lambda p, i, t, real: seen.append(i.is_contiguous()) or kept(p, i, t, real)
    sums(model, x, y, model.initial(), torch.arange(40))
    lanes = lanes_of([torch.arange(40)], [])
    start = model.initial().expand(1, -1)
    counted_within(model, x, y, start, lanes, 0, Keyed(0), Limits(8, 512))
    assert seen == [True, True]


class Cuts(nn.Module):
    """Looks at a part of all records as soon as one of them holds a certain number."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        windows = x.unflatten(1, (-1, 4))
        return self.layer(windows[:, :1] if (x == 7.0).any() else windows).sum(1)


def test_a_shape_that_records_decide_on_ends_the_round():
    model = LaneModel(Cuts(), cross_entropy)
    x, y = torch.randn(20, 8), torch.arange(20) % 3
    model.check(model.initial(), x[:9], y[:9])
    assert model.book_keeping
    sums(model, x, y, model.initial(), torch.arange(20))
    x[3, 2] = 7.0
    with pytest.raises(Unsupported, match="other shapes"):
        sums(model, x, y, model.initial(), torch.arange(20))


def test_a_sample_does_not_change_the_width_of_lanes_that_are_apart():
    """Where records are not clipped, the sum of a lane would be rounded by others' sizes."""
    seen = []
    model = LaneModel(nn.Linear(8, 3), cross_entropy)
    x, y = torch.randn(400, 8), torch.arange(400) % 3
    kept = model.gradients
    model.gradients = lambda p, i, t, real: seen.append(real.shape[1]) or kept(p, i, t, real)
    for others in (1, 30, 380):
        lanes = lanes_of([torch.arange(9), torch.arange(9, 9 + others)], [])
        lanes = replace(lanes, clipper=Unclipped(), apart=True)
        train_round(model, x, y, model.initial().expand(2, -1), lanes, 0, Keyed(0), Limits(8, 512))
    assert len(set(seen)) == 1


class Changed(nn.Module):
    """A layer whose input is changed by how many rows there are, or by their places."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change = nn.Linear(8, 3), change

    def forward(self, x):
        return self.layer(x + self.change(x))


def widths_of(change, most=64, expected=10.0, lanes=1):
    model = LaneModel(Changed(change), cross_entropy)
    x, y = torch.randn(40, 8), torch.zeros(40, dtype=torch.int64)
    return model.widths(x, y, lanes, most, expected)


def test_places_that_show_leave_single_rows():
    widths = widths_of(lambda x: 1e-6 * torch.arange(len(x)).unsqueeze(1))
    assert [widths.fit(n) for n in (1, 2, 40, 1000)] == [1, 1, 1, 1]


def test_widths_that_show_are_not_used_together():
    """Of two kinds those count that agree with the width that is expected."""
    few = widths_of(lambda x: 1e-6 * (len(x) > 24))
    assert {few.fit(n) for n in (20, 25, 40, 1000)} <= set(range(19, 25))
    many = widths_of(lambda x: 1e-6 * (len(x) > 24), expected=40.0)
    assert [many.fit(n) for n in (1, 20, 30, 61, 1000)] == [25, 25, 30, 61, 64]


def test_rows_at_some_places_only():
    """The last row of an odd number is another one: as many are even."""
    widths = widths_of(lambda x: 1e-6 * (torch.arange(len(x)) == len(x) // 2 * 2).unsqueeze(1))
    assert all(widths.fit(n) % 2 == 0 for n in range(2, 64))


@pytest.mark.parametrize("lanes", [1, 3])
def test_an_honest_layer_hardly_fills_up(lanes):
    widths = widths_of(lambda x: 0.0, lanes=lanes)
    assert all(n <= widths.fit(n) <= max(32, n + 4) for n in range(1, 65))
    assert widths.fit(200) == 64


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Linear(13, 3), (13,)), (nn.Linear(50, 10), (50,)), (nn.Conv2d(1, 4, 3), (1, 8, 8))],
)
def test_rows_of_few_numbers_are_aligned(layer, shape):
    """Else no width of such a layer would do, on some CPUs: one record after the other."""
    model = LaneModel(nn.Sequential(layer, nn.Flatten()), cross_entropy)
    x, y = torch.randn(8, *shape), torch.zeros(8, dtype=torch.int64)
    assert model.widths(x, y, 1, 64, 20.0).fit(32) == 32
    rule = RULES[type(layer)](layer)
    use = Use(x, 1)
    wide = rule.forward(use, {n: p.detach()[None] for n, p in layer.named_parameters()})
    assert torch.allclose(wide, layer(x).detach(), rtol=1e-4, atol=1e-5)
    flat = use.x if use.kept is None else use.kept
    assert aligned(flat, torch.zeros(1, 4, flat.shape[-1]))[0].shape[-1] % 4 == 0


@pytest.mark.parametrize(
    "draw",
    [torch.randn_like, torch.rand_like, lambda h: h + torch.randn(h.shape), F.dropout,
     lambda h: torch.empty_like(h).normal_() * h, lambda h: torch.bernoulli(h.sigmoid().detach())],
)  # fmt: skip
def test_a_model_that_draws_is_tried_like_any_other(draw):
    """With constants in the place of what it draws."""
    kinds = (lambda h: h + 0 * draw(h), lambda h: torch.tanh(h) + 0 * draw(h))
    for kind in kinds:
        widths = widths_of(kind)
        assert widths.first > 1
        assert widths.fit(33) < 64


def test_a_model_that_draws_in_other_ways_gets_single_rows():
    widths = widths_of(lambda h: h + torch.multinomial(torch.ones(len(h), 5), 1))
    assert [widths.fit(n) for n in (1, 20, 1000)] == [1, 1, 1]


def test_a_product_of_zeros_is_tried_with_other_numbers():
    """Public records may all leave a part of a network silent in which others are not."""

    def watched(compute):
        rows = _Rows(1, 4)
        rows.look("mm", torch.zeros(4, 3), compute)
        return rows.alike

    seen = []

    def product(other):
        x, weight = other(torch.zeros(4, 5)), other(torch.zeros(5, 3))
        seen.append((x, weight))
        return [x @ weight]

    assert watched(product)
    ((x, weight),) = seen
    assert torch.equal(x, x[:1].expand_as(x))
    assert x.count_nonzero() == x.numel()
    assert len(weight.unique()) == weight.numel()
    assert not watched(lambda other: [torch.arange(12.0).view(4, 3)])

    def must_not(other):
        raise AssertionError("there is enough to see")

    rows = _Rows(1, 4)
    rows.look("mm", torch.ones(4, 3), must_not)
    rows.look("tanh", torch.zeros(4, 3), must_not)


def test_several_records_are_tried_however_wide_the_layers_are():
    model = LaneModel(nn.Sequential(nn.Linear(64, 64), nn.Tanh()), cross_entropy)
    widths = model.widths(torch.randn(8, 64), torch.zeros(8, dtype=torch.int64), 1, 64, 20.0)
    assert len(widths._records) >= 4


class Recurrent(nn.Module):
    """A layer on which `torch.func` fails."""

    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.cells, self.head = kind(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
@pytest.mark.parametrize("workers", [1, 3])
def test_layers_that_torch_func_does_not_know_are_computed_one_by_one(kind, workers, caplog):
    torch.manual_seed(0)
    net = Recurrent(kind)
    model = LaneModel(net, cross_entropy)
    x, y = torch.randn(12, 4, 3), torch.arange(12) % 2
    model.check(model.initial(), x[:3], y[:3])
    assert "one record at a time" in caplog.text
    assert model.one_by_one
    kept, records = [], [torch.arange(6), torch.arange(6, 11)]
    start = model.initial().expand(2, -1)
    lanes = lanes_of(records, kept, clip=1e-3)
    train_round(model, x, y, start, lanes, 0, Keyed(0), Limits(1, 512, workers))
    for rows, found in zip(records, torch.cat(kept), strict=True):
        expected = 0
        for row in rows:
            loss = cross_entropy(net(x[row : row + 1]), y[row : row + 1]).sum()
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, net.parameters())])
            expected = expected + gradient.double() * 1e-3 / gradient.double().norm()
        assert torch.allclose(found, expected * (1 - 2**-11), rtol=1e-5, atol=1e-9)


def test_threads_do_not_share_a_module_whose_parameters_are_replaced():
    together, used = threading.Barrier(2), []

    class Waits(Recurrent):
        def forward(self, x):
            if self.training and threading.current_thread() is not threading.main_thread():
                used.append(id(self))
                together.wait(20)
            return super().forward(x)

    model = LaneModel(Waits(), cross_entropy)
    x, y = torch.randn(4, 4, 3), torch.arange(4) % 2
    real = torch.ones(1, 1, dtype=torch.bool)
    with ThreadPoolExecutor(2) as pool:
        done = [
            pool.submit(
                model.pass_gradients,
                model.initial()[None],
                x[None, i : i + 1],
                y[None, i : i + 1],
                real,
            )
            for i in range(2)
        ]
        for own in done:
            own.result()
    assert len(set(used)) == 2


def test_one_by_one_is_no_way_around_memory():
    class Remembers(Recurrent):
        def __init__(self):
            super().__init__()
            self.before = []

        def forward(self, x):
            self.before.append(x.mean().item())
            return super().forward(x) * (1 + abs(sum(self.before)))

    model = LaneModel(Remembers(), cross_entropy)
    with pytest.raises(Unsupported, match="keeps something"):
        model.check(model.initial(), torch.randn(3, 4, 3), torch.arange(3) % 2)


def test_dropout_is_no_obstacle():
    model = LaneModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3)), cross_entropy)
    x, y = torch.randn(40, 8), torch.zeros(40, dtype=torch.int64)
    assert model.widths(x, y, 1, 64, 10.0).fit(20) == 20
    assert model._model[0].p == 0.5


def test_what_fills_up_a_pass_is_not_counted():
    """Passes of one width, whatever the batch: gradients of what fills them up reach no sum."""
    model, x, y, parameters = on_the_edge(64, 40)
    x[0] = 1e30  # the record that passes are filled up with
    rows = torch.arange(1, 38)
    alone = sum(sums(model, x, y, parameters, row.view(1)) for row in rows)
    assert torch.allclose(sums(model, x, y, parameters, rows), alone, rtol=1e-9)


def changed_by_width():
    """Rows are other ones in batches of more than 24."""
    torch.manual_seed(0)
    model = LaneModel(Changed(lambda x: 1.0 * (len(x) > 24)), cross_entropy)
    return model, torch.randn(30, 8), torch.arange(30) % 3, model.initial()


def test_a_sum_is_that_of_its_records_alone_whatever_the_batch():
    model, x, y, parameters = changed_by_width()
    alone = sum(sums(model, x, y, parameters, torch.tensor([row])) for row in range(30))
    assert torch.allclose(sums(model, x, y, parameters, torch.arange(30)), alone, rtol=1e-9)


def test_so_is_a_count():
    model, x, y, parameters = changed_by_width()

    def counted(rows):
        lanes = lanes_of([rows], [], clip=1.5)
        limits = Limits(8, 512)
        return float(counted_within(model, x, y, parameters[None], lanes, 0, Keyed(0), limits))

    alone = [counted(torch.tensor([row])) for row in range(30)]
    assert counted(torch.arange(30)) == pytest.approx(sum(alone), abs=1e-9)
    assert len({round(own, 6) for own in alone}) > 1


class Experts(nn.Module):
    """Two experts, mixed by a softmax over the stack of them: records come second in it."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        one, two = self.one(x), self.two(x)
        gate = torch.stack([one.mean(1), two.mean(1)]).softmax(0).unsqueeze(2)
        return self.out(gate[0] * one + gate[1] * two)


def spectrum(x):
    return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x).conj(), n=x.shape[1])


def test_experts_that_are_mixed_by_a_softmax_over_a_stack():
    x, y = torch.randn(40, 8), torch.arange(40) % 3
    for net in (Experts(), Changed(spectrum)):
        widths = LaneModel(net, cross_entropy).widths(x, y, 1, 64, 20.0)
        assert {widths.fit(count) for count in (2, 20, 33)} == {1}


@pytest.mark.parametrize(
    "change",
    [
        lambda x: torch.exp(torch.tensor(0.5)),
        lambda x: torch.linspace(0, 1, 8),
        lambda x: torch.sin(torch.arange(4.0)).repeat(2),
    ],
)
def test_constants_do_not_make_passes_narrow(change):
    widths = widths_of(change)
    assert max(widths.fit(n) for n in range(2, 61)) > 16


def test_a_width_is_not_compared_with_itself():
    """Nothing would vary then, so that all would be constants."""
    widths = widths_of(lambda x: torch.sigmoid(x[:, :1]))
    assert not {widths.fit(count) for count in range(2, 64)} & {3, 5, 33}


def test_a_record_by_itself_is_not_compared_with_whole_vectors():
    widths = widths_of(lambda x: torch.ones(()))
    assert widths.first > 1
    assert widths._known[1] is False  # whatever its bits are: it is computed in another way
    assert widths.fit(1) > 1


@pytest.mark.parametrize("seed", range(4))
def test_products_with_one_number_for_each_record_are_tried_with_many(seed):
    """Where one record is tried, every third time nothing is seen of another order of a sum."""
    vector = torch.randn(8, generator=torch.Generator().manual_seed(seed))
    widths = widths_of(lambda x: (x.flatten(1) @ vector).unsqueeze(1))
    assert len(widths._records) >= 40
