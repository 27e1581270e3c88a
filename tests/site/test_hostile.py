"""A server that asks for more than the policy allows: refused, nothing trained, nothing charged."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.site.hostile import BROKEN, WAYS, broken
from tests.site.samples import (
    DIMENSION,
    everything_in,
    gate,
    message_of,
    request,
    with_privacy,
    with_section,
)
from tests.site.samples import settings as settings_of
from udpfl.config import load
from udpfl.federation.local_training import Trainer
from udpfl.federation.selection import draw_schedule

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A site that takes part in a run, with all that its ledger holds."""
    own = gate(tmp_path_factory.mktemp("site"))
    message_of(own.answer(request(run="begun")))
    return own, everything_in(own.ledger)


@settings(max_examples=200)
@given(ways=st.lists(st.sampled_from(WAYS), min_size=1, max_size=4, unique=True), data=st.data())
def test_whatever_breaks_the_policy_is_refused(begun, ways, data):
    own, before = begun
    is_begun = data.draw(st.booleans())
    sent = request(2, run="begun") if is_begun else request(run="new")
    number = data.draw(st.integers(0, 2**32 - 1))
    sent = broken(sent, ways, np.random.default_rng(number))
    trained = Trainer.train
    Trainer.train = lambda *_: pytest.fail("a refused request was trained on")
    try:
        answer = own.answer(sent)
    finally:
        Trainer.train = trained
    assert answer.refused
    assert answer.message == b""
    assert everything_in(own.ledger) == before
    assert not (own._state / "runs" / "new").exists()


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_refused_with_its_reason(begun, way):
    own, before = begun
    for seed in range(3):
        sent = broken(request(run="new"), [way], np.random.default_rng(seed))
        answer = own.answer(sent)
        assert BROKEN[way][1] in answer.refused, answer.refused
        assert answer.is_final
    assert everything_in(own.ledger) == before


def test_the_request_that_is_broken_is_a_good_one(tmp_path):
    own = gate(tmp_path)
    message_of(own.answer(request(run="new")))
    message_of(own.answer(request(2, run="new")))


def test_all_reasons_are_said_at_once(tmp_path):
    sent = with_section(with_privacy(request(), clip=9.0), "training", sampling_rate=1.0)
    said = gate(tmp_path).answer(sent).refused
    assert "privacy.clip: 9" in said
    assert "training.sampling_rate: 1" in said


@pytest.mark.parametrize(
    ("section", "key", "kind"),
    [
        ("model", "name", "models"),
        ("training", "algorithm", "methods"),
        ("privacy", "mechanism", "mechanisms"),
    ],
)
def test_code_that_a_server_names_is_not_imported(tmp_path, monkeypatch, section, key, kind):
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')\nthing = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = gate(tmp_path)
    answer = own.answer(with_section(request(), section, **{key: "planted:thing"}))
    assert answer.refused
    assert "planted" not in sys.modules


def test_methods_that_trust_the_server_need_a_policy_that_does(tmp_path):
    changes = {"training": {"algorithm": "dp-fedavg"}, "privacy": {"unit": "client"}}
    allowed = {"releases": {"units": ["client"]}, "server": {"methods": ["dp-fedavg"]}}
    own = gate(tmp_path, **allowed)
    sent = request(**changes)
    assert "does not trust a server" in own.answer(sent).refused
    own = gate(tmp_path, 1, **{**allowed, "server": {**allowed["server"], "adds_noise": True}})
    answer = own.answer(replace(sent, client=1))
    message_of(answer)
    assert answer.privacy.trusts_server


def test_a_correction_that_changes_the_sensitivity_is_refused(tmp_path, monkeypatch):
    """A method that does not say what it sends without records is charged twice the clip."""
    (tmp_path / "unsaid.py").write_text(UNSAID)
    monkeypatch.syspath_prepend(str(tmp_path))
    allowed = {"releases": {"units": ["client"]}, "server": {"methods": ["unsaid:Unsaid"]}}
    own = gate(tmp_path, **allowed)
    sent = with_section(request(privacy={"unit": "client"}), "training", algorithm="unsaid:Unsaid")
    assert "sensitivity of a release is 2" in own.answer(sent).refused
    own = gate(tmp_path, 1, **{**allowed, "releases": {"units": ["client"], "clip": 2.0}})
    message_of(own.answer(replace(sent, client=1)))


UNSAID = """
from udpfl.algorithms import FedAvg, local_update

class Unsaid(FedAvg):
    name = "unsaid"
    def client_step(self, received, state, train):
        return {"update": local_update(received, train)}, state
"""


def test_noise_of_a_seed_is_for_tests_and_says_so(tmp_path):
    seeded = {"privacy": {"randomness": "seeded"}}
    assert "seed" in gate(tmp_path).answer(request(**seeded)).refused
    own = gate(tmp_path, 1, budget={"runs": "one"}, server={"seeded_noise": True})
    answer = own.answer(request(client=1, **seeded))
    message_of(answer)
    assert answer.privacy.kind == "none"


def test_scalar_accounting_needs_a_policy_that_allows_it(tmp_path):
    scalar = {"privacy": {"accounting": "scalar"}}
    assert "accounting" in gate(tmp_path).answer(request(**scalar)).refused
    allowed = {"budget": {"runs": "one"}, "releases": {"accounting": ["vector", "scalar"]}}
    own = gate(tmp_path, 1, **allowed)
    answer = own.answer(request(client=1, **scalar))
    message_of(answer)
    assert answer.privacy.kind == "nominal"


def test_a_schedule_says_which_rounds_ask_the_site(tmp_path):
    changes = {"training": {"clients_per_round": 2, "rounds": 6}}
    for client in range(3):
        own = gate(tmp_path, client)
        asked = [client in chosen for chosen in draw_schedule(load(settings_of(**changes)))]
        answers = [own.answer(request(n, client, **changes)) for n in range(1, 7)]
        assert [not answer.refused for answer in answers] == asked
        refused = {answer.refused for answer in answers if answer.refused}
        assert all("does not ask this site" in why for why in refused)
        assert own.ledger.head()[0] == sum(asked)


def test_tensors_of_stages_are_for_runs_that_have_them(tmp_path):
    own = gate(tmp_path, releases={"clip": 2.0})
    clip = {"clip": torch.tensor(0.5), "model": torch.zeros(DIMENSION)}
    assert "'clip' is not one of this run" in own.answer(replace(request(), tensors=clip)).refused
    sent = replace(request(run="two", privacy={"clip_quantile": 0.5}), tensors=clip)
    message_of(own.answer(sent))
    for times in (1e9, 2.01, 1e-5):  # a clip above the largest of the policy, or hardly any
        wrong = {**clip, "clip": torch.tensor(times)}
        refused = own.answer(replace(sent, round=2, tensors=wrong)).refused
        assert "times the planned one" in refused
    message_of(own.answer(replace(sent, round=2, tensors={**clip, "clip": torch.tensor(2.0)})))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "staircase"])
def test_no_run_begins_with_a_clip_that_cannot_be_computed(tmp_path, mechanism):
    own = gate(tmp_path, releases={"mechanisms": [mechanism]})
    for clip, times, is_possible in ((5e-7, 1.1e-4, False), (5e-7, 2.1e-4, True), (1.0, 1.0, True)):
        sent = request(
            run=f"run-{is_possible}-{times:g}".replace(".", ""),
            privacy={"clip_quantile": 0.5, "clip": clip},
        )
        asked = replace(sent, tensors={**sent.tensors, "clip": torch.tensor(times)})
        answer = own.answer(asked)
        assert ("times the planned one" in answer.refused) != is_possible
        assert own.ledger.knows(sent.run) == bool(answer.message) == is_possible


def test_a_network_with_more_parameters_than_allowed_is_refused(tmp_path):
    own = gate(tmp_path, server={"parameters": DIMENSION - 1})
    assert "10 parameters are more than the 9 of the policy" in own.answer(request()).refused
    assert list(own.ledger.history()) == []
