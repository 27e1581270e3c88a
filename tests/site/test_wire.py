"""Requests, answers and facts as they travel: what comes back is what was sent, or an error."""

from __future__ import annotations

import json
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.site.samples import proposed, request
from udpfl import InvalidInput, PrivacyStatement
from udpfl.config import load
from udpfl.ledger.chain import Head
from udpfl.site import Proposal, SiteAnswer, SiteFacts, SiteRequest, settings_to_propose

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_a_request_comes_back():
    sent = SiteRequest(
        "run_1", {"seed": 3}, 4, {"model": torch.arange(3.0)}, 0.5, 7, 2, 3, 5, Head(9, "ab" * 32)
    )
    found = SiteRequest.read(sent.body(), json.loads(json.dumps(sent.address())))
    assert torch.equal(found.tensors["model"], sent.tensors["model"])
    for name in ("run", "settings", "round", "learning_rate", "cohort", "settled", "steps",
                 "client", "head"):  # fmt: skip
        assert getattr(found, name) == getattr(sent, name)


def test_the_body_is_the_same_for_all_sites():
    assert request(client=0).body() == request(client=2).body()


@given(field=st.sampled_from(["client", "head", "other"]), value=plain)
def test_an_address_is_never_believed(field, value):
    address = {**request().address(), field: value}
    try:
        found = SiteRequest.read(request().body(), address)
    except InvalidInput:
        return
    assert isinstance(found.client, int)
    assert found.client >= 0
    assert isinstance(found.head, Head)


@given(value=plain)
def test_answers_and_facts_are_never_believed(value):
    for table in (value, {"site": value}, {"site": "a", "head": value, "privacy": value}):
        for read in (lambda own: SiteAnswer.read(b"", own), SiteFacts.read):
            try:
                found = read(table)
            except InvalidInput:
                continue
            assert isinstance(found.site, str)
            assert isinstance(found.head, Head)


def test_an_answer_comes_back():
    stated = PrivacyStatement(2.0, 1e-5, "guarantee", "rdp", vector_epsilon=2.0)
    sent = SiteAnswer("a", b"bytes", True, head=Head(3, "0f" * 32), privacy=stated)
    assert SiteAnswer.read(b"bytes", json.loads(json.dumps(sent.to_dict()))) == sent


def test_a_refusal_is_one_line_whatever_a_site_says():
    about = SiteAnswer("a", refused="no\nround 7: all answered" + "x" * 9_000).to_dict()
    refused = SiteAnswer.read(b"", about).refused
    assert refused.startswith("no round 7: all answered")
    assert len(refused) <= 2_000


def test_what_a_configuration_does_not_say_is_left_to_the_sites():
    said = proposed(privacy={"epsilon": 2.0, "mechanism": "laplace"})["privacy"]
    assert (said["epsilon"], said["mechanism"]) == (2.0, "laplace")
    assert "delta" not in said
    assert "epsilon" not in proposed()["privacy"]
    read = Proposal.read(proposed(privacy={"epsilon": [1.0, 2.0, 4.0]}, training={"penalty": 1.0}))
    assert [read.own("epsilon", n) for n in range(3)] == [1.0, 2.0, 4.0]
    assert [read.penalty(n) for n in range(3)] == [0.75, 0.5, 0.0]
    with pytest.raises(InvalidInput, match="private runs only"):
        settings_to_propose(load({"privacy": "none"}))


def test_settings_come_back_as_the_same_configuration():
    for changes in (
        {},
        {"training": {"local_epochs": 2, "batches": 3}},
        {"privacy": {"clip_quantile": 0.5, "pace": "decaying"}},
        {"privacy": {"pace": "plateau"}},
    ):
        found = Proposal.read(json.loads(json.dumps(proposed_or_plateau(changes)))).config
        assert found.training.steps == load(with_ledger(changes)).training.steps
        assert found.privacy.pace == load(with_ledger(changes)).privacy.pace


def with_ledger(changes):
    from tests.site.samples import settings

    values = settings(**changes)
    if changes.get("privacy", {}).get("pace") == "plateau":
        values["privacy"] = {**values["privacy"], "ledger": "x", "pace_follows": "update"}
    return values


def proposed_or_plateau(changes):
    return settings_to_propose(load(with_ledger(changes)))


def test_a_header_that_would_fill_the_memory_is_not_read():
    text = b'{"__metadata__":{},"x":[' + b"{}," * (1 << 22) + b"{}]}"
    body = len(text).to_bytes(8, "little") + text
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="its header has"):
            SiteRequest.read(body, {"client": 0})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
