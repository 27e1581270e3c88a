"""Amplification by shuffling is granted where it is proved, and nowhere else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from udpfl import (
    Gaussian,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    Sensitivity,
    Shuffled,
    Unsupported,
    account,
)
from udpfl.accounting import rdp, shuffling
from udpfl.accounting.accountant import as_scalar

ORDERS = np.asarray([2.0, 8.0, 64.0])


def response(epsilon: float, **changes) -> PureDP:
    fields = {"unit": "client", "neighbours": "replace-one", "discrete": True}
    return PureDP(epsilon, **(fields | changes))


def brute_force(order: float, epsilon: float, clients: int) -> float:
    """All 2^N outcomes of N randomised responses, shuffled, one client's bit flipped."""
    truth = 1 / (1 + math.exp(-epsilon))
    counts = []
    for bit in (1, 0):
        ones = [truth if bit else 1 - truth] + [1 - truth] * (clients - 1)
        law = np.asarray([1.0])
        for p in ones:
            law = np.convolve(law, [1 - p, p])
        counts.append(np.log(law))
    both = [logsumexp(order * a + (1 - order) * b) / (order - 1) for a, b in (counts, counts[::-1])]
    return float(max(both))


def test_the_printed_lemma_is_refuted_by_randomised_response():
    """N = 10, eps = 1: exact 0.571 and 0.950 where the lemma says 0.504 and 0.123."""
    exact = [brute_force(order, 1.0, 10) for order in (8.0, 64.0)]
    claimed = shuffling.paper_upper(np.asarray([8.0, 64.0]), np.ones(2), 10)
    assert exact == pytest.approx([0.571, 0.950], abs=1e-3)
    assert claimed == pytest.approx([0.504, 0.123], abs=1e-3)
    assert np.all(claimed < exact)
    got = shuffling.exact_randomised_response(np.asarray([8.0, 64.0]), 1.0, 10)
    np.testing.assert_allclose(got, exact, rtol=1e-9)


def test_no_amplification_is_granted_there():
    event = Shuffled(response(1.0), clients=10, identical=True)
    np.testing.assert_array_equal(rdp.curve(event, ORDERS), rdp.curve(response(1.0), ORDERS))
    statement = account(event, 1e-5, "rdp")
    assert any("too few clients" in note for note in statement.notes)
    assert statement.epsilon == account(response(1.0), 1e-5, "rdp").epsilon


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Shuffled(response(0.1, unit="record"), 10_000, True), "one record"),
        (Shuffled(response(0.1, neighbours="add-remove"), 10_000, True), "add or remove"),
        (Shuffled(response(0.1, discrete=False), 10_000, True), "not discrete"),
        (Shuffled(response(0.1), 10_000, False), "same randomiser"),
        (
            Shuffled(Release(Gaussian(1.0), Sensitivity(1.0), "client"), 10_000, True),
            "not pure-LDP",
        ),
        (
            Shuffled(PoissonSampled(0.5, Release(Gaussian(1.0), Sensitivity(1.0))), 10_000, True),
            "not pure-LDP",
        ),
    ],
)
def test_every_condition_is_enforced_and_named(event, reason):
    assert any(reason in text for text in shuffling.conditions_missing(event))
    np.testing.assert_allclose(rdp.curve(event, ORDERS), rdp.curve(event.event, ORDERS))
    assert any(reason in note for note in account(event, 1e-5, "rdp").notes)


def test_amplification_where_the_theorem_holds():
    event = Shuffled(response(0.1), clients=10_000, identical=True)
    assert shuffling.conditions_missing(event) == []
    plain, amplified = (rdp.curve(e, ORDERS) for e in (event.event, event))
    assert amplified[0] < plain[0] / 10  # order 2
    assert amplified[2] == plain[2]  # order 64 is outside the theorem: nothing granted
    total = account(Repeated(event, 100), 1e-6, "rdp")
    assert total.epsilon < account(Repeated(event.event, 100), 1e-6, "rdp").epsilon
    assert total.unit == "client"


@pytest.mark.parametrize("epsilon", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("order", [2, 3, 5, 9])
def test_amplification_begins_where_the_theorem_does(order, epsilon):
    """a^4 e^(5 epsilon) < N / 9, at whole orders and at no others."""
    needed = 9 * order**4 * math.exp(5 * epsilon)
    orders = np.asarray([order, order + 0.5, 2.5])
    plain = rdp.curve(response(epsilon), orders)
    for clients, granted in ((math.floor(needed), False), (math.ceil(needed * 1.001), True)):
        event = Shuffled(response(epsilon), clients=clients, identical=True)
        found = rdp.curve(event, orders)
        assert (found[0] < plain[0]) == granted
        assert np.array_equal(found[1:], plain[1:])
        if granted:
            pairs = order * (order - 1) / 2 * 4 * math.expm1(epsilon) ** 2 / clients
            assert found[0] == pytest.approx(math.log1p(pairs) / (order - 1), rel=1e-9)


@given(
    epsilon=st.floats(0.01, 0.6),
    clients=st.integers(200, 4000),
    order=st.integers(2, 8),
)
def test_granted_amplification_is_never_below_the_exact_value(epsilon, clients, order):
    event = Shuffled(response(epsilon), clients=clients, identical=True)
    orders = np.asarray([float(order)])
    exact = shuffling.exact_randomised_response(orders, epsilon, clients)
    assert rdp.curve(event, orders)[0] >= exact[0] * (1 - 1e-9)


@given(gamma=st.floats(0.01, 2.0), clients=st.integers(2, 300), order=st.integers(2, 64))
def test_the_nominal_rule_is_never_refuted_by_randomised_response(gamma, clients, order):
    orders = np.asarray([float(order)])
    value = shuffling.nominal(orders, np.asarray([gamma]), clients)[0]
    exact = shuffling.exact_randomised_response(orders, gamma, clients)[0]
    assert value <= gamma
    assert value >= min(exact, gamma) * (1 - 1e-9)


def test_scalar_accounting_uses_the_papers_lemma_and_says_nominal():
    event = Shuffled(Release(Gaussian(3.0), Sensitivity(1.0, "l2", 10), "client"), clients=1000)
    plain = account(event, 1e-5, "rdp")
    nominal = account(event, 1e-5, "rdp", "scalar")
    assert nominal.kind == "nominal"
    assert nominal.epsilon < plain.epsilon
    assert nominal.vector_epsilon <= plain.epsilon
    with pytest.raises(Unsupported, match="nominal shuffle"):
        account(as_scalar(event), 1e-5, "rdp")


def test_the_lower_lemma_is_a_lower_bound_and_never_used_as_a_guarantee():
    orders = np.asarray([2.0, 3.0])
    lower = shuffling.paper_lower(orders, np.full(2, 0.5), 1000)
    assert np.all(lower < shuffling.paper_upper(orders, np.full(2, 0.5), 1000))
