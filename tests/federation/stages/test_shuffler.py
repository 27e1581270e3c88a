"""The shuffler: what the server can no longer see, what comes of it, and what cannot be done."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import stats

import udpfl
from tests.federation.stages.samples import Seen
from tests.small import PowerCut, Wide, blobs, linear
from udpfl.accounting import PureDP
from udpfl.algorithms import ClientMessage
from udpfl.algorithms.fedavg import FedAvg
from udpfl.engine import Keyed
from udpfl.errors import InvalidInput
from udpfl.federation.stages.shuffler import Shuffler, by_content
from udpfl.ledger.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread")

SIX = list(itertools.permutations(range(3)))


class Spy(FedAvg):
    """Federated averaging that keeps what its server half is given."""

    given: ClassVar[list] = []

    def aggregate(self, server, messages):
        Spy.given.append((dict(server), list(messages)))
        return super().aggregate(server, messages)


def weights(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def messages(count, tag=0):
    return [
        ClientMessage(
            f"client-{i}",
            1,
            {"update": torch.full((5,), float(i + tag)), "extra": torch.tensor([i])},
            (PureDP(1.0 + i),),
            {"declared_size": 10, "site": f"client-{i}"},
        )
        for i in range(count)
    ]


def content(message):
    return tuple(t.cpu().numpy().tobytes() for _, t in sorted(message.tensors.items()))


# What the server sees


def test_neither_the_method_nor_an_observer_ever_sees_a_name(federate):
    Spy.given = []
    training = {
        "algorithm": "tests.federation.stages.test_shuffler:Spy",
        "rounds": 3,
        "evaluate_every": 1,
    }
    result, seen = federate(training=training)
    received = [message for _, own in Spy.given for message in own]
    assert len(received) == len(seen.messages) == 9
    for message in received + seen.messages:
        assert message.client == ""
        assert message.events == ()
        assert message.metadata == {"declared_size": 16}
        assert "client-" not in repr(message)
        assert b"client-" not in message.to_bytes()
        assert set(message.tensors) == {"update"}
    assert "client-" not in json.dumps(seen.rows)
    assert "client-" not in repr([list(server) for server, _ in Spy.given])
    # The clients' side still knows: without that nothing could be charged or resumed.
    assert set(result.clients) == {"client-0", "client-1", "client-2"}
    Spy.given = []
    _, seen = federate(training={**training, "shuffle": False})
    assert {m.client for _, own in Spy.given for m in own} == set(result.clients)


def test_a_message_keeps_its_tensors_and_weight_and_nothing_else():
    given = messages(4)
    mixed = Shuffler("run").receive(1, {}, given)
    assert sorted(map(content, mixed)) == sorted(map(content, given))
    for message in mixed:
        assert message == ClientMessage("", 1, message.tensors, (), {"declared_size": 10})


@pytest.mark.parametrize("turned", [False, True])
def test_every_order_is_equally_likely_whatever_the_order_of_clients(turned):
    shuffler, given = Shuffler("run"), messages(3)
    if turned:
        given = given[::-1]
    orders = Counter(
        tuple(int(m.tensors["extra"]) for m in shuffler.receive(round_, {}, given))
        for round_ in range(3000)
    )
    assert stats.chisquare([orders[order] for order in SIX]).pvalue > 1e-6


def test_nobody_can_compute_the_order():
    """Not from the round, and not from a generator that somebody has seeded."""
    states, given, orders = (random.getstate(), np.random.get_state()), messages(20), []
    with torch.random.fork_rng(devices=[]):
        for _ in range(3):
            random.seed(7)
            np.random.seed(7)
            torch.manual_seed(7)
            mixed = Shuffler("run").receive(1, {}, given)
            orders.append(tuple(int(m.tensors["extra"]) for m in mixed))
    random.setstate(states[0])
    np.random.set_state(states[1])
    assert len(set(orders)) == 3
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_every_order_is_equally_likely_in_a_run(federate):
    rounds = 150
    result, seen = federate(
        {"epsilon": 5.0}, {"rounds": rounds, "checkpoint_every": rounds}, {"declared_sizes": 20}
    )
    run = json.loads((result.folder / "run.json").read_text())["id"]
    with Ledger(result.ledger_path, read_only=True) as ledger:
        sender = {
            content(ClientMessage.from_bytes(ledger.message(run, account.id, round_))): account.id
            for account in ledger.accounts()
            for round_ in range(1, rounds + 1)
        }
    senders = [sender[content(message)] - 1 for message in seen.messages]
    assert [m.round for m in seen.messages] == [1 + i // 3 for i in range(3 * rounds)]
    orders = Counter(tuple(senders[3 * i : 3 * i + 3]) for i in range(rounds))
    assert stats.chisquare([orders[order] for order in SIX]).pvalue > 1e-6


def test_a_seeded_shuffle_repeats_and_differs_by_round_and_seed():
    def orders(seed):
        shuffler = Shuffler("seed-0", Keyed(seed))
        return [
            tuple(int(m.tensors["extra"]) for m in shuffler.receive(round_, {}, messages(3)))
            for round_ in range(1200)
        ]

    assert orders(1) == orders(1) != orders(2)
    found = Counter(orders(1))
    assert stats.chisquare([found[order] for order in SIX]).pvalue > 1e-6


def test_order_by_content_knows_no_other_order():
    given = messages(4)
    wanted = [content(m) for m in by_content(given)]
    for order in itertools.permutations(given):
        assert [content(m) for m in by_content(order)] == wanted
    heavier = [replace(m, metadata={"declared_size": 11}) for m in given]
    assert sorted(map(content, by_content(heavier))) == sorted(wanted)


# What comes of it


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {}), ("scaffold", {"local_steps": 2}), ("fedmed", {}),
    ],
)  # fmt: skip
def test_the_model_is_the_one_without_a_shuffler(federate, method, more):
    seeded, sizes = {"randomness": "seeded"}, {"declared_sizes": [30, 10, 20]}
    results, seen = zip(
        *(
            federate(seeded, {"algorithm": method, "shuffle": on, **more}, sizes)
            for on in (True, True, False)
        ),
        strict=True,
    )
    mixed, again, plain = map(weights, results)
    assert torch.equal(mixed, again)
    torch.testing.assert_close(mixed, plain, rtol=1e-5, atol=1e-6)
    sent = [
        Counter((content(m), m.weight) for m in watch.messages if m.round == 1) for watch in seen
    ]
    assert sent[0] == sent[2]  # everyone's weight stays with its own update
    assert sorted(weight for _, weight in sent[0]) == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("method", ["fedavg", "mode-connectivity"])
def test_a_round_that_runs_again_ends_the_same(federate, tmp_path, method):
    training, data = {"algorithm": method, "rounds": 3}, {"clients": 6, "public": 12}
    crashed = Seen(crash_in=2)
    with pytest.raises(PowerCut):
        federate({}, training, data, seen=crashed)
    again = Seen()
    result = udpfl.run(resume=tmp_path / "run-0", data=blobs(), model=linear(), observers=[again])
    assert torch.equal(again.models[2], crashed.models[2])
    first, second = ([m for m in s.messages if m.round == 2] for s in (crashed, again))
    assert sorted(map(content, first)) == sorted(map(content, second))
    assert [row["round"] for row in result.metrics] == [1, 2, 3]
    with Ledger(result.ledger_path, read_only=True) as ledger:
        assert ledger.verify() == []
        assert Counter(entry.round for entry in ledger.history()) == {1: 6, 2: 6, 3: 6}


def test_kept_updates_have_numbers_for_names(federate):
    result, seen = federate(record_updates=[2])
    files = sorted((result.folder / "updates").iterdir())
    assert [f.name for f in files] == [f"round-000002-message-{i}.safetensors" for i in range(3)]
    assert not any(b"client-" in file.read_bytes() for file in files)
    kept = [ClientMessage.from_bytes(file.read_bytes()) for file in files]
    sent = [message for message in seen.messages if message.round == 2]
    assert sorted(map(content, kept)) == sorted(map(content, sent))


# What cannot be done


@pytest.mark.parametrize(
    ("privacy", "training", "data", "parameter", "words"),
    [
        ({"epsilon": [1.0, 2.0]}, {"penalty": 1.0}, {}, "training.shuffle", "largest budget"),
        ({"unit": "client"}, {"algorithm": "dp-fedavg"}, {}, "training.shuffle", "trusted"),
        ({}, {}, {"clients": 1}, "training.shuffle", "more than one message"),
        ({}, {"clients_per_round": 1}, {}, "training.shuffle", "more than one message"),
        ({"accounting": "scalar", "accountant": "pld"}, {}, {}, "privacy.accountant", "lemma"),
        ({}, {"shuffle": "yes"}, {}, "training.shuffle", "true or false"),
    ],
)  # fmt: skip
def test_what_needs_names_is_refused(federate, privacy, training, data, parameter, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        federate(privacy, training, data)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    ("method", "privacy", "sizes", "marks"),
    [
        ("fedavg", {}, [20, 20, 21], {"declared sizes differ"}),
        ("fedavg", {"clip": [1.0, 0.5]}, 20, {"different noise"}),
        ("scaffold", {}, 20, {"remember earlier rounds"}),
        ("fedavg", {}, 20, set()),
    ],
)
def test_what_tells_messages_apart_is_said_once(federate, caplog, method, privacy, sizes, marks):
    with caplog.at_level(logging.WARNING):
        federate(privacy, {"algorithm": method}, {"declared_sizes": sizes})
    for mark in ("declared sizes differ", "different noise", "remember earlier rounds"):
        said = sum(mark in record.getMessage() for record in caplog.records)
        assert said == (mark in marks)


@pytest.mark.parametrize(("method", "linked"), [("scaffold", True), ("fedavg", False)])
def test_clients_that_remember_can_be_linked_from_round_to_round(federate, method, linked):
    """What the warning is about: scaffold sends c+ - c, and c is what it sent before."""
    result, seen = federate(
        {"epsilon": 0.5}, {"algorithm": method, "checkpoint_every": 2}, {"declared_sizes": 20},
        net=Wide(),
    )  # fmt: skip
    run = json.loads((result.folder / "run.json").read_text())["id"]
    with Ledger(result.ledger_path, read_only=True) as ledger:
        sender = {
            content(ClientMessage.from_bytes(ledger.message(run, account.id, round_))): account.id
            for account in ledger.accounts()
            for round_ in (1, 2)
        }
    first, second = ([m for m in seen.messages if m.round == r] for r in (1, 2))
    for message in second:
        likeness = {
            sender[content(old)]: float(
                np.corrcoef(old.tensors["update"], message.tensors["update"])[0, 1]
            )
            for old in first
        }
        own = likeness.pop(sender[content(message)])
        # With c the mean of three, -2/3 against 1/3 of the noise: correlations -0.52 and 0.26.
        assert (own < min(likeness.values()) - 0.5) == linked


def test_a_lonely_message_is_pointed_out(caplog):
    shuffler = Shuffler("run")
    with caplog.at_level(logging.WARNING):
        for round_ in (3, 4):
            shuffler.receive(round_, {}, messages(1))
    assert [record.getMessage() for record in caplog.records] == [
        "round 3 has a single message: the shuffler cannot hide its sender"
    ]
