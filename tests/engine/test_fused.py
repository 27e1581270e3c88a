"""Which noise has a kernel, and what the engine hands to it; no kernel runs here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.conftest import Logistic
from udpfl import Gaussian, InvalidInput, Laplace, R2dp, Staircase, StaircaseL1, Tabulated
from udpfl.engine import Entropy, Key, Keyed, MechanismNoiser
from udpfl.engine import noise as drawing
from udpfl.engine._fused import law_of
from udpfl.mechanisms.grid import grid_of


@dataclass(frozen=True)
class Turned(Laplace):
    """Draws in another way than Laplace noise does."""

    def magnitude(self, tail):
        return 3 * super().magnitude(tail)


@dataclass(frozen=True)
class Renamed(Laplace):
    """Laplace noise by another name."""


@dataclass(frozen=True)
class OwnTable(Tabulated):
    """A table of one's own."""

    def shape(self, x):
        return -x

    @property
    def _table(self):
        return super()._table


@dataclass(frozen=True)
class Straight(StaircaseL1):
    """Vectors whose directions are drawn in another way."""

    def directed(self, signed, radii):
        return super().directed(abs(signed), radii)


class Kernels:
    """Keeps what it is given, and makes noise of the keys."""

    def __init__(self):
        self.calls = []

    def add_noise(self, kind, sums, noisy, keys, laws):
        self.calls.append((kind, keys.clone(), laws.clone()))
        noisy.copy_(sums + keys[:, :1].double() * 2.0**-64)

    def add_vectors(self, sums, noisy, keys, laws, dimension):
        self.add_noise(("vectors", dimension), sums, noisy, keys, laws)

    def signed_numbers(self, keys, count):
        return torch.full((len(keys), count), 0.25, dtype=torch.float64)

    def add_rounded(self, noise, sums, noisy, laws):
        self.calls.append(("drawn", noise.clone(), laws.clone()))
        noisy.copy_((noise + sums / laws[:, :1]).round() * laws[:, :1])


@pytest.fixture
def kernels(monkeypatch):
    fake = Kernels()
    monkeypatch.setattr(drawing, "noise_kernels_for", lambda tensor: fake)
    return fake


def keys_for(lanes):
    return [Key("run", str(lane), 1, 0) for lane in range(lanes)]


def test_a_kernel_is_for_noise_that_is_drawn_as_its_class_draws_it():
    names = [law_of(own).kernel for own in (
        Gaussian(1.0), Laplace(1.0), Renamed(1.0), Staircase(1.0, 1.0), R2dp(1.0), Logistic(1.0),
        StaircaseL1(1.0, 1.0, dimension=4),
    )]  # fmt: skip
    assert names == [
        "gaussian", "laplace", "laplace", "staircase", "tabulated", "tabulated", "vectors",
    ]  # fmt: skip
    for own in (Turned(1.0), OwnTable(1.0), Straight(1.0, 1.0, dimension=4)):
        assert law_of(own) == ("", getattr(own, "dimension", 1), (grid_of(own),))


def test_a_law_says_what_noise_is_made_with_in_units_of_its_grid():
    for noise in (Gaussian(1.7), Laplace(0.3)):
        grid, size = law_of(noise).numbers
        assert grid == grid_of(noise)
        assert size * grid == next(iter(noise.parameters.values()))
    noise = Staircase(2.0, 0.7, 0.3)
    grid, decay, period, end, fallen, high, low, steep = law_of(noise).numbers
    assert (grid, decay, period * grid) == (grid_of(noise), 2.0, 0.7)
    assert (end, fallen) == pytest.approx((math.exp(-2), 1 - math.exp(-2)))
    assert high == pytest.approx(0.3 + 0.7 * math.exp(-2))
    assert low == pytest.approx(0.7 * math.exp(-2) / high)
    assert steep == pytest.approx(0.7 / low)


def test_the_cells_of_a_table_are_those_of_its_density():
    noise = R2dp(0.7, 6.0)
    grid, scale, last, edge, rate, half, *rest = law_of(noise).numbers
    cells = np.asarray(rest).reshape(-1, 5)
    assert (scale * grid, len(cells), half) == (0.7, 256, 128)
    survival, start, width, slope, height = cells.T
    tails = np.append(survival, last)
    for cell in (0, 100, 255):  # the mass of a cell, by its density at many points
        x = start[cell] + width[cell] * (np.arange(10_000) + 0.5) / 10_000
        mass = 2 * np.exp(noise.log_density(0.7 * x)).mean() * 0.7 * width[cell]
        assert mass == pytest.approx(tails[cell] - tails[cell + 1], rel=1e-6)
        factor = math.expm1(slope[cell]) / slope[cell]
        assert mass == pytest.approx(height[cell] * factor, rel=1e-6)
    assert edge == pytest.approx(start[-1] + width[-1])
    fall = noise.log_density(0.7 * (edge + 1)) - noise.log_density(0.7 * (edge + 2))
    assert rate == pytest.approx(float(fall), rel=1e-9)


MIXED = [
    Gaussian(1.0), Gaussian(2.0), Laplace(0.3), Turned(1.0), Turned(1.0), Turned(2.0),
    R2dp(0.7, 6.0), Logistic(1.0), StaircaseL1(1.0, 1.0, dimension=3),
    StaircaseL1(2.0, 1.0, dimension=3), StaircaseL1(2.0, 1.0, dimension=6), Laplace(0.3),
]  # fmt: skip


def test_neighbours_share_a_kernel_and_have_laws_and_keys_of_their_own(kernels):
    sums, keys = torch.zeros(len(MIXED), 6, dtype=torch.float64), keys_for(len(MIXED))
    noiser = MechanismNoiser(MIXED)
    noisy = noiser.add(sums, Keyed(1), keys)
    assert [call[0] for call in kernels.calls] == [
        "gaussian", "laplace", "drawn", "drawn", "tabulated", ("vectors", 3), ("vectors", 6),
        "laplace",
    ]  # fmt: skip
    bits, lane = Keyed(1).keys_on(sums.device, keys), 0
    for kind, own, laws in kernels.calls:
        for row, law in zip(own, laws, strict=True):
            assert tuple(law.tolist()) == law_of(MIXED[lane]).numbers
            if kind != "drawn":
                assert torch.equal(row, bits[lane])
                assert noisy[lane].tolist() == [float(np.float32(row[0] * 2.0**-64))] * 6
            else:
                mechanism = MIXED[lane]
                expected = -3 * mechanism.scale * math.log(0.25)
                assert noisy[lane].tolist() == pytest.approx([expected] * 6, abs=0.01)
            lane += 1
    assert lane == len(MIXED)


def test_keys_are_fresh_at_every_call(kernels):
    sums = torch.zeros(3, 2, dtype=torch.float64)
    noiser = MechanismNoiser([Laplace(1.0)] * 3)
    for _ in "12":
        noiser.add(sums, Entropy(), keys_for(3))
    seen = torch.cat([call[1] for call in kernels.calls])
    assert len(seen[:, :2].unique()) == 12


def test_a_row_that_is_no_whole_number_of_vectors_is_refused(kernels):
    for noise in (StaircaseL1(1.0, 1.0, dimension=4), Straight(1.0, 1.0, dimension=4)):
        with pytest.raises(InvalidInput, match="vectors of 4"):
            MechanismNoiser([noise]).add(torch.zeros(1, 6), Entropy(), keys_for(1))
    assert not kernels.calls


def test_vectors_that_are_drawn_in_their_own_way_are(kernels):
    noise = Straight(1.0, 1.0, dimension=400)
    drawn = MechanismNoiser([noise]).add(torch.zeros(1, 400), Entropy(), keys_for(1))
    assert not kernels.calls
    assert bool((drawn >= -20 * grid_of(noise)).all())  # all on one side, but for the blur
