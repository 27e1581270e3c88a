"""Noise with one density for a whole vector: the conformance suite of test_mechanisms.py for it.

Densities, volumes and laws are written down here once more, by other formulas: grids of cells in
two and three dimensions, sums over shells, samples in more.
"""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import gammaln

from tests.mechanisms.shells import profile, radius_law, shells
from udpfl import InvalidInput, Laplace, Staircase, StaircaseL1, Unsupported
from udpfl.mechanisms import BUILT_IN, Radial
from udpfl.mechanisms._ripple import log_ripple

VECTORS: list[Radial] = [
    StaircaseL1(1.0, 1.0),
    StaircaseL1(0.3, 2.5, 0.8, 2),
    StaircaseL1(4.0, 0.5, 0.0, 3),
    StaircaseL1(1.0, 1.0, 1.0, 10),
    StaircaseL1(1.6, 0.2, dimension=26_010),
]
SMALL = [own for own in VECTORS if own.dimension < 1000]


def test_every_built_in_mechanism_of_vectors_is_here():
    kinds = {kind for kind in BUILT_IN.values() if issubclass(kind, Radial)}
    assert {type(noise) for noise in VECTORS} >= kinds


def grid(noise, dimension, cells, far):
    """Midpoints of a grid over the whole space, far enough out for what is compared."""
    edge = np.linspace(-far, far, cells + 1) * noise.period
    middle = (edge[1:] + edge[:-1]) / 2
    axes = np.meshgrid(*[middle] * dimension, indexing="ij", sparse=True)
    return axes, (edge[1] - edge[0]) ** dimension


def on_grid(noise, shift, cells, far):
    """Densities of the noise and of the shifted noise on a grid of cells, normalised there."""
    axes, volume = grid(noise, len(shift), cells, far)
    p = profile(noise, sum(np.abs(axis) for axis in axes))
    q = profile(noise, sum(np.abs(axis - s) for axis, s in zip(axes, shift, strict=True)))
    return (p / (p.sum() * volume)).ravel(), (q / (q.sum() * volume)).ravel(), volume


@pytest.mark.parametrize("noise", VECTORS, ids=repr)
class TestConformance:
    def test_the_radius_has_its_law_and_no_other(self, noise):
        count = 20_000 if noise.dimension < 1000 else 500
        rng = np.random.default_rng(7)
        radii = np.abs(noise.sample((count, noise.dimension), rng)).sum(1)
        cdf = radius_law(noise)
        assert stats.kstest(radii, cdf).pvalue > 1e-3
        wrong = 0.02 if noise.dimension > 1000 else 0.15
        for factor in (1 - wrong, 1 + wrong):
            assert stats.kstest(radii * factor, cdf).pvalue < 1e-6

    def test_the_direction_is_uniform_and_independent_of_the_radius(self, noise):
        d, count = noise.dimension, 20_000 if noise.dimension < 1000 else 400
        vectors = noise.sample((count, d), np.random.default_rng(8))
        radii = np.abs(vectors).sum(1)
        signs = (vectors > 0).mean(0)
        assert np.abs(signs - 0.5).max() < 6 * 0.5 / math.sqrt(count)
        if d == 1:
            return
        shares = np.abs(vectors) / radii[:, None]
        for place in (0, d // 2, d - 1):
            assert stats.kstest(shares[:, place], stats.beta(1, d - 1).cdf).pvalue > 1e-4
        half = shares[:, : d // 2].sum(1)
        assert stats.kstest(half, stats.beta(d // 2, d - d // 2).cdf).pvalue > 1e-4
        assert abs(stats.spearmanr(half, radii).statistic) < 5 / math.sqrt(count)
        pairs = shares[:, 0], shares[:, 1]  # which add up to one: they pull in opposite directions
        together = -1 / (d - 1) if d < 1000 else 0.0
        assert np.corrcoef(*pairs)[0, 1] == pytest.approx(together, abs=5 / math.sqrt(count))

    def test_moments_of_one_coordinate(self, noise):
        drawn = np.abs(noise.sample_one(100_000, np.random.default_rng(9)))
        for power, exact in ((1, noise.mean_abs), (2, noise.variance)):
            spread = (drawn**power).std() / math.sqrt(len(drawn))
            assert (drawn**power).mean() == pytest.approx(exact, abs=5 * spread)
        edges, mass = shells(noise)
        d = noise.dimension
        with np.errstate(divide="ignore"):
            low, high = np.log(edges[:-1]), np.log(edges[1:])
        for power, exact in ((1, noise.mean_abs), (2, noise.variance)):
            inner = [np.log(-np.expm1(k * (low - high))) + k * high for k in (d + power, d)]
            radial = np.exp(mass + inner[0] - inner[1]).sum() * d / (d + power)
            # E |share of the radius|^power, uniform on the simplex
            share = math.exp(gammaln(d) + gammaln(1 + power) - gammaln(d + power))
            assert radial * share == pytest.approx(exact, rel=1e-8)

    def test_one_coordinate_of_many_and_its_tail(self, noise):
        rng = np.random.default_rng(10)
        count = 20_000 if noise.dimension < 1000 else 200
        whole = noise.sample((count, noise.dimension), rng)[:, 0]
        alone = noise.sample_one(20_000, rng)
        assert stats.ks_2samp(whole, alone).pvalue > 1e-3
        assert stats.ks_2samp(1.8 * whole, alone).pvalue < 1e-2 * min(1, 200 / count) ** 2
        tails = np.asarray([0.9, 0.5, 0.1, 0.01])
        found = [(np.abs(alone) > size).mean() for size in noise.magnitude(tails)]
        assert np.abs(found - tails).max() < 0.015
        far = noise.magnitude(np.asarray([1e-15, 1e-30]))
        scale = noise.period / noise.decay
        assert far[1] - far[0] == pytest.approx(scale * math.log(1e15), abs=1.1 * noise.period)

    def test_divergences_behave(self, noise):
        orders = np.asarray([1.0, 1.01, 1.5, 2, 7, 64, 1024])
        assert np.all(noise.renyi(orders, 0.0) == 0)
        shift = 0.8 * noise.period
        values = noise.renyi(orders, shift)
        assert np.all(np.diff(values) >= -1e-12)
        assert noise.renyi(math.inf, shift) == noise.decay >= values[-1]
        shifts = np.linspace(0.01, 4, 80) * noise.period
        assert np.all(np.diff(noise.renyi(6, shifts)) >= -1e-12)
        epsilons = np.linspace(-2, 1.2 * noise.decay, 50)
        curve = noise.hockey_stick(epsilons, shift)
        assert np.all(np.diff(curve) <= 1e-15)
        assert np.all(curve >= np.maximum(0, -np.expm1(epsilons)) - 1e-12)
        np.testing.assert_allclose(noise.renyi(3, -shift), noise.renyi(3, shift))
        assert noise.hockey_stick(0.5, 0.0) == 0

    def test_scale_equivariance(self, noise):
        for factor in (1e-3, 40.0):
            scaled = noise.scaled(factor)
            assert scaled.noise_std == pytest.approx(factor * noise.noise_std)
            assert scaled.mean_abs == pytest.approx(factor * noise.mean_abs)
            shift = 1.3 * noise.period
            assert scaled.renyi(5, factor * shift) == pytest.approx(noise.renyi(5, shift))
            x = np.linspace(-1, 1, noise.dimension) * noise.noise_std
            change = noise.dimension * math.log(factor)
            assert scaled.log_density(factor * x) == pytest.approx(
                noise.log_density(x) - change, abs=1e-6
            )

    def test_immutable_and_described_by_its_parameters(self, noise):
        assert type(noise)(**noise.parameters) == noise
        with pytest.raises(AttributeError):
            noise.decay = 1.0
        wrong = {"decay": (0.0, -1.0, math.nan, "1", True, 601.0), "period": (0.0, math.inf),
                 "split": (-0.5, 1.5), "dimension": (0, 1.5, True, "3", None)}  # fmt: skip
        for name, values in wrong.items():
            for value in values:
                with pytest.raises(InvalidInput):
                    replace(noise, **{name: value})
        assert noise.in_dimension(7).dimension == 7
        assert noise.in_dimension(None) == noise
        assert isinstance(noise.in_dimension(7).dimension, int)

    def test_numbers_are_not_drawn_one_by_one(self, noise):
        some = np.full(noise.dimension, 0.5)
        for draw in (noise.from_uniform, noise.from_signed, noise.draw):
            with pytest.raises(Unsupported, match="one density for the whole vector"):
                draw(some)
        with pytest.raises(Unsupported, match="one density"):
            noise.from_bits(np.arange(noise.dimension))
        for shape in (noise.dimension + 1, (noise.dimension, 7)):
            if shape != (7, 7):
                with pytest.raises(InvalidInput, match="coordinates along the last axis"):
                    noise.sample(shape, np.random.default_rng(0))
        with pytest.raises(InvalidInput, match="coordinates along the last axis"):
            noise.log_density(np.zeros((2, noise.dimension + 1)))


@pytest.mark.parametrize(
    ("dimension", "cells", "far"), [(1, 40_000, 40), (2, 1_200, 12), (3, 140, 9)]
)
def test_the_density_has_mass_one(dimension, cells, far):
    noise = StaircaseL1(2.0, 1.0, 0.35, dimension)
    axes, volume = grid(noise, dimension, cells, far)
    points = np.stack(np.broadcast_arrays(*axes), axis=-1)
    total = np.exp(noise.log_density(points)).sum() * volume
    assert total == pytest.approx(1, abs=3e-2 if dimension == 3 else 2e-3)
    mine = profile(noise, np.abs(points[:3]).sum(-1))
    ratio = np.exp(noise.log_density(points[:3])) / mine  # of the printed density, everywhere alike
    assert np.ptp(np.log(ratio)) < 1e-9


@pytest.mark.parametrize("noise", VECTORS, ids=repr)
def test_the_density_has_mass_one_in_shells(noise):
    """In any dimension: the volume of an l1 ball is (2 r)^d / d!."""
    edges, mass = shells(noise)
    d, middle = noise.dimension, (edges[:-1] + edges[1:]) / 2
    with np.errstate(divide="ignore"):
        low, high = np.log(edges[:-1]), np.log(edges[1:])
    volume = d * math.log(2) - gammaln(d + 1) + d * high + np.log(-np.expm1(d * (low - high)))
    for place in (np.argmax(mass), np.argmax(mass) + 1):
        point = np.zeros(d)
        point[0], point[-1] = middle[place] / 2, -middle[place] / 2
        point = point if d > 1 else np.full(1, middle[place])
        expected = mass[place] - volume[place]
        assert noise.log_density(point) == pytest.approx(expected, abs=1e-6)


SHIFTS = {2: [(1.0, 0.0), (0.5, 0.5), (0.8, -0.2)], 3: [(1.0, 0, 0), (1 / 3,) * 3, (0.6, 0.4, 0)]}


@pytest.mark.parametrize(("dimension", "cells", "far"), [(2, 1_000, 10), (3, 130, 8)])
@pytest.mark.parametrize("periods", [0.6, 1.0, 1.7])
def test_divergences_by_brute_force_and_no_other_direction_is_worse(dimension, cells, far, periods):
    noise = StaircaseL1(1.5, 1.0, 0.35, dimension)
    found = []
    for direction in SHIFTS[dimension]:
        p, q, volume = on_grid(noise, np.asarray(direction) * periods, cells, far)
        moments = [math.log((p**a * q ** (1 - a)).sum() * volume) / (a - 1) for a in (2, 6)]
        curve = [np.maximum(p - math.exp(e) * q, 0).sum() * volume for e in (0, 0.4, 1, 1.6, 2.5)]
        largest = float(np.abs(np.log(p / q)).max())
        found.append([*moments, *curve, largest])
    exact = [
        *noise.renyi([2, 6], periods),
        *noise.hockey_stick([0, 0.4, 1, 1.6, 2.5], periods),
        float(noise.renyi(math.inf, periods)),
    ]
    assert found[0] == pytest.approx(exact, rel=3e-2, abs=5e-3)
    for other in found[1:]:
        assert np.all(np.asarray(other) <= np.asarray(exact) * 1.03 + 5e-3)
    assert np.all(np.asarray(found[1][:4]) < np.asarray(exact[:4]))  # and it does matter


@pytest.mark.parametrize("dimension", [10, 500])
@pytest.mark.parametrize("decay", [0.5, 3.0])
def test_divergences_by_samples_in_many_dimensions(dimension, decay):
    noise, rng = StaircaseL1(decay, 1.0, dimension=dimension), np.random.default_rng(11)
    x = noise.sample((40_000 if dimension < 100 else 8_000, dimension), rng)
    for periods in (0.5, 1.0, 1.8):
        corner = np.zeros(dimension)
        corner[0] = periods
        spread = rng.exponential(size=dimension) * rng.choice([-1, 1], dimension)
        spread *= periods / np.abs(spread).sum()
        for shift, is_worst in ((corner, True), (spread, False)):
            loss = noise.log_density(x) - noise.log_density(x - shift)
            assert np.abs(loss).max() <= decay * math.ceil(periods) * (1 + 1e-9)
            for epsilon in (0.0, 0.5 * decay, 1.2 * decay):
                each = -np.expm1(np.minimum(epsilon - loss, 0.0))
                error = 5 * each.std() / math.sqrt(len(each)) + 1e-4
                exact = float(noise.hockey_stick(epsilon, periods))
                assert each.mean() <= exact + error
                if is_worst:
                    assert each.mean() >= exact - error


@given(
    decay=st.floats(1e-4, 60),
    split=st.floats(0, 1),
    periods=st.one_of(st.floats(1e-3, 12), st.integers(1, 8).map(float)),
    order=st.sampled_from([1.0, 1.05, 1.7, 2.0, 5.0, 40.0, 1000.0, math.inf]),
)
def test_in_one_dimension_it_is_staircase_noise(decay, split, periods, order):
    one, other = StaircaseL1(decay, 0.5, split), Staircase(decay, 0.5, split)
    shift = periods / 2
    assert one.renyi(order, shift) == pytest.approx(other.renyi(order, shift), rel=1e-7, abs=1e-13)
    epsilons = np.asarray([-1.0, 0.0, 0.3, 1.0, 7.0])
    np.testing.assert_allclose(
        one.hockey_stick(epsilons, shift), other.hockey_stick(epsilons, shift), atol=1e-11
    )
    assert one.variance == pytest.approx(other.variance, rel=1e-9)
    assert one.mean_abs == pytest.approx(other.mean_abs, rel=1e-9)


@settings(max_examples=25)
@given(power=st.integers(1, 60), start=st.floats(0, 1), decay=st.floats(0.02, 100).map(lambda x: x))
def test_sums_over_steps_in_30_digits(power, start, decay):
    with mp.workdps(30):
        x, rate = mp.mpf(start) % 1, mp.mpf(decay)
        x = x if x else mp.mpf(1)
        last = int((power + 14 * math.sqrt(power) + 90) / decay) + 4
        total = mp.fsum((n + x) ** power * mp.e ** (-rate * (n + x)) for n in range(last))
        expected = float(mp.log(total * rate ** (power + 1) / mp.factorial(power)))
    found = float(log_ripple(power, np.asarray(start), decay))
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("power", [1, 2, 3, 4, 9])
def test_sums_over_very_many_steps(power):
    """Where no sum is made any more, against one of three million terms."""
    decay, starts = 2e-4 * power, np.asarray([0.0, 0.1, 0.5, 0.95])
    y = np.arange(3 * 10**6 // power)[:, None] + np.where(starts == 0, 1.0, starts)
    terms = power * np.log(y * decay / power) - (y * decay - power)
    smooth = gammaln(power + 1) - power * math.log(power) + power - math.log(decay)
    expected = np.log(np.exp(terms).sum(0)) - smooth
    np.testing.assert_allclose(log_ripple(power, starts, decay), expected, atol=5e-13)


def test_in_many_dimensions_it_is_laplace_noise_but_for_the_steps_of_the_loss():
    noise, laplace = StaircaseL1(1.3, 1.0, dimension=26_010), Laplace(1 / 1.3)
    assert noise.noise_std == pytest.approx(laplace.noise_std, rel=1e-12)
    assert noise.mean_abs == pytest.approx(laplace.mean_abs, rel=1e-12)
    for shift in (0.3, 1.0, 1.7):
        # How far apart two outputs are at epsilon = 0, and what the largest loss is.
        assert noise.hockey_stick(0.0, shift) == pytest.approx(laplace.hockey_stick(0.0, shift))
        assert noise.renyi(math.inf, shift) >= laplace.renyi(math.inf, shift)
        assert noise.renyi(4.0, shift) >= laplace.renyi(4.0, shift)


def test_steps_are_seen_in_few_dimensions():
    """The test of the radius would notice noise without steps, where they matter."""
    for dimension in (1, 2, 3):
        noise = StaircaseL1(4.0, 1.0, dimension=dimension)
        smooth = np.random.default_rng(1).gamma(dimension, 1 / 4.0, 20_000)
        assert stats.kstest(smooth, radius_law(noise)).pvalue < 1e-9


@pytest.mark.parametrize("noise", VECTORS, ids=repr)
def test_a_sample_does_not_repeat_itself(noise):
    vectors = noise.sample((50, noise.dimension), np.random.default_rng(3))
    assert len(np.unique(vectors)) == vectors.size
    again = noise.sample((2, 25, noise.dimension), np.random.default_rng(3))
    np.testing.assert_array_equal(again.reshape(vectors.shape), vectors)


def test_extremes_neither_overflow_nor_turn_into_nan():
    for decay in (1e-4, 1e-2, 1.0, 50.0, 600.0):
        for split in (-1.0, 0.0, 0.5, 1.0):
            for dimension in (1, 3, 10**7):
                noise = StaircaseL1(decay, 1.0, split, dimension)
                orders = np.asarray([1.0, 1.0001, 2.0, 128.0, 1024.0, math.inf])[:, None]
                shifts = np.asarray([1e-9, 0.3, 1.0, 7.7, 1e3])
                values = noise.renyi(orders, shifts)
                assert np.all(np.isfinite(values))
                assert np.all((values >= 0) & (values <= decay * np.ceil(shifts) * (1 + 1e-12)))
                assert math.isfinite(noise.variance)
                assert noise.variance > 0
    with pytest.raises(Unsupported, match="too many loss values"):
        StaircaseL1(1.0, 1e-6).renyi(2.0, 1.0)
