"""Losses on a grid, against dp-accounting's own, which knows nothing of ours."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from scipy import stats

from udpfl.accounting._grid_loss import GridLoss, connect_dots


def gaussian_deltas(step: float, low: int, high: int, shift: float) -> np.ndarray:
    """The exact hockey-stick curve of two Gaussians."""
    eps = np.arange(low, high + 1) * step
    normal = stats.norm
    return normal.cdf(shift / 2 - eps / shift) - np.exp(eps) * normal.cdf(-shift / 2 - eps / shift)


def theirs_of(loss: GridLoss) -> pld_pmf.DensePLDPmf:
    return pld_pmf.DensePLDPmf(loss.step, loss.lowest, loss.probs.copy(), loss.infinite, True)


@pytest.fixture(params=[(0.5, 1e-2), (2.0, 3e-2), (6.0, 0.1)], ids=lambda pair: f"shift {pair[0]}")
def loss(request) -> GridLoss:
    shift, step = request.param
    reach = math.ceil((shift**2 / 2 + 8 * shift) / step)
    return connect_dots(step, -reach, gaussian_deltas(step, -reach, reach, shift))


@pytest.mark.parametrize("points", [1, 2, 3, 400])
def test_the_dots_are_connected_as_the_library_connects_them(points):
    step, low = 0.02, -points // 2
    deltas = np.minimum.accumulate(gaussian_deltas(step, low, low + points - 1, 0.8))
    ours = connect_dots(step, low, deltas)
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        step, low, low + points - 1, deltas
    ).to_dense_pmf()
    assert ours.lowest == theirs._lower_loss
    assert ours.infinite == theirs._infinity_mass
    np.testing.assert_allclose(ours.probs, theirs._probs, rtol=1e-12, atol=1e-15)


def test_the_curve_is_met_at_the_grid_and_exceeded_between(loss):
    shift = {1e-2: 0.5, 3e-2: 2.0, 0.1: 6.0}[loss.step]
    for place in (0, 5, 20):
        at, between = place * loss.step, (place + 0.5) * loss.step
        for epsilon, above in ((at, 0.0), (between, 1e-12)):
            exact = stats.norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * (
                stats.norm.cdf(-shift / 2 - epsilon / shift)
            )
            assert exact * (1 - 1e-9) + above <= loss.delta(epsilon) <= exact * 1.01


def test_epsilon_and_delta_are_those_of_the_library(loss):
    theirs = theirs_of(loss)
    for epsilon in (0.0, 0.3, 1.234, 7.0, 40.0, 500.0):
        assert loss.delta(epsilon) == pytest.approx(
            theirs.get_delta_for_epsilon(epsilon), rel=1e-12, abs=1e-300
        )
    for delta in (0.9, 0.1, 1e-3, 1e-6, 1e-9, 1e-12):
        expected = theirs.get_epsilon_for_delta(delta)
        assert loss.epsilon(delta) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        if 0 < loss.epsilon(delta) < math.inf:  # one undoes the other
            assert loss.delta(loss.epsilon(delta)) == pytest.approx(delta, rel=1e-6)


def test_an_infinite_loss_has_no_epsilon():
    loss = GridLoss(0.1, 0, np.asarray([0.5, 0.4]), 0.1)
    assert loss.epsilon(0.0999) == math.inf
    assert loss.epsilon(0.2) < 0.1
    assert loss.delta(1e9) == 0.1


@pytest.mark.parametrize("place", [-9_000, 9_000])
def test_losses_beyond_floating_point_are_bounded(place):
    """e^900 is no number."""
    loss = GridLoss(0.1, place, np.asarray([1.0]), 0.0)
    assert loss.epsilon(1e-5) == pytest.approx(max(0.0, place * 0.1))


def test_sums_are_those_of_the_library(loss):
    other = connect_dots(loss.step, -300, gaussian_deltas(loss.step, -300, 300, 0.7))
    ours, theirs = loss.plus(other, 1e-16), theirs_of(loss).compose(theirs_of(other), 1e-16)
    for epsilon in (0.0, 0.5, 3.0, 20.0):
        assert ours.delta(epsilon) == pytest.approx(
            theirs.get_delta_for_epsilon(epsilon), rel=1e-9, abs=1e-14
        )
    assert ours.infinite == pytest.approx(theirs._infinity_mass, abs=1e-15)


def test_tails_are_cut_towards_more_leakage():
    one = GridLoss(1.0, -1, np.asarray([0.1, 0.8, 0.1]), 0.0)
    whole, cut = one.plus(one, 0.0), one.plus(one, 0.05)
    assert whole.lowest == -2
    assert cut.lowest == -1
    assert cut.infinite == pytest.approx(0.01)
    assert cut.probs.sum() + cut.infinite == pytest.approx(1.0)
    for epsilon in (0.0, 0.5, 1.5, 3.0):
        assert cut.delta(epsilon) >= whole.delta(epsilon) - 1e-12


def test_different_grids_are_not_added():
    one, other = (GridLoss(step, 0, np.asarray([1.0]), 0.0) for step in (0.1, 0.2))
    with pytest.raises(AssertionError, match="different grids"):
        one.plus(other, 0.0)
