"""Which operators are known not to round a record by its place in a pass."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from udpfl.engine import LaneModel
from udpfl.engine._operators import Form, Operators, Seen
from udpfl.engine._places import places_do_not_show
from udpfl.errors import Unsupported


def ran(function, *records):
    with Operators() as operators:
        function(*records)
    return operators.seen


def is_harmless(function, width=64, inner=(6,), threads=1, others=(3, 5, 33)):
    """Whether a function of records [width, *inner] is."""
    seen = [ran(function, torch.rand(own, *inner)) for own in (width, *others)]
    return places_do_not_show(seen[0], seen[1:], threads, widths=[width, *others])


def test_records_first_may_be_added_up():
    assert is_harmless(lambda x: x.softmax(1), 31)
    assert is_harmless(lambda x: x.sum(1) + x.mean(1), 31)
    assert is_harmless(lambda x: x.sum(2), 31, (4, 3))
    assert is_harmless(lambda x: x.permute(0, 2, 1).sum(1), 31, (4, 3))
    assert is_harmless(lambda x: x[:, 1:4].log_softmax(1), 31)
    assert is_harmless(lambda x: x.t().mean(0), 31)
    assert is_harmless(lambda x: x.sum(), 31)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.stack([x[:, 0], x[:, 1]]).softmax(0),
        lambda x: torch.stack([x[:, 0], x[:, 1]]).log_softmax(0),
        lambda x: torch.stack([x, x]).sum(0),
        lambda x: x.t().contiguous().mean(0),
        lambda x: torch.linalg.vector_norm(x.t().contiguous(), dim=0),
        lambda x: x.sum(0),
        lambda x: x[:, :1].expand(-1, 6).sum(1),
    ],
)
def test_records_that_do_not_come_first_are_not_added_up(function):
    assert not is_harmless(function, 64)


def test_an_axis_of_lanes_may_come_before_the_records():
    seen = [ran(lambda x: x.softmax(2), torch.rand(2, width, 5)) for width in (40, 3, 33)]
    assert places_do_not_show(seen[0], seen[1:], 1, lanes=2)
    assert not places_do_not_show(seen[0], seen[1:], 1, lanes=1)
    assert not places_do_not_show(seen[0], seen[1:], 1, lanes=4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.fft.rfft(x),
        lambda x: torch.complex(x, x) * 2,
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 3, 2))),
    ],
)
def test_nothing_is_known_of_complex_numbers(function):
    assert not is_harmless(function)


def test_products_of_complex_numbers_are_not_exact():
    numbers = [torch.ones(width, 6, dtype=torch.complex64) for width in (32, 3, 33)]
    for function in (torch.mul, torch.div):
        seen = [ran(function, own, own) for own in numbers]
        assert not places_do_not_show(seen[0], seen[1:], 1)


def test_complex_constants_are_nobodys():
    assert is_harmless(lambda x: x * (torch.tensor([1j, 2.0]) * 1j).abs().sum(), 31)


def test_a_factor_makes_a_sum_another_operator():
    for function in (torch.add, torch.sub, torch.rsub):
        assert is_harmless(lambda x, f=function: f(x, 0.7), 31)
        assert is_harmless(lambda x, f=function: f(x, 0.7, alpha=0.3), 32)
        assert not is_harmless(lambda x, f=function: f(x, 0.7, alpha=0.3), 31)
    assert is_harmless(lambda x: x / 3, 31)
    assert not is_harmless(lambda x: torch.div(x, 0.3, rounding_mode="floor"), 31)


def test_what_is_repeated_along_an_axis_is_not_walked_like_the_rest():
    assert is_harmless(lambda x: torch.pow(x, torch.tensor(0.5)), 32)
    assert is_harmless(lambda x: torch.pow(x, 0.5), 32)
    assert not is_harmless(lambda x: torch.pow(x, torch.rand(6)), 32)
    assert not is_harmless(lambda x: torch.pow(x, x[:, :1]), 32)
    assert not is_harmless(lambda x: torch.pow(x, x[:, :1].expand(-1, 6)), 32)
    assert not is_harmless(lambda x: torch.pow(x, x[:, :1]), 32, (2, 6))


def test_rows_with_gaps_lie_within_records():
    assert is_harmless(lambda x: torch.sigmoid(x[:, 1:4]), 31)
    assert not is_harmless(lambda x: torch.sigmoid(x.t().contiguous()[::2]), 32)
    assert not is_harmless(lambda x: torch.sigmoid(x[:, ::2]), 31)  # one row with even gaps
    assert not is_harmless(lambda x: torch.sigmoid(x[:, 0]), 32)
    many = (1 << 16) // 96
    assert is_harmless(lambda x: torch.sigmoid(x[:, :96]), 1024, (97,), threads=2)
    assert not is_harmless(lambda x: torch.sigmoid(x[:, :96]), many + 1, (97,), threads=2)
    assert is_harmless(lambda x: torch.sigmoid(x[:, :96]), many + 1, (97,), threads=1)


def test_two_orders_of_axes_are_walked_by_rows():
    """As behind a convolution, whose output is laid out channels last."""
    function = torch.ops.aten.tanh_backward
    assert is_harmless(
        lambda x: function(x, x.transpose(1, 2).contiguous().transpose(1, 2)), 31, (4, 3)
    )
    assert not is_harmless(lambda x: function(x, x), 31, (4, 3))
    assert is_harmless(lambda x: torch.tanh(x.transpose(1, 2)), 32, (4, 3))


def test_functions_that_change_the_shape():
    assert is_harmless(lambda x: F.glu(x, 1), 32, (4,))
    assert not is_harmless(lambda x: F.glu(x, 1), 31, (4,))
    assert is_harmless(lambda x: x.logsumexp(1), 32)
    assert not is_harmless(lambda x: x.logsumexp(1), 33)
    assert not is_harmless(lambda x: F.interpolate(x.unsqueeze(1), size=9, mode="linear"), 32)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.exp(torch.tensor(0.5)),
        lambda x: x * torch.linspace(0, 1, 6),
        lambda x: x + torch.sin(torch.arange(3.0)).repeat(2),
        lambda x: x * torch.ones(5, 5).softmax(0).sum(),
    ],
)
def test_constants_see_no_records(function):
    assert is_harmless(function, 31)


def test_a_shape_that_is_equal_by_chance():
    """A constant has the shape that a tensor of records has at this width."""

    def function(x):
        torch.sigmoid(torch.ones(31, 6))
        torch.sigmoid(x)

    assert not is_harmless(function, 31)
    assert not is_harmless(torch.sigmoid, 5, others=(33,))
    assert not is_harmless(torch.sigmoid, 31, others=())  # nothing to compare with


def test_a_slice_of_the_batch_holds_records_though_it_has_one_shape():
    """Where other operators run at other widths nothing is taken for a constant."""

    def narrow(x):
        return torch.sigmoid(x[:2]), torch.tanh(x) if len(x) < 9 else None

    assert not is_harmless(narrow, 32, (5,), others=(3, 5))

    def mostly(x):
        return torch.sigmoid(x[:2]), torch.sigmoid(x[: 2 if len(x) < 4 else len(x)])

    assert not is_harmless(mostly, 32, (8,))


def test_what_torch_repeats_for_every_record_sees_one():
    def each(x):
        for row in x:
            torch.sigmoid(row)
        x.softmax(1)

    assert is_harmless(each, 31)


def test_numbers_that_are_handed_out_are_computed_by_nobody_knows_what():
    for function in (lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x.__array__()):
        assert not is_harmless(function, 32)
        assert any(own.reads for own in ran(function, torch.ones(3)))


@pytest.mark.parametrize(
    ("function", "reads"),
    [
        (lambda x: int(x.sum()), True), (lambda x: bool((x > 1).any()), True),
        (lambda x: x[x > 0.5], True), (lambda x: x.nonzero(), True),
        (lambda x: torch.equal(x, x), True), (lambda x: x[torch.tensor([0, 1])], False),
        (lambda x: x.masked_fill(x > 0, 0.0), False), (lambda x: x.softmax(0).max(), False),
    ],
)  # fmt: skip
def test_who_reads_numbers_is_known(function, reads):
    assert any(own.reads for own in ran(function, torch.rand(9))) == reads


@pytest.mark.parametrize(
    ("numbers", "threads", "is_whole"),
    [(32, 1, True), (31, 1, False), (33, 4, False), (1 << 16, 2, True), (32 * 1025, 2, False),
     (32 * 1026, 2, True), (96 * 1024, 3, True), (96 * 1024 + 32, 3, False),
     ((1 << 16) - 1, 2, False)],
)  # fmt: skip
def test_every_thread_gets_whole_vectors(numbers, threads, is_whole):
    form, other = Form((numbers,), (1,)), Form((3,), (1,))
    seen, elsewhere = ([Seen("sigmoid", (own,), (own,))] for own in (form, other))
    assert places_do_not_show(seen, [elsewhere], threads) == is_whole


FUNCTIONS = [
    torch.sigmoid, torch.tanh, F.silu, lambda x: torch.pow(x.abs() + 0.1, 0.7),
    lambda x: torch.add(x, 0.7, alpha=0.3), lambda x: x.softmax(-1), lambda x: x.sum(-1),
    lambda x: x.mean(1), lambda x: x.logsumexp(-1),
    lambda x: F.glu(x[..., : x.shape[2] // 2 * 2], -1),
    lambda x: torch.ops.aten.tanh_backward(x, x.transpose(1, 2).contiguous().transpose(1, 2)),
]  # fmt: skip
VIEWS = [
    lambda x: x, lambda x: x[:, :, 2:], lambda x: x.transpose(1, 2), lambda x: x[:, 0].unsqueeze(1),
    lambda x: x[..., ::2],
]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_said_of_forms_holds_on_this_machine(function, view):
    """Where an operator is called harmless, equal records have equal bits."""
    generator = torch.Generator().manual_seed(0)
    for inner in ((4, 6), (3, 14), (2, 36), (16, 3)):
        for width in (17, 32, 33, 50):
            if is_harmless(lambda x: function(view(x)), width, inner):
                for _ in range(20):
                    row = 3 * torch.randn(1, *inner, generator=generator)
                    found = function(view(row.repeat(width, 1, 1)))
                    assert torch.equal(found, found[:1].expand_as(found))


class Longest(nn.Module):
    """Means of series, cut to the longest one of the batch before any layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        real = (x != -1).all(1)
        x = x[:, :, : int(real.sum(1).max())]
        real = real[:, None, : x.shape[2]]
        return self.layer((x * real).sum(2) / real.sum(2))


def gradients(model, x, y):
    model.widths(x, y, 1, 64, 8.0).fit(8)
    parameters = model.initial().unsqueeze(0)
    return model.gradients(parameters, x[None], y[None], torch.ones(1, len(x), dtype=torch.bool))


def test_a_cut_before_any_layer_ends_the_round():
    """All public records are of full length, so the trial of the model finds nothing."""
    model = LaneModel(Longest(), lambda o, t: F.cross_entropy(o, t, reduction="none"))
    x, y = torch.rand(9, 4, 10), torch.arange(9) % 3
    model.check(model.initial(), x.clone(), y)
    assert model.book_keeping
    for count in (1, 8):
        gradients(model, x[:count], y[:count])
        x[count - 1, :, 5:] = -1
        gradients(model, x[:9], y[:9])  # one of them is long
    x[:, :, 5:] = -1
    for count in (1, 8):
        with pytest.raises(Unsupported, match="other shapes"):
            gradients(model, x[:count], y[:count])


def test_a_model_that_reads_nothing_is_not_watched():
    model = LaneModel(nn.Embedding(5, 3), lambda o, t: F.cross_entropy(o, t, reduction="none"))
    x, y = torch.arange(8) % 5, torch.arange(8) % 3
    model.check(model.initial(), x, y)  # ids of one number each
    gradients(model, x, y)
    assert not model._still.reads
    assert not model._expected


class ReadsBackwards(torch.autograd.Function):
    """Hands numbers to Python in its backward pass alone."""

    @staticmethod
    def forward(ctx, x, read):
        ctx.read = read
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.read(ctx.saved_tensors[0].detach())
        return gradient, None


READERS = [
    lambda x: x.numpy(), lambda x: x.tolist(), lambda x: np.asarray(x), repr,
    lambda x: x.clone().apply_(abs), lambda x: torch.tensor([x[0, 0], x[0, 1]]),
    lambda x: x.new_tensor([x[0, 0]]), lambda x: torch.as_tensor([x[0, 0]]),
    lambda x: x.tensor_split(torch.tensor([1])), lambda x: torch.tensor_split(x, torch.tensor([1])),
]  # fmt: skip


@pytest.mark.parametrize("read", READERS)
def test_numbers_that_are_handed_out_are_noticed_wherever_that_is(read):
    x = torch.rand(4, 3)
    before = {name: getattr(torch.Tensor, name) for name in ("numpy", "tolist", "apply_")}
    with Operators() as operators:
        read(x)
    assert any(own.reads for own in operators.seen)
    x.requires_grad_()
    for run in (
        lambda y: y.sum().backward(),
        lambda y: torch.autograd.grad(y.sum(), x),
    ):
        with Operators() as operators:
            run(ReadsBackwards.apply(x, read))
        assert any(own.reads for own in operators.seen)
    assert {name: getattr(torch.Tensor, name) for name in before} == before
    assert "numpy" not in vars(torch.Tensor)


def test_what_another_thread_reads_is_not_noted_here():
    """Threads train side by side: each watches its own pass, and takes nothing away from others."""
    started, ended = threading.Event(), threading.Event()
    elsewhere = []

    def work():
        with Operators() as operators:
            started.set()
            ended.wait(10)
            torch.rand(3).tolist()
        elsewhere.extend(own.reads for own in operators.seen)

    with ThreadPoolExecutor(1) as pool:
        with Operators() as operators:
            done = pool.submit(work)
            started.wait(10)
            torch.rand(3)
        assert not any(own.reads for own in operators.seen)
        assert "tolist" in vars(torch.Tensor), "the other thread still watches"
        torch.rand(3).tolist()  # which nobody watches
        ended.set()
        done.result()
    assert elsewhere.count(True) == 1
    assert "tolist" not in vars(torch.Tensor)


def test_tensors_that_stay_tensors_are_not_handed_out():
    x = torch.rand(4, 3)
    with Operators() as operators:
        torch.as_tensor(x).split(2)
        torch.tensor([1.0, 2.0])
        x.tensor_split(2)
    assert not any(own.reads for own in operators.seen)


def test_numbers_that_are_added_up_at_a_place_are_for_one_thread():
    """A share of the numbers may begin within a record, and then its sums are made in two parts."""
    index = torch.arange(12) % 6

    def scattered(x):
        total = torch.zeros(len(x), 6)
        places = (torch.arange(len(x))[:, None], index)
        return total.index_put_(places, x[:, index], accumulate=True)

    assert is_harmless(scattered, threads=1)
    assert not is_harmless(scattered, threads=2)
    assert is_harmless(lambda x: x.clone().index_put_((torch.tensor([0]),), x[:1]), threads=2)


def test_group_norms_of_large_images_with_channels_last_are_for_one_thread():
    norm = nn.GroupNorm(2, 4)

    def last(x):
        return norm(x.contiguous(memory_format=torch.channels_last))

    for side, is_small in ((8, True), (32, False)):
        assert is_harmless(last, 6, (4, side, side), threads=1)
        assert is_harmless(last, 6, (4, side, side), threads=2) == is_small
        assert is_harmless(norm, 6, (4, side, side), threads=2)


@torch.library.custom_op("tests_of_places::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_nothing_is_known_of_operators_that_are_not_torchs_own():
    assert not is_harmless(doubled)


def test_some_operators_have_several_threads_for_few_numbers():
    """So all shares have to be whole vectors, however many threads there are."""
    assert is_harmless(torch.tanh, 64, (440,), threads=1)
    assert is_harmless(torch.tanh, 64, (440,), threads=2)
    assert not is_harmless(torch.tanh, 60, (440,), threads=2)
    assert not is_harmless(torch.tanh, 64, (440,), threads=3)


def test_a_softmax_across_an_inner_axis_is_for_one_thread():
    for threads in (1, 2):
        assert is_harmless(lambda x: x.softmax(2), 47, (2, 24), threads=threads)
    assert is_harmless(lambda x: x.softmax(1), 47, (2, 24))
    assert not is_harmless(lambda x: x.softmax(1), 47, (2, 24), threads=2)


@pytest.mark.parametrize("size", [2, 3, 11, 15])
def test_what_sees_a_chunk_of_records_is_judged(size):
    """The first chunks have the same shapes at many widths, and still they hold records."""

    def chunks(x):
        return torch.cat([torch.sigmoid(part) for part in x.split(size)])

    assert not is_harmless(chunks, 32, (5,))
    assert is_harmless(lambda x: torch.cat([torch.sigmoid(part) for part in x.split(1)]), 32, (5,))


def test_tensors_without_strides_have_a_form_of_which_nothing_is_known():
    sparse = torch.eye(3).to_sparse()
    assert Form.of(sparse).is_complex
    assert not is_harmless(lambda x: (sparse @ x.t()).t(), 32, (3,))
