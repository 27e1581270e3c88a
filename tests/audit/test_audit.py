"""The auditor: bounds against exact probabilities, verdicts against what theory predicts."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from tests.commands import command
from udpfl import (
    Gaussian,
    Laplace,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    Staircase,
    account,
    plan,
)
from udpfl.audit import Releases, audit_releases, canary
from udpfl.audit._bounds import (
    delta_proved,
    epsilon_proved,
    gaussian_epsilon,
    gaussian_estimate,
    least_rate,
    most_rate,
    one_run_probability,
    one_run_proved,
)
from udpfl.audit._tally import Tally, judged
from udpfl.audit.power import Spread, TooLittleNoise, added, refuted_always
from udpfl.engine import Keyed, LaneModel, MechanismNoiser
from udpfl.errors import InvalidInput

BOUND = Sensitivity(1.0, "l2", 1000)


# Bounds


@pytest.mark.parametrize("error", [0.05, 0.3])
@pytest.mark.parametrize("trials", [1, 7, 40])
def test_rates_are_covered_as_often_as_promised(trials, error):
    """Exactly, by adding up the binomial distribution."""
    hits = np.arange(trials + 1)
    low = np.array([least_rate(int(h), trials, error) for h in hits])
    high = np.array([most_rate(int(h), trials, error) for h in hits])
    for rate in np.linspace(0, 1, 101):
        chance = stats.binom.pmf(hits, trials, rate)
        assert chance[low > rate].sum() <= error + 1e-12
        assert chance[high < rate].sum() <= error + 1e-12
    assert low[0] == 0
    assert high[-1] == 1


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.1), (2.0, 0.01)])
def test_a_true_claim_is_rarely_excluded(epsilon, delta):
    """The pair of rates that the claim just allows, every outcome by its exact probability."""
    trials, error, false = 40, 0.1, 0.2
    rate = min(1.0, math.exp(epsilon) * false + delta)
    hits = np.arange(trials + 1)
    wrong = np.array(
        [
            [epsilon_proved(int(h), trials, int(f), trials, delta, error) > epsilon for f in hits]
            for h in hits
        ]
    )
    chance = np.outer(stats.binom.pmf(hits, trials, rate), stats.binom.pmf(hits, trials, false))
    assert chance[wrong].sum() <= error
    assert wrong.any()


def test_both_forms_of_the_bound_agree():
    """delta at the epsilon that is just excluded is the delta it is excluded at."""
    for delta in (0.0, 1e-3):
        proved = epsilon_proved(300, 1000, 20, 1000, delta, 0.05)
        assert delta_proved(300, 1000, 20, 1000, proved, 0.05) == pytest.approx(delta, abs=1e-12)
    assert epsilon_proved(20, 1000, 300, 1000, 0.0, 0.05) == 0


def test_perfect_separation_proves_what_the_trials_allow():
    for trials in (1_000, 100_000):  # about ln(n / 3.7) where each rate has an error of 2.5 %
        proved = epsilon_proved(trials, trials, 0, trials, 0.0, 0.05)
        assert proved == pytest.approx(math.log(trials / 3.7), abs=0.02)


@pytest.mark.parametrize("std", [3.731, 1.081, 0.6])
def test_gaussian_epsilon_is_the_accountants(std):
    stated = account(Release(Gaussian(std), Sensitivity(1.0)), 1e-5, "pld").epsilon
    assert gaussian_epsilon(1 / std, 1e-5) == pytest.approx(stated, rel=1e-3)


ONE_RUN = [  # canaries, guesses, right ones; epsilon at delta = 1e-5 and at 0, at 95 %
    (1000, 100, 100, 3.465, 3.493),
    (1000, 100, 95, 2.165, 2.172),
    (1000, 600, 600, 5.270, 5.297),
    (1000, 1000, 600, 0.297, 0.297),
    (1000, 1000, 1000, 5.782, 5.809),
    (5000, 500, 480, 2.783, 2.795),
    (100, 100, 100, 3.490, 3.493),
]


@pytest.mark.parametrize(("canaries", "guesses", "right", "approximate", "pure"), ONE_RUN)
def test_one_run_bounds_of_the_literature(canaries, guesses, right, approximate, pure):
    assert one_run_proved(canaries, guesses, right, 1e-5, 0.05) == pytest.approx(
        approximate, abs=6e-4
    )
    assert one_run_proved(canaries, guesses, right, 0.0, 0.05) == pytest.approx(pure, abs=6e-4)


def test_one_run_on_randomised_response_is_exact():
    """Guessing what an epsilon-DP answer says is right with probability e^eps / (1 + e^eps)."""
    epsilon, guesses = 1.3, 60
    right = np.arange(guesses + 1)
    chance = stats.binom.pmf(right, guesses, 1 / (1 + math.exp(-epsilon)))
    wrong = [one_run_proved(guesses, guesses, int(v), 0.0, 0.05) > epsilon for v in right]
    assert 0.01 < chance[wrong].sum() <= 0.05
    assert one_run_probability(60, 60, 0, epsilon, 1e-3) == 1
    with pytest.raises(InvalidInput, match="guesses"):
        one_run_probability(10, 11, 3, 1.0, 0.0)


# Power


def test_sums_of_scores_are_convolutions():
    first = Spread(np.array([-1.0, 0.0, 2.0]), np.array([0.2, 0.5, 0.3]))
    second = Spread(np.array([0.25, 1.0]), np.array([0.6, 0.4]))
    total = added([(first, 3), (second, 2)])
    expected: dict[float, float] = {}
    for picks in itertools.product(range(3), range(3), range(3), range(2), range(2)):
        value = sum(first.values[p] for p in picks[:3]) + sum(second.values[p] for p in picks[3:])
        chance = math.prod(first.masses[p] for p in picks[:3])
        expected[value] = expected.get(value, 0.0) + chance * math.prod(
            second.masses[p] for p in picks[3:]
        )
    for value, chance in expected.items():
        near = np.abs(total.values - value) < 0.02
        assert total.masses[near].sum() == pytest.approx(chance, abs=1e-9)


ALTERNATIVES = {  # mechanism, dimension, rate, steps
    "gaussian": (Gaussian(1.3), 30, 1.0, 1),
    "laplace": (Laplace(1.0), 40, 1.0, 1),
    "staircase": (Staircase(1.0, 0.3, 0.4), 5, 1.0, 1),
    "sampled": (Gaussian(0.8), 3, 0.3, 4),
    "sampled laplace": (Laplace(0.7), 4, 0.5, 3),
}


@pytest.mark.parametrize("case", ALTERNATIVES)
def test_calculated_scores_are_those_of_the_sampler(case):
    noise, dimension, rate, steps = ALTERNATIVES[case]
    shift, factor, trials = canary("dense", Sensitivity(1.0, "l2", dimension)), 0.6, 40_000
    calculated = TooLittleNoise(noise, shift, rate, steps, trials, 0.05).scores(factor)
    weak = MechanismNoiser([noise.scaled(factor)])
    for present, spread in zip((True, False), calculated, strict=True):
        drawn = Releases(noise, shift, steps, rate).scores(
            trials, present=present, stream=Keyed(5), noiser=weak
        )
        reached = np.cumsum(spread.masses)
        for edge in np.quantile(drawn, [0.003, 0.1, 0.5, 0.9, 0.997]) + 0.013:
            below = reached[np.searchsorted(spread.values, edge) - 1]
            assert np.mean(drawn < edge) == pytest.approx(below, abs=5 * 0.5 / math.sqrt(trials))


def test_what_scaled_noise_costs_is_the_accountants():
    shift = canary("dense", Sensitivity(1.0, "l2", 7))
    for rate, steps in ((1.0, 1), (1.0, 6), (0.2, 8), (1e-3, 10_000)):
        found = TooLittleNoise(Gaussian(2.0), shift, rate, steps, 100, 0.05).epsilon(0.5, 1e-5)
        event = Repeated(PoissonSampled(rate, Release(Gaussian(1.0), Sensitivity(1.0))), steps)
        assert found == pytest.approx(account(event, 1e-5, "pld").epsilon, rel=5e-3)
    dirac = np.array([0.0, 1.0])
    assert TooLittleNoise(Laplace(2.0), dirac, 1.0, 3, 100, 0.05).epsilon(0.5, 0) == 3.0
    sampled = TooLittleNoise(Laplace(2.0), dirac, 0.3, 1, 100, 0.05).epsilon(0.5, 0)
    assert sampled == pytest.approx(math.log(0.7 + 0.3 * math.e))
    assert math.isinf(TooLittleNoise(Gaussian(1.0), dirac, 1.0, 1, 100, 0.05).epsilon(0.5, 0))


def test_power_is_what_happens():
    """Noise that would be caught is; a little more of it is not always."""
    noise, shift, audits = Laplace(1.0), np.array([1.0]), 150
    releases = Releases(noise, shift)

    def refuted(factor):
        weak = MechanismNoiser([noise.scaled(factor)])
        return sum(
            audit_releases(releases, 1.0, 0.0, trials=2_000, stream=Keyed(i), noiser=weak).refuted
            for i in range(audits)
        )

    caught = audit_releases(releases, 1.0, 0.0, trials=2_000).caught
    assert 0.5 < caught.scale < 0.9
    assert caught.epsilon == pytest.approx(1 / caught.scale)
    assert refuted(caught.scale) >= audits - stats.binom.ppf(1 - 1e-4, audits, 0.01)
    assert refuted(caught.scale + 0.08) < audits
    assert f"{caught.scale:g} times the claimed noise" in str(caught)


def test_noise_whose_steps_nobody_looks_for():
    """Claims of Staircase noise: far too little of it may hide inside one step of the claimed."""
    wide = np.linspace(0.0324, 0.915, 12)
    case = TooLittleNoise(Staircase(0.5, 1.0, 1.0), wide, 1.0, 1, 3_000, 0.05)
    caught = case.caught(1.784, 0.05)
    assert caught.lowest > 0.01
    assert "might not" in str(caught)
    releases = Releases(case.mechanism, wide)
    refuted = {
        factor: sum(
            audit_releases(
                releases, 1.784, 0.05, trials=3_000, stream=Keyed(i),
                noiser=MechanismNoiser([case.mechanism.scaled(factor)]),
            ).refuted
            for i in range(30)
        )
        for factor in (0.01, caught.lowest, caught.scale)
    }  # fmt: skip
    assert refuted[0.01] < 5
    assert refuted[caught.lowest] >= 28
    assert refuted[caught.scale] >= 28


def test_many_sizes_are_grouped_without_losing_what_they_leak():
    rng = np.random.default_rng(0)
    shift = rng.lognormal(0.0, 3.0, 3_000)
    shift /= np.linalg.norm(shift)
    for noise in (Staircase(1.0, 1.0, 0.4), Laplace(1.0), Gaussian(1.0)):
        there, _ = TooLittleNoise(noise, shift, 1.0, 1, 100, 0.05).scores(1.0)
        mean = float(there.masses @ there.values)
        assert mean == pytest.approx(float(noise.renyi(1, shift).sum()), rel=0.01)


@pytest.mark.parametrize("dimension", [10**3, 10**5, 10**7])
def test_small_shifts_against_large_steps(dimension):
    noise, shift = Staircase(1.0, 1.0, 0.4), np.full(dimension, dimension**-0.5)
    there, _ = TooLittleNoise(noise, shift, 1.0, 1, 100, 0.05).scores(1.0)
    exact = dimension * float(noise.renyi(1, dimension**-0.5))
    assert float(there.masses @ there.values) == pytest.approx(exact, rel=1e-3)


def test_a_canary_that_changes_nothing_catches_nothing():
    assert TooLittleNoise(Gaussian(1.0), np.zeros(3), 1.0, 1, 100, 0.05).caught(1, 0).scale is None


def test_more_trials_catch_milder_violations():
    noise, shift = Gaussian(1.0), np.array([1.0])
    scales = [
        TooLittleNoise(noise, shift, 1.0, 1, trials, 0.05).caught(2.0, 0.05).scale
        for trials in (1_000, 10_000, 100_000)
    ]
    assert scales == sorted(scales)
    assert scales[0] < scales[-1] < 1


def test_too_few_trials_are_admitted():
    verdict = audit_releases(Releases(Laplace(0.1), np.array([1.0])), 10.0, 0.0, trials=200)
    assert verdict.caught.scale is None
    assert "no fraction of the claimed noise" in str(verdict.caught)
    assert verdict.to_dict()["power"]["scale"] is None


# Four arms: noise, the claim it was calibrated to, and what an adversary makes of it


def audited(mechanism, epsilon, delta, accounting, bird, trials, dimension=1000, **more):
    row = plan(
        mechanism,
        epsilon=epsilon,
        delta=delta,
        steps=more.get("steps", 1),
        sampling_rate=more.get("rate", 1.0),
        dimension=dimension,
        accounting=accounting,
    ).best
    shift = bird if isinstance(bird, np.ndarray) else canary(bird, Sensitivity(1, "l2", dimension))
    return audit_releases(
        Releases(row.noise, shift, **more), row.statement.epsilon, delta, trials=trials
    )


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_gaussian_claims_hold_and_are_tight(epsilon):
    verdict = audited("gaussian", epsilon, 1e-5, "vector", "dense", 200_000, dimension=30)
    assert not verdict.refuted
    assert 0.9 * epsilon <= verdict.estimate <= 1.03 * epsilon
    assert 0 < verdict.proved < epsilon


def test_scalar_laplace_passes_with_a_dirac_and_fails_with_a_dense_canary():
    control = audited("laplace", 1.0, 0.0, "scalar", "dirac", 100_000)
    assert not control.refuted
    assert control.proved > 0.9  # the claim is exact for one coordinate
    assert control.estimate is None
    broken = audited("laplace", 1.0, 0.0, "scalar", "dense", 20_000)
    assert broken.refuted
    assert broken.proved > 1.5


def test_laplace_with_the_vector_claim_holds():
    verdict = audited("laplace", 4.73, 1e-5, "vector", "dense", 20_000)
    assert not verdict.refuted
    assert verdict.proved > 1


def test_scalar_staircase_is_refuted_outright():
    shift = canary("dense", BOUND)
    noise = plan("staircase", epsilon=1, delta=0, steps=1, dimension=1000, accounting="scalar").best
    assert audited("staircase", 1.0, 0.0, "scalar", "dirac", 4_000).refuted is False
    releases = Releases(noise.noise, shift)
    there, away = (releases.scores(4_000, present=b) for b in (True, False))
    caught = np.mean(there > np.quantile(away, 0.99))
    assert caught > 0.97  # the claim allows 2.7 %
    tests = judged(Tally.of(there, away), 1.0, 0.0, 0.05)
    assert max(test.proved for test in tests) > 3


def test_a_real_clipped_gradient_refutes_scalar_staircase(tmp_path):
    """Nobody has to craft anything: the gradient of one record will do."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    model = LaneModel(net, lambda o, y: nn.functional.cross_entropy(o, y, reduction="none"))
    x, real = torch.rand(1, 1, 64), torch.ones(1, 1, dtype=torch.bool)
    gradients = model.gradients(model.initial().unsqueeze(0), x, torch.tensor([[3]]), real)
    gradient = gradients.written_out()[0, 0].numpy()
    np.save(tmp_path / "gradient.npy", gradient)
    shift = canary(str(tmp_path / "gradient.npy"), Sensitivity(1.0, "l2", len(gradient)))
    assert np.linalg.norm(shift) == pytest.approx(1.0)
    verdict = audited("staircase", 1.0, 0.0, "scalar", shift, 1_500, dimension=len(gradient))
    assert verdict.refuted
    assert verdict.proved > 2


def test_composed_and_subsampled_claims():
    broken = audited("staircase", 3.0, 1e-5, "scalar", "dense", 4_000, 200, steps=4, rate=0.5)
    assert broken.refuted
    assert len(broken.tests) == 4  # both directions at the claim, and two that were chosen
    kept = audited("gaussian", 2.0, 1e-5, "vector", "dense", 3_000, 30, steps=10, rate=0.2)
    assert not kept.refuted


def test_half_the_noise_is_refuted_with_calculated_power():
    """The rates of the scaled noise are known in closed form."""
    factor, trials = 0.5, 200_000
    std = plan("gaussian", epsilon=1, delta=1e-5, steps=1).best.noise.std
    releases = Releases(Gaussian(std), canary("dense", Sensitivity(1.0, "l2", 20)))
    weak = MechanismNoiser([Gaussian(std * factor)])
    # Along the canary the release is N(0 or mu, factor), in units of the claimed noise.
    mu, rng = 1 / std, np.random.default_rng(0)
    x = rng.normal(0.0, factor, (2, 2_000_000)) + np.array([[mu], [0.0]])
    spreads = [Spread(np.sort(mu * row - mu**2 / 2), np.full(len(row), 5e-7)) for row in x]
    assert refuted_always(*spreads, trials, 1.0, 1e-5, 0.8 * 0.05)
    verdict = audit_releases(releases, 1.0, 1e-5, trials=trials, noiser=weak)
    assert verdict.refuted


def test_the_right_noise_is_not_refuted_over_many_audits():
    """A claim that is exact, where every error would show: at 5 % among 200 rarely 24 or more."""
    noise, shift = Laplace(1.0), canary("dirac", Sensitivity(1.0, "l2", 3))
    refuted = [
        audit_releases(Releases(noise, shift), 1.0, 0.0, trials=2_000, stream=Keyed(i)).refuted
        for i in range(200)
    ]
    assert sum(refuted) <= stats.binom.ppf(1 - 1e-5, 200, 0.05)


def test_scores_are_the_mechanisms_own_likelihoods():
    """In one dimension the scores of both worlds have the distribution that quadrature gives."""
    noise = Staircase(1.0, 1.0, 0.4)
    releases = Releases(noise, np.array([1.0]))
    there = releases.scores(40_000, present=True, stream=Keyed(3))
    grid = np.linspace(-30, 30, 600_001)
    loss = noise.log_density(grid) - noise.log_density(grid + 1.0)
    weights = np.exp(noise.log_density(grid)) * (grid[1] - grid[0])
    for level in (-1.0, 0.0, 1.0):
        expected = weights[np.abs(loss - level) < 1e-9].sum()
        assert np.mean(np.abs(there - level) < 1e-9) == pytest.approx(expected, abs=0.012)


# Input


def test_canaries_are_clipped_in_their_own_norm(tmp_path):
    for norm, size in (("l1", 1), ("l2", 2), ("linf", np.inf)):
        dense = canary("dense", Sensitivity(2.0, norm, 50))
        assert np.linalg.norm(dense, size) == pytest.approx(2.0)
        assert (dense != 0).all()
        assert np.flatnonzero(canary("dirac", Sensitivity(2.0, norm, 50))).tolist() == [0]
    np.savetxt(tmp_path / "own.txt", [3.0, 4.0, 0.0])
    path = str(tmp_path / "own.txt")
    assert canary(path, Sensitivity(1.0, "l2", 3)).tolist() == pytest.approx([0.6, 0.8, 0.0])
    assert canary(path, Sensitivity(3.5, "linf", 3)).tolist() == [3.0, 3.5, 0.0]
    assert canary(path, Sensitivity(10.0, "l2", 3)).tolist() == [3.0, 4.0, 0.0]
    with pytest.raises(InvalidInput, match="has 3 numbers"):
        canary(path, Sensitivity(1.0, "l2", 4))
    with pytest.raises(InvalidInput, match="dirac, dense or a file"):
        canary("nowhere", Sensitivity(1.0, "l2", 4))
    (tmp_path / "bad.txt").write_text("hello")
    with pytest.raises(InvalidInput, match="holds no numbers"):
        canary(str(tmp_path / "bad.txt"), Sensitivity(1.0, "l2", 1))
    np.save(tmp_path / "zero.npy", np.zeros(3))
    with pytest.raises(InvalidInput, match="not all zero"):
        canary(str(tmp_path / "zero.npy"), Sensitivity(1.0, "l2", 3))


def test_gaussian_estimates_are_for_gaussian_noise_only():
    """On Laplace noise of eps = 0.5 the Gaussian reading proves what is not true."""
    releases = Releases(Laplace(2.0), np.array([1.0]))
    there, away = (releases.scores(200_000, present=b, stream=Keyed(9)) for b in (True, False))
    hits, false = int((there >= 0.4999).sum()), int((away >= 0.4999).sum())
    assert gaussian_estimate(hits, 200_000, false, 200_000, 1e-5, 0.05) > 1.5
    assert epsilon_proved(hits, 200_000, false, 200_000, 1e-5, 0.05) <= 0.5


LAPLACE = ("audit", "mechanism", "--mechanism", "laplace", "--epsilon", 1, "--delta", 0,
           "--dimension", 500, "--accounting", "scalar", "--trials", 8_000)  # fmt: skip


def test_the_command_says_it_in_one_sentence_and_by_its_exit_code(capsys, tmp_path):
    code, out, _ = command(capsys, *LAPLACE, "--plot", tmp_path / "audit.png")
    assert code == 1
    assert "dense canary: claim ε ≤ 1: refuted (ε ≥ " in out
    assert " at 95 %)" in out
    assert "power: the claimed noise itself is refuted at least 99 % of the time" in out
    assert (tmp_path / "audit.png").stat().st_size > 5_000
    code, out, _ = command(capsys, *LAPLACE, "--canary", "dirac", "--json")
    assert code == 0
    found, rounding = json.loads(out)["verdicts"]
    assert rounding["refuted"] is False
    assert {test["event"] for test in rounding["tests"]} == {"at the centre", "in the tail"}
    assert found["refuted"] is False
    assert found["proved"] <= found["epsilon"] == pytest.approx(1.0)
    assert "not refuted (tightest lower bound" in found["verdict"]
    assert {"event", "hits", "false_hits", "proved"} <= set(found["tests"][0])
    assert {test["delta_proved"] for test in found["tests"]} == {0.0}


def test_wrong_input_is_said_in_one_line(capsys, tmp_path):
    code, _, err = command(capsys, *LAPLACE, "--trials", 5)
    assert (code, err.count("\n")) == (2, 1)
    assert "--trials: must be at least 100" in err
    code, _, err = command(capsys, *LAPLACE, "--canary", tmp_path / "no.npy")
    assert code == 2
    assert "--canary: must be dirac, dense or a file" in err
    code, _, err = command(capsys, *LAPLACE, "--error", 1.5)
    assert code == 2
    assert "--error" in err
    code, _, err = command(capsys, *LAPLACE, "--plot", tmp_path / "x.txt")
    assert "--plot" in err
