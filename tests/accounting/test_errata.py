"""The paper's formulas, evaluated as printed, next to the truth (docs/mathematics.md §8)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from udpfl import Gaussian, Laplace, Sensitivity, Setting, Staircase, calibrate
from udpfl.accounting import rdp


def printed_staircase(order: float, decay: float, split: float) -> float:
    """As printed: no logarithm, 1 - 1/e for 1 - e^-lambda, 1-nu for min(nu, 1-nu)."""
    grow, fall = math.exp((order - 1) * decay), math.exp(-order * decay)
    sign = 1 if split >= 0.5 else 0
    inner = (grow + fall) * (1 - split) + abs(2 * split - 1) * math.exp(-sign * decay)
    factor = (1 - math.exp(-1)) / (2 * (split + math.exp(-decay) * (1 - split)))
    return grow / 2 + fall / 2 + inner * factor


def corrected_staircase(order: float, decay: float, split: float) -> float:
    """The same theorem with its three misprints mended, at a shift of one period."""
    grow, fall = math.exp((order - 1) * decay), math.exp(-order * decay)
    height = (1 - math.exp(-decay)) / (2 * (split + math.exp(-decay) * (1 - split)))
    if split < 0.5:
        inner = split * (grow + fall) + (1 - 2 * split) * math.exp(-decay)
    else:
        inner = (1 - split) * (grow + fall) + (2 * split - 1)
    return math.log(grow / 2 + fall / 2 + height * inner) / (order - 1)


def printed_sign(order: float, decay: float, split: float) -> float:
    """The theorem with its other three errors mended, and sgn as the appendix defines it."""
    grow, fall = math.exp((order - 1) * decay), math.exp(-order * decay)
    height = (1 - math.exp(-decay)) / (2 * (split + math.exp(-decay) * (1 - split)))
    sign = 0 if split < 0.5 else 1
    inner = min(split, 1 - split) * (grow + fall) + abs(2 * split - 1) * math.exp(-sign * decay)
    return math.log(grow / 2 + fall / 2 + height * inner) / (order - 1)


def test_the_sign_of_the_staircase_theorem_is_the_wrong_way_round():
    """On the middle of a period both densities are at the low step for nu < 1/2, not at the high"""
    truth = float(Staircase(1.0, 1.0, 0.1).renyi(4, 1.0))
    x = (np.arange(400_000) + 0.5) / 10_000 - 20  # quadrature that knows no formula
    p, q = (np.exp(Staircase(1.0, 1.0, 0.1).log_density(x - s)) for s in (0.0, 1.0))
    assert math.log((p**4 * q**-3).sum() / 10_000) / 3 == pytest.approx(truth, rel=1e-4)
    assert truth == pytest.approx(0.8210, abs=5e-5)
    assert printed_sign(4, 1.0, 0.1) == pytest.approx(0.8314, abs=5e-5)
    assert printed_sign(4, 1.0, 0.8) != pytest.approx(corrected_staircase(4, 1.0, 0.8), rel=1e-3)


@pytest.mark.parametrize("decay", [0.01, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("split", [0.1, 0.4, 0.5, 0.8])
def test_the_mended_staircase_theorem_is_exact_and_the_printed_one_is_not(decay, split):
    truth = float(Staircase(decay, 1.0, split).renyi(4, 1.0))
    assert corrected_staircase(4, decay, split) == pytest.approx(truth, rel=1e-6)
    assert abs(printed_staircase(4, decay, split) / truth - 1) > 0.2


def test_the_printed_staircase_theorem_does_not_vanish_without_leakage():
    """As lambda -> 0 the noise hides everything; the printed value tends to about 1.3."""
    assert printed_staircase(2, 1e-6, 0.5) == pytest.approx(1.316, abs=1e-3)
    assert Staircase(1e-6, 1.0).renyi(2, 1.0) < 1e-11


def test_the_printed_split_rule_is_not_a_split():
    """nu = (1 + e^-eps - sqrt(1 + (e^-eps - 1)(e^{2(alpha-1)eps} - 1))) / 2 is not even real."""
    inside = 1 + (math.exp(-1.0) - 1) * math.expm1(2 * 1.0)
    assert inside < 0  # the root of a negative number already at alpha = 2, eps = 1
    epsilon = 0.05
    root = math.sqrt(1 + (math.exp(-epsilon) - 1) * math.expm1(2 * epsilon))
    split = (1 + math.exp(-epsilon) - root) / 2
    assert split != pytest.approx(1 / (1 + math.exp(epsilon / 2)), abs=0.01)


def test_the_printed_gaussian_calibration_is_not_private():
    """sigma = Delta / (alpha sqrt(2 ln(1.25/delta))) shrinks where noise has to grow."""
    delta, order = 1e-5, 2.0
    sigma = 1 / (order * math.sqrt(2 * math.log(1.25 / delta)))
    needed = calibrate("gaussian", Setting(1.0, delta, 1, Sensitivity(1.0))).mechanism.noise_std
    assert sigma < needed / 30
    # and alpha Delta / (2 sigma^2) should read alpha Delta^2 / (2 sigma^2)
    assert Gaussian(2.0).renyi(3, 0.5) == pytest.approx(3 * 0.25 / 8)


def test_the_printed_laplace_parameter_misses_its_target():
    """lambda = Delta (alpha-1) / eps: at that scale the divergence of order alpha is not eps."""
    order, epsilon = 8.0, 0.5
    printed_scale = (order - 1) / epsilon
    leak = float(Laplace(printed_scale).renyi(order, 1.0))
    assert leak < epsilon / 10  # twenty times too much noise here ...
    assert float(Laplace((1.2 - 1) / epsilon).renyi(1.2, 1.0)) > 3 * epsilon  # ... too little here


def test_the_printed_laplace_theorem_is_circular():
    """gamma = 1/b >= (alpha-1)/log(((2 alpha-1) e^{gamma (alpha-1)} + alpha-1)/alpha)."""
    order, scale = 4.0, 2.0
    gamma = 1 / scale
    right = (order - 1) / math.log(
        ((2 * order - 1) * math.exp(gamma * (order - 1)) + order - 1) / order
    )
    assert right > gamma  # the printed inequality fails for the divergence it is meant to bound
    truth = float(Laplace(scale).renyi(order, 1.0))
    assert truth < gamma  # and gamma = 1/b is pure DP, not the divergence of order alpha


def test_the_printed_decay_formula_is_not_defined_where_it_is_needed():
    """lambda = log(gamma - 1)/(alpha - 1) needs gamma > 2; a per-release leakage is far below 1."""
    gamma = 0.1
    with pytest.raises(ValueError, match=r"math domain error|positive"):
        math.log(gamma - 1)


def test_the_printed_accountant_loop_moves_away_from_the_budget():
    """Algorithm "Rényi Accountant": "sum exceeds the budget: change to a smaller noise"."""

    def epsilon(std: float) -> float:
        from udpfl import PoissonSampled, Release, Repeated

        release = Release(Gaussian(std), Sensitivity(1.0))
        return rdp.epsilon(Repeated(PoissonSampled(0.05, release), 300), 1e-5)

    std, spent = 1.0, [epsilon(1.0)]
    assert spent[0] > 2.0  # over budget, so the printed loop lowers the noise
    for _ in range(5):
        std *= 0.9
        spent.append(epsilon(std))
    assert np.all(np.diff(spent) > 0)  # and gets further away each time
    setting = Setting(2.0, 1e-5, 300, Sensitivity(1.0), 0.05, accountant="rdp")
    assert calibrate("gaussian", setting).statement.epsilon <= 2.0


def test_the_printed_expected_l1_error_has_the_wrong_dimension():
    """Theorem "staircaseu" adds Delta^2 to Delta: doubling the unit must double an error."""

    def printed(period: float, decay: float, split: float) -> float:
        b = math.exp(-decay)
        return (split**2 * period**2 + b * period**2 - b * split**2 * period**2 + period * b) / (
            1 - b
        )

    assert printed(2.0, 1.0, 0.4) / printed(1.0, 1.0, 0.4) != pytest.approx(2.0, rel=0.1)
    noise = Staircase(1.0, 1.0, 0.4)
    assert noise.scaled(2.0).mean_abs == pytest.approx(2 * noise.mean_abs)
    sampled = np.abs(noise.sample(400_000, np.random.default_rng(5))).mean()
    assert noise.mean_abs == pytest.approx(sampled, rel=5e-3)


def test_one_release_gives_membership_away_under_scalar_staircase_accounting():
    """Scalar calibration to eps = 8 (lambda = 1.617, Delta = 1, d = 26,010): LLR about +-233."""
    d = 26_010
    noise = Staircase(1.617, 1.0)
    v = np.full(d, 1 / math.sqrt(d))
    rng = np.random.default_rng(0)
    with_record, without = [], []
    for _ in range(40):
        x = noise.sample(d, rng)
        without.append((noise.log_density(x - v) - noise.log_density(x)).sum())
        with_record.append((noise.log_density(x) - noise.log_density(x + v)).sum())
    assert np.mean(without) == pytest.approx(-232, abs=12)
    assert np.mean(with_record) == pytest.approx(235, abs=12)
    assert np.std(without) == pytest.approx(24, abs=9)
    assert max(without) < min(with_record)  # certain


def test_laplace_under_scalar_accounting_degrades_mildly():
    """At eps = 8 the analysis promises |LLR| <= 1/b = 1.78; it is -1.6 +- 1.8, unbounded."""
    d, scale = 26_010, 0.795 / math.sqrt(2)
    noise, v = Laplace(scale), np.full(26_010, 1 / math.sqrt(26_010))
    rng = np.random.default_rng(1)
    scores = []
    for _ in range(200):
        x = noise.sample(d, rng)
        scores.append((noise.log_density(x - v) - noise.log_density(x)).sum())
    assert 1 / scale == pytest.approx(1.78, abs=0.01)
    assert np.mean(scores) == pytest.approx(-1.6, abs=0.4)
    assert np.std(scores) == pytest.approx(1.8, abs=0.3)
    assert np.abs(scores).max() > 1 / scale


def test_the_printed_amplitude_of_gaussian_noise_has_pi_outside_the_root():
    """2 sigma / (sqrt(2) pi) is 0.450 sigma; the mean of |noise| is 2 sigma / sqrt(2 pi)."""
    sampled = np.abs(np.random.default_rng(0).normal(0, 3.0, 400_000)).mean()
    assert Gaussian(3.0).mean_abs == pytest.approx(sampled, rel=5e-3)
    assert 2 * 3.0 / (math.sqrt(2) * math.pi) == pytest.approx(0.564 * sampled, rel=5e-3)


def test_the_printed_l1_error_of_gaussian_noise_forgets_the_rounds():
    """The theorem says m sigma sqrt(2/pi); its own proof ends with T times that."""
    noise, rounds, length = Gaussian(2.0), 40, 50
    drawn = np.random.default_rng(1).normal(0, 2.0, (200, rounds, length))
    summed = np.abs(drawn).sum((1, 2)).mean()
    theorem = math.sqrt(2 * length**2 * 2.0**2 / math.pi)
    assert summed == pytest.approx(rounds * theorem, rel=1e-2)
    assert summed == pytest.approx(rounds * length * noise.mean_abs, rel=1e-2)
    accumulated = np.abs(drawn.sum(1)).sum(1).mean()  # the model's own error: noise cancels
    assert accumulated == pytest.approx(math.sqrt(rounds) * theorem, rel=2e-2)


def test_laplace_has_its_scale_in_one_theorem_and_the_inverse_in_a_lemma():
    """Lap(Delta / b) has amplitude Delta / b; the theorem on the l1 error says T m b."""
    assert Laplace(1 / 4.0).mean_abs == pytest.approx(1 / 4.0)  # b = 4 in the lemma
    assert Laplace(4.0).mean_abs == pytest.approx(4.0)  # b = 4 in the theorem


@pytest.mark.parametrize("decay", [0.2, 1.0, 3.0])
def test_the_printed_least_amplitude_of_staircase_noise_is_right(decay):
    splits = np.linspace(0.02, 0.98, 97)
    least = min(Staircase(decay, 1.0, split).mean_abs for split in splits)
    printed = math.exp(decay / 2) / math.expm1(decay)
    assert Staircase(decay, 1.0, 1 / (1 + math.exp(decay / 2))).mean_abs == pytest.approx(printed)
    assert printed <= least <= printed * (1 + 1e-3)


@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_staircase_saves_a_twelfth_of_a_squared_period_against_laplace(epsilon):
    """True in one dimension, and little: 0.04 % of the variance at epsilon = 0.1."""
    splits = np.linspace(0.3, 0.6, 3001)
    least = min(Staircase(epsilon, 1.0, split).variance for split in splits)
    laplace = Laplace(1 / epsilon).variance
    assert laplace - least == pytest.approx(1 / 12, abs=2e-3)
    assert (laplace - least) / laplace < 0.011
