"""The paper's own accountant: what it computes, what it orders, and where it is refused."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting.nominal import better, density_of, divergences, less, printed
from tests.accounting.samples import sampled
from tests.conftest import Box
from tests.oracles import sampled_moment_by_quadrature
from udpfl import (
    Budget,
    Gaussian,
    InvalidInput,
    Laplace,
    PrivacyStatement,
    Release,
    Sensitivity,
    Setting,
    Staircase,
    account,
    calibrate,
    plan,
    rounds_left,
    would_exceed,
)
from udpfl.accounting import Accountant, paper, rdp

STEPS, RATE, DELTA = 300, 0.05, 1e-5
NAMES = ("gaussian", "laplace", "staircase")
BUDGETS = (2.0, 4.0, 6.0, 8.0)
WHOLE = tuple(range(2, 65))


@pytest.mark.parametrize("noise", [Gaussian(1.3), Laplace(0.9), Staircase(0.9, 1.0)])
@pytest.mark.parametrize(
    ("rate", "steps", "delta"), [(0.05, 300, 1e-5), (0.3, 60, 1e-3), (0.01, 5000, 1e-6)]
)
def test_it_is_the_printed_conversion_of_the_sum_at_whole_orders(noise, rate, steps, delta):
    wanted = printed(WHOLE, steps * divergences(noise, rate, WHOLE), delta)
    found = account(sampled(noise, steps, rate), delta, "paper", "scalar")
    assert found.epsilon == pytest.approx(wanted, rel=1e-7)
    assert (found.kind, found.accountant, found.composition) == ("nominal", "paper", "fixed")


@pytest.mark.parametrize("noise", [Gaussian(20.0), Laplace(20.0), Staircase(0.1, 1.0)])
def test_releases_without_sampling(noise):
    log_density, edges = density_of(noise)
    gamma = [sampled_moment_by_quadrature(log_density, a, 1.0, 1 - 1e-12, edges) for a in WHOLE]
    wanted = printed(WHOLE, 400 * np.array(gamma), 1e-4)
    assert account(sampled(noise, 400, 1.0), 1e-4, "paper", "scalar").epsilon == pytest.approx(
        wanted, rel=1e-7
    )


@settings(max_examples=25, deadline=None)
@given(
    std=st.floats(0.7, 60.0),
    rate=st.floats(0.01, 1.0),
    steps=st.integers(1, 400),
    delta=st.floats(1e-9, 0.1),
)
def test_no_whole_order_is_left_out(std, rate, steps, delta):
    event = sampled(Gaussian(std), steps, rate)
    orders = np.arange(2.0, 601.0)
    wanted = printed(orders, rdp.curve(event, orders), delta)
    found = paper.epsilon(event, delta)
    assert found <= wanted * (1 + 1e-12)
    assert found >= rdp.epsilon(event, delta)  # fractional orders, and a better conversion
    largest = orders[-1] - 1
    if math.log(1 / delta) / largest < wanted - found + 1e-12:  # else a larger order may be best
        assert found == pytest.approx(wanted, rel=1e-12)


def test_a_large_order_is_found():
    """Noise so large that the best order lies beyond the first grids."""
    event = sampled(Gaussian(3000.0), 1, 1.0)
    best = 1 + 3000 * math.sqrt(2 * math.log(1e5))  # of a/(2 s^2) + log(1/delta)/(a-1)
    wanted = min(
        a / (2 * 3000.0**2) + math.log(1e5) / (a - 1)
        for a in (*range(2, 16385), *range(int(best) - 2, int(best) + 3))
    )
    assert paper.epsilon(event, 1e-5) == pytest.approx(wanted, rel=1e-9)


# What it orders, and what the Rényi accountant does


@lru_cache(maxsize=1)
def noises():
    """The calibrated noise, by accountant, mechanism and budget."""
    found = {}
    for accountant in ("rdp", "paper"):
        for epsilon in BUDGETS:
            for row in plan(
                "all", epsilon=epsilon, steps=STEPS, sampling_rate=RATE, delta=DELTA,
                dimension=26_010, accounting="scalar", accountant=accountant,
            ):  # fmt: skip
                found[accountant, row.mechanism, epsilon] = row.noise
    return found


STDS = {
    ("rdp", "gaussian"): (2.089, 1.299, 1.038, 0.902),
    ("rdp", "laplace"): (2.506, 1.353, 0.984, 0.795),
    ("rdp", "staircase"): (2.654, 1.448, 1.044, 0.830),
    ("paper", "gaussian"): (2.393, 1.422, 1.116, 0.960),
    ("paper", "laplace"): (2.926, 1.514, 1.064, 0.848),
    ("paper", "staircase"): (3.084, 1.619, 1.133, 0.892),
}
"""docs/mathematics.md, section 3.5."""
MEANS = {
    ("rdp", "gaussian"): (1.667, 1.037, 0.828, 0.720),
    ("rdp", "laplace"): (1.772, 0.957, 0.696, 0.562),
    ("rdp", "staircase"): (1.866, 1.005, 0.712, 0.556),
    ("paper", "gaussian"): (1.909, 1.135, 0.890, 0.766),
    ("paper", "laplace"): (2.069, 1.070, 0.752, 0.600),
    ("paper", "staircase"): (2.171, 1.127, 0.777, 0.601),
}


@pytest.mark.parametrize(("accountant", "name"), list(STDS))
def test_the_noise_of_the_documented_table(accountant, name):
    own = [noises()[accountant, name, epsilon] for epsilon in BUDGETS]
    assert [noise.noise_std for noise in own] == pytest.approx(STDS[accountant, name], abs=6e-4)
    assert [noise.mean_abs for noise in own] == pytest.approx(MEANS[accountant, name], abs=6e-4)


@pytest.mark.parametrize("epsilon", BUDGETS)
@pytest.mark.parametrize("name", NAMES)
def test_the_noise_keeps_the_nominal_budget_and_less_would_not(name, epsilon):
    """By quadrature: the paper's rule at whole orders; the other one at any order."""
    noise = noises()["paper", name, epsilon]
    for part, keeps in ((1.0, True), (0.999, False)):
        scaled = noise if part == 1 else less(noise, part)
        total = STEPS * divergences(scaled, RATE, WHOLE[:30])
        assert bool(printed(WHOLE[:30], total, DELTA) <= epsilon) is keeps
    orders = np.unique(np.concatenate([np.arange(1.5, 14, 0.125), WHOLE[:30]]))
    noise = noises()["rdp", name, epsilon]
    found = better(orders, STEPS * divergences(noise, RATE, orders), DELTA)
    assert found <= epsilon * (1 + 1e-3)  # the best order may lie between these
    reduced = STEPS * divergences(less(noise, 0.98), RATE, orders)
    assert better(orders, reduced, DELTA) > epsilon


def ranked(accountant, epsilon, error):
    return sorted(NAMES, key=lambda name: noises()[accountant, name, epsilon].error(error))


def test_laplace_is_ahead_of_staircase_by_variance_at_every_budget():
    for accountant in ("rdp", "paper"):
        orders = [ranked(accountant, epsilon, "l2") for epsilon in BUDGETS]
        assert orders == [
            ["gaussian", "laplace", "staircase"],
            ["gaussian", "laplace", "staircase"],
            ["laplace", "gaussian", "staircase"],
            ["laplace", "staircase", "gaussian"],
        ]


def test_by_mean_noise_staircase_leads_at_the_largest_budget_and_by_rdp_alone():
    common = [
        ["gaussian", "laplace", "staircase"],
        ["laplace", "staircase", "gaussian"],
        ["laplace", "staircase", "gaussian"],
    ]
    for accountant, last in (("rdp", "staircase"), ("paper", "laplace")):
        orders = [ranked(accountant, epsilon, "l1") for epsilon in BUDGETS]
        assert orders[:3] == common
        assert orders[3][0] == last
        assert orders[3][2] == "gaussian"


@pytest.mark.parametrize(
    ("accountant", "error", "laplace_at", "staircase_at"),
    [("rdp", "l1", 7.0, 7.5), ("paper", "l1", 8.0, 8.5), ("rdp", "l2", 12.0, 16.0),
     ("paper", "l2", 12.0, 16.0)],
)  # fmt: skip
def test_where_staircase_comes_to_lead(accountant, error, laplace_at, staircase_at):
    for epsilon, leads in ((laplace_at, "laplace"), (staircase_at, "staircase")):
        rows = plan(
            ["laplace", "staircase"], epsilon=epsilon, steps=STEPS, sampling_rate=RATE,
            delta=DELTA, dimension=1, accounting="scalar", accountant=accountant, rank=error,
        )  # fmt: skip
        assert rows.best.mechanism == leads


@pytest.mark.parametrize(("accountant", "stated"), [("rdp", 7.16), ("paper", 6.28)])
def test_another_accountant_would_bend_the_axis(accountant, stated):
    event = sampled(noises()[accountant, "gaussian", 8.0], STEPS, RATE)
    assert account(event, DELTA, "best", "scalar").epsilon == pytest.approx(stated, abs=6e-3)
    assert account(event, DELTA, accountant, "scalar").epsilon == pytest.approx(8, rel=1e-3)


# Never a guarantee


VECTOR = Release(Gaussian(1.0), Sensitivity(1.0, "l2", 10))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: account(VECTOR, 1e-5, "paper"),
        lambda: account(VECTOR, 1e-5, "paper", "vector"),
        lambda: would_exceed([], VECTOR, Budget(1.0, 1e-5), "paper"),
        lambda: rounds_left([], VECTOR, Budget(1.0, 1e-5), "paper"),
        lambda: Setting(1.0, 1e-5, 1, Sensitivity(1.0), accountant="paper"),
        lambda: plan("gaussian", epsilon=1.0, steps=1, accountant="paper"),
    ],
)
def test_it_is_refused_wherever_a_guarantee_is_asked_for(ask):
    with pytest.raises(InvalidInput, match=r"never gives a guarantee: set accounting to scalar"):
        ask()


def test_no_statement_calls_it_a_guarantee():
    with pytest.raises(InvalidInput, match="guarantees nothing"):
        PrivacyStatement(1.0, 1e-5, "guarantee", "paper")
    nominal = account(VECTOR, 1e-5, "paper", "scalar").to_dict()
    assert PrivacyStatement.from_dict(nominal).kind == "nominal"
    with pytest.raises(InvalidInput, match="guarantees nothing"):
        PrivacyStatement.from_dict({**nominal, "kind": "guarantee"})


@pytest.mark.parametrize("noise", [Gaussian(2.0), Laplace(2.0), Staircase(0.5, 1.0)])
def test_what_is_guaranteed_beside_it_is_what_the_best_accountant_proves(noise):
    event = sampled(noise, 20, 0.2, dimension=400)
    proved = account(event, 1e-5).epsilon
    for accountant in get_args(Accountant):
        nominal = account(event, 1e-5, accountant, "scalar")
        assert nominal.kind == "nominal"
        assert nominal.vector_epsilon >= proved
        assert nominal.accountant == {"best": "pld"}.get(accountant, accountant)
    assert account(event, 1e-5, "paper", "scalar").vector_epsilon == proved


def test_there_is_no_pure_dp_by_it():
    """log(1/delta) has no value at delta = 0: no number, and no noise to plan."""
    event = sampled(Laplace(2.0), 3, 1.0, norm="l1")
    found = account(event, 0.0, "paper", "scalar")
    assert (found.epsilon, found.kind, found.accountant) == (math.inf, "nominal", "paper")
    assert found.vector_epsilon == pytest.approx(1.5)
    with pytest.raises(InvalidInput, match="the paper accountant has no pure DP") as told:
        Setting(1.0, 0.0, 1, Sensitivity(1.0), accountant="paper", accounting="scalar")
    assert told.value.parameter == "delta"


@pytest.mark.parametrize("name", NAMES)
def test_calibration_ends_on_the_private_side(name):
    setting = Setting(
        3.0, 1e-5, 50, Sensitivity(1.0, "l2", 12), 0.1, accountant="paper", accounting="scalar"
    )
    found = calibrate(name, setting)
    assert 2.99 < found.statement.epsilon <= 3.0
    assert found.statement.accountant == "paper"
    assert found.statement.vector_epsilon == account(found.event, 1e-5).epsilon


def test_a_release_that_gives_everything_away_has_no_epsilon():
    event = sampled(Box(0.2), 3, 0.5)
    assert paper.epsilon(event, 1e-5) == math.inf
