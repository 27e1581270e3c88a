"""The noise that a site plans from its policy, against accountants of others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from dp_accounting import PoissonSampledDpEvent, SelfComposedDpEvent, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.site.samples import gate, message_of, policy, request, with_privacy
from udpfl.accounting.events import leaves
from udpfl.accounting.serial import event_from_json
from udpfl.site import Gate

pytestmark = pytest.mark.usefixtures("one_thread")
EPSILON, DELTA, RATE = 4.0, 1e-5, 0.5


def noise_of(answer):
    """The standard deviation that a message was charged for, over its clip."""
    (text,) = message_of(answer).events
    (sampled,) = leaves(event_from_json(text))
    release = sampled.event
    return release.mechanism.noise_std / release.sensitivity.bound


def cost(noise, releases, accountant):
    step = PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(noise))
    accountant.compose(SelfComposedDpEvent(step, releases))
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize("rounds", [1, 4, 20])
def test_one_run_gets_the_noise_of_all_releases_that_the_policy_allows(tmp_path, rounds):
    own = gate(tmp_path, budget={"runs": "one"}, releases={"mechanisms": ["gaussian"]})
    noise = noise_of(own.answer(request(training={"rounds": rounds})))
    assert cost(noise, 20, PLDAccountant()) <= EPSILON * (1 + 1e-3)
    assert cost(0.98 * noise, 20, PLDAccountant()) > EPSILON


@pytest.mark.parametrize("rounds", [2, 10])
def test_many_runs_together_keep_the_budget(tmp_path, rounds):
    own = gate(tmp_path, releases={"mechanisms": ["gaussian"], "per_round": 1})
    stds = []
    for run in range(20 // rounds):
        for round_ in range(1, rounds + 1):
            sent = request(round_, run=f"run-{run}", training={"rounds": rounds})
            stds.append(noise_of(own.answer(sent)))
    assert len(stds) == 20
    accountant = RdpAccountant()
    for noise in stds:
        step = PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(noise))
        accountant.compose(step)
    # A filter costs a little beside releases that are fixed beforehand, and never less.
    assert 0.8 * EPSILON < accountant.get_epsilon(DELTA) <= EPSILON
    assert own.answer(request(run="more", training={"rounds": 1})).refused


@settings(max_examples=8)
@given(
    epsilon=st.floats(0.5, 4.0), rounds=st.integers(1, 20), runs=st.sampled_from(["one", "many"])
)
def test_a_request_raises_the_noise_and_never_lowers_it(tmp_path_factory, epsilon, rounds, runs):
    folder = tmp_path_factory.mktemp("site")
    budget = {"budget": {"runs": runs}, "releases": {"mechanisms": ["gaussian"]}}
    planned = noise_of(
        Gate(policy(folder, 0, **budget)).answer(request(training={"rounds": rounds}))
    )
    asked = with_privacy(request(client=1, training={"rounds": rounds}), epsilon=epsilon)
    answer = Gate(policy(folder, 1, **budget)).answer(asked)
    # What the server asks for, by an accountant of somebody else.
    least = cost(planned, rounds, PLDAccountant() if runs == "one" else RdpAccountant())
    if answer.refused:
        assert "leave it out, and the site plans its own noise" in answer.refused
        assert epsilon > 0.97 * least
    else:
        assert noise_of(answer) >= planned * (1 - 1e-6)
        assert cost(noise_of(answer), rounds, PLDAccountant()) <= epsilon * (1 + 1e-3)


def test_the_best_noise_of_the_policy_is_taken(tmp_path):
    def kind(site, mechanisms):
        own = gate(tmp_path, site, releases={"mechanisms": mechanisms})
        (text,) = message_of(own.answer(request(client=site))).events
        return text

    assert '"laplace"' in kind(0, ["laplace"])
    assert '"gaussian"' in kind(1, ["laplace", "gaussian"])
    own = gate(tmp_path, 2, releases={"mechanisms": ["laplace", "gaussian"]})
    asked = with_privacy(request(client=2), mechanism="laplace")
    (text,) = message_of(own.answer(asked)).events
    assert '"laplace"' in text


def test_steps_and_counts_are_releases(tmp_path):
    own = gate(tmp_path, releases={"per_round": 2, "in_all": 8})
    message_of(own.answer(request(training={"local_steps": 2})))
    assert own.ledger.history is not None
    assert sum(entry.count for entry in own.ledger.history()) == 2
    own = gate(tmp_path, 1, releases={"per_round": 1})
    adaptive = {"privacy": {"clip_quantile": 0.5}}
    assert "2 releases" in own.answer(request(client=1, **adaptive)).refused
    own = gate(tmp_path, 2, releases={"per_round": 2, "in_all": 8})
    message_of(own.answer(request(client=2, **adaptive)))
    assert sum(entry.count for entry in own.ledger.history()) == 2


@pytest.mark.parametrize("pace", ["increasing", "decaying"])
def test_a_pace_is_held_to_all_that_the_policy_leaves(tmp_path, pace):
    own = gate(tmp_path, releases={"in_all": 4, "paces": True})
    message_of(own.answer(request(privacy={"pace": pace})))
    own = gate(tmp_path, 1, releases={"in_all": 20, "paces": True})
    assert "budget has left" in own.answer(request(client=1, privacy={"pace": pace})).refused
    asked = with_privacy(request(client=1, privacy={"pace": pace}), epsilon=0.5)
    message_of(own.answer(asked))


def test_pure_budgets_are_kept(tmp_path):
    own = gate(
        tmp_path,
        budget={"epsilon": 20.0, "delta": 0.0},
        releases={"mechanisms": ["laplace"], "norms": ["l1"], "in_all": 10},
    )
    (text,) = message_of(own.answer(request(privacy={"norm": "l1"}))).events
    (sampled,) = leaves(event_from_json(text))
    # Ten releases of a sampled Laplace mechanism in pure DP: each costs log(1 + q (e^(c/b) - 1)).
    b = sampled.event.mechanism.scale
    each = math.log1p(RATE * math.expm1(1.0 / b))
    assert 10 * each == pytest.approx(20.0, rel=1e-3)
    assert 10 * each <= 20.0 * (1 + 1e-9)


def test_a_budget_that_is_partly_spent_counts_when_noise_is_judged(tmp_path):
    """The ledger would hold this run, but then too little is left for the releases after it."""
    limits = {"in_all": 20, "mechanisms": ["gaussian"]}
    last = with_privacy(request(run="last", training={"rounds": 5}), epsilon=2.5)
    fresh = gate(tmp_path, 1, releases={**limits, "in_all": 10})
    message_of(fresh.answer(replace(last, client=1)))
    own = gate(tmp_path, releases=limits)
    message_of(own.answer(with_privacy(request(training={"rounds": 10}), epsilon=2.5)))
    assert "budget has left" in own.answer(last).refused
    account, event = own.ledger.account_of("client-0"), fresh.ledger.held(1)
    assert not own.ledger.would_exceed(account, event)


def test_cheap_runs_leave_no_release_with_little_noise(tmp_path):
    """A server that asks for much noise in many releases, to have little in the last one."""
    own = gate(tmp_path, releases={"in_all": 20, "mechanisms": ["gaussian"]})
    usual = gate(tmp_path / "usual", releases={"in_all": 20, "mechanisms": ["gaussian"]})
    message_of(usual.answer(request()))
    cheap = with_privacy(request(training={"rounds": 19}), epsilon=0.3)
    for round_ in range(1, 20):
        message_of(own.answer(replace(cheap, round=round_)))
    message_of(own.answer(request(run="last", training={"rounds": 1})))

    def last_std(gate_):
        *_, entry = gate_.ledger.history()
        (sampled,) = leaves(entry.event)
        return sampled.event.mechanism.noise_std

    assert last_std(own) >= (1 - 1e-6) * last_std(usual)
