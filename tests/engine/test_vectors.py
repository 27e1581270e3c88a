"""Noise of whole vectors as the engine draws it: its law, its lanes, its grid, its rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import stats

from tests.mechanisms.shells import radius_law
from udpfl import Gaussian, InvalidInput, Laplace, StaircaseL1
from udpfl.accounting import Release, Repeated, Sensitivity
from udpfl.accounting.rounding import rounding_of_event
from udpfl.engine import Entropy, Key, Keyed, MechanismNoiser
from udpfl.engine import noise as drawing
from udpfl.mechanisms import grid
from udpfl.mechanisms.base import signed_uniform
from udpfl.mechanisms.grid import grid_of, rounding_of

KEY = Key("run", "client", 1, 0)


def added(noise, sums, stream=None, lanes=1):
    keys = [KEY._replace(client=str(lane)) for lane in range(lanes)]
    return MechanismNoiser([noise] * lanes).add(sums, stream or Entropy(), keys).double()


@pytest.mark.parametrize("dimension", [1, 2, 10, 300])
def test_what_the_engine_adds_has_the_law_of_the_mechanism(dimension):
    """Many vectors side by side in a row, around a sum that is on no grid."""
    noise, count = StaircaseL1(2.0, 1.0, dimension=dimension), 20_000 // max(1, dimension // 10)
    sums = torch.full((1, count * dimension), 0.1234567, dtype=torch.float64)
    vectors = (added(noise, sums) - sums).view(count, dimension).numpy()
    radii = np.abs(vectors).sum(1)
    assert stats.kstest(radii, radius_law(noise)).pvalue > 1e-4
    for wrong in (0.9, 1.1):
        assert stats.kstest(wrong * radii, radius_law(noise)).pvalue < 1e-6
    assert abs((vectors > 0).mean() - 0.5) < 5 * 0.5 / math.sqrt(vectors.size)
    if dimension > 1:
        share = np.abs(vectors[:, 0]) / radii
        assert stats.kstest(share, stats.beta(1, dimension - 1).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(radii[1:], radii[:-1])[0, 1]) < 5 / math.sqrt(count)


def test_a_vector_is_not_cut_into_blocks_of_columns(monkeypatch):
    """One density for all of it, however long it is: its radius varies little, and just so."""
    monkeypatch.setattr(drawing, "_COLUMNS", 64)
    noise = StaircaseL1(1.0, 1.0, dimension=100)
    vectors = added(noise, torch.zeros(1, 100 * 800, dtype=torch.float64)).view(-1, 100)
    assert stats.kstest(vectors.abs().sum(1).numpy(), radius_law(noise)).pvalue > 1e-4
    assert len(torch.unique(vectors, dim=0)) == 800


def test_a_row_that_is_no_whole_number_of_vectors_is_refused():
    for columns in (9, 11, 25):
        with pytest.raises(InvalidInput, match="staircase-l1 noise is for vectors of 10"):
            added(StaircaseL1(1.0, 1.0, dimension=10), torch.zeros(1, columns))


def test_noise_of_a_lane_does_not_depend_on_the_others():
    noise, sums = StaircaseL1(1.0, 1.0, dimension=50), torch.zeros(3, 400, dtype=torch.float64)
    together = added(noise, sums, Keyed(1), lanes=3)
    assert len(together.abs().sum(1).unique()) == 3
    for lane, row in enumerate(together):
        key = KEY._replace(client=str(lane))
        alone = MechanismNoiser([noise]).add(sums[:1], Keyed(1), [key])[0].double()
        assert torch.equal(alone, row)
    found = np.corrcoef(together.numpy()) - np.eye(3)
    assert np.abs(found).max() < 6 / math.sqrt(400)


def test_what_leaves_lies_on_the_grid_and_is_float32():
    noise = StaircaseL1(0.7, 1.3, dimension=7)
    sums = 3 * torch.randn(2, 70, dtype=torch.float64)
    noisy = MechanismNoiser([noise] * 2).add(sums, Entropy(), [KEY, KEY._replace(client="b")])
    assert noisy.dtype == torch.float32
    steps = noisy.double() / grid_of(noise)
    assert torch.equal(steps, steps.round())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_vectors_on_cuda():
    noise = StaircaseL1(2.0, 1.0, dimension=100)
    sums = torch.full((2, 100 * 2_000), 0.3, dtype=torch.float64, device="cuda")
    noisy = (added(noise, sums, lanes=2) - 0.3).cpu().view(-1, 100)
    assert stats.kstest(noisy.abs().sum(1).numpy(), radius_law(noise)).pvalue > 1e-4
    assert len(torch.unique(noisy, dim=0)) == 4_000


@dataclass(frozen=True)
class Silent(StaircaseL1):
    """Noise that is all zeros: what is left is what the engine adds on top of it."""

    def directed(self, signed, radii):
        return signed * 0


def test_every_coordinate_is_blurred_by_itself():
    """By Laplace noise of one step of the grid, rounded."""
    noise, lanes = Silent(1.0, 1.0, dimension=40), 3
    steps = added(noise, torch.zeros(lanes, 40 * 500, dtype=torch.float64), lanes=lanes)
    steps = (steps / grid_of(noise)).numpy()
    counts = np.asarray([(np.abs(steps) == k).sum() for k in range(6)])
    edges = np.append(0.0, np.arange(6) + 0.5)
    expected = steps.size * (np.exp(-edges[:-1]) - np.exp(-edges[1:]))
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-4
    assert counts.sum() == pytest.approx(expected.sum(), rel=0.01)
    parts = steps.reshape(2 * lanes, -1)
    assert np.abs(np.corrcoef(parts) - np.eye(len(parts))).max() < 6 / math.sqrt(parts.shape[1])
    # which is next to nothing of the noise
    assert 2 * grid_of(noise) ** 2 < 1e-5 * noise.variance


def test_what_is_added_on_top_has_words_of_its_own(monkeypatch):
    """Not those that the directions are made of."""
    seen = []
    draw = Laplace.draw
    monkeypatch.setattr(Laplace, "draw", lambda self, u: draw(self, seen.append(u.clone()) or u))
    monkeypatch.setattr(Silent, "directed", lambda self, u, _: seen.append(u.clone()) or 0 * u)
    added(Silent(1.0, 1.0, dimension=10), torch.zeros(1, 2_000, dtype=torch.float64))
    directions, blur = (own.flatten().numpy() for own in seen)
    assert abs(np.corrcoef(directions, blur)[0, 1]) < 6 / math.sqrt(2_000)
    assert not np.any(directions == blur)


def test_radii_are_made_of_two_words_each():
    """A number of 63 bits would leave gaps in the tail; the second word fills them."""

    class Small:
        def __call__(self, rows):
            rows.random_(-(2**63), None)
            rows[0] = 0

    numbers = drawing._uniform(Small(), torch.device("cpu"), 2_000)
    assert len(np.unique(numbers)) == 2_000
    assert stats.kstest(numbers * 2.0**63, "uniform").pvalue > 1e-6


# What is said of rounding


def exact_vector(noise, normal, signed):
    """A vector in 50 digits, from the number that its radius is made of and those of its shares."""
    x = mp.sign(normal) * mp.sqrt(2) * mp.erfinv(1 - abs(mp.mpf(float(normal))))
    shape = noise.dimension - mp.mpf(1) / 3
    radius = noise.period * shape * (1 + x / mp.sqrt(9 * shape)) ** 3 / mp.mpf(noise.decay)
    sizes = [-mp.log(abs(mp.mpf(float(s)))) for s in signed]
    total = mp.fsum(sizes)
    return [mp.sign(s) * radius * own / total for s, own in zip(signed, sizes, strict=True)]


def drawn_radius(noise, rng):
    """A radius, and the uniform number that it is made of."""
    given = []

    def uniform(count):
        given.append(signed_uniform(count, rng))
        return given[-1]

    radius = noise.radii(1, uniform)[0]
    for numbers in given:
        tries = numbers[: len(numbers) // 2]
        x = Gaussian(1.0).from_signed(tries) / math.sqrt(9 * (noise.dimension - 1 / 3))
        made = noise.period * ((noise.dimension - 1 / 3) * (1 + x) ** 3 / noise.decay)
        same = np.abs(made / radius - 1) < 1e-12
        if same.any():
            return radius, float(tries[same][0])
    raise AssertionError


@pytest.mark.parametrize(("dimension", "count"), [(1, 300), (2, 150), (10, 40), (1000, 2)])
@pytest.mark.parametrize("decay", [0.3, 2.0])
def test_vectors_are_as_exact_as_is_said(dimension, count, decay):
    """The blur halves what errors count, which makes up for vectors with more than ordinary ones"""
    noise, rng = StaircaseL1(decay, 1.0, dimension=dimension), np.random.default_rng(5)
    unit, found = 2.0**-53 * noise.noise_std, []
    for _ in range(count):
        radius, normal = drawn_radius(noise, rng)
        signed = signed_uniform(dimension, rng)
        got = noise.directed(torch.tensor(signed), torch.tensor(radius)).numpy()
        with mp.workdps(50):
            wanted = exact_vector(noise, normal, signed)
            errors = [
                float((mp.mpf(float(g)) - w) / unit) for g, w in zip(got, wanted, strict=True)
            ]
        found.append(np.sqrt(np.mean(np.square(errors))))
    assert np.sqrt(np.mean(np.square(found))) <= noise.rounding
    assert max(found) <= 2 * noise.rounding


@pytest.mark.slow
def test_what_rounding_adds_to_a_run_with_vectors(monkeypatch):
    """As for independent noise, and the law of every radius on top of it."""
    noise = StaircaseL1(1.0, 1.0, dimension=26_010)
    event = Repeated(Release(noise, Sensitivity(1.0, "l1", 26_010)), 300)
    found = rounding_of_event(event, 8.0)
    assert found == rounding_of([(noise, 300 * 26_010)], 8.0)
    assert found.total < 1e-7
    independent = rounding_of([(Laplace(1.0), 300 * 26_010)], 8.0)
    assert found.epsilon > independent.epsilon
    laws = 2.01 * 300 * 8 * math.sqrt(26_010) * 2.0**-53
    monkeypatch.setattr(grid, "_law_of_radius", lambda dimension: 0.0)
    without = rounding_of([(noise, 300 * 26_010)], 8.0)
    assert found.epsilon >= without.epsilon + laws
