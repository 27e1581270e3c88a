"""Kernels beside torch's own operators: on CUDA, or where Triton interprets them on a CPU."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed")

from torch import nn

from tests.engine.philox import philox
from tests.small import cross_entropy
from udpfl.engine import LaneModel, NormClipper, _pools
from udpfl.engine import _triton as kernels
from udpfl.engine._windows import Window
from udpfl.engine.layers import _patches, convolution, rule

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + shape[0])
    return torch.randn(*shape, generator=generator, dtype=dtype).to(DEVICE)


@pytest.mark.parametrize("width", [1, 9, 1024, 1025, 3000])
@pytest.mark.parametrize("p", [1, 2])
def test_sizes_of_rows_are_those_in_double(width, p):
    rows = 1e20 * drawn(3, 2, width)  # squares that float32 does not hold
    found = kernels.powers_of_rows(rows, p)
    expected = rows.double().abs().pow(p).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("p", [1, 2])
def test_sizes_of_rows_of_bfloat16_are_those_of_its_numbers(p):
    rows = drawn(3, 2, 1500).bfloat16()
    found = kernels.powers_of_rows(rows, p)
    assert found.dtype == torch.float64
    expected = rows.double().abs().pow(p).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


def test_products_of_bfloat16_are_of_its_numbers():
    """Kept and scaled in double; patches hold the numbers of the image."""
    rows, factors = drawn(10, 40).bfloat16(), drawn(10).double()
    factors[3] = 0
    scaled = kernels.kept_rows(rows, factors, scaled=True)
    assert torch.equal(scaled, rows.double() * factors[:, None])
    assert torch.equal(
        kernels.kept_rows(rows, factors, scaled=False),
        torch.where(factors[:, None] != 0, rows.double(), 0.0),
    )
    total = torch.empty(1, 40, dtype=torch.float64, device=DEVICE)
    kernels.weighted_rows(factors[None], rows[None], total)
    torch.testing.assert_close(total[0], scaled.sum(0), rtol=1e-13, atol=1e-13)
    window = Window((7, 6), (3, 3), (1, 1), (1, 1), (1, 1))
    image = drawn(3, 4, 7, 6).bfloat16()
    found = kernels.patches(image, window)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.float(), kernels.patches(image.float(), window))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 32, 300])
def test_a_row_with_a_factor_of_zero_counts_for_nothing(kind, width):
    rows, factors = drawn(2, 5, width), drawn(2, 5).to(kind)
    rows[0, 1], rows[1, 4, 0] = torch.inf, torch.nan
    factors[0, 1] = factors[1, 4] = factors[1, 2] = 0
    room = torch.full((2, width + 3), 7.0, dtype=kind, device=DEVICE)
    kernels.weighted_rows(factors, rows, room[:, 3:])
    kept = torch.where(factors.unsqueeze(2) != 0, rows.to(kind), 0.0)
    expected = (kept.double() * factors.unsqueeze(2).double()).sum(1)
    tolerance = 1e-6 if kind == torch.float32 else 1e-14
    torch.testing.assert_close(room[:, 3:].double(), expected, rtol=tolerance, atol=tolerance)
    assert (room[:, :3] == 7).all()  # nothing beside the total is written to
    flat = factors.flatten()
    for scaled in (True, False):
        found = kernels.kept_rows(rows.flatten(0, 1), flat, scaled=scaled)
        wanted = (kept * factors.unsqueeze(2) if scaled else kept).flatten(0, 1)
        assert torch.equal(found, wanted)


def test_what_does_not_lie_side_by_side_is_not_read_as_if_it_did():
    rows, factors = drawn(4, 6)[:, :3], drawn(4)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.kept_rows(rows, factors, scaled=True)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.powers_of_rows(rows, 2)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.weighted_rows(factors[None], rows[None], torch.empty(1, 3, device=DEVICE))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["sliced", "expanded", "transposed"])
def test_products_are_of_the_very_records_however_they_lie(kind, how, monkeypatch):
    """Of a layer whose input is a part of a larger tensor, or whose gradient is repeated."""
    monkeypatch.setattr(rule, "kernels_for", lambda tensor: kernels)
    a = {
        "sliced": drawn(2, 3, 2, 7)[..., 1:5],
        "expanded": drawn(1, 1, 2, 4).expand(2, 3, 2, 4),
        "transposed": drawn(2, 3, 4, 2).transpose(2, 3),
    }[how]
    b, factors = drawn(2, 3, 2, 9)[..., ::2], drawn(2, 3).to(kind)
    factors[0, 1] = 0
    scaled, kept = rule._scaled(factors, a, b)
    each = factors[..., None, None]
    torch.testing.assert_close(scaled, b.to(kind) * each)
    torch.testing.assert_close(kept, torch.where(each != 0, a.to(kind), 0.0))


WINDOWS = [
    # image, kernel, stride, padding, dilation
    ((7, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((8, 9), (3, 2), (2, 3), (1, 0), (1, 1)),
    ((9, 9), (3, 3), (1, 2), (2, 2), (2, 1)),
    ((1, 12), (1, 5), (1, 2), (0, 2), (1, 2)),
    ((5, 5), (1, 1), (2, 2), (0, 0), (1, 1)),
]


@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_patches_are_those_of_unfold(shape, last, groups):
    window = Window(*shape)
    image = drawn(3, 4, *shape[0])
    if last:
        image = image.contiguous(memory_format=torch.channels_last)
    found = kernels.patches(image, window, groups)
    _, kernel, stride, padding, dilation = shape
    cut = F.unfold(image, kernel, dilation, padding, stride)  # [N, C * k, P]
    own = cut.view(3, groups, 4 // groups, kernel[0] * kernel[1], -1)
    expected = own.permute(0, 1, 4, 3, 2).flatten(3)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", WINDOWS)
def test_folding_adds_up_as_the_transposed_of_patches(shape):
    window, channels = Window(*shape), 3
    image, kernel, stride, padding, dilation = shape
    taken = kernel[0] * kernel[1]
    cut = drawn(2, window.rows * window.columns, taken * channels, dtype=torch.float64)
    by_channel = cut.unflatten(2, (taken, channels)).permute(0, 3, 2, 1).flatten(1, 2)
    expected = F.fold(by_channel, image, kernel, dilation, padding, stride)
    torch.testing.assert_close(kernels.folded(cut, window, channels), expected)


@pytest.mark.parametrize(
    ("image", "kernel", "stride", "padding"),
    [
        ((6, 8), (2, 2), (2, 2), (0, 0)),
        ((7, 7), (2, 2), (1, 1), (0, 0)),
        ((7, 9), (3, 3), (2, 2), (1, 1)),
        ((5, 9), (2, 3), (3, 2), (1, 0)),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_pools_are_those_of_torch(image, kernel, stride, padding, last):
    window = Window(image, kernel, stride, padding, (1, 1))
    x = drawn(2, 5, *image).relu()  # many zeros: equal numbers
    x[0, 0, 2, 2] = torch.nan
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    expected = F.max_pool2d(x, kernel, stride, padding)
    found, which = kernels.pooled(x.detach(), window)
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=0, equal_nan=True)
    back = drawn(*expected.shape)
    (wanted,) = torch.autograd.grad(expected, x, back)
    torch.testing.assert_close(kernels.unpooled(back, which, window), wanted, rtol=1e-6, atol=1e-6)


def test_words_are_those_of_philox():
    assert philox(0, 0, 0)[0] & 0xFFFFFFFF == 0x6627E8D5  # of the authors' known answers
    generator = torch.Generator().manual_seed(5)
    keys = torch.randint(-(2**63), 2**63 - 1, (3, 4), generator=generator)
    sizes = torch.tensor([5, 0, 3000])
    starts = torch.tensor([1, 6, 8])
    flat = torch.full((3010,), -1)
    flat, moved = flat.to(DEVICE), [t.to(DEVICE) for t in (starts, sizes, keys)]
    kernels.fill_with_words(flat, *moved, 3000, first=6)
    found = [word % 2**64 for word in flat.tolist()]
    unsigned = [[word % 2**64 for word in row] for row in keys.tolist()]
    for row in (0, 2):
        words = [w for pair in range(1510) for w in philox(*unsigned[row][:2], pair)][6:]
        start, size = int(starts[row]), int(sizes[row])
        assert found[start : start + size] == words[:size]
    assert found[0] == found[6] == found[7] == found[3008] == 2**64 - 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_sums_by_kernels_are_those_without_them(precision, norm, monkeypatch):
    """Of a pass with patches, positions and pools, as CUDA computes it."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2),
        nn.Flatten(2), nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3),
    )  # fmt: skip
    x, y = drawn(2, 3, 2, 6, 6), torch.arange(6, device=DEVICE).view(2, 3) % 3
    real = torch.tensor([[True, True, False], [True, True, True]], device=DEVICE)
    model = LaneModel(net, cross_entropy, precision).to(DEVICE)
    start = model.initial().to(DEVICE).expand(2, -1) + 0.01 * drawn(2, 1)
    found = []
    for by in (kernels, None):
        for module in (rule, convolution, _patches, _pools):
            monkeypatch.setattr(module, "kernels_for", lambda tensor, by=by: by)
        gradients = model.gradients(start.contiguous(), x, y, real)
        sizes = gradients.norms(int(norm[1]))
        found.append((sizes, NormClipper(norm, [0.3, 0.4]).clipped_sum(gradients).sum))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)
    assert float(torch.linalg.vector_norm(found[0][1][0], int(norm[1]))) <= 2 * 0.3
