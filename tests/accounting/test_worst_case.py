"""The vector accountant against searches for a worse gradient than it admits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.accounting.searches import ORDERS, best_found
from tests.conftest import Logistic, TwoHumps
from udpfl import (
    Gaussian,
    InvalidInput,
    Laplace,
    Mechanism,
    Sensitivity,
    Staircase,
    Tabulated,
    Unsupported,
)
from udpfl.accounting._staircase_vertices import staircase_vertices
from udpfl.accounting.worst_case import hull_at, worst_case, worst_loss

NOISES: list[Mechanism] = [
    Gaussian(1.1),
    Laplace(0.8),
    Laplace(0.1),
    Staircase(0.7, 1.0, 0.4),
    Staircase(0.3, 0.2),
    Staircase(2.0, 0.5, 0.9),
    Staircase(1.6, 1.0, 1.0),
    Staircase(0.02, 0.015),
    Logistic(0.5),
    TwoHumps(0.4),
]


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("dimension", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_no_gradient_is_worse_and_the_bound_is_within_two_percent(noise, dimension, norm):
    found = best_found(noise, norm, 1.0, dimension, np.random.default_rng(dimension))
    bound = worst_case(noise, Sensitivity(1.0, norm, dimension), ORDERS)
    assert np.all(found <= bound * (1 + 1e-9) + 1e-15)
    if isinstance(noise, TwoHumps):
        return  # certified by a Lipschitz bound, which is not tight
    # Tables are bounded cell by cell, everything else by exact arcs.
    slack = 1.02
    assert np.all(bound <= found * slack), bound / found


@given(
    decay=st.floats(1e-3, 4),
    split=st.one_of(st.just(0.0), st.floats(1e-12, 1)),
    periods=st.floats(0.3, 300),
    power=st.sampled_from([1, 2]),
)
def test_staircase_vertices_cover_the_curve(decay, split, periods, power):
    """No shift, near or far, pokes out of the chain of vertices."""
    noise = Staircase(decay, 1.0, split)
    orders = np.append(ORDERS, [1.0005, 1.05])
    vertices = staircase_vertices(noise, periods, periods / 10, power, orders)
    shifts = np.linspace(periods / 997, periods, 997)
    curve = noise.renyi(orders[:, None], shifts)
    for order, u, y, d in zip(orders, vertices.u, vertices.y, curve, strict=True):
        ascending = np.argsort(u, kind="stable")
        chain = np.interp(shifts**power, u[ascending], y[ascending])
        rounding = 1e-12 if 1 < order < 1.1 else 1e-14  # which is divided by the order minus 1
        assert np.all(d <= chain * (1 + 1e-9) + rounding)


@pytest.mark.parametrize("dimension", [1_000, 26_010, 10_000_000])
def test_large_dimensions_never_understate_an_even_spread(dimension):
    for divisor in (0.5, 1, 4, 32, 1000):
        shift = 1 / math.sqrt(dimension)
        noise = Staircase(math.sqrt(2) * shift / divisor, shift / divisor)
        bound = worst_case(noise, Sensitivity(1.0, "l2", dimension), ORDERS)
        for spread in (1, 1.01, 1.5, 4, 30):
            few = int(dimension / spread**2)
            even = few * noise.renyi(ORDERS, 1 / math.sqrt(few))
            assert np.all(even <= bound * (1 + 1e-9))


@pytest.mark.parametrize("split", [0.0, 0.4, 1.0])
def test_the_bound_on_staircase_noise_stays_close_near_order_one(split):
    """Where the curve is too long to follow, too."""
    noise, close = Staircase(3e-4, 1 / 700, split), np.asarray([1.0, 1.0002, 1.01, 1.2])
    for norm in ("l1", "l2"):
        bound = worst_case(noise, Sensitivity(1.0, norm, 26_010), close)
        assert np.all(bound[1:] / bound[0] >= 1 - 1e-6)
        assert np.all(bound / bound[0] < close * 1.001)


def test_laplace_costs_at_most_the_gaussian_of_the_same_scale():
    """Proved in docs/mathematics.md: d D(c/sqrt(d)) increases to a c^2 / (2 b^2)."""
    dimensions = [1, 3, 10, 100, 10_000, 10_000_000]
    values = [worst_case(Laplace(0.9), Sensitivity(1.0, "l2", d), ORDERS) for d in dimensions]
    assert np.all(np.diff(values, axis=0) >= -1e-9)
    assert np.all(values[-1] <= ORDERS / (2 * 0.9**2))
    np.testing.assert_allclose(values[-1], ORDERS / (2 * 0.9**2), rtol=2e-2)


def test_gaussian_depends_on_the_l2_norm_alone():
    noise = Gaussian(0.7)
    expected = ORDERS / (2 * 0.7**2)
    for sensitivity in (Sensitivity(1.0), Sensitivity(1.0, "l2", 9), Sensitivity(1.0, "l1", 9)):
        np.testing.assert_allclose(worst_case(noise, sensitivity, ORDERS), expected)
    np.testing.assert_allclose(worst_case(noise, Sensitivity(1.0, "linf", 9), ORDERS), 9 * expected)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=2, max_size=30))
def test_hull_against_all_pairs_of_points(points):
    u, y = (np.asarray(column)[None, :] for column in zip(*points, strict=True))
    at = float((u.min() + u.max()) / 2)
    expected = float(y[u <= at].max())  # nondecreasing: as high as anything further left
    for left in range(u.size):
        for right in range(u.size):
            if u[0, left] < at < u[0, right]:
                share = (at - u[0, left]) / (u[0, right] - u[0, left])
                level = y[0, left] + share * (y[0, right] - y[0, left])
                expected = max(expected, float(level))
    assert hull_at(u, y, at)[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@dataclass(frozen=True)
class Ripples(Tabulated):
    """A shift by half a ripple, 0.5, is told far more easily than one by a whole."""

    name = "ripples"

    def shape(self, x: Any) -> Any:
        return 2 * np.cos(2 * np.pi * x) * np.exp(-x / 4) - 1.5 * x


def test_the_worst_shift_need_not_be_the_largest():
    noise, shifts = Ripples(1.0), np.linspace(0, 1, 101)
    found = noise.renyi(ORDERS[:, None], shifts).max(axis=1)
    assert np.all(found > 2 * noise.renyi(ORDERS, 1.0))
    for norm, dimension in (("l2", 1), ("linf", 1), ("linf", 3)):
        bound = worst_case(noise, Sensitivity(1.0, norm, dimension), ORDERS)
        assert np.all(dimension * found <= bound)
        assert np.all(bound <= 1.02 * dimension * found)
    assert worst_loss(noise, Sensitivity(1.0, "l2", 1)) >= noise.renyi(math.inf, 0.5)


def test_the_dimension_is_required_where_it_matters():
    with pytest.raises(InvalidInput, match="dimension"):
        worst_case(Laplace(1.0), Sensitivity(1.0), ORDERS)
    with pytest.raises(InvalidInput, match="dimension"):
        worst_case(Gaussian(1.0), Sensitivity(1.0, "linf"), ORDERS)


def test_largest_loss():
    assert worst_loss(Laplace(0.5), Sensitivity(1.0, "l1", 40)) == pytest.approx(2.0)
    assert worst_loss(Laplace(0.5), Sensitivity(1.0, "l2", 16)) == pytest.approx(8.0)
    assert worst_loss(Laplace(0.5), Sensitivity(1.0, "linf", 16)) == pytest.approx(32.0)
    assert worst_loss(Gaussian(1.0), Sensitivity(1.0)) == math.inf
    assert worst_loss(Staircase(0.7, 1.0), Sensitivity(1.0, "l2", 1)) == pytest.approx(0.7)
    assert worst_loss(Staircase(0.7, 0.3), Sensitivity(1.0, "l2", 1)) == pytest.approx(2.8)
    assert worst_loss(Logistic(2.0), Sensitivity(1.0, "l1", 5)) == pytest.approx(0.5, rel=1e-6)
    with pytest.raises(Unsupported, match="one dimension only"):
        worst_loss(Staircase(0.7, 1.0), Sensitivity(1.0, "l1", 2))
