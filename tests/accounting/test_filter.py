"""Releases whose settings depend on earlier results: a filter holds, the best order does not.

The truth is computed here by hand. A Gaussian release of sensitivity 1 and deviation s has the
privacy loss x/s^2 - 1/(2 s^2) at a point x, so an adversary that reads x and then chooses how to go
on is an integral over x (two stages) or a walk of losses (many stages).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from udpfl import Composed, Gaussian, Laplace, PoissonSampled, Release, Repeated, Sensitivity
from udpfl.accounting import account
from udpfl.accounting.filter import Filter
from udpfl.accounting.statement import PrivacyStatement
from udpfl.errors import InvalidInput
from udpfl.harmonizer import Setting, calibrate

ONE = Sensitivity(1.0, "l2", 1)
DELTA = 1e-5
RUN = Repeated(PoissonSampled(0.05, Release(Gaussian(1.947), ONE)), 300)
"""The reference run: about epsilon = 2 by loss distributions."""


def gaussian(std, rate=1.0):
    return PoissonSampled(rate, Release(Gaussian(std), ONE))


# Numbers


@pytest.mark.parametrize(
    ("runs", "fixed", "filtered", "summed"),
    [(1, 2.00, 2.28, 2.00), (2, 2.90, 3.28, 4.17), (5, 4.82, 5.40, 11.0), (20, 10.9, 12.0, 47.3)],
)
def test_the_reference_table(runs, fixed, filtered, summed):
    event = Repeated(RUN, runs)
    assert account(event, DELTA, "pld").epsilon == pytest.approx(fixed, abs=0.05)
    best = min(Filter((order,), (0.5,)).epsilon(event, DELTA) for order in np.arange(1.1, 20, 0.1))
    assert best == pytest.approx(filtered, abs=0.05)
    assert runs * account(RUN, DELTA / runs, "pld").epsilon == pytest.approx(summed, rel=0.01)
    planned = Filter.planned(best, DELTA)
    assert planned.shares[0] == 0.5
    assert best - 1e-3 <= planned.epsilon(event, DELTA) <= 1.01 * best


@given(
    std=st.floats(0.3, 30),
    order=st.floats(1.05, 100),
    share=st.floats(0.01, 1),
    times=st.integers(1, 50),
)
def test_one_order_against_its_formula(std, order, share, times):
    """Gaussian noise has the divergence order / (2 std^2)."""
    divergence = times * order / (2 * std**2)
    expected = (
        divergence
        + math.log((order - 1) / order)
        - (math.log(share * DELTA) + math.log(order)) / (order - 1)
    )
    found = Filter((order,), (share,)).epsilon(Repeated(gaussian(std), times), DELTA)
    assert found == pytest.approx(max(0.0, expected), rel=1e-9, abs=1e-12)


@given(st.floats(0.05, 60), st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3]))
def test_planned_orders_are_few_and_their_shares_add_up_to_one_at_most(epsilon, delta):
    planned = Filter.planned(epsilon, delta)
    assert len(planned.orders) == len(set(planned.orders)) <= 11
    assert planned.shares[0] == 0.5
    assert math.fsum(planned.shares) <= 1
    assert Filter.from_dict(planned.to_dict()) == planned
    # As much Gaussian noise as the budget pays for costs hardly more by the planned orders.
    low, high = 1e-3, 1e4
    for _ in range(60):
        middle = math.sqrt(low * high)
        fits = planned.epsilon(Release(Gaussian(middle), ONE), delta) <= epsilon
        low, high = (low, middle) if fits else (middle, high)
    orders = 1 + np.geomspace(1e-2, 1e3, 400)
    best = min(
        Filter((order,), (0.5,)).epsilon(Release(Gaussian(high), ONE), delta)
        for order in orders[orders <= 1024]
    )
    assert epsilon <= best * 1.02 + 1e-6


def test_a_filter_never_falls_when_something_is_added():
    planned = Filter.planned(3.0, DELTA)
    event, before = gaussian(5.0), 0.0
    for more in (gaussian(3.0, 0.1), Release(Laplace(4.0), ONE), gaussian(8.0), gaussian(1.0)):
        event = Composed((event, more))
        after = planned.epsilon(event, DELTA)
        assert after >= before
        before = after


@pytest.mark.parametrize(
    ("orders", "shares"),
    [((), ()), ((2.0,), (0.5, 0.5)), ((1.0,), (1.0,)), ((2.0, 3.0), (0.6, 0.6)), ((2.0,), (0.0,)),
     ((math.nan,), (1.0,)), ((2.0,), (math.nan,)), ((2000.0,), (1.0,))],
)  # fmt: skip
def test_what_is_no_filter_is_refused(orders, shares):
    with pytest.raises(InvalidInput):
        Filter(orders, shares)


@pytest.mark.parametrize("plain", [None, {}, {"orders": [2]}, {"orders": ["a"], "shares": [1]}])
def test_what_is_no_filter_is_not_read(plain):
    with pytest.raises(InvalidInput):
        Filter.from_dict(plain)


# Statements and noise


def test_a_statement_names_the_theorem():
    planned = Filter.planned(3.0, DELTA)
    filtered, fixed = account(RUN, DELTA, planned), account(RUN, DELTA)
    assert (filtered.composition, filtered.accountant) == ("filter", "filter")
    assert filtered.epsilon == planned.epsilon(RUN, DELTA)
    assert "whatever later settings depended on" in str(filtered)
    assert fixed.composition == "fixed"
    assert "whatever" not in str(fixed)
    pure = Release(Laplace(1.0), ONE)
    assert account(pure, 0.0, planned).composition == "sum"
    # Never the smaller of two theorems, each at all of delta.
    assert account(pure, DELTA, planned).epsilon > account(pure, DELTA).epsilon
    for statement in (filtered, fixed):
        assert PrivacyStatement.from_dict(statement.to_dict()) == statement


def test_a_statement_that_was_written_before_is_still_read():
    plain = account(RUN, DELTA).to_dict()
    del plain["composition"]
    assert PrivacyStatement.from_dict(plain).composition == "fixed"
    with pytest.raises(InvalidInput, match="composition"):
        PrivacyStatement.from_dict({**plain, "composition": "magic"})


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_is_calibrated_to_a_filter(kind):
    planned = Filter.planned(2.0, DELTA)
    past = Repeated(gaussian(20.0, 0.1), 10)

    def pays_for(noise):
        return Composed((Repeated(PoissonSampled(0.1, Release(noise, ONE)), 50), past))

    setting = Setting(2.0, DELTA, 50, ONE, 0.1, accountant=planned, pays_for=pays_for)
    found = calibrate(kind, setting)
    releases = Repeated(PoissonSampled(0.1, Release(found.mechanism, ONE)), 50)
    total = planned.epsilon(Composed((releases, past)), DELTA)
    assert 2.0 * 0.998 <= total <= 2.0
    assert found.statement.composition == "filter"


# Adversaries that choose after they have looked

FIRST = 1.4
"""Deviation of the first release."""
X = np.linspace(-12.0, 13.0, 20_001) * FIRST
LOSS = X / FIRST**2 - 0.5 / FIRST**2


def exceeding(std, rate, epsilon):
    """E[(1 - e^(epsilon - loss))+] of a sampled Gaussian release, for an array of epsilons.

    The point at which the loss log(1 - q + q e^(x/s^2 - 1/(2 s^2))) reaches epsilon divides it.
    """
    epsilon = np.asarray(epsilon, dtype=float)
    room = np.expm1(epsilon) / rate + 1  # (e^epsilon - 1 + q) / q
    with np.errstate(divide="ignore"):
        border = np.where(room > 0, std**2 * np.log(np.maximum(room, 1e-300)) + 0.5, -np.inf)
    above, other = stats.norm.sf(border / std), stats.norm.sf((border - 1) / std)
    return (1 - rate) * above + rate * other - np.exp(epsilon) * above


def truth(choices, epsilons, chosen=None):
    """What really exceeds: the adversary reads the first release and takes one of the choices.

    `epsilons` is what is stated for each of them. Without `chosen` it takes the worst.
    """
    density = stats.norm.pdf(X, loc=1.0, scale=FIRST)
    options = np.array(
        [
            exceeding(*choice, epsilon - LOSS)
            for choice, epsilon in zip(choices, epsilons, strict=True)
        ]
    )
    taken = options.max(0) if chosen is None else options[chosen]
    return float(np.trapezoid(density * taken, X))


def total(choice):
    return Composed((gaussian(FIRST), gaussian(*choice)))


def test_the_truth_of_this_file_is_that_of_loss_distributions():
    for choice in ((2.0, 1.0), (0.3, 0.001)):
        epsilon = account(total(choice), DELTA, "pld").epsilon
        assert truth([choice], [epsilon], 0) == pytest.approx(DELTA, rel=5e-3)


def test_the_smallest_number_for_fixed_settings_is_no_filter():
    """Both ways to go on cost the same, if they are fixed beforehand. Chosen after a look at the
    first release they cost more than that: much noise if it went badly, or a rare catastrophe."""
    calm = (3.0, 1.0)
    epsilon = account(total(calm), DELTA, "pld").epsilon
    rates = np.geomspace(1e-7, 1e-2, 400)
    wild = max(
        ((0.05, rate) for rate in rates if truth([(0.05, rate)], [epsilon], 0) <= DELTA),
        key=lambda choice: choice[1],
    )
    assert truth([calm], [epsilon], 0) <= 1.005 * DELTA
    assert truth([wild], [epsilon], 0) <= DELTA
    broken = truth([calm, wild], [epsilon, epsilon])
    assert broken > 1.5 * DELTA
    planned = Filter.planned(epsilon, DELTA)
    stated = [planned.epsilon(total(choice), DELTA) for choice in (calm, wild)]
    assert truth([calm, wild], stated) <= DELTA


@settings(max_examples=60, deadline=None)
@given(
    choices=st.lists(
        st.tuples(st.floats(0.2, 20), st.sampled_from([1.0, 0.3, 0.01, 1e-4])),
        min_size=1,
        max_size=6,
    ),
    planned_for=st.floats(0.5, 20),
)
def test_no_choice_after_a_look_exceeds_what_a_filter_states(choices, planned_for):
    planned = Filter.planned(planned_for, DELTA)
    stated = [planned.epsilon(total(choice), DELTA) for choice in choices]
    assert truth(choices, stated) <= DELTA


@pytest.mark.parametrize("raised", [False, True], ids=["a fixed budget", "a raised budget"])
def test_a_walk_that_chooses_noise_by_what_it_saw_keeps_delta(raised):
    """Many stages, simulated: less noise after bad luck, as long as the filter lets it.

    With a budget that is raised once, because of what was seen, the total at the end is stated.
    """
    delta, walks = 1e-2, 400_000
    planned = Filter.planned(4.0, delta)
    orders, shares = np.array(planned.orders), np.array(planned.shares)
    constant = np.log1p(-1 / orders) - (np.log(shares * delta) + np.log(orders)) / (orders - 1)
    rng = np.random.default_rng(1)
    loss, spent = np.zeros(walks), np.zeros(walks)  # spent: the sum of 1 / (2 std^2)
    budget = np.full(walks, 3.0)
    running = np.ones(walks, dtype=bool)
    for stage in range(12):
        std = np.where(loss > 0.5 * stage * 0.2, 1.2, 3.0)
        if raised:
            budget = np.where((stage == 6) & (loss > 1.5), 6.0, budget)
        cost = 0.5 / std**2
        after = ((spent + cost)[:, None] * orders + constant).min(1)
        running &= after <= budget
        x = rng.normal(1.0, std)
        loss += np.where(running, x / std**2 - 0.5 / std**2, 0.0)
        spent += np.where(running, cost, 0.0)
        if raised and stage == 5:
            running |= loss > 1.5  # those go on under the larger budget
    stated = np.maximum(0.0, (spent[:, None] * orders + constant).min(1))
    exceeds = -np.expm1(np.minimum(0.0, stated - loss))
    mean, error = exceeds.mean(), exceeds.std() / math.sqrt(walks)
    assert mean + 4 * error <= delta
    assert mean > 1e-3 * delta  # it did try
