"""Amplification by shuffling is granted where it is proved, and nowhere else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from tests.accounting.nominal import better, divergences, less, printed
from udpfl import (
    Gaussian,
    InvalidInput,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    Sensitivity,
    Setting,
    Shuffled,
    Unsupported,
    account,
    calibrate,
)
from udpfl.accounting import rdp, shuffling
from udpfl.accounting.accountant import as_scalar
from udpfl.accounting.events import message_of

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


# Messages of several releases


def lemma(order: float, gamma: float, clients: int) -> float:
    """The printed upper lemma, of a message that leaks gamma."""
    pairs = order * (order - 1) / 2
    return math.log1p(pairs * 4 * math.expm1(gamma) ** 2 / clients) / (order - 1)


def by_hand(order: float, gamma: float, clients: int) -> float:
    """What nominal accounting counts for a message: the lemma where nothing refutes it."""
    claimed = lemma(order, gamma, clients)
    return min(gamma, claimed) if claimed >= brute_force(order, gamma, clients) else gamma


@pytest.mark.parametrize("releases", [1, 2, 5, 40])
def test_the_lemma_is_about_all_releases_of_a_message(releases):
    """Added up first, then the lemma, then rounds are added up; by hand at whole orders."""
    clients, rounds, std = 10, 6, 9.0
    inner = Release(Gaussian(std), Sensitivity(1.0, "l2", 70))
    event = Repeated(Shuffled(inner, clients, releases=releases), rounds * releases)
    best = math.inf
    for order in range(2, 100):
        gamma = releases * order / (2 * std**2)
        best = min(best, rounds * by_hand(order, gamma, clients) + math.log(1e5) / (order - 1))
    found = account(event, 1e-5, "paper", "scalar")
    assert found.epsilon == pytest.approx(best, rel=1e-9)
    assert found.kind == "nominal"
    # Of the releases one by one it would say much less, and it says nothing of that.
    alone = account(Repeated(Shuffled(inner, clients), rounds * releases), 1e-5, "paper", "scalar")
    assert found.epsilon > alone.epsilon or releases == 1


@pytest.mark.parametrize("releases", [1, 3])
@pytest.mark.parametrize("how", ["rdp", "pld", "best"])
def test_no_guarantee_knows_of_messages(how, releases):
    inner = PoissonSampled(0.3, Release(Gaussian(2.0), Sensitivity(1.0, "l2", 10)))
    mixed = Repeated(Shuffled(inner, 10, releases=releases), 30)
    plain = account(Repeated(inner, 30), 1e-5, how)
    assert account(mixed, 1e-5, how).epsilon == plain.epsilon
    assert shuffling.unshuffled(mixed) == Repeated(inner, 30)
    for accountant in ("rdp", "best", "paper"):
        nominal = account(mixed, 1e-5, accountant, "scalar")
        assert nominal.vector_epsilon >= account(Repeated(inner, 30), 1e-5).epsilon
        assert nominal.epsilon < plain.epsilon


def test_a_message_of_several_releases_is_not_amplified_where_one_would_be():
    """The theorem is about one message of one randomiser."""
    one, two = (
        Shuffled(response(0.05), clients=10_000, identical=True, releases=n) for n in (1, 2)
    )
    assert shuffling.conditions_missing(one) == []
    assert shuffling.conditions_missing(two) == ["a message holds 2 releases, not one"]
    assert rdp.curve(one, ORDERS)[0] < rdp.curve(two, ORDERS)[0]
    assert np.array_equal(rdp.curve(two, ORDERS), rdp.curve(response(0.05), ORDERS))
    assert any("holds 2 releases" in note for note in account(two, 1e-5, "rdp").notes)


@pytest.mark.parametrize("releases", [0, -1, 1.5, True, "2"])
def test_a_message_holds_a_whole_number_of_releases(releases):
    with pytest.raises(InvalidInput, match="releases"):
        Shuffled(response(0.1), 10, releases=releases)


@given(
    gamma=st.floats(0.001, 1.0),
    clients=st.integers(2, 100),
    order=st.integers(2, 20),
    releases=st.integers(1, 20),
)
def test_a_share_of_a_message_never_costs_more_than_the_release(gamma, clients, order, releases):
    """Nor, for all of them together, less than shuffled randomised response leaks."""
    orders = np.asarray([float(order)])
    std = math.sqrt(order / (2 * gamma))
    inner = Release(Gaussian(std), Sensitivity(1.0, "l2", 1))
    event = as_scalar(Shuffled(inner, clients, releases=releases))
    share = rdp.curve(event, orders)[0]
    assert share <= gamma * (1 + 1e-12)
    whole = shuffling.exact_randomised_response(orders, releases * gamma, clients)[0]
    assert releases * share >= min(whole, releases * gamma) * (1 - 1e-9)


def shuffled_staircase(clients, releases, accountant="rdp"):
    """The noise for T = 150 releases at q = 0.05, nominally epsilon = 2 at delta = 1e-5."""

    def pays_for(mechanism):
        release = Release(mechanism, Sensitivity(1.0, "l2", 26_010))
        return Repeated(message_of(release, 0.05, clients, releases), 150)

    return calibrate(
        "staircase",
        Setting(2.0, 1e-5, 150, Sensitivity(1.0, "l2", 26_010), 0.05, "record", accountant,
                "scalar", pays_for),
    )  # fmt: skip


def test_what_the_lemma_would_claim_is_not_marginal():
    """docs/mathematics.md, section 7: two fifths of the noise, three tenths of the epsilon."""
    plain, mixed = shuffled_staircase(0, 1), shuffled_staircase(10, 1)
    assert plain.mechanism.noise_std == pytest.approx(1.899, abs=6e-4)
    assert mixed.mechanism.noise_std == pytest.approx(0.698, abs=6e-4)
    stds = [shuffled_staircase(10, n).mechanism.noise_std for n in (2, 5, 10, 150)]
    assert stds == pytest.approx([0.796, 0.957, 1.107, 1.623], abs=6e-4)
    by_paper = [shuffled_staircase(n, 1, "paper").mechanism.noise_std for n in (0, 10)]
    assert by_paper == pytest.approx([2.203, 0.819], abs=6e-4)
    # What holds: the same noise without a shuffler, and that is no guarantee for a gradient.
    release = Release(mixed.mechanism, Sensitivity(1.0, "l2", 26_010))
    bare = Repeated(PoissonSampled(0.05, release), 150)
    assert account(bare, 1e-5, "rdp", "scalar").epsilon == pytest.approx(6.817, abs=1e-3)
    assert mixed.statement.kind == "nominal"
    assert mixed.statement.vector_epsilon >= account(bare, 1e-5).epsilon > 1000


@pytest.mark.parametrize("releases", [1, 5])
def test_the_noise_of_the_lemma_by_quadrature(releases):
    """The divergence of a sampled release, the lemma and both conversions, none by the package."""
    whole = np.arange(2.0, 31.0)
    fine = np.unique(np.concatenate([np.arange(1.2, 12, 0.1), whole]))
    for accountant, orders, convert, closer in (
        ("paper", whole, printed, 0.999), ("rdp", fine, better, 0.97),
    ):  # fmt: skip
        noise = shuffled_staircase(10, releases, accountant).mechanism
        for own, keeps in ((noise, True), (less(noise, closer), False)):
            messages = releases * divergences(own, 0.05, orders)
            totals = [
                150 / releases * by_hand(order, gamma, 10)
                for order, gamma in zip(orders, messages, strict=True)
            ]
            found = convert(orders, totals, 1e-5)
            assert bool(found <= 2 * (1 if accountant == "paper" else 1 + 2e-3)) is keeps
