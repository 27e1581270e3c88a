"""R2DP: the density is that of Laplace noise with a gamma-distributed inverse scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from udpfl import InvalidInput, Laplace, R2dp, Release, Sensitivity, Setting, account, calibrate
from udpfl.harmonizer import ranked

ONE = Sensitivity(1.0, dimension=1)


@settings(max_examples=40)
@given(scale=st.floats(0.1, 10), k=st.floats(2.5, 40), x=st.floats(0, 20))
def test_the_density_is_the_mixture(scale, k, x):
    """Averaged over the inverse scale by quadrature; the table is off by a thousandth or so."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    end = (2 * k + 60) / (scale + x)  # beyond that neither the law nor the noise has any mass
    u = end * (nodes + 1) / 2
    mixed = (stats.gamma(k, scale=1 / scale).pdf(u) * u / 2 * np.exp(-u * x)) @ weights * end / 2
    assert math.exp(R2dp(scale, k).log_density(x)) == pytest.approx(mixed, rel=5e-3)


@pytest.mark.parametrize("k", [3.0, 6.0, 20.0])
def test_a_sample_is_laplace_noise_of_drawn_scales(k):
    rng, noise = np.random.default_rng(0), R2dp(2.0, k)
    two_steps = rng.laplace(size=40_000) / rng.gamma(k, 1 / 2.0, 40_000)
    drawn = noise.sample(40_000, rng)
    assert stats.ks_2samp(drawn, two_steps).pvalue > 1e-3
    for wrong in (0.8, 1.25):
        assert stats.ks_2samp(wrong * drawn, two_steps).pvalue < 1e-6
    if k < 10:  # and it is not Laplace noise of the mean scale
        assert stats.kstest(drawn, stats.laplace(scale=noise.mean_abs).cdf).pvalue < 1e-6


@pytest.mark.parametrize("k", [3.0, 6.0, 20.0])
def test_moments_and_the_largest_loss_in_closed_form(k):
    noise = R2dp(2.0, k)
    assert noise.mean_abs == pytest.approx(2.0 / (k - 1), rel=3e-3)
    assert noise.variance == pytest.approx(2 * 4.0 / ((k - 1) * (k - 2)), rel=2e-2)
    # From the peak to one clip away; beyond that the density falls ever more slowly.
    pure = account(Release(noise, ONE), delta=0).epsilon
    assert pure == pytest.approx((k + 1) * math.log1p(1 / 2.0), rel=2e-3)
    wide = account(Release(noise, Sensitivity(1.0, "l1", 10)), delta=0).epsilon
    assert pure < wide <= (k + 1) / 2.0


def test_it_beats_laplace_noise_where_it_is_said_to():
    """One number at a large pure epsilon; not at a small one, and not over many releases."""
    for epsilon, wins in ((8.0, True), (1.0, False)):
        goal = Setting(epsilon, 0.0, 1, ONE)
        mine, other = (calibrate(name, goal, "l1") for name in ("r2dp", "laplace"))
        assert mine.statement.epsilon <= epsilon
        assert (mine.mechanism.mean_abs < other.mechanism.mean_abs) == wins
    best = calibrate("r2dp", Setting(8.0, 0.0, 1, ONE), "l1").mechanism
    for k in (2.2, 4.0, 8.0):  # others need more noise
        fixed = calibrate(R2dp(1.0, k), Setting(8.0, 0.0, 1, ONE)).mechanism
        assert fixed.mean_abs > 0.999 * best.mean_abs
    goal = Setting(4.0, 1e-5, 100, ONE, 0.05, accountant="rdp")
    assert (
        calibrate("r2dp", goal).mechanism.noise_std > calibrate("laplace", goal).mechanism.noise_std
    )


def test_it_turns_into_laplace_noise():
    noise = R2dp(1000.0, 1000.0)
    for order in (2.0, 8.0):
        assert noise.renyi(order, 0.7) == pytest.approx(Laplace(1.0).renyi(order, 0.7), rel=5e-3)


def test_parameters():
    for wrong in (2.0, 0.0, -1.0, math.inf, "6", True):
        with pytest.raises(InvalidInput, match="concentration"):
            R2dp(1.0, wrong)
    assert R2dp(2.0).parameters == {"scale": 2.0, "concentration": 6.0}
    assert "r2dp" not in ranked()
