"""Noise that is matched to a reference Gaussian: by quadrature, by brute force, and composed."""

from __future__ import annotations

import itertools
import math
import re
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb, logsumexp, ndtr

from tests.conftest import Box, Logistic, Student, TwoHumps
from tests.oracles import renyi_by_cells, sampled_moment_by_quadrature
from udpfl import (
    BudgetExceeded,
    Client,
    Composed,
    Gaussian,
    Infeasible,
    InvalidInput,
    Laplace,
    PoissonSampled,
    Release,
    Repeated,
    SecretlySelected,
    Sensitivity,
    Setting,
    Staircase,
    account,
    calibrate,
    choose,
    harmonize,
    match,
)
from udpfl.accounting import rdp
from udpfl.accounting.filter import Filter
from udpfl.harmonizer import Matched, least_reference
from udpfl.harmonizer._reference import Reference, matched_multiplier
from udpfl.mechanisms import BUILT_IN

ORDERS = [1.0, 1.003, 1.04, 1.3, 2.0, 2.5, 4.0, 9.7, 40.0, 333.3, 5000.0]
NOISES = {"laplace": "laplace", "staircase": "staircase", "logistic": Logistic(1.0)}


def edges(noise, far=30.0):
    """Between these the log-density is smooth."""
    reach = far * noise.noise_std
    if isinstance(noise, Staircase):
        steps = np.arange(math.ceil(reach / noise.period)) * noise.period
        right = np.concatenate([steps, steps + noise.split * noise.period])
        return np.unique(np.concatenate([-right, right]))
    return np.concatenate([-np.geomspace(reach, 1e-3, 400), [0.0], np.geomspace(1e-3, reach, 400)])


@lru_cache(maxsize=100_000)
def divergence(noise, order, shift):
    """Of a shift of one coordinate, from the log-density alone."""
    if shift == 0:
        return 0.0
    if isinstance(noise, Staircase):
        return renyi_by_cells(noise.log_density, edges(noise), order, shift)
    cuts = np.unique(np.concatenate([edges(noise), edges(noise) + shift]))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    x = ((cuts[1:] + cuts[:-1]) / 2)[:, None] + (np.diff(cuts) / 2)[:, None] * nodes
    w = (np.diff(cuts) / 2)[:, None] * weights
    p, q = noise.log_density(x), noise.log_density(x - shift)
    if order == 1:
        return float(np.sum(w * np.exp(p) * (p - q)))
    return float(logsumexp(order * p + (1 - order) * q, b=w) / (order - 1))


def closest(noise, multiplier, gradients, orders=ORDERS):
    """The largest share of the reference's divergence that any of the gradients has."""
    return max(
        sum(divergence(noise, order, float(s)) for s in gradient) / (order / (2 * multiplier**2))
        for gradient in gradients
        for order in orders
    )


def directions(norm, dimension):
    """Gradients on the boundary of the unit ball, coordinates in falling order, as that is all
    that counts; and a few inside."""
    steps = np.linspace(0, 1, {1: 2, 2: 17, 3: 6}[dimension])
    found = []
    for raw in itertools.product(steps, repeat=dimension):
        v = np.sort(np.array(raw))[::-1]
        if v[0] == 1:  # the cube's surface, projected
            size = np.linalg.norm(v, {"l1": 1, "l2": 2, "linf": np.inf}[norm])
            found.append(tuple(np.round(v / size, 12)))
    inside = [tuple(0.5 * np.array(v)) for v in found[:: max(1, len(found) // 5)]]
    return sorted({*found, *inside})


class TestOneCoordinate:
    """Against quadrature of the density."""

    @pytest.mark.parametrize("name", NOISES)
    @pytest.mark.parametrize("multiplier", [0.4, 1.5, 12.0])
    def test_leaks_no_more_at_any_order_and_less_noise_does(self, name, multiplier):
        noise = match(NOISES[name], Gaussian(multiplier), Sensitivity(1.0, "l2", 1))
        shifts = [(1.0,), (0.5,), (0.9,)]
        assert 0.996 < closest(noise, multiplier, shifts) <= 1 + 1e-9
        assert closest(noise.scaled(0.99), multiplier, shifts) > 1
        assert closest(noise.scaled(2 / 3), multiplier, shifts) > 1

    def test_laplace_comes_closest_at_order_one(self):
        """There t + e^-t - 1 = 1 / (2 m^2), t the clip over the scale."""
        noise = match("laplace", Gaussian(3.0), Sensitivity(2.0, "l2", 1))
        t, allowed = 2.0 / noise.scale, 1 / (2 * 1.5**2)
        assert t + math.exp(-t) - 1 == pytest.approx(allowed, rel=2e-3)
        assert t + math.exp(-t) - 1 <= allowed

    def test_a_shape_of_ones_own_is_kept(self):
        given_ = Staircase(1.0, 0.7, 0.3)
        found = match(given_, Gaussian(1.5), Sensitivity(1.0, "l2", 1))
        assert (found.decay, found.split) == (1.0, 0.3)
        assert closest(found, 1.5, [(1.0,), (0.5,), (0.7,)]) <= 1 + 1e-9
        best = match("staircase", Gaussian(1.5), Sensitivity(1.0, "l2", 1))
        assert best.noise_std < found.noise_std

    def test_noise_that_uncovers_matches_nothing(self):
        with pytest.raises(Infeasible):
            match(Box(1.0), Gaussian(1.5), Sensitivity(1.0, "l2", 1))
        assert matched_multiplier(Box(9.0), Sensitivity(1.0, "l2", 2)) == 0


@pytest.mark.parametrize(
    "mechanism",
    [*BUILT_IN, Student(1.0), pytest.param(TwoHumps(1.0), marks=pytest.mark.slow)],
    ids=str,
)
def test_every_mechanism_can_be_matched(mechanism):
    """As far as the certified worst case says, and no further."""
    is_table = mechanism == "r2dp" or not isinstance(mechanism, str)
    dimension = 1 if is_table else 3  # a table takes its time
    bound = Sensitivity(2.0, "l2", dimension)
    noise = match(mechanism, Gaussian(3.0), bound)
    assert 1.5 <= matched_multiplier(noise, bound) < 1.5 * 1.001
    orders = np.array([2.0, 3, 8, 17, 100, 3000])
    own, allowed = (
        rdp.curve(PoissonSampled(0.2, Release(n, bound)), orders) for n in (noise, Reference(3.0))
    )
    assert np.all(own <= allowed * (1 + 1e-9))
    if not isinstance(noise, Staircase):  # whose bound is not smooth in its scale
        assert matched_multiplier(noise.scaled(0.99), bound) < 1.5


class TestGradients:
    """By brute force over gradients in few dimensions: none in the clip leaks more."""

    orders = (1.0, 1.3, 2.0, 9.7, 333.3)

    @pytest.mark.parametrize(
        ("name", "norm", "dimension"),
        [
            ("laplace", "l2", 1), ("laplace", "l2", 2), ("laplace", "l2", 3),
            ("laplace", "l1", 2), ("laplace", "linf", 3),
            ("staircase", "l2", 1), ("staircase", "l2", 2), ("staircase", "l2", 3),
            ("staircase", "linf", 2),
            pytest.param("staircase", "l1", 3, marks=pytest.mark.slow),
            pytest.param("logistic", "l2", 2, marks=pytest.mark.slow),
        ],
    )  # fmt: skip
    def test_no_gradient_leaks_more_and_with_less_noise_one_does(self, name, norm, dimension):
        bound, multiplier = Sensitivity(1.0, norm, dimension), 1.3
        noise = match(NOISES[name], Gaussian(multiplier * bound.largest("l2")), bound)
        gradients = directions(norm, dimension)
        assert closest(noise, multiplier, gradients, self.orders) <= 1 + 1e-9
        less = 0.97 if name == "staircase" and dimension > 1 else 0.99
        assert closest(noise.scaled(less), multiplier, gradients, self.orders) > 1

    def test_the_scalar_reading_fails_for_a_gradient(self):
        """Noise matched for one coordinate, and a gradient spread over three."""
        scalar = match("laplace", Gaussian(1.3), Sensitivity(1.0, "l2", 1))
        assert closest(scalar, 1.3, directions("l2", 3), self.orders) > 1.05

    def test_a_gaussian_is_its_own_match_in_every_norm(self):
        for norm, root in (("l1", 1.0), ("l2", 1.0), ("linf", 10.0)):
            bound = Sensitivity(0.5, norm, 100)
            assert matched_multiplier(Gaussian(1.0), bound) == pytest.approx(2 / root)
            goal = Setting(math.inf, 1e-5, 1, bound, reference=1.5)
            assert calibrate("gaussian", goal).mechanism.std == pytest.approx(0.75 * root)

    def test_laplace_in_high_dimension_needs_the_reference_as_its_scale(self):
        found = match("laplace", Gaussian(2.0), Sensitivity(1.0, "l2", 10**6))
        assert 2.0 <= found.scale <= 2.0 * 1.002

    def test_staircase_in_high_dimension_is_close_to_laplace(self):
        """Its certified worst case has to hold near order 1 as well."""
        laplace, staircase = (
            match(name, Gaussian(2.0), Sensitivity(1.0, "l2", 26_010)).noise_std
            for name in ("laplace", "staircase")
        )
        assert laplace * 0.999 <= staircase <= laplace * 1.01


def gaussian_sampled(order, multiplier, rate):
    """Divergence of the sampled Gaussian at a whole order, by the binomial sum."""
    k = np.arange(order + 1)
    terms = np.log(comb(order, k)) + (order - k) * np.log1p(-rate) + k * np.log(rate)
    return logsumexp(terms + k * (k - 1) / (2 * multiplier**2)) / (order - 1)


class TestComposition:
    @pytest.mark.parametrize("name", NOISES)
    def test_sampled_releases_leak_no_more_at_whole_orders(self, name):
        """By quadrature of the mixture itself, with no accountant in between."""
        noise = match(NOISES[name], Gaussian(1.5), Sensitivity(1.0, "l2", 1))
        for rate, order in itertools.product((0.01, 0.3, 0.9), (2, 3, 8, 30)):
            own = sampled_moment_by_quadrature(noise.log_density, order, 1.0, rate, edges(noise))
            assert own <= gaussian_sampled(order, 1.5, rate) * (1 + 1e-9)

    @settings(max_examples=15)
    @given(
        name=st.sampled_from(["laplace", "staircase", "gaussian"]),
        multiplier=st.floats(0.3, 30),
        dimension=st.sampled_from([1, 3, 40, 26_010]),
        norm=st.sampled_from(["l1", "l2", "linf"]),
        rate=st.sampled_from([0.001, 0.05, 0.5, 1.0]),
        steps=st.integers(1, 3000),
    )
    def test_no_order_of_any_composition_costs_more(
        self, name, multiplier, dimension, norm, rate, steps
    ):
        bound = Sensitivity(0.7, norm, dimension)
        if name == "staircase" and dimension == 40 and norm == "linf":
            return  # the same as 40 times one coordinate, and slow
        noise = match(name, Gaussian(multiplier * bound.largest("l2")), bound)
        other = Reference(multiplier * bound.largest("l2"))
        own, allowed = (_everything(n, bound, rate, steps) for n in (noise, other))
        orders = np.array([1.05, 1.5, 2, 2.7, 3, 5, 16, 17, 40, 333.3, 1024, 9000, 16384])
        curves = [rdp.curve(event, orders) for event in (own, allowed)]
        # Between whole orders the bound on unsampled Staircase noise is not the smallest there is.
        slack = 3e-3 if name == "staircase" else 1e-9
        assert np.all(curves[0] <= curves[1] * (1 + slack) + 1e-13)
        whole = orders == np.round(orders)
        assert np.all((curves[0] <= curves[1] * (1 + 1e-9) + 1e-13)[whole])

    def test_what_it_costs_follows_for_rdp_and_for_filters(self):
        bound = Sensitivity(1.0, "l2", 50)
        noise = match("laplace", Gaussian(1.5), bound)
        own, allowed, less = (
            _everything(n, bound, 0.05, 200) for n in (noise, Reference(1.5), noise.scaled(0.9))
        )
        for accountant in ("rdp", Filter.planned(2.0, 1e-5), Filter((2.0, 7.5, 30.0), (0.2,) * 3)):
            costs = [account(e, 1e-5, accountant).epsilon for e in (own, allowed, less)]
            assert costs[0] <= costs[1] < costs[2]

    def test_loss_distributions_promise_nothing(self):
        """One release: the total variation (epsilon = 0) is larger than the reference's."""
        noise = match("laplace", Gaussian(1.0), Sensitivity(1.0, "l2", 1))
        own, other = 1 - math.exp(-1 / (2 * noise.scale)), 2 * ndtr(0.5) - 1
        assert own > 1.15 * other
        one, two = (Release(n, Sensitivity(1.0, "l2", 1)) for n in (noise, Gaussian(1.0)))
        delta = (own + other) / 2
        assert account(one, delta, "pld").epsilon > account(two, delta, "pld").epsilon

    def test_the_reference_is_accounted_like_any_other_noise(self):
        """At whole orders as the Gaussian that it is; in between not below it."""
        bound = Sensitivity(1.0, "l2", 9)
        for rate, orders in ((0.05, np.array([2.0, 3, 17, 64])), (1.0, np.array([1.2, 2, 7.7]))):
            events = [PoissonSampled(rate, Release(n(1.5), bound)) for n in (Reference, Gaussian)]
            same = [rdp.curve(event, orders) for event in events]
            assert same[0] == pytest.approx(same[1], rel=1e-12)
        between = [
            rdp.curve(PoissonSampled(0.05, Release(n(1.5), bound)), np.array([1.5, 2.5]))
            for n in (Reference, Gaussian)
        ]
        assert np.all(between[0] > between[1])


def _everything(noise, bound, rate, steps):
    """Releases of a few kinds, all with this noise."""
    one = PoissonSampled(rate, Release(noise, bound))
    return Composed([Repeated(one, steps), SecretlySelected(0.3, Repeated(one, 2))])


def goal(reference, epsilon=math.inf, dimension=20, **changes):
    fields = {"delta": 1e-5, "releases": 100, "sensitivity": Sensitivity(1.0, "l2", dimension),
              "rate": 0.1, "accountant": "rdp"}  # fmt: skip
    return Setting(epsilon, reference=reference, **(fields | changes))


class TestSettings:
    def test_matched_noise_does_not_depend_on_the_budget(self):
        found = [calibrate("laplace", goal(2.0, epsilon)) for epsilon in (math.inf, 50.0, 5.0)]
        assert len({own.mechanism for own in found}) == 1
        assert {own.statement.epsilon for own in found} == {found[0].statement.epsilon}

    @pytest.mark.parametrize("name", ["laplace", "gaussian", "auto"])
    def test_a_budget_that_it_exceeds_is_refused_with_a_reference_that_fits(self, name):
        with pytest.raises(BudgetExceeded, match="more than the budget of ε = 1;") as refused:
            harmonize([Client("clinic", goal(1.0, 1.0), name)])
        assert "clinic" in str(refused.value)
        fits = float(
            re.search(r"with noise multiplier ([0-9.]+) it would fit", str(refused.value))[1]
        )
        (plan,) = harmonize([Client("clinic", goal(fits, 1.0), name)])
        assert plan.calibrated.statement.epsilon <= 1.0
        with pytest.raises(BudgetExceeded):
            harmonize([Client("clinic", goal(0.8 * fits, 1.0), name)])

    @pytest.mark.parametrize("accountant", ["rdp", "best", Filter.planned(3.0, 1e-5)])
    @pytest.mark.parametrize(
        ("name", "norm"),
        [("laplace", "l2"), ("staircase", "l2"), ("gaussian", "l2"), ("laplace", "linf")],
    )
    def test_the_reference_of_a_budget_keeps_it(self, name, norm, accountant):
        changes = {"accountant": accountant, "sensitivity": Sensitivity(0.5, norm, 20)}
        bare = goal(None, 3.0, **changes)
        reference = least_reference(bare)
        found = calibrate(name, goal(reference, 3.0, **changes))
        assert found.statement.epsilon <= 3.0
        rule = "rdp" if accountant == "best" else accountant
        noise = Reference(reference * bare.sensitivity.largest("l2"))
        cost = account(bare.event(noise), 1e-5, rule).epsilon
        assert 2.99 < cost <= 3.0

    def test_auto_takes_the_least_noise_and_says_why(self):
        low, high = (choose(goal(0.4, dimension=dimension)) for dimension in (1, 26_010))
        assert low[0].name != "gaussian"
        assert high[0].name == "gaussian"
        assert all("tighter accountant" not in choice.why for choice in (*low, *high))

    def test_scalar_accounting_matches_one_coordinate_and_keeps_the_papers_shape(self):
        found = calibrate("staircase", goal(1.5, accounting="scalar"))
        assert found.mechanism.period == 1.0
        assert found.statement.kind == "nominal"
        assert 0.996 < closest(found.mechanism, 1.5, [(1.0,)]) <= 1 + 1e-9
        assert closest(found.mechanism, 1.5, [(math.sqrt(1 / 20),) * 20]) > 1

    def test_both_costs_are_told(self):
        found = calibrate("laplace", goal(1.5, dimension=5))
        told = Matched.of(found.mechanism, found.setting)
        assert told.own.epsilon == found.statement.epsilon < told.other.epsilon
        assert told.own.accountant == told.other.accountant == "rdp"
        assert Matched.from_dict(told.to_dict()) == told
        gaussian = Matched.of(Gaussian(1.5), goal(1.5, dimension=None))
        assert gaussian.own == gaussian.other
        for wrong in ({}, {**told.to_dict(), "more": 1}, {**told.to_dict(), "reference": -1.0}):
            with pytest.raises(InvalidInput, match="matched"):
                Matched.from_dict(wrong)

    def test_bad_references(self):
        for wrong in (0.0, -1.0, math.inf, "2"):
            with pytest.raises(InvalidInput, match="reference"):
                goal(wrong)
        with pytest.raises(InvalidInput, match="delta"):
            goal(1.5, delta=0.0)
        with pytest.raises(InvalidInput, match="epsilon"):
            goal(None)
        with pytest.raises(InvalidInput, match="reference"):
            match("laplace", Laplace(1.0), Sensitivity(1.0, "l2", 2))
