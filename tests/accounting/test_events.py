"""Events and statements: what is added up, what is refused, and what fails closed."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from tests.accounting.samples import sampled
from tests.conftest import Logistic
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
from udpfl.accounting import _conversion, loss_distribution, pure, rdp
from udpfl.accounting.events import basis, leaves
from udpfl.accounting.statement import shown


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
        statement = account(event, 1e-11)
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
        sampled = PoissonSampled(0.1, release)
        for inner in (Composed([release]), Repeated(Repeated(release, 2), 2), sampled,
                      Repeated(sampled, 2)):  # fmt: skip
            with pytest.raises(Unsupported, match="Poisson sampling of a"):
                PoissonSampled(0.1, inner)
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
        own = {"assumptions": ("assumes that sizes are public",), "notes": ("not this",)}
        said = str(PrivacyStatement(1.0, 1e-5, "nominal", "rdp", vector_epsilon=9.0, **own))
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
        assert _conversion.epsilon_at(orders, nothing, 1e-5)[0] == math.inf
        assert _conversion.delta_at(orders, nothing, 1.0) == 1.0

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
        with pytest.raises(Unsupported, match="single releases"):
            Shuffled(Repeated(PureDP(1.0), 2), 10)


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
