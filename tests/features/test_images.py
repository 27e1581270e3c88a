"""Random images: from a seed, of any size, and each family unlike the others."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from udpfl.errors import InvalidInput  # noqa: E402
from udpfl.features import FAMILIES, random_images  # noqa: E402


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [8, 17, 32])
def test_images_are_colours_between_0_and_1(family, size):
    images = random_images(family, 5, size=size)
    assert images.shape == (5, 3, size, size)
    assert images.isfinite().all()
    assert images.min() >= 0
    assert images.max() <= 1
    assert (images.std((1, 2, 3)) > 0.01).all()  # no image is empty


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_decides_them(family):
    one, same, other = (random_images(family, 3, size=16, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one[0], one[1])


def test_the_random_state_of_others_is_left_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    random_images("mixed", 5, size=16)
    assert torch.equal(torch.rand(3), wanted)


def falling(images):
    """How fast amplitudes fall with frequency: the exponent a of 1/f^a of the light."""
    light = images.double().mean(1)
    light = light - light.mean((1, 2), keepdim=True)
    power = torch.fft.fft2(light).abs().square().mean(0)
    f = torch.fft.fftfreq(len(power)).double()
    distance = (f[:, None] ** 2 + f**2).sqrt()
    low, high = (
        power[(distance > a) & (distance < b)].mean() for a, b in ((0.05, 0.1), (0.2, 0.4))
    )
    return float((low / high).log() / 2 / torch.tensor(4.0).log())


@pytest.mark.parametrize("family", ["leaves", "spectra"])
def test_amplitudes_fall_as_in_photographs(family):
    assert 0.7 < falling(random_images(family, 60)) < 2.2


def test_leaves_have_edges_that_spectra_have_not():
    """Few differences of neighbours are large: their fourth moment is far above a Gaussian's."""

    def peakedness(family):
        images = random_images(family, 60).mean(1)
        steps = images.diff(dim=2)
        steps = steps / steps.std((1, 2), keepdim=True)
        return float(steps.pow(4).mean())

    assert peakedness("leaves") > 1.5 * peakedness("spectra")


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [({"family": "cats"}, "family"), ({"size": 7}, "size"), ({"count": 0}, "count")],
)
def test_what_is_wrong_is_named(wrong, parameter):
    asked = {"family": "leaves", "count": 1, "size": 16, **wrong}
    with pytest.raises(InvalidInput, match=parameter):
        random_images(asked["family"], asked["count"], size=asked["size"])
