"""Several releases of one sample: two of them, multiplied out on a grid, are the oracle.

The second release may shift by whatever the first one said. Nothing here uses an accountant's
formulas: both worlds are tables of probabilities.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from udpfl import (
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    Sensitivity,
    Staircase,
    Unsupported,
    account,
)
from udpfl.accounting import loss_distribution, rdp
from udpfl.accounting.described import described
from udpfl.accounting.events import leaves, release_count
from udpfl.accounting.rounding import rounding_of_event
from udpfl.accounting.serial import event_from_json, event_to_json

STEP = 0.05
LINE = np.arange(-16 + STEP / 2, 17, STEP)
"""Middles of cells; steps of the Staircase noises and all shifts lie between cells."""
NOISES = {
    "gaussian": Gaussian(1.2),
    "laplace": Laplace(1.1),
    "staircase": Staircase(0.9, 1.0, 0.4),
    "fine staircase": Staircase(0.4, 0.5, 0.4),
}
RATES = (0.05, 0.4)
FOLLOW_UPS = {
    "the same": lambda x: np.ones_like(x),
    "turned round": lambda x: -np.ones_like(x),
    "only if it looked like it": lambda x: (x > 0.5) * 1.0,
    "only if it did not": lambda x: (x < 0.5) * 1.0,
    "with the sign": lambda x: np.where(x > 0.5, 1.0, -1.0),
    "half, then all": lambda x: np.where(np.abs(x - 0.5) < 1, 0.5, 1.0),
    "only far out": lambda x: (np.abs(x - 0.5) > 2) * 1.0,
}


def worlds(noise, rate, follow_up=FOLLOW_UPS["the same"]):
    """Probabilities of both results with the record and without it [cells, cells]."""

    def cells(shift):
        mass = np.exp(noise.log_density(LINE - shift)) * STEP
        return mass / mass.sum()

    without = np.outer(cells(0.0), cells(0.0))
    second = follow_up(LINE)
    there = np.empty_like(without)
    for shift in np.unique(second):
        rows = second == shift
        there[rows] = np.outer(cells(1.0)[rows], cells(shift))
    return (1 - rate) * without + rate * there, without


def divergence(p, q, order):
    return math.log(np.sum(np.exp(order * np.log(p) + (1 - order) * np.log(q)))) / (order - 1)


def true_epsilon(p, q, delta):
    """The epsilon of this pair at `delta`, in the direction in which it is larger."""

    def excess(epsilon):
        grown = math.exp(epsilon)
        return max(np.maximum(a - grown * b, 0).sum() for a, b in ((p, q), (q, p))) - delta

    return brentq(excess, 0.0, 30.0, xtol=1e-6) if excess(0.0) > 0 else 0.0


def release(noise):
    return Release(noise, Sensitivity(1.0, "l2", 1))


def one_sample(noise, rate, passes=2):
    return PoissonSampled(rate, Repeated(release(noise), passes))


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("rate", RATES)
def test_the_divergence_is_that_of_the_worst_pair(name, rate):
    """Two passes with the same record: what the accountant says is reached."""
    noise, orders = NOISES[name], np.array([2.0, 3.0, 8.0])
    ours = rdp.curve(one_sample(noise, rate), orders)
    p, q = worlds(noise, rate)
    exact = [divergence(p, q, order) for order in orders]
    assert ours == pytest.approx(exact, rel=2e-3)
    assert np.all(ours >= np.array(exact) * (1 - 2e-3))
    # Charged as two samples it would be less than what is there.
    assert np.all(2 * rdp.curve(PoissonSampled(rate, release(noise)), orders) < 0.97 * ours)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("follow_up", FOLLOW_UPS)
def test_no_second_release_costs_more_whatever_it_makes_of_the_first(name, rate, follow_up):
    """In both directions, although no reflection swaps the two worlds any more."""
    noise, orders = NOISES[name], np.array([2.0, 5.0])
    p, q = worlds(noise, rate, FOLLOW_UPS[follow_up])
    charged = rdp.curve(one_sample(noise, rate), orders)
    for order, bound in zip(orders, charged, strict=True):
        assert max(divergence(p, q, order), divergence(q, p, order)) <= bound * (1 + 2e-3)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_charge_is_never_below_what_an_adversary_finds(name, accountant):
    noise, rate, delta = NOISES[name], 0.3, 1e-3
    charged = account(one_sample(noise, rate), delta, accountant).epsilon
    found = {
        follow_up: true_epsilon(*worlds(noise, rate, choose), delta)
        for follow_up, choose in FOLLOW_UPS.items()
    }
    assert max(found.values()) <= charged * (1 + 2e-3)
    if accountant == "pld":  # it is exact in one dimension
        assert found["the same"] == pytest.approx(charged, rel=0.01)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_charge_for_two_samples_is_too_small(name, accountant):
    """One coin decides about both passes, so they must not be amplified one by one."""
    noise, rate, delta = NOISES[name], 0.1, 1e-3
    true = true_epsilon(*worlds(noise, rate), delta)
    apart = account(Repeated(PoissonSampled(rate, release(noise)), 2), delta, accountant).epsilon
    together = account(one_sample(noise, rate), delta, accountant).epsilon
    assert apart < 0.95 * true < true <= together * (1 + 2e-3)


@given(
    ratio=st.floats(1.0, 1e4), rate=st.floats(0.0, 1.0), order=st.floats(1.0, 40.0),
)  # fmt: skip
def test_the_inequality_behind_the_other_direction(ratio, rate, order):
    """u^a - u^(1-a) >= r (w^(1-a) - w^a), u = 1-q+qr, w = 1-q+q/r; docs/mathematics.md, 4.1."""
    u, w = 1 - rate + rate * ratio, 1 - rate + rate / ratio
    left = u**order - u ** (1 - order)
    right = ratio * (w ** (1 - order) - w**order)
    assert left >= right - 1e-9 * max(1.0, abs(left), abs(right))


@pytest.mark.parametrize("passes", [1, 3, 20])
def test_gaussian_passes_cost_what_dp_accounting_says(passes):
    inner = SelfComposedDpEvent(GaussianDpEvent(4.0), passes)
    theirs = RdpAccountant().compose(PoissonSampledDpEvent(0.1, inner), 50).get_epsilon(1e-5)
    event = Repeated(one_sample(Gaussian(4.0), 0.1, passes), 50)
    assert account(event, 1e-5, "rdp").epsilon == pytest.approx(theirs, rel=0.01)
    # And what one release costs with so much less noise, by both accountants.
    less = Repeated(one_sample(Gaussian(4.0 / math.sqrt(passes)), 0.1, 1), 50)
    for accountant in ("rdp", "pld"):
        ours, one = (account(each, 1e-5, accountant).epsilon for each in (event, less))
        assert ours == pytest.approx(one, rel=1e-6)


def test_passes_over_everybody_are_releases():
    """At rate 1 nothing is drawn, and passes compose as any releases do."""
    for noise in NOISES.values():
        for accountant in ("rdp", "pld"):
            plain = account(Repeated(release(noise), 5), 1e-4, accountant).epsilon
            ours = account(one_sample(noise, 1.0, 5), 1e-4, accountant).epsilon
            assert plain * (1 - 1e-4) <= ours <= plain * 1.01


def test_pure_epsilons_add_up_before_sampling_counts():
    loss = 2 / 1.1
    exact = math.log1p(0.4 * math.expm1(loss))
    assert account(one_sample(Laplace(1.1), 0.4), 0).epsilon == pytest.approx(exact)
    p, q = worlds(Laplace(1.1), 0.4)
    assert float(np.max(np.log(p) - np.log(q))) == pytest.approx(exact, abs=1e-3)
    response = PoissonSampled(0.4, Repeated(PureDP(0.7), 3))
    assert account(response, 0).epsilon == pytest.approx(math.log1p(0.4 * math.expm1(2.1)))


def test_randomised_responses_to_one_sample():
    """Three answers of an epsilon-DP randomiser, multiplied out, are the worst that there are."""
    epsilon, rate, delta = 0.7, 0.3, 1e-3
    truth = 1 / (1 + math.exp(-epsilon))
    there = without = np.ones(1)
    for _ in range(3):
        there = np.outer(there, [truth, 1 - truth]).ravel()
        without = np.outer(without, [1 - truth, truth]).ravel()
    true = true_epsilon((1 - rate) * without + rate * there, without, delta)
    event = PoissonSampled(rate, Repeated(PureDP(epsilon), 3))
    assert true <= account(event, delta, "rdp").epsilon
    assert account(event, delta, "pld").epsilon == pytest.approx(true, rel=0.01)
    assert true <= account(event, delta, "pld").epsilon


def test_loss_distributions_of_passes_need_a_known_pair():
    wide = Release(Laplace(1.0), Sensitivity(1.0, "l2", 5))
    with pytest.raises(Unsupported, match="no worst pair"):
        loss_distribution.check(PoissonSampled(0.1, Repeated(wide, 2)))
    boxed = Release(Laplace(4.0), Sensitivity(1.0, "linf", 5))
    twice, ten = (
        account(PoissonSampled(0.1, event), 1e-4, "pld").epsilon
        for event in (
            Repeated(boxed, 2),
            Release(Laplace(4.0), Sensitivity(1.0, "linf", 10)),
        )
    )
    assert twice == pytest.approx(ten, rel=1e-6)  # ten independent numbers either way


@pytest.mark.parametrize("noise", [Laplace(5.0), Gaussian(5.0)])
def test_more_passes_never_cost_less(noise):
    wide = Release(noise, Sensitivity(1.0, "l2", 100))
    costs = [account(PoissonSampled(0.2, Repeated(wide, k)), 1e-5).epsilon for k in (1, 2, 3, 7)]
    assert costs == sorted(costs)
    assert costs[-1] > 2 * costs[0]


def test_an_event_of_passes_is_data_like_any_other():
    event = one_sample(Staircase(0.9, 1.0, 0.4), 0.25, 6)
    assert event_from_json(event_to_json(event)) == event
    assert "6 times on one sample at 0.25" in described(event)
    assert leaves(Repeated(event, 4)) == {event: 4}
    assert release_count(Repeated(event, 4)) == 24
    apart = Repeated(PoissonSampled(0.25, event.passes[0]), 24)
    assert rounding_of_event(Repeated(event, 4), 1.0) == rounding_of_event(apart, 1.0)
