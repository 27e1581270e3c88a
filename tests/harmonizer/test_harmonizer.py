"""Calibration, choice, heterogeneous clients and what is left of a budget."""

from __future__ import annotations

import math
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import Box, Logistic, TwoHumps
from udpfl import (
    Budget,
    Client,
    Gaussian,
    Infeasible,
    InvalidInput,
    Laplace,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    Sensitivity,
    Setting,
    Staircase,
    Unsupported,
    account,
    calibrate,
    choose,
    harmonize,
    rounds_left,
    would_exceed,
)
from udpfl.harmonizer._levels import least_root
from udpfl.harmonizer.calibrate import calibrate_family

D = 26_010


def setting(epsilon, dimension=D, accountant="rdp", **changes):
    fields = {
        "delta": 1e-5,
        "releases": 300,
        "sensitivity": Sensitivity(1.0, "l2", dimension),
        "rate": 0.05,
        "accountant": accountant,
    }
    return Setting(epsilon, **(fields | changes))


def keeps_its_budget_and_wastes_little(found, slack=1e-3):
    """On the private side, and `slack` less noise of the same shape would not be."""
    goal = found.setting
    assert found.statement.epsilon <= goal.epsilon
    again = account(found.event, goal.delta, goal.accountant, goal.accounting)
    assert again == found.statement
    mechanism = found.mechanism.scaled(1 - slack)
    if goal.accounting == "scalar" and isinstance(mechanism, Staircase):
        mechanism = Staircase(found.mechanism.decay * (1 + slack), found.mechanism.period)
    less = goal.event(mechanism)
    return account(less, goal.delta, goal.accountant, goal.accounting).epsilon > goal.epsilon


class TestCheckValues:
    """The table of the mathematics page: noise std within 1 %, never below what is allowed."""

    @pytest.mark.parametrize(
        ("epsilon", "gaussian", "one", "ten", "many"),
        [
            (2, 2.089, 2.506, 2.854, 2.955),
            (4, 1.299, 1.353, 1.729, 1.846),
            (6, 1.038, 0.984, 1.348, 1.467),
            (8, 0.902, 0.795, 1.169, 1.282),
        ],
    )
    def test_gaussian_and_laplace_by_rdp(self, epsilon, gaussian, one, ten, many):
        found = [
            calibrate("gaussian", setting(epsilon)),
            calibrate("laplace", setting(epsilon, 1)),
            calibrate("laplace", setting(epsilon, 10)),
            calibrate("laplace", setting(epsilon)),
        ]
        expected = [gaussian, one, ten, many]
        assert [f.mechanism.noise_std for f in found] == pytest.approx(expected, rel=0.01)
        assert all(keeps_its_budget_and_wastes_little(f) for f in found)

    @pytest.mark.parametrize(
        ("epsilon", "gaussian", "laplace"),
        [(2, 1.947, 2.319), (4, 1.225, 1.264), (6, 0.983, 0.918), (8, 0.857, 0.747)],
    )
    def test_gaussian_and_laplace_by_pld(self, epsilon, gaussian, laplace):
        found = [
            calibrate("gaussian", setting(epsilon, accountant="pld")),
            calibrate("laplace", setting(epsilon, 1, accountant="pld")),
        ]
        expected = [gaussian, laplace]
        assert [f.mechanism.noise_std for f in found] == pytest.approx(expected, rel=0.005)
        assert all(keeps_its_budget_and_wastes_little(f) for f in found)

    @pytest.mark.parametrize(
        ("epsilon", "std", "decay"),
        [(2, 2.654, 0.530), (4, 1.448, 0.958), (6, 1.044, 1.309), (8, 0.830, 1.617)],
    )
    def test_scalar_staircase_keeps_the_papers_shape(self, epsilon, std, decay):
        found = calibrate("staircase", setting(epsilon, accounting="scalar"))
        assert isinstance(found.mechanism, Staircase)
        assert found.mechanism.period == 1.0
        assert found.mechanism.split == pytest.approx(1 / (1 + math.exp(found.mechanism.decay / 2)))
        assert found.mechanism.noise_std == pytest.approx(std, rel=0.01)
        assert found.mechanism.decay == pytest.approx(decay, rel=0.01)
        assert found.statement.kind == "nominal"
        assert keeps_its_budget_and_wastes_little(found)

    @pytest.mark.parametrize(("epsilon", "std"), [(2, 2.978), (4, 1.860), (8, 1.291)])
    def test_vector_staircase_at_a_quarter_of_the_spread(self, epsilon, std):
        period = 1 / (4 * math.sqrt(D))
        goal = setting(epsilon)
        decay = math.sqrt(2) * period / std
        found = calibrate(Staircase(decay, period), goal)
        assert found.mechanism.noise_std == pytest.approx(std, rel=0.01)
        assert keeps_its_budget_and_wastes_little(found)

    @pytest.mark.parametrize(("epsilon", "std"), [(2, 2.436), (4, 1.333), (6, 0.980), (8, 0.7945)])
    def test_best_staircase_in_one_dimension(self, epsilon, std):
        found = calibrate("staircase", setting(epsilon, 1))
        laplace = calibrate("laplace", setting(epsilon, 1))
        assert found.mechanism.noise_std == pytest.approx(std, rel=0.01)
        assert found.mechanism.noise_std <= laplace.mechanism.noise_std * 1.001
        assert keeps_its_budget_and_wastes_little(found)

    @pytest.mark.parametrize(("divisor", "extra"), [(1.0, 0.12), (0.5, 0.41)])
    def test_wide_steps_cost_more_in_high_dimension(self, divisor, extra):
        """Period c/sqrt(d) costs 12 % more than Laplace, 2c/sqrt(d) 41 %."""
        period = 1 / (divisor * math.sqrt(D))
        laplace = calibrate("laplace", setting(4)).mechanism.noise_std
        family = lambda level: Staircase(math.sqrt(2) * period / level, period)  # noqa: E731
        wide = calibrate_family(family, setting(4))
        assert wide.mechanism.noise_std / laplace - 1 == pytest.approx(extra, abs=0.02)

    def test_best_staircase_is_close_to_laplace_in_high_dimension(self):
        for epsilon in (2, 8):
            staircase = calibrate("staircase", setting(epsilon)).mechanism.noise_std
            laplace = calibrate("laplace", setting(epsilon)).mechanism.noise_std
            assert laplace * 0.999 <= staircase <= laplace * 1.003


class TestCalibrate:
    @settings(max_examples=30)
    @given(
        epsilon=st.floats(0.05, 50),
        delta=st.sampled_from([1e-9, 1e-5, 1e-2]),
        releases=st.integers(1, 20_000),
        rate=st.floats(0.001, 1.0),
        dimension=st.sampled_from([1, 7, 4000]),
        norm=st.sampled_from(["l1", "l2", "linf"]),
        clip=st.sampled_from([0.01, 1.0, 300.0]),
        name=st.sampled_from(["gaussian", "laplace"]),
    )
    def test_always_on_the_private_side(
        self, epsilon, delta, releases, rate, dimension, norm, clip, name
    ):
        goal = Setting(
            epsilon, delta, releases, Sensitivity(clip, norm, dimension), rate, accountant="rdp"
        )
        assert keeps_its_budget_and_wastes_little(calibrate(name, goal))

    @pytest.mark.parametrize("accountant", ["rdp", "pld", "best"])
    @pytest.mark.parametrize("epsilon", [0.02, 0.5, 20.0, 200.0])
    @pytest.mark.parametrize("name", ["gaussian", "laplace", "staircase"])
    def test_extreme_budgets(self, name, epsilon, accountant):
        goal = setting(epsilon, 1, accountant, releases=20)
        found = calibrate(name, goal)
        assert found.statement.epsilon <= epsilon
        assert found.statement.epsilon >= epsilon * 0.99

    def test_noise_scales_with_the_clip(self):
        small, large = (
            calibrate("staircase", setting(4, sensitivity=Sensitivity(clip, "l2", 500)))
            for clip in (0.1, 10.0)
        )
        assert large.mechanism.noise_std == pytest.approx(100 * small.mechanism.noise_std, rel=2e-3)

    def test_a_mechanism_of_ones_own(self):
        for dimension in (1, 200):
            found = calibrate(Logistic(1.0), setting(4, dimension))
            assert isinstance(found.mechanism, Logistic)
            assert keeps_its_budget_and_wastes_little(found, slack=0.01)
            gaussian = calibrate("gaussian", setting(4, dimension)).mechanism.noise_std
            laplace = calibrate("laplace", setting(4, 10**6)).mechanism.noise_std
            if dimension > 1:  # Fisher information between Gaussian's and Laplace's
                assert gaussian < found.mechanism.noise_std < laplace

    def test_the_search_ends_on_the_private_side_or_not_at_all(self):
        for excess in (lambda _: 1e-7, lambda _: math.nan, lambda _: 30.0):
            with pytest.raises(Infeasible):
                least_root(excess, 1.0, 1e-4)
        with pytest.raises(Infeasible, match="so large"):
            least_root(lambda _: -1.0, 1.0, 1e-4)
        for root in (1e-9, 0.3, 7.0, 1e9):
            for guess in (1e-3, 1.0, 1e6):
                found = least_root(lambda x, r=root: math.tanh(math.log(r / x)), guess, 1e-4)
                assert root <= found <= root * 1.001
                jump = least_root(lambda x, r=root: 1.0 if x < r else -1.0, guess, 1e-4)
                assert root <= jump <= root * 1.001

    @pytest.mark.parametrize("guess", [0.5, 2.9, 3.1, 40.0])
    def test_what_is_not_a_number_is_not_private(self, guess):
        """A cost that cannot be computed for little noise, and is within the budget for more."""

        def excess(level):
            return math.nan if level < 3 else -math.log(level)

        assert 3 <= least_root(excess, guess, 1e-3) <= 3 * math.exp(1e-3)

    @pytest.mark.parametrize("slope", [-0.5, -1.0, -20.0])
    def test_the_search_takes_few_looks(self, slope):
        """Each is a whole accounting. Where epsilon follows the noise on a line, the second look
        is within the tolerance and on the private side; half a tolerance to the other side would
        not be."""
        for tolerance, guess in ((1e-2, 0.7), (1e-4, 3.0)):
            looks = []

            def excess(level, looks=looks):
                looks.append(level)
                return slope * math.log(level)

            found = least_root(excess, guess, tolerance, slope=slope)
            assert found == looks[-1]
            assert 1 <= found <= math.exp(tolerance)
            assert len(looks) == 2

    def test_a_search_that_ends_on_the_wrong_side_is_not_believed(self, monkeypatch):
        goal, module = setting(4, 1), import_module("udpfl.harmonizer.calibrate")
        right = calibrate("gaussian", goal).mechanism.std
        for short, holds in ((1 - 1e-4, True), (1 - 3e-4, True), (0.99, False), (0.5, False)):
            monkeypatch.setattr(module, "least_level", lambda *_, s=short: s * right)
            if holds:
                found = calibrate("gaussian", goal)
                assert keeps_its_budget_and_wastes_little(found)
                assert found.statement.epsilon == account(found.event, 1e-5, "rdp").epsilon <= 4
            else:
                with pytest.raises(Infeasible, match="above the budget"):
                    calibrate("gaussian", goal)

    def test_a_density_that_is_not_unimodal_is_accounted_but_by_rdp_only(self):
        found = calibrate(TwoHumps(1.0), setting(4, 3, "best"))
        assert found.statement.accountant == "rdp"
        assert found.statement.epsilon <= 4

    def test_bounded_noise_has_no_renyi_divergence_but_may_have_a_loss(self):
        with pytest.raises(Infeasible, match="no amount of noise"):
            calibrate(Box(1.0), setting(4, 3))
        for accountant in ("pld", "best"):
            found = calibrate(Box(1.0), setting(4, 1, accountant, releases=30))
            assert found.statement.accountant == "pld"
            assert found.statement.epsilon <= 4
            # 30 sampled chances of 1/(2 scale) each to be uncovered
            uncovered = 30 * 0.05 / (2 * found.mechanism.scale)
            assert uncovered == pytest.approx(1e-5, rel=0.02)

    def test_pure_dp(self):
        goal = setting(3.0, 1000, delta=0.0, releases=6, sensitivity=Sensitivity(2.0, "l1", 1000))
        found = calibrate("laplace", goal)
        assert found.statement.accountant == "pure"
        per_release = math.log1p(math.expm1(3.0 / 6) / 0.05)
        assert found.mechanism.scale == pytest.approx(2.0 / per_release, rel=1e-6)
        with pytest.raises(Unsupported, match="pure-DP"):
            calibrate("gaussian", goal)
        with pytest.raises(Unsupported, match="one dimension only"):
            calibrate("staircase", goal)

    def test_pure_dp_staircase_in_one_dimension_beats_laplace(self):
        goal = setting(2.0, 1, delta=0.0, releases=1, rate=1.0)
        for rank, error in (("l1", "mean_abs"), ("l2", "noise_std")):
            staircase = calibrate("staircase", goal, rank)
            laplace = calibrate("laplace", goal, rank)
            assert staircase.statement.epsilon <= 2.0
            assert getattr(staircase.mechanism, error) < getattr(laplace.mechanism, error)
        best = calibrate("staircase", goal, "l1").mechanism
        assert best.mean_abs == pytest.approx(math.exp(1) / math.expm1(2), rel=1e-5)

    def test_a_delta_that_permits_publishing_records_is_refused(self):
        with pytest.raises(InvalidInput, match="publishing records"):
            setting(0.1, rate=1e-6, releases=3)

    def test_best_falls_back_where_the_loss_distribution_gives_up(self):
        goal = setting(
            0.011, None, "best", delta=1e-9, releases=5000, rate=0.5,
            sensitivity=Sensitivity(1.0, "linf", 1000),
        )  # fmt: skip
        assert calibrate("laplace", goal).statement.accountant == "rdp"
        humps = setting(4.0, None, "best", sensitivity=Sensitivity(1.0, "linf", 3))
        assert calibrate(TwoHumps(1.0), humps).statement.accountant == "rdp"

    def test_no_step_lies_exactly_on_the_clip(self):
        """A float32 clip may overshoot by 1e-7; pure DP must not double because of that."""
        goal = setting(2.0, 1, delta=0.0, releases=1, rate=1.0)
        noise = calibrate("staircase", goal).mechanism
        assert noise.renyi(math.inf, 1.0 + 1e-7) == pytest.approx(2.0, rel=1e-6)

    def test_bad_settings(self):
        for changes, name in (
            ({"releases": 0}, "steps"),
            ({"rate": 0.0}, "sampling_rate"),
            ({"delta": 1.0}, "delta"),
            ({"accounting": "guess"}, "accounting"),
        ):
            with pytest.raises(InvalidInput) as caught:
                setting(1.0, **changes)
            assert caught.value.parameter == name
        for epsilon in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(InvalidInput, match="epsilon"):
                setting(epsilon)
        with pytest.raises(InvalidInput, match="mechanism"):
            calibrate("cauchy", setting(1.0))
        with pytest.raises(InvalidInput, match="mechanism"):
            calibrate(Gaussian, setting(1.0))
        with pytest.raises(InvalidInput, match="rank"):
            calibrate("gaussian", setting(1.0), "l3")
        with pytest.raises(InvalidInput, match="delta"):
            setting(1.0, accountant="pld", delta=1e-12)
        for wrong in ("8", None, True):
            with pytest.raises(InvalidInput, match="epsilon"):
                setting(wrong)


class TestChoose:
    def test_ranks_by_error_and_says_why(self):
        ranking = choose(setting(8.0, accountant="best"))
        assert ranking[0].name == "gaussian"
        errors = [c.error("l2") for c in ranking]
        assert errors == pytest.approx(sorted(errors), rel=1e-5)
        assert "least standard deviation" in ranking[0].why
        assert "pld is a tighter accountant" in ranking[1].why
        alone = choose(setting(8.0), ["laplace"])
        assert "least" not in alone[0].why
        assert "more standard deviation than gaussian" in ranking[1].why

    def test_low_dimension_prefers_bounded_loss(self):
        ranking = choose(setting(8.0, 1, accountant="best"))
        assert ranking[-1].name == "gaussian"

    def test_the_rank_can_be_the_l1_error(self):
        by_l1 = choose(setting(6.0, 1), rank="l1")
        errors = [c.error("l1") for c in by_l1]
        assert errors == pytest.approx(sorted(errors), rel=1e-5)
        with pytest.raises(InvalidInput, match="rank"):
            choose(setting(6.0, 1), rank="l3")

    def test_impossible_mechanisms_come_last_with_the_reason(self):
        ranking = choose(setting(1.0, 5, delta=0.0))
        assert ranking[0].name == "laplace"
        impossible = {c.name: c.why for c in ranking if c.calibrated is None}
        assert impossible.keys() >= {"gaussian", "staircase"}
        assert all("pure-DP" in why for why in impossible.values())
        assert all(c.calibrated is None for c in ranking[-len(impossible) :])


class TestClients:
    def test_each_keeps_its_own_budget(self):
        clients = [
            Client("a", setting(1.0, 300), "gaussian"),
            Client("b", setting(2.0, 300), "laplace"),
            Client("c", setting(4.0, 300, delta=1e-6), "auto"),
            Client("d", setting(8.0, 300), Logistic(1.0)),
        ]
        plans = harmonize(clients)
        assert [p.penalty for p in plans] == pytest.approx([7 / 8, 6 / 8, 4 / 8, 0.0])
        for plan in plans:
            goal = plan.client.setting
            assert plan.calibrated.statement.epsilon <= goal.epsilon
            assert plan.calibrated.statement.delta == goal.delta
        assert plans[2].calibrated.mechanism.name == "gaussian"

    def test_names_must_differ(self):
        with pytest.raises(InvalidInput, match="name"):
            harmonize([Client("a", setting(1.0)), Client("a", setting(2.0))])
        with pytest.raises(InvalidInput, match="at least one"):
            harmonize([])

    def test_a_mechanism_that_cannot_keep_the_budget_is_refused(self):
        impossible = setting(1.0, 3, delta=0.0)
        with pytest.raises(Unsupported, match="pure-DP"):
            harmonize([Client("x", impossible, "gaussian")])
        assert harmonize([Client("x", impossible)])[0].calibrated.mechanism.name == "laplace"


class TestBudget:
    one_round = Repeated(PoissonSampled(0.05, Release(Gaussian(1.0), Sensitivity(1.0))), 2)

    def test_rounds_left_is_the_exact_turning_point(self):
        budget = Budget(3.0, 1e-5)
        left = rounds_left([], self.one_round, budget, "rdp")
        assert left > 10
        full = Repeated(self.one_round, left)
        assert account(full, 1e-5, "rdp").epsilon <= 3.0
        assert would_exceed([full], self.one_round, budget, "rdp")
        assert not would_exceed([Repeated(self.one_round, left - 1)], self.one_round, budget, "rdp")

    def test_history_counts_in_full(self):
        budget = Budget(3.0, 1e-5)
        fresh = rounds_left([], self.one_round, budget)
        after = rounds_left([Repeated(self.one_round, 10)], self.one_round, budget)
        assert after == fresh - 10
        other = rounds_left([PureDP(0.5)], self.one_round, budget)
        assert other < fresh
        assert rounds_left([PureDP(5.0)], self.one_round, budget) == 0

    def test_epsilons_are_not_added_up(self):
        """Two halves of a budget, accounted together, leave room that adding them would deny."""
        half = Repeated(self.one_round, 40)
        spent = account(half, 1e-5).epsilon
        assert not would_exceed([half], half, Budget(2 * spent * 0.9, 1e-5))

    def test_a_history_is_a_list(self):
        with pytest.raises(InvalidInput, match="history"):
            rounds_left(self.one_round, self.one_round, Budget(1.0, 1e-5))

    def test_bad_budgets(self):
        with pytest.raises(InvalidInput, match="epsilon"):
            Budget(0.0, 1e-5)
        with pytest.raises(InvalidInput, match="delta"):
            Budget(1.0, 1.0)


@pytest.mark.parametrize(
    ("steps", "scale", "expected"),
    [(1, 1.0, 4.73), (1, 0.5, 10.7), (10, 9.9, 1.32), (10, 2.49, 6.23), (100, 11.2, 4.16)],
)
def test_what_scalar_laplace_noise_really_costs_in_high_dimension(steps, scale, expected):
    event = Repeated(Release(Laplace(scale), Sensitivity(1.0, "l2", 10**9)), steps)
    assert account(event, 1e-5, "rdp").epsilon == pytest.approx(expected, rel=0.01)


def test_a_long_schedule_of_laplace_noise_never_reports_less_than_pure_composition_allows():
    event = Repeated(Release(Laplace(50.0), Sensitivity(1.0, "l1", 10)), 100)
    statement = account(event, 1e-6)
    assert statement.epsilon < account(event, 0.0).epsilon == pytest.approx(2.0)
