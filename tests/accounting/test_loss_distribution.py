"""Loss distributions against independent oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, common, pld_pmf
from scipy import stats
from scipy.optimize import brentq

from tests.accounting.samples import NOISES, library_event, sampled
from tests.conftest import Box, TwoHumps
from udpfl import (
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    SecretlySelected,
    Sensitivity,
    Unsupported,
    account,
)
from udpfl.accounting import loss_distribution, rdp
from udpfl.accounting._grid_loss import GridLoss


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
        one = GridLoss(0.1, 0, np.asarray([0.6, 0.399]), 1e-3)
        for count in (1, 2, 40):
            all_of_them = loss_distribution._self_compose(one, count)
            never = 0.999**count
            assert all_of_them.delta(100.0) == pytest.approx(1 - never, rel=1e-9)

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
        exact = np.array([losses.delta(epsilon) for epsilon in epsilons])
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


@pytest.mark.parametrize("count", [2, 3, 17, 80, 1_000, 30_000])
@pytest.mark.parametrize("rate", [1.0, 0.3, 0.01])
def test_many_equal_losses_add_up_as_the_library_adds_them(count, rate):
    """The same grid, composed by dp-accounting; where its tails are cut differs, and no more."""
    release = Release(Gaussian(2.0), Sensitivity(1.0, "l2", 3))
    curve, _ = loss_distribution._curve(release, 1, 1, 1.0)
    for adding in (False, True):
        part = loss_distribution._pmf(loss_distribution._sampled(curve, rate, adding), 1e-2, count)
        ours = loss_distribution._self_compose(part, count)
        library = pld_pmf.DensePLDPmf(part.step, part.lowest, part.probs, part.infinite, True)
        theirs = library.self_compose(count, loss_distribution._TAIL)
        spread = 0.5 * rate * math.sqrt(count)
        for epsilon in (0.0, 0.1, spread, 3 * spread):
            expected = theirs.get_delta_for_epsilon(epsilon)
            assert ours.delta(epsilon) == pytest.approx(
                expected, rel=1e-6, abs=32 * count * 2.3e-16
            )
        low, high = loss_distribution._bulk(part.probs, count)
        brute = common.compute_self_convolve_bounds(part.probs, count, loss_distribution._TAIL)
        assert (low, high) == pytest.approx(brute, abs=1)
