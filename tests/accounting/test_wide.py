"""Wider random searches than a quick run has time for: `make test-slow`."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from tests.accounting.searches import ORDERS, best_found
from udpfl import (
    Gaussian,
    Laplace,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    Staircase,
    account,
)
from udpfl.accounting.worst_case import worst_case

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(60))
def test_no_gradient_is_worse_for_a_random_staircase(seed):
    rng = np.random.default_rng(seed)
    split = rng.choice([0.0, 1.0, 0.5, 1 / 3, float(rng.uniform())])
    noise = Staircase(10 ** rng.uniform(-2, 0.8), 10 ** rng.uniform(-1.7, 0.4), split)
    dimension, norm = int(rng.integers(1, 40)), str(rng.choice(["l1", "l2", "linf"]))
    found = best_found(noise, norm, 1.0, dimension, rng)
    bound = worst_case(noise, Sensitivity(1.0, norm, dimension), ORDERS)
    assert np.all(found <= bound * (1 + 1e-9))


@pytest.mark.parametrize("seed", range(40))
def test_loss_distributions_agree_with_dp_accounting_on_a_wide_random_grid(seed):
    rng = np.random.default_rng(seed)
    rate, steps = 10 ** rng.uniform(-3, 0), int(10 ** rng.uniform(0, 4))
    scale = 10 ** rng.uniform(-0.2, 1.3) * max(1.0, rate * math.sqrt(steps))
    for noise, event in (
        (Gaussian(scale), dp_accounting.GaussianDpEvent(scale)),
        (Laplace(scale), dp_accounting.LaplaceDpEvent(scale)),
    ):
        reference = PLDAccountant(value_discretization_interval=1e-4)
        sampled = event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event)
        reference.compose(dp_accounting.SelfComposedDpEvent(sampled, steps))
        expected = reference.get_epsilon(1e-6)
        release = PoissonSampled(rate, Release(noise, Sensitivity(1.0, "l2", 1)))
        got = account(Repeated(release, steps), 1e-6, "pld").epsilon
        assert got == pytest.approx(expected, rel=5e-3, abs=2e-3)
