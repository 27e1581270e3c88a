"""Sampling, composition, conversion and loss distributions against independent oracles."""

from __future__ import annotations

import logging
import math

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, common, pld_pmf
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq
from scipy.special import logsumexp

from tests.conftest import Box, Logistic, TwoHumps
from tests.oracles import sampled_moment_by_quadrature
from udpfl import (
    Composed,
    Gaussian,
    InvalidInput,
    Laplace,
    PoissonSampled,
    PrivacyStatement,
    PureDP,
    Release,
    Repeated,
    SecretlySelected,
    Sensitivity,
    Shuffled,
    Staircase,
    Unsupported,
    account,
)
from udpfl.accounting import conversion, loss_distribution, pure, rdp, subsampling
from udpfl.accounting.events import basis, leaves
from udpfl.accounting.statement import shown

NOISES = [Gaussian(1.2), Laplace(1.1), Staircase(0.9, 1.0), Staircase(0.4, 0.3, 1.0), Logistic(0.8)]


def sampled(noise, steps, rate, dimension=1, norm="l2"):
    release = Release(noise, Sensitivity(1.0, norm, dimension))
    return Repeated(PoissonSampled(rate, release), steps)


def library_event(std, steps, rate):
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(std))
    return dp_accounting.SelfComposedDpEvent(event, steps)


class TestRdp:
    @settings(max_examples=40)
    @given(rate=st.floats(1e-6, 0.99), std=st.floats(0.3, 50))
    def test_sampled_gaussian_equals_dp_accounting_at_every_shared_integer_order(self, rate, std):
        orders = [*range(2, 65), 128, 256, 512]
        accountant = RdpAccountant(orders=orders)
        accountant.compose(library_event(std, 1, rate))
        ours = rdp.curve(sampled(Gaussian(std), 1, rate), np.asarray(orders, dtype=float))
        finite = np.isfinite(accountant._rdp)
        # below 1e-13 the other library has lost its digits
        big = accountant._rdp > 1e-9
        np.testing.assert_allclose(ours[finite & big], accountant._rdp[finite & big], rtol=1e-6)

    @settings(max_examples=60)
    @given(
        rate=st.floats(1e-4, 1.0),
        std=st.floats(0.4, 30),
        steps=st.integers(1, 100_000),
        delta=st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3]),
    )
    def test_epsilon_is_within_one_percent_of_dp_accounting(self, rate, std, steps, delta):
        ours = rdp.epsilon(sampled(Gaussian(std), steps, rate), delta)
        assume(0.1 <= ours <= 20)
        theirs, order = self._library_epsilon(None, std, steps, rate, delta)
        assert ours <= theirs * 1.001
        # Its default orders are sparse beyond 63: look again around its optimum, as we do. Its
        # series for fractional orders is loose at extreme rates and near order 1 (the next tests
        # have the truth): there ours is lower and the comparison says little.
        for low, high in ((0.5, 2.0), (0.85, 1.15), (0.97, 1.03)):
            around = 1 + (order - 1) * np.geomspace(low, high, 9)
            around = np.where(around > 30, np.round(around), around)
            found = self._library_epsilon(np.unique(around), std, steps, rate, delta)
            theirs, order = min((theirs, order), found)
        if 1e-3 < rate < 0.2 and 3 < order < 1000:
            assert ours == pytest.approx(theirs, rel=0.01)
        assert ours >= theirs * 0.5

    @pytest.mark.parametrize(
        ("rate", "std", "steps"), [(0.375, 10.0, 2145), (0.05, 2.089, 300), (0.01, 0.5, 50)]
    )
    def test_epsilon_by_brute_force_over_orders(self, rate, std, steps):
        """An independent quadrature at dense fractional orders: no library's series involved."""
        noise = Gaussian(std)
        best = math.inf
        for order in 1 + np.geomspace(0.3, 30, 60):
            edges = np.linspace(-20 * std - 2, 20 * std + order + 2, 1501)
            moment = sampled_moment_by_quadrature(noise.log_density, order, 1.0, rate, edges)
            value = steps * moment + math.log1p(-1 / order)
            best = min(best, value - (math.log(1e-5) + math.log(order)) / (order - 1))
        got = rdp.epsilon(sampled(noise, steps, rate), 1e-5)
        assert got == pytest.approx(best, rel=2e-3)

    @staticmethod
    def _library_epsilon(orders, std, steps, rate, delta):
        accountant = RdpAccountant() if orders is None else RdpAccountant(orders=list(orders))
        accountant.compose(library_event(std, steps, rate))
        return accountant.get_epsilon_and_optimal_order(delta)

    @pytest.mark.parametrize("order", [1.05, 1.5, 2.5, 7.3])
    @pytest.mark.parametrize(("rate", "std"), [(0.5, 3.0), (0.05, 1.0), (0.01, 0.4)])
    def test_fractional_orders_of_the_gaussian_by_brute_force(self, order, rate, std):
        noise = Gaussian(std)
        edges = np.linspace(-20 * std - 2, 20 * std + order + 2, 4001)
        expected = sampled_moment_by_quadrature(noise.log_density, order, 1.0, rate, edges)
        got = rdp.curve(sampled(noise, 1, rate), np.asarray([order, 16.0]))[0]
        assert got == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("noise", NOISES, ids=repr)
    @pytest.mark.parametrize("order", [2, 3, 12, 40])
    def test_sampled_release_by_brute_force(self, noise, order):
        """In one dimension the binomial sum is exact, for removing and bounds adding a record."""
        reach = float(noise.magnitude(np.asarray([1e-19]))[0]) * 2 + order
        edges = [np.linspace(-reach, reach, 20_001)]
        if isinstance(noise, Staircase):
            whole = np.arange(0, reach, noise.period)
            edges += [whole, -whole, whole + noise.split * noise.period]
            edges.append(-edges[-1])
        cuts = np.concatenate(edges)
        expected = sampled_moment_by_quadrature(noise.log_density, order, 1.0, 0.07, cuts)
        got = rdp.curve(sampled(noise, 1, 0.07), np.asarray([float(order)]))[0]
        tight = 1.02 if isinstance(noise, Logistic) else 1 + 1e-6
        assert expected * (1 - 1e-6) <= got <= expected * tight

    @pytest.mark.parametrize("order", [2, 3, 700, 5000])
    @pytest.mark.parametrize(("rate", "size"), [(0.5, 0.3), (0.01, 0.01), (0.99, 0.01)])
    def test_sampled_moments_at_large_orders_in_forty_digits(self, order, rate, size):
        """The binomial sum, term by term; few releases with a tiny epsilon have such orders."""
        moments = np.maximum(np.arange(order + 1.0) - 1, 0) * size
        with mp.workdps(40):
            chance, total = (1 - mp.mpf(rate)) ** order, mp.mpf(0)
            for k in range(1, order + 1):
                chance *= mp.mpf(order - k + 1) / k * mp.mpf(rate) / (1 - mp.mpf(rate))
                total += chance * mp.expm1(moments[k])
            expected = float(mp.log1p(total) / (order - 1))
        got = subsampling.poisson(np.asarray([2.0, order]), moments, rate)
        assert got[1] == pytest.approx(expected, rel=2e-11)

    def test_sampled_moments_without_bound_are_no_divergence(self):
        moments = np.array([0.0, 0.0, 1.0, np.inf, np.inf])
        got = subsampling.poisson(np.asarray([2.0, 3.0, 4.0]), moments, 0.5)
        assert got[0] == pytest.approx(math.log(0.75 + 0.25 * math.e))
        assert np.all(got[1:] == np.inf)

    def test_sampled_laplace_agrees_with_its_loss_distribution(self):
        """PLD is exact, RDP an upper bound on it that must not be far off."""
        for scale, steps, rate in [(1.0, 300, 0.05), (3.0, 50, 0.2), (0.6, 1000, 0.01)]:
            accountant = PLDAccountant()
            event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.LaplaceDpEvent(scale))
            accountant.compose(event, steps)
            exact = accountant.get_epsilon(1e-5)
            value = rdp.epsilon(sampled(Laplace(scale), steps, rate), 1e-5)
            assert exact <= value <= exact * 1.25
            ours = loss_distribution.epsilon(sampled(Laplace(scale), steps, rate), 1e-5)
            assert ours == pytest.approx(exact, rel=2e-3)

    def test_moments_between_knots_are_never_understated(self):
        """Chords of the convex log-moment lie above it: compare with every order evaluated."""
        release = Release(Staircase(0.05, 0.2), Sensitivity(1.0, "l2", 300))
        top = 200
        every = np.arange(2.0, top + 1)
        direct = (every - 1) * rdp.worst_case(release.mechanism, release.sensitivity, every)
        filled = rdp.log_moments(release, top)[2:]
        assert np.all(filled >= direct * (1 - 1e-9))
        assert np.all(filled <= direct * 1.01)


class TestConversion:
    @settings(max_examples=40)
    @given(mu=st.floats(0.05, 6), delta=st.sampled_from([1e-9, 1e-5, 1e-2]))
    def test_never_below_the_exact_gaussian_and_consistent_both_ways(self, mu, delta):
        orders = rdp.order_grid(16384)
        curve = orders * mu**2 / 2
        epsilon, _ = conversion.epsilon_at(orders, curve, delta)

        def exact(eps):
            return stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(
                -mu / 2 - eps / mu
            )

        assert exact(epsilon) <= delta * (1 + 1e-9)
        if epsilon > 0:
            assert conversion.delta_at(orders, curve, epsilon) == pytest.approx(delta, rel=1e-6)
            assert epsilon <= conversion.paper_epsilon_at(orders, curve, delta)

    @settings(max_examples=30)
    @given(
        logits=st.lists(
            st.tuples(st.floats(-4, 4), st.floats(-4, 4)), min_size=2, max_size=6, unique=True
        )
    )
    @example(logits=[(2.0, 0.0), (0.0, 2.0)])  # randomised response: far apart at every order
    def test_never_below_the_exact_curve_of_any_two_distributions(self, logits):
        """Divergences, epsilon and delta of two distributions on a few points, as they are."""
        p, q = (np.exp(x - logsumexp(x)) for x in np.asarray(logits).T)
        orders = rdp.order_grid(64)
        a = orders[:, None]
        curve = logsumexp(a * np.log(p) + (1 - a) * np.log(q), axis=1) / (orders - 1)
        curve = np.maximum(curve, 0.0)

        def exact(epsilon):
            return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())

        for delta in (1e-6, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9):
            epsilon, _ = conversion.epsilon_at(orders, curve, delta)
            assert exact(epsilon) <= delta * (1 + 1e-9) + 1e-12
        for epsilon in (0.0, 0.1, 0.5, 2.0):
            assert exact(epsilon) <= conversion.delta_at(orders, curve, epsilon) + 1e-12

    def test_epsilon_is_never_negative(self):
        orders = np.asarray([2.0, 3.0])
        assert conversion.epsilon_at(orders, np.asarray([1e-12, 1e-12]), 0.3)[0] == 0.0


class TestLossDistribution:
    @pytest.mark.parametrize("mu", [0.1, 0.7, 2.5])
    @pytest.mark.parametrize("steps", [1, 100, 10_000])
    def test_composed_gaussian_against_the_closed_form(self, mu, steps):
        """T Gaussian releases are one Gaussian release with mu sqrt(T): an exact oracle."""
        noise = Gaussian(math.sqrt(steps) / mu)

        def exact(eps):
            upper = stats.norm.cdf(mu / 2 - eps / mu)
            return upper - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu) - 1e-5

        expected = brentq(exact, 0, 60)
        got = account(sampled(noise, steps, 1.0), 1e-5, "pld").epsilon
        assert expected * (1 - 1e-9) <= got <= expected * 1.002

    @pytest.mark.parametrize(
        ("std", "steps", "rate"),
        [(1.225, 300, 0.05), (0.8, 1000, 0.01), (20.0, 100_000, 0.05), (0.5, 10_000, 0.001)],
    )
    def test_sampled_gaussian_equals_dp_accounting(self, std, steps, rate):
        accountant = PLDAccountant()
        accountant.compose(library_event(std, steps, rate))
        expected = accountant.get_epsilon(1e-5)
        got = account(sampled(Gaussian(std), steps, rate), 1e-5, "pld").epsilon
        assert got == pytest.approx(expected, rel=1e-3)

    def test_the_grid_shrinks_with_the_number_of_releases(self):
        """A fixed interval of 1e-2 would report 5.75 here; the truth is 2.60."""
        event = sampled(Gaussian(26.0), 100_000, 0.05)
        fine = PLDAccountant(value_discretization_interval=2e-5)
        fine.compose(library_event(26.0, 100_000, 0.05))
        got = account(event, 1e-5, "pld").epsilon
        assert got == pytest.approx(fine.get_epsilon(1e-5), rel=2e-3)
        assert loss_distribution.grid_step(2.0, 100_000) < 2e-4

    @pytest.mark.parametrize("noise", NOISES, ids=repr)
    def test_never_above_rdp_and_never_below_one_release_by_brute_force(self, noise):
        event = sampled(noise, 40, 0.2)
        tight = loss_distribution.epsilon(event, 1e-6)
        assert tight <= rdp.epsilon(event, 1e-6) * 1.001
        # one release: delta(eps) straight from the two mixtures, by stratified sampling
        x = noise.from_uniform((np.arange(400_000) + 0.5) / 400_000)
        moved = x + 1.0
        single = loss_distribution.LossDistribution(sampled(noise, 1, 0.2))
        for epsilon in (0.05, 0.12):
            deltas = []
            for y, other in ((x, 1.0), (moved, 1.0)):
                p, q = noise.log_density(y - other), noise.log_density(y)
                mixed = np.logaddexp(math.log(0.2) + p, math.log(0.8) + q)
                deltas.append(np.maximum(0, np.exp(mixed - q) - math.exp(epsilon)))
                deltas.append(np.maximum(0, 1 - np.exp(epsilon + mixed - q)))
            remove, add = deltas[0].mean(), deltas[1].mean()  # both under y ~ q
            assert single.delta(epsilon) >= max(remove, add) * (1 - 1e-3)
            assert single.delta(epsilon) <= max(remove, add) * 1.02 + 2e-4

    @pytest.mark.parametrize(
        ("loss", "rate", "count"), [(1.0, 0.5, 2), (1.0, 0.7, 3), (0.3, 0.7, 10), (0.3, 0.1, 30)]
    )
    def test_adding_and_removing_a_record_by_exact_enumeration(self, loss, rate, count):
        """Sampled randomised responses: a number of ones decides everything, and it is binomial.

        Which of the two neighbours is worse changes with epsilon.
        """
        truth, ones = 1 / (1 + math.exp(-loss)), np.arange(count + 1)
        without = stats.binom.pmf(ones, count, 1 - truth)
        with_it = stats.binom.pmf(ones, count, (1 - rate) * (1 - truth) + rate * truth)
        found = loss_distribution.LossDistribution(
            Repeated(PoissonSampled(rate, PureDP(loss)), count)
        )
        ratios = []
        for epsilon in np.linspace(0, 0.8 * loss * count, 40):
            removed, added = (
                np.maximum(one - math.exp(epsilon) * other, 0.0).sum()
                for one, other in ((with_it, without), (without, with_it))
            )
            exact = max(removed, added)
            assert exact * (1 - 1e-9) <= found.delta(epsilon) <= exact * 1.001 + 1e-12
            if added > 1e-9:
                ratios.append(removed / added)
        assert max(ratios) > 1.2
        assert rate < 0.5 or min(ratios) < 0.85

    def test_infinite_losses_of_many_releases_add_up(self):
        """Each gives everything away with probability 1/1000, and one is enough."""
        one = pld_pmf.DensePLDPmf(0.1, 0, np.asarray([0.6, 0.399]), 1e-3, True)
        for count in (1, 2, 40):
            all_of_them = loss_distribution._self_compose(one, count)
            never = 0.999**count
            assert all_of_them.get_delta_for_epsilon(100.0) == pytest.approx(1 - never, rel=1e-9)

    @pytest.mark.parametrize("dimension", [1, 2, 10, 50])
    def test_bounded_noise_on_several_coordinates(self, dimension):
        """Box noise: whatever epsilon, delta is the chance that any coordinate is uncovered."""
        event = Release(Box(100.0), Sensitivity(1.0, "linf", dimension))
        found = loss_distribution.LossDistribution(event)
        exact = 1 - (1 - 1 / 200) ** dimension
        for epsilon in (0.0, 1.0, 20.0):
            assert exact <= found.delta(epsilon) <= dimension / 200 * 1.001
        assert account(event, 0.9 * exact).epsilon == math.inf
        assert account(event, dimension / 190).epsilon == pytest.approx(0.0, abs=1e-6)

    @pytest.mark.parametrize(("rate", "count"), [(1.0, 5), (0.5, 5), (0.1, 40)])
    def test_bounded_noise_in_many_releases(self, rate, count):
        """Box noise: delta is the chance that any release has the record and uncovers it."""
        release = Release(Box(100.0), Sensitivity(1.0, "linf", 1))
        found = loss_distribution.LossDistribution(Repeated(PoissonSampled(rate, release), count))
        exact = 1 - (1 - rate / 200) ** count
        for epsilon in (1.0, 20.0):
            assert exact <= found.delta(epsilon) <= count * rate / 200 * 1.001

    @pytest.mark.parametrize("dimension", [2, 30])
    def test_what_is_taken_off_the_curve_of_a_product_is_handed_back(self, dimension):
        """Against the composed losses themselves, to far below the noise of the transforms."""
        noise, near = Laplace(2.0), 1.0

        def single(eps):
            return noise.hockey_stick(eps, 1.0)

        curve, more = loss_distribution._product(single, dimension, 1, near)
        step = loss_distribution.grid_step(near, dimension)
        one = loss_distribution._pmf(
            loss_distribution._sampled(single, 1.0, adding=False), step, dimension
        )
        losses = loss_distribution._self_compose(one, dimension)
        epsilons = np.linspace(0, dimension / 2, 60)
        exact = np.array([losses.get_delta_for_epsilon(epsilon) for epsilon in epsilons])
        assert np.all(curve(epsilons) + more >= exact - 1e-15)
        assert np.all(curve(epsilons) + more <= exact + 1e-11)

    def test_product_of_coordinates_under_linf(self):
        """Two Laplace coordinates: the loss of the pair by direct convolution of atoms."""
        noise, steps = Laplace(2.0), 1
        event = Repeated(Release(noise, Sensitivity(1.0, "linf", 2)), steps)
        got = loss_distribution.LossDistribution(event)
        rng = np.random.default_rng(0)
        x = noise.sample((2, 2_000_000), rng)
        loss = ((np.abs(x - 1.0) - np.abs(x)) / 2.0).sum(axis=0)
        for epsilon in (0.1, 0.4, 0.8):
            measured = np.maximum(0, 1 - np.exp(epsilon - loss)).mean()
            assert got.delta(epsilon) == pytest.approx(measured, rel=0.01, abs=1e-4)
        sampled_event = sampled(Laplace(30.0), 100, 0.1, 50, "linf")
        tight = loss_distribution.epsilon(sampled_event, 1e-5)
        assert tight < rdp.epsilon(sampled_event, 1e-5)

    @pytest.mark.parametrize("accountant", ["rdp", "pld"])
    def test_gaussian_works_in_any_dimension_and_norm(self, accountant):
        reference = account(sampled(Gaussian(2.0), 10, 0.3, None), 1e-5, accountant).epsilon
        wide = account(sampled(Gaussian(6.0), 10, 0.3, 9, "linf"), 1e-5, accountant).epsilon
        assert wide == pytest.approx(reference, rel=1e-9)

    def test_refuses_what_has_no_worst_pair(self):
        with pytest.raises(Unsupported, match="no worst pair"):
            account(sampled(Laplace(1.0), 10, 0.1, 5), 1e-5, "pld")
        with pytest.raises(Unsupported, match="unimodal"):
            account(sampled(TwoHumps(1.0), 10, 0.1), 1e-5, "pld")
        with pytest.raises(Unsupported, match="delta"):
            account(sampled(Gaussian(1.0), 10, 0.1), 1e-12, "pld")
        selected = SecretlySelected(0.5, sampled(Gaussian(1.0), 2, 0.1))
        with pytest.raises(Unsupported, match="SecretlySelected"):
            account(selected, 1e-5, "pld")

    def test_bounded_noise_has_a_loss_distribution_even_without_rdp(self):
        """Box noise: delta is the mass that the shift uncovers, whatever epsilon."""
        event = Release(Box(100.0), Sensitivity(1.0, "l2", 1))
        assert rdp.epsilon(event, 1e-5) == math.inf
        assert account(event, 0.01, "best").epsilon == pytest.approx(0.0, abs=1e-6)
        assert account(event, 1e-3, "best").epsilon == math.inf

    def test_the_other_library_says_nothing(self, caplog, capfd):
        with caplog.at_level(logging.DEBUG):
            account(sampled(Gaussian(1.0), 100, 0.1), 1e-5)
        assert not [r for r in caplog.records if "dp_accounting" in r.pathname]
        out, err = capfd.readouterr()
        assert out == err == ""


class TestPure:
    def test_laplace_under_l1(self):
        event = Repeated(Release(Laplace(4.0), Sensitivity(1.0, "l1", 1000)), 8)
        statement = account(event, 0.0)
        assert statement.epsilon == pytest.approx(2.0)
        assert statement.accountant == "pure"

    def test_sampling_lowers_it(self):
        event = sampled(Laplace(0.5), 10, 0.1, 3, "l1")
        assert account(event, 0.0).epsilon == pytest.approx(10 * math.log1p(0.1 * math.expm1(2)))
        huge = sampled(Laplace(1e-3), 1, 0.1, 3, "l1")
        assert account(huge, 0.0).epsilon == pytest.approx(1000 + math.log(0.1), rel=1e-9)

    def test_refusals(self):
        with pytest.raises(Unsupported, match="no pure-DP"):
            account(sampled(Gaussian(1.0), 1, 1.0), 0.0)
        with pytest.raises(Unsupported, match="one dimension only"):
            account(sampled(Staircase(1.0, 1.0), 1, 1.0, 2), 0.0)
        assert account(sampled(Staircase(1.0, 1.0), 3, 1.0), 0.0).epsilon == pytest.approx(3.0)

    def test_pure_dp_event_by_every_accountant(self):
        event = Repeated(PureDP(0.3), 20)
        assert account(event, 0.0).epsilon == pytest.approx(6.0)
        tight = account(event, 1e-5, "pld").epsilon
        assert tight < account(event, 1e-5, "rdp").epsilon < 6.0
        reference = PLDAccountant()
        loss = dp_accounting.pld.privacy_loss_distribution.from_randomized_response(
            2 / (1 + math.exp(0.3)), 2
        )
        assert reference is not None
        expected = loss.self_compose(20).get_epsilon_for_delta(1e-5)
        assert tight == pytest.approx(expected, rel=5e-3)

    def test_best_takes_the_pure_bound_where_it_is_smallest(self):
        event = Release(Laplace(1.0), Sensitivity(1.0, "l1", 50))
        statement = account(event, 1e-9)
        assert statement.accountant == "pure"
        assert statement.epsilon == pytest.approx(1.0)

    def test_secret_selection_does_not_help_pure_dp(self):
        assert pure.epsilon(SecretlySelected(0.01, PureDP(1.0))) == 1.0


class TestSecretSelection:
    def test_against_the_exact_mixture(self):
        """Selected: Gaussian at 0 or 1. Not selected: anything, here a constant far away."""
        p, noise = 0.3, Gaussian(0.8)
        orders = np.asarray([1.5, 2.0, 6.0])
        bound = rdp.curve(SecretlySelected(p, Release(noise, Sensitivity(1.0))), orders)
        exact = np.log(1 - p + p * np.exp((orders - 1) * orders / (2 * 0.8**2))) / (orders - 1)
        np.testing.assert_allclose(bound, exact, rtol=1e-9)
        assert np.all(bound < rdp.curve(Release(noise, Sensitivity(1.0)), orders))

    def test_it_is_never_as_good_as_a_poisson_rate(self):
        inner = sampled(Gaussian(1.0), 2, 0.05)
        secret = rdp.epsilon(Repeated(SecretlySelected(0.2, inner), 100), 1e-5)
        wrong = rdp.epsilon(sampled(Gaussian(1.0), 200, 0.05 * 0.2), 1e-5)
        assert secret > wrong


class TestMonotone:
    @settings(max_examples=25)
    @given(
        noise=st.sampled_from(NOISES),
        rate=st.floats(0.01, 0.5),
        steps=st.integers(1, 500),
        dimension=st.sampled_from([1, 2, 20, 3000]),
        norm=st.sampled_from(["l1", "l2", "linf"]),
    )
    def test_less_noise_more_steps_higher_rate_or_dimension_never_lower_epsilon(
        self, noise, rate, steps, dimension, norm
    ):
        base = rdp.epsilon(sampled(noise, steps, rate, dimension, norm), 1e-5)
        worse = [
            sampled(noise.scaled(0.8), steps, rate, dimension, norm),
            sampled(noise, steps + 10, rate, dimension, norm),
            sampled(noise, steps, min(1.0, rate * 1.5), dimension, norm),
            sampled(noise, steps, rate, dimension * 3, norm),
        ]
        for event in worse:
            assert rdp.epsilon(event, 1e-5) >= base * (1 - 2e-3)

    @pytest.mark.parametrize("noise", NOISES, ids=repr)
    def test_the_loss_distribution_is_monotone_too(self, noise):
        base = account(sampled(noise, 30, 0.1), 1e-5, "pld").epsilon
        for event in (
            sampled(noise.scaled(0.8), 30, 0.1),
            sampled(noise, 45, 0.1),
            sampled(noise, 30, 0.15),
        ):
            assert account(event, 1e-5, "pld").epsilon > base

    @pytest.mark.parametrize("accountant", ["rdp", "pld", "best"])
    @pytest.mark.parametrize("noise", NOISES, ids=repr)
    def test_a_hundred_single_events_equal_one_event_times_a_hundred(self, noise, accountant):
        one = PoissonSampled(0.1, Release(noise, Sensitivity(1.0, "l2", 1)))
        apart = Composed([one] * 40 + [Repeated(one, 30), Repeated(Repeated(one, 3), 10)])
        together = Repeated(one, 100)
        assert account(apart, 1e-5, accountant) == account(together, 1e-5, accountant)

    def test_mixed_composition_costs_more_than_its_parts(self):
        parts = [sampled(Gaussian(2.0), 300, 0.05), sampled(Laplace(2.0), 20, 0.1), PureDP(0.1)]
        for accountant in ("rdp", "pld", "best"):
            total = account(Composed(parts), 1e-5, accountant).epsilon
            alone = [account(part, 1e-5, accountant).epsilon for part in parts]
            assert max(alone) < total < sum(alone)


class TestEvents:
    def test_counts_multiply_in_one_place(self):
        inner = Release(Gaussian(1.0), Sensitivity(1.0))
        event = Repeated(Composed([Repeated(inner, 3), PureDP(0.1), inner]), 5)
        assert leaves(event) == {inner: 20, PureDP(0.1): 5}

    def test_units_and_neighbours_do_not_mix(self):
        client = Release(Gaussian(1.0), Sensitivity(1.0), unit="client")
        record = Release(Gaussian(1.0), Sensitivity(1.0))
        assert basis(PoissonSampled(0.1, client)) == ("client", "add-remove")
        assert account(Repeated(PoissonSampled(0.1, client), 10), 1e-5).unit == "client"
        with pytest.raises(Unsupported, match="units"):
            account(Composed([client, record]), 1e-5)
        with pytest.raises(Unsupported, match="empty"):
            account(Composed([]), 1e-5)

    def test_unsupported_combinations_raise(self):
        release = Release(Gaussian(1.0), Sensitivity(1.0))
        with pytest.raises(Unsupported, match="Poisson sampling of a Repeated"):
            PoissonSampled(0.1, Repeated(release, 2))
        with pytest.raises(Unsupported, match="add-remove"):
            PoissonSampled(0.1, PureDP(1.0, neighbours="replace-one"))
        with pytest.raises(Unsupported, match="not an event"):
            account("release", 1e-5)

    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (lambda: PoissonSampled(0.0, PureDP(1.0)), "sampling_rate"),
            (lambda: PoissonSampled(1.1, PureDP(1.0)), "sampling_rate"),
            (lambda: SecretlySelected(-1, PureDP(1.0)), "probability"),
            (lambda: Repeated(PureDP(1.0), 0), "steps"),
            (lambda: Repeated(PureDP(1.0), 1.5), "steps"),
            (lambda: PureDP(0.0), "epsilon"),
            (lambda: PureDP(math.inf), "epsilon"),
            (lambda: Shuffled(PureDP(1.0), 0), "clients"),
            (lambda: Sensitivity(0.0), "clip"),
            (lambda: Sensitivity(1.0, "l3"), "norm"),
            (lambda: Sensitivity(1.0, "l2", 0), "dimension"),
            (lambda: account(PureDP(1.0), 1.0), "delta"),
            (lambda: account(PureDP(1.0), -0.1), "delta"),
            (lambda: account(PureDP(1.0), 0.1, "magic"), "accountant"),
            (lambda: account(PureDP(1.0), 0.1, "rdp", "vague"), "accounting"),
        ],
    )
    def test_bad_values_name_the_parameter(self, make, name):
        with pytest.raises(InvalidInput) as caught:
            make()
        assert caught.value.parameter == name


class TestStatement:
    def test_a_nominal_statement_says_what_its_guarantee_assumes(self):
        notes = ("assumes that sizes are public", "not this")
        said = str(PrivacyStatement(1.0, 1e-5, "nominal", "rdp", vector_epsilon=9.0, notes=notes))
        assert said.endswith("added or removed; assumes that sizes are public")

    def test_scalar_accounting_is_nominal_and_carries_the_truth(self):
        event = sampled(Staircase(1.617, 1.0), 300, 0.05, 26_010)
        statement = account(event, 1e-5, "rdp", "scalar")
        assert statement.kind == "nominal"
        assert statement.epsilon == pytest.approx(8.0, rel=0.01)
        assert statement.vector_epsilon > 1000
        assert "not a privacy guarantee" in str(statement)
        gaussian = account(sampled(Gaussian(1.0), 300, 0.05, 26_010), 1e-5, "rdp", "scalar")
        assert gaussian.kind == "nominal"
        assert gaussian.epsilon == pytest.approx(gaussian.vector_epsilon)

    def test_scalar_pure_dp_of_staircase_has_no_vector_guarantee(self):
        statement = account(sampled(Staircase(1.0, 1.0), 1, 1.0, 10), 0.0, "best", "scalar")
        assert statement.epsilon == pytest.approx(1.0)
        assert statement.vector_epsilon == math.inf
        assert statement.to_dict()["vector_epsilon"] == "inf"

    @given(st.floats(1e-6, 1e6))
    def test_what_is_printed_is_never_below_what_is_proved(self, epsilon):
        text = shown(epsilon)
        assert float(text) >= epsilon
        assert float(text) <= epsilon * 1.0011
        assert shown(7.9993) == "8"
        assert shown(math.inf) == "inf"

    def test_words(self):
        guarantee = account(sampled(Gaussian(1.0), 10, 0.1), 1e-5)
        assert guarantee.kind == "guarantee"
        assert "one record added or removed" in str(guarantee)
        nothing = PrivacyStatement.none("the noise was seeded")
        assert str(nothing) == "not private: the noise was seeded"
        assert nothing.to_dict()["epsilon"] == "inf"


class TestFailsClosed:
    """What floating point cannot certify counts as infinite, never as zero."""

    def test_not_a_number_is_not_private(self):
        orders, nothing = np.asarray([2.0, 3.0]), np.asarray([math.nan, -1.0])
        assert conversion.epsilon_at(orders, nothing, 1e-5)[0] == math.inf
        assert conversion.delta_at(orders, nothing, 1.0) == 1.0

    @pytest.mark.parametrize("epsilon", [37.0, 300.0, 710.0, 800.0])
    def test_huge_losses(self, epsilon):
        for event in (PureDP(epsilon), Release(Laplace(1 / epsilon), Sensitivity(1.0, "l2", 1))):
            assert account(event, 1e-5).epsilon == pytest.approx(epsilon, rel=0.02)
            assert account(event, 1e-5, "rdp").epsilon >= epsilon * 0.95
        with pytest.raises(InvalidInput, match="decay"):
            Staircase(800.0, 1.0)

    def test_many_tiny_releases_are_not_rounded_away(self):
        """10^10 releases of pure 1e-8: exactly Gaussian-like with mu = 1e-3."""
        mu = 1e-8 * math.sqrt(10**10)
        event = Repeated(PureDP(1e-8), 10**10)
        orders = np.asarray([2.0, 100.0])
        np.testing.assert_allclose(rdp.curve(event, orders), orders * mu**2 / 2, rtol=1e-3)
        assert rdp.epsilon(event, 1e-5) > 0

    def test_kinks_that_only_rounding_keeps_apart(self):
        noise = Staircase(0.5, 1.0, 1 / 3)
        for norm in ("l1", "l2"):
            values = rdp.worst_case(noise, Sensitivity(1.0, norm, 5), np.asarray([1.0, 2.0, 9.0]))
            near = Staircase(0.5, 1.0, 0.33333)
            close = rdp.worst_case(near, Sensitivity(1.0, norm, 5), np.asarray([1.0, 2.0, 9.0]))
            np.testing.assert_allclose(values, close, rtol=1e-3)

    @pytest.mark.parametrize("period", [1 / 500, 1e-4, 1e-6])
    def test_many_periods_in_few_dimensions(self, period):
        noise = Staircase(math.sqrt(2) * period, period)
        value = rdp.worst_case(noise, Sensitivity(1.0, "l2", 10), np.asarray([2.0]))
        laplace = rdp.worst_case(Laplace(1 / math.sqrt(2)), Sensitivity(1.0, "l2", 10), [2.0])
        assert value == pytest.approx(laplace, rel=1e-2)

    def test_a_loss_distribution_that_would_not_fit_into_memory_is_refused(self):
        statement = account(sampled(Laplace(0.5), 10**6, 1e-6), 1e-5)
        assert 0 < statement.epsilon < 3
        assert statement.accountant == "rdp"

    @pytest.mark.parametrize("clip", [1e-90, 1e90])
    def test_the_unit_of_length_does_not_matter(self, clip):
        for noise in (Laplace(1.0), Staircase(0.4, 0.3), Logistic(1.0)):
            plain = account(Release(noise, Sensitivity(1.0, "l2", 3)), 1e-5).epsilon
            release = Release(noise.scaled(clip), Sensitivity(clip, "l2", 3))
            assert account(release, 1e-5).epsilon == pytest.approx(plain, rel=1e-6)

    def test_orders_must_exceed_one(self):
        with pytest.raises(InvalidInput, match="orders"):
            rdp.curve(PureDP(1.0), np.asarray([1.0, 2.0]))

    def test_delta_of_a_whole_event(self):
        event = sampled(Gaussian(1.0), 100, 0.1)
        epsilon = rdp.epsilon(event, 1e-5)
        assert rdp.delta(event, epsilon) == pytest.approx(1e-5, rel=0.05)

    def test_types(self):
        assert Sensitivity(1.0, "l2", np.int64(3)).dimension == 3
        with pytest.raises(InvalidInput, match="mechanism"):
            Release("gaussian", Sensitivity(1.0))
        with pytest.raises(InvalidInput, match="sampling_rate"):
            PoissonSampled(Release(Gaussian(1.0), Sensitivity(1.0)), 0.1)
        with pytest.raises(InvalidInput, match="dimension"):
            Sensitivity(1.0, "l2", True)
        with pytest.raises(InvalidInput, match="clip"):
            Sensitivity("1")
        with pytest.raises(InvalidInput, match="steps"):
            Repeated(PureDP(1.0), 10**20)
        with pytest.raises(Unsupported, match="one message"):
            Shuffled(Repeated(PureDP(1.0), 2), 10)


@pytest.mark.parametrize("count", [2, 3, 17, 80, 1_000, 30_000])
@pytest.mark.parametrize("rate", [1.0, 0.3, 0.01])
def test_many_equal_losses_add_up_as_the_library_adds_them(count, rate):
    """The same grid, composed by dp-accounting; where its tails are cut differs, and no more."""
    curve, _ = loss_distribution._curve(Release(Gaussian(2.0), Sensitivity(1.0, "l2", 3)), 1, 1.0)
    for adding in (False, True):
        part = loss_distribution._pmf(loss_distribution._sampled(curve, rate, adding), 1e-2, count)
        ours = loss_distribution._self_compose(part, count)
        theirs = part.self_compose(count, loss_distribution._TAIL)
        spread = 0.5 * rate * math.sqrt(count)
        for epsilon in (0.0, 0.1, spread, 3 * spread):
            expected = theirs.get_delta_for_epsilon(epsilon)
            assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(
                expected, rel=1e-6, abs=32 * count * 2.3e-16
            )
        low, high = loss_distribution._bulk(part._probs, count)
        brute = common.compute_self_convolve_bounds(part._probs, count, loss_distribution._TAIL)
        assert (low, high) == pytest.approx(brute, abs=1)


def test_a_history_that_grows_is_accounted_as_if_it_were_new():
    """Parts that are kept from one round to the next change nothing."""

    def epsilons() -> list[float]:
        event = PoissonSampled(0.2, Release(Gaussian(3.0), Sensitivity(1.0, "l2", 5)))
        return [best_epsilon(Repeated(event, count)) for count in (1, 2, 3, 7, 8, 9, 64, 65)]

    def best_epsilon(event) -> float:
        return account(event, 1e-5, accountant="best", accounting="vector").epsilon

    first = epsilons()
    for kept in (
        loss_distribution._curve,
        loss_distribution._discretised,
        loss_distribution.composed_loss,
        rdp._known_curve,
    ):
        kept.cache_clear()
    backwards = epsilons()
    assert first == backwards
    assert first == sorted(first)
