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

from tests.site.samples import DIMENSION, gate, message_of, policy, request, with_privacy
from tests.site.samples import settings as of_a_server
from udpfl import Gaussian, PoissonSampled, Release, Sensitivity
from udpfl.accounting.events import leaves
from udpfl.accounting.serial import event_from_json
from udpfl.config import load as load_config
from udpfl.federation.selection import draw_schedule
from udpfl.site import Gate

pytestmark = pytest.mark.usefixtures("one_thread")
EPSILON, DELTA, RATE = 4.0, 1e-5, 0.5


def noise_of(answer):
    """The standard deviation that a message was charged for, over its clip."""
    (text,) = message_of(answer).events
    (sampled,) = leaves(event_from_json(text))
    release = sampled.event
    return release.mechanism.noise_std / release.sensitivity.bound


def releases_in(own, run):
    """All releases that a run was charged for."""
    return [
        leaf.event
        for entry in own.ledger.history()
        if entry.run == run
        for leaf in leaves(entry.event)
    ]


def relative_stds(own, run):
    """Of the first round of a run: the noise over the sensitivity, of what it sends and counts."""
    found = [own.mechanism.noise_std / own.sensitivity.bound for own in releases_in(own, run)]
    return found[:2]


def after_cheap_runs(folder, rounds, **changes):
    """A site of which a server has asked for much noise in many releases."""
    own = gate(folder, **changes)
    cheap = with_privacy(request(run="cheap", training={"rounds": rounds}), epsilon=0.3)
    for round_ in range(1, rounds + 1):
        message_of(own.answer(replace(cheap, round=round_)))
    return own


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
    assert "a round has 2 releases" in own.answer(request(client=1, **adaptive)).refused
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
    last = with_privacy(request(run="last", training={"rounds": 5}), epsilon=2.1)
    fresh = gate(tmp_path, 1, releases=limits)
    message_of(fresh.answer(replace(last, client=1)))
    own = gate(tmp_path, releases=limits)
    message_of(own.answer(with_privacy(request(training={"rounds": 1}), epsilon=0.5)))
    account, event = own.ledger.account_of("client-0"), fresh.ledger.held(1)
    elsewhere = Release(Gaussian(1.2), Sensitivity(1.0, dimension=DIMENSION), "record")
    own.ledger.import_charge(account, PoissonSampled(0.5, elsewhere), source="elsewhere")
    assert "budget has left" in own.answer(last).refused
    assert not own.ledger.would_exceed(account, event)


def test_cheap_runs_leave_no_release_with_little_noise(tmp_path):
    """A server that asks for much noise in many releases, to have little in the last one."""
    limits = {"in_all": 20, "mechanisms": ["gaussian"]}
    usual = gate(tmp_path / "usual", releases=limits)
    message_of(usual.answer(request()))
    own = after_cheap_runs(tmp_path, 19, releases=limits)
    message_of(own.answer(request(run="last", training={"rounds": 1})))
    (least,), (last,) = relative_stds(usual, "run-1"), relative_stds(own, "last")
    assert last >= (1 - 1e-6) * least
    own = after_cheap_runs(tmp_path / "asked", 19, releases=limits)
    asked = with_privacy(request(run="last", training={"rounds": 1}), epsilon=2.0)
    assert "gives a first run" in own.answer(asked).refused


@pytest.mark.parametrize("paces", ["increasing", "decaying", "plateau"])
def test_a_pace_of_one_round_has_no_less_noise(tmp_path, paces):
    limits = {"in_all": 20, "mechanisms": ["gaussian"], "paces": True}
    usual = gate(tmp_path / "usual", releases=limits)
    message_of(usual.answer(request()))
    own = after_cheap_runs(tmp_path, 19, releases=limits)
    last = with_privacy(request(run="last", training={"rounds": 1}), pace=paces)
    assert "gives a first run" in own.answer(with_privacy(last, epsilon=3.6)).refused
    answer = own.answer(last)
    if paces == "plateau":  # its noise follows results: the server has to say how much it wants
        assert "budget has left" in answer.refused
    else:
        assert relative_stds(own, "last")[0] >= (1 - 1e-6) * relative_stds(usual, "run-1")[0]


def test_a_pace_that_is_the_same_whenever_this_site_is_asked_is_none(tmp_path):
    limits = {"in_all": 20, "mechanisms": ["gaussian"], "paces": True}
    usual = gate(tmp_path / "usual", releases=limits)
    message_of(usual.answer(request()))
    own, changes = gate(tmp_path, releases=limits), {"privacy": {"pace": "increasing"}}
    chosen = {"training": {"rounds": 3, "clients_per_round": 1}}
    schedule = draw_schedule(load_config(of_a_server(seed=3, **chosen)))
    asked = [number for number, clients in enumerate(schedule, 1) if clients == (0,)]
    assert len(asked) == 1
    sent = request(asked[0], seed=3, **changes, **chosen)
    answer = own.answer(sent)
    message_of(answer)
    assert relative_stds(own, "run-1") == pytest.approx(relative_stds(usual, "run-1"), rel=1e-6)
    assert gate(tmp_path, releases=limits).answer(sent).message == answer.message


@pytest.mark.parametrize(
    ("algorithm", "noise", "epsilon", "options"),
    [("nbafl", "gaussian", 0.05, {}), ("cldp-sgd", "directions", 2.0, {"answers": 1})],
)
def test_cheap_runs_leave_no_release_to_methods_with_noise_of_their_own(
    tmp_path, algorithm, noise, epsilon, options
):
    changes = {
        "releases": {"in_all": 20, "mechanisms": [noise], "units": ["client"], "clip": 2.0},
        "server": {"methods": [algorithm]},
    }

    def sent(run, rounds, epsilon):
        training = {"algorithm": algorithm, "rounds": rounds, "options": options}
        own = request(run=run, training=training, privacy={"unit": "client"})
        return with_privacy(own, epsilon=epsilon)

    first = gate(tmp_path / "first", **changes)
    assert "budget has left" in first.answer(sent("first", 1, epsilon)).refused
    own, cheap = gate(tmp_path, **changes), sent("cheap", 19, 0.01)
    for round_ in range(1, 20):
        message_of(own.answer(replace(cheap, round=round_)))
    assert "gives a first run" in own.answer(sent("last", 1, epsilon)).refused
    message_of(own.answer(sent("last", 1, 0.01)))


ADAPTIVE = {"clip_quantile": 0.5, "clip_share": 0.5}


@pytest.mark.parametrize("mechanisms", [["gaussian"], ["laplace", "gaussian"], ["staircase"]])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_counts_have_noise_of_the_policy(tmp_path, mechanisms, share):
    own = gate(tmp_path, releases={"in_all": 8, "mechanisms": mechanisms})
    message_of(own.answer(request(privacy={**ADAPTIVE, "clip_share": share})))
    found = releases_in(own, "run-1")
    assert len(found) == 2
    assert {release.mechanism.name for release in found} <= set(mechanisms)


@pytest.mark.parametrize(
    "asked", [{}, {"epsilon": 0.4}, {"harmonize": "match", "reference": 3.0}], ids=str
)
def test_cheap_runs_leave_no_count_with_little_noise(tmp_path, asked):
    limits = {"in_all": 20, "mechanisms": ["gaussian"]}
    usual = gate(tmp_path / "usual", releases=limits)
    message_of(usual.answer(request(privacy=ADAPTIVE)))
    own = after_cheap_runs(tmp_path, 18, releases=limits)
    if "reference" in asked:
        asked = {**asked, "mechanism": "gaussian"}
    last = request(run="last", privacy=ADAPTIVE, training={"rounds": 1})
    message_of(own.answer(with_privacy(last, **asked)))
    for late, first in zip(relative_stds(own, "last"), relative_stds(usual, "run-1"), strict=True):
        assert late >= (1 - 1e-3) * first


def test_counts_are_held_to_the_policy_when_a_run_goes_on(tmp_path):
    mechanisms = {"in_all": 4, "mechanisms": ["gaussian", "staircase"]}
    own = gate(tmp_path, releases=mechanisms)
    sent = request(privacy={**ADAPTIVE, "clip_share": 0.1}, training={"rounds": 2})
    message_of(own.answer(sent))
    assert [own.mechanism.name for own in releases_in(own, "run-1")] == ["gaussian", "staircase"]
    own.close()
    for changes, why in (
        ({"mechanisms": ["gaussian"]}, "staircase noise on its counts"),
        ({"in_all": 16}, "the counts of the run have less noise"),
    ):
        own = gate(tmp_path, releases={**mechanisms, **changes})
        assert why in own.answer(replace(sent, round=2)).refused
        assert own.ledger.head()[0] == 2
        own.close()
    message_of(gate(tmp_path, releases=mechanisms).answer(replace(sent, round=2)))


@pytest.mark.parametrize("in_all", [11, 19, 20])
def test_a_number_that_no_rounds_make_up_is_rounded_up(tmp_path, in_all):
    """Noise is for all releases of the policy, also where rounds of ten of them are asked for."""
    own = gate(tmp_path, releases={"in_all": in_all, "per_round": 10, "mechanisms": ["gaussian"]})
    message_of(own.answer(request(training={"rounds": 1, "local_steps": 10})))
    (noise,) = relative_stds(own, "run-1")
    assert cost(noise, in_all, RdpAccountant()) <= EPSILON
    asked = request(run="two", training={"rounds": 1, "local_steps": in_all - 10})
    message_of(own.answer(asked))
    assert cost(relative_stds(own, "two")[0], in_all, RdpAccountant()) <= EPSILON


def test_a_first_run_is_added_up_as_its_account_will_be(tmp_path):
    """A server that asks for a small budget does not choose the orders of a larger one."""
    stds = []
    for folder, runs in (("one", ["a"]), ("two", ["first", "a"])):
        own = gate(tmp_path / folder, releases={"mechanisms": ["gaussian"]})
        for run in runs:
            asked = with_privacy(request(run=run, training={"rounds": 2}), epsilon=0.5)
            message_of(own.answer(asked))
        stds += relative_stds(own, "a")
    assert stds[0] == stds[1]
    (account,) = own.ledger.accounts()
    assert own.ledger.statement(account.id).epsilon <= 1.0
