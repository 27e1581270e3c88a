"""The encoder: each image alone, whatever its scale and light, against loops over patches."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.features.toys import STAGES, TOY  # noqa: E402
from udpfl.features import Encoder, Recipe, Stage, load_encoder, random_images, train  # noqa: E402
from udpfl.features.encoder import Filters, Mixtures, prepared  # noqa: E402
from udpfl.features.training import learn_filters, learn_mixtures  # noqa: E402


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "encoder.safetensors"
    assert train(TOY, path)
    return load_encoder(path)


def test_features_have_norm_1_and_as_many_numbers_as_is_said(toy):
    features = toy(random_images("leaves", 6))
    assert features.shape == (6, toy.features) == (6, 9 * 11)
    assert torch.allclose(features.norm(dim=1), torch.ones(6))


def test_an_image_is_looked_at_alone(toy):
    images = random_images("leaves", 7)
    with torch.no_grad():
        together, alone = toy(images), torch.cat([toy(own[None]) for own in images])
    assert torch.allclose(together, alone, atol=1e-3)


def test_neither_scale_nor_light_matters(toy):
    images = random_images("leaves", 4)
    assert torch.allclose(toy(images), toy(10 * images + 3), atol=0.02)


def test_a_grey_image_is_one_of_three_equal_colours(toy):
    grey = random_images("leaves", 4)[:, :1]
    assert torch.allclose(toy(grey), toy(grey.expand(-1, 3, -1, -1)), atol=1e-5)


def test_what_shows_nothing_is_nothing_but_finite(toy):
    assert toy(torch.zeros(2, 1, 28, 28)).isfinite().all()
    assert toy(torch.full((2, 3, 64, 64), 7.0)).isfinite().all()


@pytest.mark.parametrize("sides", [(8, 8), (28, 28), (24, 40), (64, 64), (13, 57)])
def test_any_size_is_brought_to_about_32(toy, sides):
    ready = prepared(torch.rand(2, 3, *sides))
    assert all(24 <= side <= 40 for side in ready.shape[2:])
    assert toy(torch.rand(2, 3, *sides)).shape == (2, toy.features)


def test_mirrored_features_are_those_of_both_images_averaged(toy):
    images = prepared(random_images("leaves", 5))
    both = toy.averages(images, mirrored=True)
    one, other = toy.averages(images), toy.averages(images.flip(3))
    for a, b, c in zip(both, one, other, strict=True):
        assert torch.allclose(a, (b + c) / 2)


def brute_force(filters: Filters, maps: np.ndarray) -> np.ndarray:
    """Answers patch by patch, in double precision."""
    weight = filters.patches.weight.double().numpy().reshape(filters.patches.out_channels, -1)
    floor, k, s = float(filters.floor), filters.kernel, filters.stride
    side = (maps.shape[2] - k) // s + 1
    found = np.empty((len(maps), len(weight), side, side))
    for n, image in enumerate(maps):
        for i in range(side):
            for j in range(side):
                patch = image[:, i * s : i * s + k, j * s : j * s + k].ravel()
                centred = patch - patch.mean() if filters.centred else patch
                scaled = centred / np.sqrt((centred**2).mean() + floor)
                found[n, :, i, j] = weight @ scaled - filters.offset.double().numpy()
    return found


@pytest.mark.parametrize("number", [0, 1])
def test_answers_are_those_of_loops_over_patches(toy, number):
    maps = toy.maps(prepared(random_images("leaves", 3)), number).detach()
    wanted = brute_force(toy.stages[number], maps.double().numpy())
    found = toy.stages[number].answers(maps).detach().numpy()
    assert np.abs(found - wanted).max() < 0.01  # filters of mean 0 were rounded to half precision


def test_what_exceeds_a_threshold_is_kept_by_sign(toy):
    stage = toy.stages[0]
    maps = prepared(random_images("leaves", 3))
    answers, threshold = stage.answers(maps), stage.threshold[:, None, None]
    found = stage(maps)
    up, down = found[:, :8], found[:, 8:]
    assert torch.equal(up, (answers - threshold).clamp(min=0))
    assert torch.equal(down, (-answers - threshold).clamp(min=0))
    assert (up > 0).any()
    assert (down > 0).any()
    assert not ((up > 0) & (down > 0)).any()


def test_whitened_filters_answer_equally_in_all_directions_of_the_patches():
    """Without regularisation the mean square of an answer is that of white noise: one."""
    maps = prepared(random_images("mixed", 60))
    filters = Filters(3, Stage(20, 3, 1, 0, 4), centred=False)
    recipe = Recipe("mixed", whitening=1e-6, floor=1e-3, patches=40_000)
    with torch.no_grad():
        learn_filters(filters, maps, recipe, lambda *_: None, "")
        answers = filters.answers(maps)
    squares = answers.square().mean((0, 2, 3))
    strength = squares / squares.mean()
    assert strength.min() > 0.7
    assert strength.max() < 1.4


def test_mixtures_are_the_strongest_directions_levelled():
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=generator)
    rows = torch.randn(30_000, 6, generator=generator) @ mixing
    mixtures = Mixtures(6, 3)
    with torch.no_grad():
        learn_mixtures(mixtures, rows[:, :, None, None], levelling=0.5)
        found = mixtures(rows[:, :, None, None]).flatten(1)
    assert torch.allclose(found.T @ found / len(rows), torch.eye(3), atol=0.1)  # some are bounded
    values = np.linalg.eigvalsh(np.corrcoef(rows.numpy().T))
    with torch.no_grad():
        learn_mixtures(mixtures, rows[:, :, None, None], levelling=0.0)
        found = mixtures(rows[:, :, None, None]).flatten(1)
    assert np.allclose(found.square().mean(0).numpy(), values[::-1][:3], rtol=0.05)


def test_every_part_has_the_features_of_all_stages():
    assert Encoder(STAGES, parts=2).features == 44
