"""Figures of membership attacks, against scikit-learn, scipy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from udpfl import PrivacyStatement
from udpfl.attacks.membership import Cap, Scores
from udpfl.attacks.membership.statistics import (
    ACCURACY,
    AUC,
    LOW_RATES,
    OWN_FPR,
    OWN_TPR,
    clopper_pearson,
    exceeds,
    figures,
    name_at,
    resampled,
)
from udpfl.errors import InvalidInput


def drawn(kind, seed=0, members=700, others=900):
    """Scores of members, a little higher than those of others; discrete ones have many ties."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(0.4, 1, members), rng.normal(0, 1, others)])
    if kind == "discrete":
        values = np.round(values)
    if kind == "equal":
        values = np.zeros_like(values)
    return Scores(values, np.arange(len(values)) < members, 0.25)


KINDS = ("continuous", "discrete", "equal")


@pytest.mark.parametrize("kind", KINDS)
def test_the_curve_and_its_area_are_those_of_scikit_learn(kind):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    scores = drawn(kind)
    false, true, _ = metrics.roc_curve(scores.is_member, scores.values, drop_intermediate=False)
    own_false, own_true = scores.rates
    np.testing.assert_allclose(own_false, false)
    np.testing.assert_allclose(own_true, true)
    assert scores.auc == pytest.approx(metrics.roc_auc_score(scores.is_member, scores.values))
    assert scores.accuracy == pytest.approx(max(1 - (false + 1 - true) / 2))
    for rate in (*LOW_RATES, 0.1):
        false_hits, hits = scores.at(rate)
        assert hits / scores.members == pytest.approx(true[false <= rate][-1])
        assert false_hits / scores.others <= rate


def test_ties_are_flagged_together():
    scores = Scores(np.array([1.0, 1.0, 1.0, 0.0]), np.array([True, False, False, True]))
    assert scores.at(0.3) == (0, 0)  # one of the three cannot be flagged alone
    assert scores.at(1.0) == (2, 2)
    assert scores.auc == 0.25


def test_the_own_threshold_flags_what_lies_at_it():
    scores = Scores(np.array([2.0, 1.0, 0.5, 0.0]), np.array([True, False, True, False]), 1.0)
    assert scores.flagged() == (1, 1)


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (17, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_intervals_are_those_of_scipy(hits, trials, confidence):
    wanted = stats.binomtest(hits, trials).proportion_ci(confidence, method="exact")
    assert clopper_pearson(hits, trials, confidence) == pytest.approx((wanted.low, wanted.high))


def test_the_bootstrap_covers_the_true_area():
    truth = stats.norm.cdf(0.4 / math.sqrt(2))
    found = [resampled(drawn("continuous", seed, 150, 150), seed)[0] for seed in range(15)]
    assert sum(low <= truth <= high for low, high in found) >= 12


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
def test_the_cap_is_the_region_of_the_definition(epsilon, delta):
    cap, grid = Cap(epsilon, delta), np.linspace(0, 1, 2001)
    rates = cap.rate(grid)
    assert (rates <= np.exp(epsilon) * grid + delta + 1e-12).all()
    assert (1 - grid <= np.exp(epsilon) * (1 - rates) + delta + 1e-12).all()
    tight = np.minimum(np.exp(epsilon) * grid + delta, 1 - (1 - grid - delta) / np.exp(epsilon))
    np.testing.assert_allclose(rates, np.minimum(1, tight))
    assert cap.auc == pytest.approx(np.sum((rates[1:] + rates[:-1]) / 2) / 2000, abs=1e-4)
    assert cap.accuracy == pytest.approx(float(((1 + rates - grid) / 2).max()), abs=1e-3)


def test_at_epsilon_one_and_one_percent_the_cap_is_known():
    assert float(Cap(1.0, 0.0).rate(0.01)) == pytest.approx(0.0271828)


@pytest.mark.parametrize("kind", ["none", "guarantee", "nominal"])
def test_a_statement_that_claims_nothing_has_no_cap(kind):
    statement = PrivacyStatement(2.0, 1e-5, kind, "rdp", vector_epsilon=3.0)
    assert Cap.of(statement) == (None if kind == "none" else Cap(2.0, 1e-5))


def test_one_record_of_a_hidden_client_is_one_client_that_goes_and_one_that_comes():
    cap = Cap.of(PrivacyStatement(1.0, 1e-5, "guarantee", "rdp", unit="client"))
    assert cap == Cap(2.0, 1e-5 * (1 + math.e))


def randomised_response(epsilon, count, seed):
    """The answers of a mechanism that leaks exactly epsilon."""
    rng = np.random.default_rng(seed)
    there = np.arange(2 * count) < count
    honest = rng.random(2 * count) < 1 / (1 + math.exp(-epsilon))
    return Scores(np.where(honest, there, ~there).astype(float), there, 0.5)


def test_a_mechanism_that_leaks_what_is_claimed_does_not_exceed_the_cap():
    found = []
    for seed in range(100):
        false, hits = randomised_response(1.0, 500, seed).flagged()
        found.append(exceeds(false, 500, hits, 500, Cap(1.0, 0.0)))
    assert sum(found) <= 5


def test_a_mechanism_that_leaks_more_exceeds_the_cap():
    found = {own.name: own for own in figures(randomised_response(2.0, 500, 0), Cap(1.0, 0.0))}
    assert found[OWN_TPR].exceeds
    assert found[OWN_TPR].value > found[OWN_TPR].cap


def test_the_mirrored_test_is_part_of_the_cap():
    # All members are flagged, and most others: only who is not flagged tells something.
    assert exceeds(900, 1000, 1000, 1000, Cap(2.0, 0.0))
    assert not exceeds(1000, 1000, 1000, 1000, Cap(2.0, 0.0))
    assert math.exp(2.0) * 0.9 >= 1  # what the other test allows


def test_a_lucky_figure_does_not_exceed_its_cap():
    # 3 of 50 members at no false one: above 2.7 %, but so few prove nothing.
    assert not exceeds(0, 50, 3, 50, Cap(1.0, 0.0))
    assert exceeds(0, 5000, 300, 5000, Cap(1.0, 0.0))


def test_the_figures_are_those_of_the_scores():
    scores = drawn("continuous")
    found = {own.name: own for own in figures(scores, Cap(1.0, 1e-5))}
    assert list(found) == [AUC, ACCURACY, *map(name_at, LOW_RATES), OWN_TPR, OWN_FPR]
    false, hits = scores.flagged()
    assert found[OWN_TPR].value == hits / scores.members
    assert found[OWN_FPR].value == false / scores.others
    assert found[AUC].low < found[AUC].value < found[AUC].high
    assert all(own.cap is None for own in figures(scores, None))


@pytest.mark.parametrize(
    ("values", "there"),
    [([0.0, math.nan], [True, False]), ([0.0, 1.0], [True, True]), ([0.0], [True, False])],
)
def test_scores_that_cannot_be_judged_are_refused(values, there):
    with pytest.raises(InvalidInput, match="scores"):
        Scores(np.array(values), np.array(there))


def test_a_long_curve_is_drawn_with_few_points_and_the_same_low_rates():
    scores = drawn("continuous", members=20_000, others=20_000)
    curve = scores.curve("attack", Cap(1.0, 0.0))
    assert len(curve.x) <= 402
    assert len(curve.cap) == len(curve.x) == len(curve.y)
    false, true = scores.rates
    for x, y in zip(curve.x, curve.y, strict=True):
        assert true[false <= x][-1] == y or x == 0
