"""The networks of the paper: exact sizes, the engine's gradients, and scattering by definition."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import udpfl  # noqa: E402
from tests.engine.oracle import assert_same_sums, labels, oracle_sum  # noqa: E402
from tests.small import cross_entropy  # noqa: E402
from udpfl.engine import LaneModel, NormClipper  # noqa: E402
from udpfl.errors import InvalidInput  # noqa: E402
from udpfl.models import build  # noqa: E402
from udpfl.models._wavelets import Scattering2d  # noqa: E402

CIFAR, MEDICAL = (3, 32, 32), (1, 28, 28)


pytestmark = pytest.mark.usefixtures("one_thread")


def conv(inputs: int, outputs: int, side: int = 3) -> int:
    """Weights of a convolution without a bias."""
    return inputs * outputs * side * side


def block(inputs: int, width: int) -> int:
    """Two convolutions and two norms of two numbers a channel; a 1×1 shortcut with its norm."""
    plain = conv(inputs, width) + conv(width, width) + 4 * width
    return plain + (0 if inputs == width else conv(inputs, width, 1) + 2 * width)


def residual(colours: int, widths: tuple[int, ...], blocks: int, classes: int) -> int:
    total = conv(colours, widths[0]) + 2 * widths[0]
    before = widths[0]
    for width in widths:
        total += block(before, width) + (blocks - 1) * block(width, width)
        before = width
    return total + before * classes + classes


def medical(colours: int, flat: int, classes: int) -> int:
    convolutions = conv(colours, 32) + 32 + conv(32, 64) + 64 + 2 * (conv(64, 64) + 64)
    return convolutions + flat * 128 + 128 + 128 * classes + classes


SIZES = [
    # 28 halves to 14, 7, 3; 64 to 32, 16, 8: 64 channels of 9 or 64 positions
    ("medical-cnn", MEDICAL, 6, {}, medical(1, 64 * 9, 6), 167_302),
    ("medical-cnn", (1, 64, 64), 6, {}, medical(1, 64 * 64, 6), 617_862),
    ("medical-cnn", (3, 28, 28), 6, {"activation": "tanh"}, medical(3, 64 * 9, 6), 167_878),
    # batch normalisation has two numbers a channel as well: the published size of this ResNet-18
    ("resnet18", CIFAR, 10, {}, residual(3, (64, 128, 256, 512), 2, 10), 11_173_962),
    ("resnet18", (1, 28, 28), 2, {}, residual(1, (64, 128, 256, 512), 2, 2), 11_168_706),
    ("resnet-small", CIFAR, 10, {}, residual(3, (16, 32, 64), 2, 10), 175_258),
    (
        "resnet-small",
        CIFAR,
        10,
        {"width": 32, "blocks": 1},
        residual(3, (32, 64, 128), 1, 10),
        None,
    ),
    ("resnet-small", MEDICAL, 6, {"groups": 16}, residual(1, (16, 32, 64), 2, 6), None),
    # 1 + 2·8 + 8² = 81 paths per colour, a position for every 4×4 pixels
    ("scattering", CIFAR, 10, {}, 3 * 81 * 8 * 8 * 10 + 10, 155_530),
    ("scattering", MEDICAL, 6, {}, 81 * 7 * 7 * 6 + 6, 23_820),
    ("scattering", (2, 13, 30), 3, {"normalization": "none"}, 2 * 81 * 4 * 8 * 3 + 3, None),
    # 1 + 3·4 + 4²·3 = 61
    ("scattering", CIFAR, 10, {"scales": 3, "orientations": 4}, 3 * 61 * 16 * 10 + 10, None),
    ("scattering", CIFAR, 10, {"scales": 1, "orientations": 6}, 3 * 7 * 256 * 10 + 10, None),
]


@pytest.mark.parametrize(("name", "shape", "outputs", "options", "count", "number"), SIZES)
def test_parameters_outputs_and_records_apart(name, shape, outputs, options, count, number):
    model = build(name, shape, outputs, seed=0, **options)
    assert sum(p.numel() for p in model.parameters()) == count == (number or count)
    assert dict(model.named_parameters()).keys() == model.state_dict().keys()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
        batch = torch.randn(3, *shape)
        scores = model(batch)
        assert scores.shape == (3, outputs)
        alone = torch.cat([model(record[None]) for record in batch])
        assert torch.allclose(scores, alone, rtol=1e-3, atol=1e-4 * float(scores.abs().max()))
        assert len(torch.unique(scores.round(decimals=4), dim=0)) == 3


def test_the_residual_path_and_its_strides():
    """With the last norm of every block at zero only the shortcuts are left."""
    model = build("resnet-small", CIFAR, 10, seed=0)
    blocks = [b for stage in model.stages for b in stage]
    assert [tuple(b.conv1.stride) for b in blocks] == [(1, 1)] * 2 + [(2, 2), (1, 1)] * 2
    x = torch.randn(2, *CIFAR)
    with torch.no_grad():
        for b in blocks:
            b.norm2.weight.zero_()
            b.norm2.bias.zero_()
        wanted = torch.relu(F.group_norm(F.conv2d(x, model.stem.weight, padding=1), 8))
        for stage in (1, 2):
            shortcut = model.stages[stage][0].shortcut[0].weight
            wanted = torch.relu(F.group_norm(F.conv2d(wanted, shortcut, stride=2), 8))
        wanted = wanted.mean((2, 3)) @ model.output.weight.T + model.output.bias
        assert torch.allclose(model(x), wanted, atol=1e-5)


def small(name):
    """The network at the smallest size it takes, with lanes and records for the engine."""
    shape, options = {
        "medical-cnn": ((1, 8, 9), {"activation": "tanh"}),
        "resnet18": ((3, 8, 8), {"activation": "elu"}),
        "resnet-small": ((3, 8, 8), {"width": 4, "groups": 2, "activation": "elu"}),
        "scattering": ((3, 8, 8), {}),
    }[name]
    torch.manual_seed(1)
    return build(name, shape, 3, seed=1, **options), torch.randn(2, 2, *shape)


@pytest.mark.parametrize("name", ["medical-cnn", "resnet-small", "scattering"])
def test_clipped_sums_are_those_of_automatic_differentiation(name):
    model, x = small(name)
    if name == "scattering":
        x = model.precompute(x.flatten(0, 1)).view(2, 2, -1)
    assert_same_sums(model, x, labels(2, 2))


@pytest.mark.slow
def test_clipped_sums_of_resnet18():
    """In double precision: eleven million float32 numbers differ by their own rounding."""
    model, x = small("resnet18")
    x, y = x[:1], labels(1, 2)
    lane_model = LaneModel(model, cross_entropy)
    lane_model.check(lane_model.initial(), x[0], y[0])
    assert lane_model.book_keeping
    start = lane_model.initial()
    gradients = lane_model.gradients(start[None], x, y, torch.ones(1, 2, dtype=torch.bool))
    for bound in (0.05, 100.0):
        ours = NormClipper("l2", [bound]).clipped_sum(gradients).sum[0].double()
        wanted, scale = oracle_sum(
            model.double(),
            lane_model.layout,
            start,
            x[0].double(),
            y[0],
            cross_entropy,
            "l2",
            bound * (1 - 2**-11),  # the documented margin for rounding
        )
        assert torch.allclose(ours, wanted, rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("medical-cnn", {}),
        pytest.param("resnet18", {}, marks=pytest.mark.slow),
        ("resnet-small", {"width": 8}),
        ("scattering", {}),
    ],
)
def test_whole_runs_go_by_the_layer_rules(name, options, tmp_path, caplog):
    rng = np.random.default_rng(0)
    y = np.arange(24) % 3
    x = (rng.normal(size=(24, 3, 8, 8)) + y[:, None, None, None]).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        run = udpfl.run(
            {"out": str(tmp_path / "run"), "threads": 1, "data": {"clients": 2}},
            model={"name": name, "options": options},
            data=(x, y),
            test=(x[:6], y[:6]),
            privacy={"epsilon": 4, "mechanism": "gaussian"},
            training={"rounds": 2, "sampling_rate": 0.3, "local_steps": 1},
        )
    assert "torch.func" not in caplog.text
    assert run.privacy.kind == "guarantee"
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    outputs = run.model(torch.from_numpy(x[:6]))  # the model takes plain images as well
    assert (outputs.argmax(1).numpy() == y[:6]).mean() == pytest.approx(run.accuracy)


@pytest.mark.parametrize("name", ["medical-cnn", "resnet18", "resnet-small", "scattering"])
def test_the_least_image_works_and_smaller_ones_are_refused(name):
    with pytest.raises(InvalidInput, match=r"^model.name: .*at least (\d+)×\1, got 1×40") as raised:
        build(name, (1, 1, 40), 2, seed=0)
    least = int(str(raised.value).split("at least ")[1].split("×")[0])
    assert least in (4, 7, 8)
    for wrong in ((1, least - 1, 40), (1, 40, least - 1)):
        with pytest.raises(InvalidInput, match="at least"):
            build(name, wrong, 2, seed=0)
    for size in range(least, least + (2 if name == "resnet18" else 9)):
        model = build(name, (1, size, least), 2, seed=0)
        assert model(torch.randn(2, 1, size, least)).shape == (2, 2)
    with pytest.raises(InvalidInput, match=rf"{name}.*channels × height × width.*\(28, 28\)"):
        build(name, (28, 28), 2, seed=0)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("resnet18", {"groups": 48}, "groups: .*divides 64, 128, 256, 512 channels, got 48"),
        ("resnet18", {"groups": 0}, "groups: .*got 0"),
        ("resnet18", {"groups": True}, "groups: .*got True"),
        ("resnet18", {"activation": "sine"}, "activation: .*'sine'"),
        ("resnet18", {"width": 8}, "width: unknown option; resnet18 takes groups, activation"),
        ("resnet-small", {"width": 12}, "groups: .*divides 12, 24, 48 channels, got 8"),
        ("resnet-small", {"width": 0}, "width: .*got 0"),
        ("resnet-small", {"blocks": 1.5}, "blocks: .*got 1.5"),
        ("medical-cnn", {"activation": "sine"}, "activation: .*'sine'"),
        ("scattering", {"scales": 0}, "scales: .*from 1, got 0"),
        ("scattering", {"orientations": 1}, "orientations: .*from 2, got 1"),
        ("scattering", {"groups": "27"}, "groups: .*'27'"),
        ("scattering", {"normalization": "batch"}, "normalization: .*group, none: 'batch'"),
    ],
)
def test_wrong_options_are_refused(name, options, match):
    with pytest.raises(InvalidInput, match=rf"^model\.options\.{match}"):
        build(name, CIFAR, 10, seed=0, **options)


# Scattering: against the definition in space, with numpy, and against what theory promises.


def grid(size, around=3):
    """Positions on a circle of `size` points, as seen from each of its turns."""
    return np.arange(size)[:, None] + size * np.arange(-around, around + 1)


def morlet(height, width, j, angle, slant):
    """ψ in space: g(u) (exp(i ξ·u) − β), summed over all turns of the torus."""
    y, x = grid(height)[:, None, :, None], grid(width)[None, :, None, :]
    along = x * math.cos(angle) + y * math.sin(angle)
    across = y * math.cos(angle) - x * math.sin(angle)
    sigma = 0.8 * 2**j
    bump = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    bump *= slant / (2 * math.pi * sigma**2)
    wave = bump * np.exp(1j * 0.75 * math.pi / 2**j * along)
    wave, bump = wave.sum((2, 3)), bump.sum((2, 3))
    return wave - wave.sum() / bump.sum() * bump


def low_pass(height, width, scales):
    y, x = grid(height)[:, None, :, None], grid(width)[None, :, None, :]
    sigma = 0.8 * 2 ** (scales - 1)
    return (np.exp(-(x**2 + y**2) / (2 * sigma**2)) / (2 * math.pi * sigma**2)).sum((2, 3))


def convolved(x, kernel, step):
    """Circular convolution at every step-th position, term by term."""
    height, width = x.shape
    out = np.zeros((height // step, width // step), dtype=complex)
    for a in range(height // step):
        for b in range(width // step):
            rows, columns = (step * a - np.arange(height)), (step * b - np.arange(width))
            out[a, b] = (x * kernel[np.ix_(rows % height, columns % width)]).sum()
    return out


def test_every_order_by_its_definition_in_space():
    """Sizes differ, so rows are not columns; scales 0, 1 and 2 all occur."""
    height, width, scales, turns = 24, 16, 3, 4
    image = np.random.default_rng(0).normal(size=(height, width))
    transform = Scattering2d(height, width, scales, turns)
    found = transform(torch.tensor(image, dtype=torch.float32)[None])[0].numpy()
    assert found.shape == (1 + 3 * 4 + 16 * 3, 3, 2) == (transform.paths, 3, 2)
    phi = low_pass(height, width, scales)

    def averaged(u, j):  # u is known at every 2^j-th position
        return convolved(u, 4**j * phi[:: 2**j, :: 2**j], 2 ** (scales - j)).real

    def modulus(u, i, j, turn):
        psi = morlet(height, width, j, math.pi * turn / turns, 4 / turns)
        return np.abs(convolved(u, 4**i * psi[:: 2**i, :: 2**i], 2 ** (j - i)))

    scale = np.abs(found).max()
    assert np.allclose(found[0], averaged(image, 0), atol=1e-5 * scale)
    first = {(j, t): modulus(image, 0, j, t) for j in range(scales) for t in range(turns)}
    for j in range(scales):
        for t in range(turns):
            assert np.allclose(
                found[1 + turns * j + t], averaged(first[j, t], j), atol=1e-5 * scale
            )
    place = 1 + scales * turns
    for j, k in ((0, 1), (0, 2), (1, 2)):
        for t, s in ((0, 0), (1, 3), (3, 2)):
            wanted = averaged(modulus(first[j, t], j, k, s), k)
            assert np.allclose(found[place + turns * t + s], wanted, atol=1e-5 * scale)
        place += turns**2
    assert place == transform.paths


def test_81_paths_of_a_colour_at_8_by_8_positions_in_order():
    """Stripes along one direction light up that orientation, coarse stripes the coarse scale."""
    transform = Scattering2d(32, 32, 2, 8)
    assert transform.paths == 1 + 2 * 8 + 8**2 == 81
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    for j, cycles in ((0, 12), (1, 6)):  # 12 · 2π / 32 = 3π/4
        for turn, stripes in ((0, x), (4, y)):
            found = transform(torch.cos(2 * math.pi * cycles / 32 * stripes)[None])[0]
            assert found.shape == (81, 8, 8)
            assert int(found[1:17].mean((1, 2)).argmax()) == 8 * j + turn
    found = transform(torch.cos(2 * math.pi * 8 / 32 * (x + y))[None])[0]
    assert int(found[1:17].mean((1, 2)).argmax()) % 8 == 2  # 45 degrees


def test_the_wavelets_never_add_energy():
    """|φ̂|² + ½ Σ (|ψ̂(ω)|² + |ψ̂(−ω)|²) ≤ 1, and so no image gains energy."""
    size = 32
    total = np.abs(np.fft.fft2(low_pass(size, size, 2))) ** 2
    for j in range(2):
        for turn in range(8):
            power = np.abs(np.fft.fft2(morlet(size, size, j, math.pi * turn / 8, 0.5))) ** 2
            total += 0.5 * (power + np.roll(power[::-1, ::-1], (1, 1), (0, 1)))
    assert total.max() <= 1 + 1e-9
    transform = Scattering2d(size, size, 2, 8)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20, size, size, generator=generator)
    smooth = noise.cumsum(1).cumsum(2)
    for images in (noise, smooth - smooth.mean((1, 2), keepdim=True), torch.ones(1, size, size)):
        energy = 16 * transform(images).square().sum((1, 2, 3))  # one position stands for 16
        assert (energy <= images.square().sum((1, 2)) * (1 + 1e-5)).all()
        assert (energy >= 0.02 * images.square().sum((1, 2))).all()


def test_shifts_move_the_coefficients_and_a_constant_has_only_an_average():
    transform = Scattering2d(32, 24, 2, 8)
    image = torch.randn(2, 32, 24, generator=torch.Generator().manual_seed(0))
    found = transform(image)
    shifted = transform(image.roll((4, -8), (1, 2)))
    assert torch.allclose(shifted, found.roll((1, -2), (2, 3)), atol=1e-5)
    # Between the kept positions there is little change, compared with that of the pixels.
    near = transform(image.roll(1, 2))
    assert (near - found).norm() / found.norm() < 0.4 * (image.roll(1, 2) - image).norm() / (
        image.norm()
    )
    flat = transform(torch.full((1, 32, 24), -3.0))[0]
    assert torch.allclose(flat[0], torch.tensor(-3.0), atol=1e-4)
    assert flat[1:].abs().max() < 1e-5


def test_many_images_at_once_are_as_each_alone(monkeypatch):
    transform = Scattering2d(16, 16, 2, 4)
    images = torch.randn(7, 16, 16)
    wanted = torch.cat([transform(x[None]) for x in images])
    for at_once in (1, 3 * 16 * 16 * 16, 1 << 30):
        monkeypatch.setattr("udpfl.models._wavelets._AT_ONCE", at_once)
        assert torch.allclose(transform(images), wanted, atol=1e-6)


def test_features_and_images_give_the_same_scores_and_the_state_is_the_linear_layer():
    model = build("scattering", CIFAR, 10, seed=0)
    assert list(model.state_dict()) == ["output.weight", "output.bias"]
    assert not any(p.any() for p in model.parameters())
    nn.init.normal_(model.output.weight)
    images = torch.rand(3, *CIFAR)
    features = model.precompute(images)
    assert features.shape == (3, 3 * 81 * 8 * 8)
    assert torch.equal(model(features), model(images))
    with pytest.raises(InvalidInput, match=r"^model: .*\(3, 32, 32\), got \(3, 28, 28\)"):
        model.precompute(torch.rand(3, 3, 28, 28))


def test_features_are_normalised_within_each_record_in_groups_of_neighbours():
    model = build("scattering", CIFAR, 10, seed=0)
    plain = build("scattering", CIFAR, 10, seed=0, normalization="none")
    images = torch.rand(2, *CIFAR) * torch.tensor([1.0, 0.25]).view(2, 1, 1, 1)
    raw = plain.precompute(images).view(2, 27, 9 * 64)
    found = model.precompute(images).view(2, 27, 9 * 64)
    centred = raw - raw.mean(2, keepdim=True)
    wanted = centred / centred.square().mean(2, keepdim=True).sqrt()
    assert torch.allclose(found, wanted, atol=0.05)
    assert torch.allclose(found.square().mean(2), torch.tensor(1.0), atol=0.02)
    groups = {(243, 27): 27, (243, 30): 27, (243, 1): 1, (243, 500): 243, (81, 27): 27}
    for (planes, asked), number in groups.items():
        shape = (planes // 81, 16, 16)
        assert build("scattering", shape, 2, seed=0, groups=asked).groups == number
    assert build("scattering", CIFAR, 2, seed=0, scales=3).groups == 21  # 3 · 217 = 21 · 31
    dark = model.precompute(torch.zeros(1, *CIFAR))
    assert dark.isfinite().all()


def test_the_colours_follow_one_another_and_margins_are_mirrored():
    model = build("scattering", (2, 30, 33), 2, seed=0, normalization="none")
    images = torch.rand(1, 2, 30, 33)
    found = model.precompute(images).view(2, 81, 8, 9)
    assert model.positions == (8, 9)
    padded = np.pad(images[0].numpy(), ((0, 0), (4, 6), (4, 7)), mode="reflect")
    wanted = Scattering2d(40, 44, 2, 8)(torch.from_numpy(padded))[:, :, 1:9, 1:10]
    assert torch.allclose(found, wanted, atol=1e-6)


def test_images_have_gradients_even_where_nothing_oscillates():
    """Attacks differentiate by the image."""
    model = build("scattering", (1, 12, 12), 2, seed=0)
    nn.init.normal_(model.output.weight)
    for images in (torch.zeros(1, 1, 12, 12), torch.rand(2, 1, 12, 12)):
        images.requires_grad_()
        (slope,) = torch.autograd.grad(model(images).sum(), images)
        assert slope.isfinite().all()
    assert slope.abs().max() > 0
