"""Spending that others recorded: our number is that of Opacus and of dp_accounting."""

from __future__ import annotations

import json
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from tests.accounting.samples import gaussian
from udpfl import (
    Composed,
    InvalidInput,
    Laplace,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    Unsupported,
    account,
)
from udpfl.accounting.events import leaves
from udpfl.accounting.imported import from_dp_accounting, from_opacus

# history, delta, epsilon by RDPAccountant and by PRVAccountant of Opacus 1.6.0 (get_epsilon(delta)
# with the defaults; PRV adds its own error bound of 0.01)
OPACUS = [
    ([(1.1, 0.01, 1000)], 1e-5, 1.7117700912203435, 1.525472649316146),
    ([(1.1, 0.01, 1000)], 1e-7, 2.236645101222695, 1.9872646593251302),
    ([(0.8, 0.05, 300)], 1e-5, 10.439686376769522, 9.320810761507673),
    ([(4.0, 0.2, 500)], 1e-5, 5.56840298527184, 5.156414827553173),
    ([(1.3, 0.02, 400), (0.9, 0.02, 200)], 1e-5, 3.2653706080510965, 2.800157086412143),
    ([(2.0, 1.0, 10)], 1e-5, 8.079406222420491, 7.521641007073685),
    ([(0.6, 0.004, 5000)], 1e-7, 9.377669363683594, 8.323481348682082),
]


# Opacus


@pytest.mark.parametrize(("history", "delta", "rdp", "prv"), OPACUS)
def test_our_epsilon_of_an_opacus_history_is_opacus_own(history, delta, rdp, prv):
    event = from_opacus(history)
    ours = account(event, delta, "rdp").epsilon
    assert 0.99 * rdp < ours <= 1.001 * rdp
    ours = account(event, delta, "pld").epsilon
    assert 0.99 * prv < ours <= 1.001 * prv
    assert account(event, delta).epsilon <= 1.001 * min(rdp, prv)


def test_the_history_is_taken_as_it_is():
    assert leaves(from_opacus([(1.5, 0.1, 3), (2.0, 0.1, 4), (1.5, 0.1, 5)])) == {
        PoissonSampled(0.1, gaussian(1.5)): 8,
        PoissonSampled(0.1, gaussian(2.0)): 4,
    }
    client = from_opacus([(1.5, 0.1, 3)], unit="client")
    assert account(client, 1e-5).unit == "client"


class Accountant:
    """As Opacus has them."""

    history = [(1.1, 0.01, 100)]  # noqa: RUF012

    def mechanism(self):
        return "prv"


@pytest.mark.parametrize(
    "form",
    [
        Accountant(),
        {"history": [[1.1, 0.01, 100]], "mechanism": "gdp"},
        [[np.float64(1.1), np.float32(0.01), np.int64(100)]],
        ((1.1, 0.01, 100.0),),
    ],
)
def test_every_form_of_a_history_is_known(form):
    (leaf, count), *others = leaves(from_opacus(form)).items()
    assert (count, others) == (100, [])
    assert isinstance(leaf, PoissonSampled)
    assert leaf.rate == pytest.approx(0.01, rel=1e-6)
    assert leaf.event == gaussian(1.1)


@pytest.mark.parametrize(
    ("history", "kind", "reason"),
    [
        ([], InvalidInput, "empty"),
        ([(1.0, 0.1)], InvalidInput, "noise multiplier, sampling rate, steps"),
        ([(1.0, 1.5, 3)], InvalidInput, r"must lie in \(0, 1\]"),
        ([(1.0, 0.0, 3)], InvalidInput, "sampling_rate"),
        ([(1.0, 0.1, 0)], InvalidInput, "num_steps"),
        ([(1.0, 0.1, 2.5)], InvalidInput, "num_steps"),
        ([(-1.0, 0.1, 2)], InvalidInput, "got -1"),
        ([(math.nan, 0.1, 2)], InvalidInput, "finite"),
        ([(True, 0.1, 2)], InvalidInput, "noise_multiplier"),
        ([("1", 0.1, 2)], InvalidInput, "noise_multiplier"),
        ([(0.0, 0.1, 2)], Unsupported, "no budget can cover it"),
        ({"history": [(1.0, 0.1, 2)], "mechanism": "new"}, Unsupported, "'new'"),
        ({"state": 1}, InvalidInput, "history"),
        ("text", InvalidInput, "list of steps"),
    ],
)
def test_a_history_that_cannot_be_right_is_refused(history, kind, reason):
    with pytest.raises(kind, match=reason):
        from_opacus(history)


def test_a_history_of_fixed_batches_is_refused():
    with pytest.raises(Unsupported, match=r"fixed size.*understate"):
        from_opacus([(1.0, 0.1, 2)], poisson_sampling=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["RDPAccountant", "PRVAccountant"])
def test_a_live_opacus_accountant_agrees(name):
    accountants = pytest.importorskip("opacus.accountants", reason="Opacus is not installed")
    theirs = getattr(accountants, name)()
    for noise, steps in ((1.2, 150), (0.9, 50)):
        for _ in range(steps):
            theirs.step(noise_multiplier=noise, sample_rate=0.03)
    wanted = theirs.get_epsilon(1e-5)
    which = "rdp" if name == "RDPAccountant" else "pld"
    for form in (theirs, theirs.state_dict(), json.loads(json.dumps(theirs.state_dict()))):
        ours = account(from_opacus(form), 1e-5, which).epsilon
        assert 0.99 * wanted < ours <= 1.001 * wanted


# dp_accounting


def sampled(rate, event):
    return dp.PoissonSampledDpEvent(rate, event)


LIVE = [
    dp.SelfComposedDpEvent(sampled(0.02, dp.GaussianDpEvent(1.2)), 500),
    dp.ComposedDpEvent([dp.GaussianDpEvent(3.0), dp.NoOpDpEvent(), dp.GaussianDpEvent(5.0)]),
    dp.SelfComposedDpEvent(
        dp.ComposedDpEvent(
            [
                sampled(0.1, dp.GaussianDpEvent(2.0)),
                dp.SelfComposedDpEvent(dp.GaussianDpEvent(9), 2),
            ]
        ),
        20,
    ),
    dp.SelfComposedDpEvent(dp.LaplaceDpEvent(4.0), 20),
]


@pytest.mark.parametrize("event", LIVE)
@pytest.mark.parametrize(("kind", "which"), [(RdpAccountant, "rdp"), (PLDAccountant, "pld")])
def test_our_epsilon_of_a_dp_event_is_dp_accountings_own(event, kind, which):
    theirs = kind().compose(event)
    wanted = theirs.get_epsilon(1e-5)
    for form in (event, theirs):
        ours = account(from_dp_accounting(form, dimension=1), 1e-5, which).epsilon
        assert 0.99 * wanted < ours <= 1.001 * wanted


RELATIONS = dp.NeighboringRelation


@pytest.mark.parametrize("kind", [RdpAccountant, PLDAccountant])
def test_an_accountant_for_other_neighbours_is_refused(kind):
    """Its own number is larger than ours for one record added or removed."""
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(3.0), 20)
    assert from_dp_accounting(kind().compose(event)) == from_dp_accounting(event)  # the default
    for relation in set(RELATIONS) - {RELATIONS.ADD_OR_REMOVE_ONE}:
        theirs = kind(neighboring_relation=relation).compose(event)
        with pytest.raises(Unsupported, match=rf"{relation.name}.*understate"):
            from_dp_accounting(theirs)


def test_replacing_a_sampled_record_costs_more_than_adding_one():
    """What refusing avoids: the same events, a larger epsilon."""
    event = dp.SelfComposedDpEvent(sampled(0.1, dp.GaussianDpEvent(1.0)), 100)
    theirs = PLDAccountant(RELATIONS.REPLACE_ONE).compose(event)
    assert theirs.get_epsilon(1e-5) > 1.2 * account(from_dp_accounting(event), 1e-5).epsilon
    with pytest.raises(Unsupported, match="REPLACE_ONE"):
        from_dp_accounting(theirs)


def test_an_accountant_that_does_not_say_its_neighbours_is_refused():
    class Silent:
        ledger = dp.GaussianDpEvent(1.0)

    with pytest.raises(Unsupported, match="unknown"):
        from_dp_accounting(Silent())


def test_several_gaussian_releases_of_one_sample_are_one_of_less_noise():
    twice = dp.ComposedDpEvent(
        [dp.GaussianDpEvent(2.0), dp.SelfComposedDpEvent(dp.GaussianDpEvent(3.0), 2)]
    )
    event = dp.SelfComposedDpEvent(sampled(0.05, twice), 100)
    wanted = RdpAccountant().compose(event).get_epsilon(1e-5)
    assert account(from_dp_accounting(event), 1e-5, "rdp").epsilon == pytest.approx(
        wanted, rel=0.01
    )
    (leaf,) = leaves(from_dp_accounting(event))
    assert leaf.event.mechanism.std == pytest.approx((1 / 4 + 2 / 9) ** -0.5)


def test_the_same_release_several_times_on_one_sample_stays_what_it_is():
    twice = sampled(0.1, dp.SelfComposedDpEvent(dp.LaplaceDpEvent(2.0), 2))
    release = Release(Laplace(2.0), Sensitivity(1.0, "l1", 1))
    (leaf,) = leaves(from_dp_accounting(twice, dimension=1))
    assert leaf == PoissonSampled(0.1, Repeated(release, 2))
    gaussian_twice = sampled(0.1, dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 2))
    wanted = RdpAccountant().compose(gaussian_twice).get_epsilon(1e-5)
    ours = account(from_dp_accounting(gaussian_twice), 1e-5, "rdp").epsilon
    assert ours == pytest.approx(wanted, rel=0.01)


def test_a_laplace_event_says_nothing_of_its_dimension():
    with pytest.raises(InvalidInput, match=r"dimension.*how many coordinates"):
        from_dp_accounting(dp.LaplaceDpEvent(2.0))
    assert from_dp_accounting(dp.LaplaceDpEvent(2.0), dimension=7) == Composed(
        [Release(Laplace(2.0), Sensitivity(1.0, "l1", 7))]
    )


ONE = dp.GaussianDpEvent(1.0)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (dp.SampledWithoutReplacementDpEvent(100, 10, ONE), "WithoutReplacement.*understate"),
        (dp.SampledWithReplacementDpEvent(100, 10, ONE), "WithReplacement.*understate"),
        (dp.NonPrivateDpEvent(), "NonPrivateDpEvent.*no budget"),
        (dp.UnsupportedDpEvent(), "UnsupportedDpEvent"),
        (dp.dp_event.ZCDpEvent(0.1), "ZCDpEvent"),
        (dp.dp_event.DiscreteLaplaceDpEvent(1.0, 1), "DiscreteLaplaceDpEvent"),
        (dp.RandomizedResponseDpEvent(0.5, 2), "RandomizedResponseDpEvent"),
        (dp.SingleEpochTreeAggregationDpEvent(1.0, 4), "SingleEpochTreeAggregation"),
        (dp.GaussianDpEvent(0.0), "no budget can cover it"),
        (sampled(0.1, dp.ComposedDpEvent([dp.LaplaceDpEvent(1.0), ONE])), "one kind of release"),
        (sampled(0.1, sampled(0.1, ONE)), "one kind of release"),
        (dp.ComposedDpEvent([ONE, dp.NonPrivateDpEvent()]), "NonPrivateDpEvent"),
    ],
)
def test_other_events_are_refused_by_name(event, reason):
    with pytest.raises(Unsupported, match=reason):
        from_dp_accounting(event, dimension=1)


@pytest.mark.parametrize("event", [dp.NoOpDpEvent(), dp.ComposedDpEvent([]), "text", None])
def test_nothing_is_not_an_event(event):
    with pytest.raises(InvalidInput, match="event"):
        from_dp_accounting(event)
