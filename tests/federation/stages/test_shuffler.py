"""The shuffler: what the server can no longer see, and that no number became smaller by it."""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq

import udpfl
from tests.small import Wide, blobs, linear
from udpfl.accounting import (
    Composed,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    Sensitivity,
    Shuffled,
)
from udpfl.accounting import account as accounted
from udpfl.accounting.budget import Budget
from udpfl.accounting.shuffling import exact_randomised_response, nominal, unshuffled
from udpfl.algorithms import ClientMessage
from udpfl.algorithms.fedavg import FedAvg
from udpfl.audit.ledger import audit_ledger
from udpfl.audit.one_run import one_run
from udpfl.config import load
from udpfl.data import as_dataset
from udpfl.engine import Keyed
from udpfl.errors import InvalidInput
from udpfl.federation.builders import loss_of
from udpfl.federation.stages.shuffler import Shuffler, by_content
from udpfl.ledger.ledger import Ledger
from udpfl.mechanisms import Gaussian

pytestmark = pytest.mark.usefixtures("one_thread")

SIX = list(itertools.permutations(range(3)))


class Stop(Exception):
    """A crash, as far as the folder can tell."""


class Seen:
    """Keeps everything an observer is shown; crashes when the model of a round is shown."""

    def __init__(self, crash_in=None):
        self.messages, self.models, self.rows, self.crash_in = [], {}, [], crash_in

    def on_message(self, message):
        self.messages.append(message)

    def on_model(self, round_, model):
        self.models[round_] = torch.cat([tensor.flatten() for tensor in model.values()])
        if round_ == self.crash_in:
            raise Stop

    def on_round(self, row):
        self.rows.append(row)


class Spy(FedAvg):
    """Federated averaging that keeps what its server half is given."""

    given: ClassVar[list] = []

    def aggregate(self, server, messages):
        Spy.given.append((dict(server), list(messages)))
        return super().aggregate(server, messages)


@pytest.fixture
def federate(tmp_path):
    numbers = itertools.count()

    def start(privacy=None, training=None, data=None, *, seen=None, net=None, **more):
        if privacy != "none":
            privacy = {"mechanism": "gaussian", "delta": 1e-3, **(privacy or {})}
        settings = {
            "out": str(tmp_path / f"run-{next(numbers)}"),
            "privacy": privacy,
            "training": {
                "rounds": 2, "learning_rate": 0.1, "averaging": 0.0, "shuffle": True,
                "evaluate_every": 1000, **(training or {}),
            },
            "data": {"clients": 3, **(data or {})},
            **more,
        }  # fmt: skip
        seen = seen or Seen()
        result = udpfl.run(settings, data=blobs(), model=net or linear(), observers=[seen])
        return result, seen

    return start


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
    training = {"algorithm": "tests.federation.test_shuffler:Spy", "rounds": 3, "evaluate_every": 1}
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
    with pytest.raises(Stop):
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
        ({"unit": "client"}, {"algorithm": "dp-fedavg"}, {}, "training.shuffle", "trusts"),
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
        "round 3 has a single message: no shuffler can hide its sender"
    ]


# What it costs: a guarantee


def test_a_guarantee_is_what_it_is_without_a_shuffler(federate, caplog):
    with caplog.at_level(logging.WARNING):
        mixed, _ = federate({"epsilon": 2.0})
    plain, _ = federate({"epsilon": 2.0}, {"shuffle": False})
    for name, statement in mixed.clients.items():
        other = plain.clients[name]
        assert statement.kind == "guarantee"
        assert (statement.epsilon, statement.accountant) == (other.epsilon, other.accountant)
        (note,) = set(statement.notes) - set(other.notes)
        assert note.startswith("shuffled: no amplification because the messages are not pure-LDP")
        assert sum(note == record.getMessage() for record in caplog.records) == 1
    events = []
    for result, note in ((mixed, "shuffled"), (plain, "")):
        with Ledger(result.ledger_path, read_only=True) as ledger:
            entries = list(ledger.history())
            assert {entry.note for entry in entries} == {note}
            assert ledger.verify() == []
        events.append([(e.client, e.round, e.count, e.event_json) for e in entries])
        found = audit_ledger(result.folder)
        assert found.sound
        assert not found.remarks
    assert events[0] == events[1]


def test_an_audit_of_a_guarantee_looks_at_messages_with_names():
    """It holds against whoever can tell senders, so that is whom it has to withstand."""
    config = load(
        {
            "data": {"clients": 2, "declared_sizes": 24, "name": "own"},
            "privacy": {"mechanism": "gaussian", "delta": 1e-3},
            "training": {"rounds": 1, "shuffle": True},
        }
    )
    data = as_dataset(blobs())
    parts = list(np.array_split(np.arange(len(data.train)), 2))
    found = one_run(config, data, parts, 0, linear(), loss_of(data.task), 10)
    assert found.server is not None
    assert np.all(found.server != 0)


def test_without_a_claim_there_is_nothing_to_amplify(federate):
    for privacy in ("none", {"randomness": "seeded"}):
        result, seen = federate(privacy)
        assert result.privacy.kind == "none"
        assert not any("shuffled" in note for note in result.privacy.notes)
        assert {message.client for message in seen.messages} == {""}


def test_a_shuffle_that_does_nothing_keeps_no_accountant_away():
    message = PoissonSampled(0.3, Release(Gaussian(2.0), Sensitivity(1.0, "l2", 10)))
    mixed, plain = (Repeated(event, 20) for event in (Shuffled(message, 10), message))
    for how in ("rdp", "pld", "best"):
        assert accounted(mixed, 1e-5, how).epsilon == accounted(plain, 1e-5, how).epsilon
    assert unshuffled(mixed) == plain == unshuffled(plain)
    assert unshuffled(Composed([mixed, message])) == Composed([plain, message])


# What it costs: the paper's number


def responses(order, epsilon, clients):
    """The divergence of shuffled randomised responses, from the binomial's terms."""
    truth, lie = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    others = [
        math.comb(clients - 1, k) * lie**k * truth ** (clients - 1 - k) for k in range(clients)
    ]
    with_one, with_none = [0.0, *others], [*others, 0.0]
    p = [truth * a + lie * b for a, b in zip(with_one, with_none, strict=True)]
    q = [lie * a + truth * b for a, b in zip(with_one, with_none, strict=True)]
    return max(
        math.log(sum(x * (x / y) ** (order - 1) for x, y in zip(*pair, strict=True))) / (order - 1)
        for pair in ((p, q), (q, p))
    )


def lemma(std, releases, clients, delta):
    """Nominal epsilon of whole Gaussian releases, shuffled each, one coordinate at a time."""
    best = math.inf
    for order in np.arange(1.05, 40, 0.05):
        gamma = order / (2 * std**2)
        pairs = order * (order - 1) / 2
        upper = math.log1p(pairs * 4 * math.expm1(gamma) ** 2 / clients) / (order - 1)
        own = min(gamma, upper) if upper >= responses(order, gamma, clients) else gamma
        more = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        best = min(best, releases * own + more)
    return best


def gaussian_epsilon(ratio, delta):
    """Exact: Balle and Wang 2018, Theorem 8."""

    def excess(epsilon):
        a, b = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
        return stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b) - delta

    return brentq(excess, 0, 100)


def test_a_nominal_run_uses_the_lemma_and_says_what_holds(federate):
    training, ten = {"sampling_rate": 1.0, "rounds": 4}, {"clients": 10}
    privacy = {"epsilon": 2.0, "accounting": "scalar"}
    mixed, _ = federate(privacy, training, ten)
    plain, _ = federate(privacy, {**training, "shuffle": False}, ten)
    people = [json.loads((r.folder / "participants.json").read_text()) for r in (mixed, plain)]
    stds = [own[0]["release"]["mechanism"]["parameters"]["std"] for own in people]
    assert stds[0] < 0.95 * stds[1]  # the amplification is used when noise is planned
    statement = mixed.clients["client-0"]
    assert statement.kind == "nominal"
    assert statement.epsilon == pytest.approx(lemma(stds[0], 4, 10, 1e-3), rel=2e-3)
    assert 1.95 < statement.epsilon <= 2.0
    exact = gaussian_epsilon(2 / stds[0], 1e-3)  # four releases are one of half the noise
    assert exact <= statement.vector_epsilon * (1 + 1e-9) <= exact * 1.01
    assert statement.vector_epsilon > 2.1
    assert any(
        "the paper's lemma, whose conditions do not hold" in note for note in statement.notes
    )
    assert not any("shuffled" in note for note in plain.clients["client-0"].notes)
    with Ledger(mixed.ledger_path, read_only=True) as ledger:
        assert {(e.note, e.event.clients) for e in ledger.history()} == {("shuffled", 10)}
        # Whoever asks the ledger for what holds is told so.
        (asked,) = {ledger.statement(a.id, 1e-3) for a in ledger.accounts()}
    assert (asked.kind, asked.epsilon) == ("guarantee", statement.vector_epsilon)
    assert audit_ledger(mixed.folder).sound


def test_messages_of_several_releases_are_not_amplified(federate):
    mixed, _ = federate({"accounting": "scalar"}, {"local_steps": 2})
    plain, _ = federate({"accounting": "scalar"}, {"local_steps": 2, "shuffle": False})
    assert mixed.privacy.epsilon == plain.privacy.epsilon
    assert any("holds 2 releases" in note for note in mixed.privacy.notes)
    with Ledger(mixed.ledger_path, read_only=True) as ledger:
        assert not any(isinstance(entry.event, Shuffled) for entry in ledger.history())


@pytest.mark.parametrize("late", [False, True])
def test_only_messages_that_were_mixed_count(federate, monkeypatch, tmp_path, late):
    class Lowers(Seen):
        """Sets a budget that is too small once the run has begun."""

        def on_start(self, config, folder):
            with Ledger(config.privacy.ledger) as ledger:
                (first,) = ledger.find("client-0")
                ledger.set_budget(first.id, Budget(1e-3, 1e-3))

    shared = {"accounting": "scalar", "ledger": str(tmp_path / "shared.sqlite")}
    if late:  # the budget is seen to be too small only when the charge is made
        monkeypatch.setattr(Ledger, "refusals", lambda *_: {})
    result, seen = federate(shared, {"rounds": 1}, seen=Lowers())
    assert len(seen.messages) == 2
    with Ledger(result.ledger_path, read_only=True) as ledger:
        new = list(ledger.history())
        assert {entry.client for entry in new} == {"client-1", "client-2"}
        for entry in new:
            mixed = entry.event
            assert not isinstance(mixed, Shuffled) if late else mixed.clients == 2
        assert ledger.verify() == []


def test_clients_that_are_left_out_are_not_counted_among_the_mixed(federate, tmp_path):
    """What the others reserve is what they are charged, so it fits a budget with no room beside."""
    path = tmp_path / "shared.sqlite"
    shared = {"accounting": "scalar", "ledger": str(path), "exhausted": "skip"}
    federate(shared)
    with Ledger(path) as ledger:
        for own in ledger.accounts():
            twice = Repeated(ledger.spent(own.id), 2)
            enough = ledger.filter(own.id).epsilon(twice, 1e-3) * 1.01
            ledger.set_budget(own.id, Budget(enough if own.id > 1 else enough / 4, 1e-3))
        before = len(list(ledger.history()))
    result, _ = federate(shared)
    assert [row["participants"] for row in result.metrics] == [2, 2]
    with Ledger(path, read_only=True) as ledger:
        new = list(ledger.history())[before:]
    assert {entry.client for entry in new} == {"client-1", "client-2"}
    assert {entry.event.clients for entry in new} == {2}


def test_randomised_response_is_exact_for_large_epsilon():
    orders = np.asarray([1.5, 2.0, 30.0])
    for epsilon in (0.5, 30.0, 45.0, 200.0):
        found = exact_randomised_response(orders, epsilon, 1)
        a, lie = orders, -epsilon - math.log1p(math.exp(-epsilon))
        truth = lie + epsilon
        wanted = np.logaddexp(a * truth + (1 - a) * lie, a * lie + (1 - a) * truth) / (a - 1)
        assert found == pytest.approx(wanted, rel=1e-9)
    for gamma in (600.0, 1e5, math.inf):
        assert nominal(orders, np.full(3, gamma), 10) == pytest.approx(gamma)
