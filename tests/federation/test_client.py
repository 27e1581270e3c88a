"""The client half by itself: it keeps its state, answers again for free, and pays for training."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import udpfl
from tests.federation.samples import (
    DIMENSION,
    SEEDED,
    Counting,
    Watch,
    account_of,
    blobs,
    charged,
    network,
    without_gradient,
)
from tests.repository import ROOT
from tests.small import cross_entropy
from udpfl import Budget, Gaussian, PoissonSampled, Release, Repeated, Sensitivity
from udpfl.accounting.serial import event_to_json
from udpfl.algorithms import Algorithm, weighted_mean
from udpfl.engine import Keyed, LaneModel, Limits
from udpfl.federation import InProcessClients, LocalClient, ReleasePlan, Request, Trainer
from udpfl.ledger.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread")

NOISE = Release(Gaussian(2.0), Sensitivity(1.0, "l2", DIMENSION))


def answers_alone(path, round_, clients, start=None):
    """One request to some clients, as a process that has just started would answer it."""
    x, y = blobs(60)
    model = LaneModel(network(), cross_entropy)
    with Ledger(Path(path)) as ledger:
        ledger.begin_run("run", randomness="seeded", accounting="vector", description={})
        sites = [
            LocalClient(
                ReleasePlan(f"site-{i}", 30, 0.5, 4, 2, NOISE),
                ledger.account(f"site-{i}", f"data-{i}"),
                torch.arange(30 * i, 30 * i + 30),
            )
            for i in clients
        ]
        trainer = Trainer(
            "key", model, torch.from_numpy(x), torch.from_numpy(y),
            Counting(udpfl.algorithms.ServerStep()), Keyed(5), Limits(2, 100),
        )  # fmt: skip
        half = InProcessClients(sites, "run", trainer, ledger)
        received = {"model": model.initial() if start is None else start}
        answers = half.answer(Request(round_, received, 0.4), range(len(sites)))
        counts = Counter()
        for entry in ledger.history():
            counts[entry.client] += entry.count
    return answers, counts


def test_a_client_alone_keeps_its_state_and_answers_a_repeated_request_for_free(tmp_path):
    path, sent = tmp_path / "site.sqlite", {}
    for round_ in (1, 2, 3):
        answers, counts = answers_alone(path, round_, [0])
        (message,) = answers.messages
        assert message.tensors["rounds"].tolist() == [round_, 10.0 * round_]
        assert counts == {"site-0": 2 * round_}
        sent[round_] = message.to_bytes()
    for round_ in (3, 1):  # a server that lost the answer, and now even sends another model
        answers, counts = answers_alone(path, round_, [0], start=torch.ones(DIMENSION))
        assert [message.to_bytes() for message in answers.messages] == [sent[round_]]
        assert counts == {"site-0": 6}
    code = (
        "import sys; from tests.federation.test_client import answers_alone\n"
        "answers, counts = answers_alone(sys.argv[1], 4, [0])\n"
        "print(*answers.messages[0].tensors['rounds'].tolist(), counts['site-0'])"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["4.0", "40.0", "8"]


def test_two_lanes_at_once_are_two_clients_one_by_one(tmp_path):
    together, _ = answers_alone(tmp_path / "both.sqlite", 1, [1, 0])
    assert [message.client for message in together.messages] == ["site-1", "site-0"]
    alone = [answers_alone(tmp_path / f"{i}.sqlite", 1, [i])[0].messages[0] for i in (1, 0)]
    for ours, theirs in zip(together.messages, alone, strict=True):
        cost = event_to_json(Repeated(PoissonSampled(0.5, NOISE), 2))
        assert ours.events == theirs.events == (cost,)
        gap = (ours.tensors["update"] - theirs.tensors["update"]).abs().max()
        assert gap <= 1e-5
    first, second = (message.tensors["update"] for message in together.messages)
    assert (first - second).abs().max() > 1e-3


def test_new_and_repeated_answers_mix(tmp_path):
    path = tmp_path / "site.sqlite"
    first, _ = answers_alone(path, 1, [1])
    both, counts = answers_alone(path, 1, [0, 1])
    assert [message.client for message in both.messages] == ["site-0", "site-1"]
    assert both.messages[1].to_bytes() == first.messages[0].to_bytes()
    assert counts == {"site-0": 2, "site-1": 2}


def test_a_client_without_budget_left_does_not_train(tmp_path, monkeypatch):
    path = tmp_path / "site.sqlite"
    answers_alone(path, 1, [0, 1])
    with Ledger(path) as ledger:
        ledger.set_budget(account_of(path, "site-0"), Budget(0.01, 1e-6))
    answers, counts = answers_alone(path, 2, [0, 1])
    assert answers.refused == {"site-0": "the budget does not allow another round"}
    assert [message.client for message in answers.messages] == ["site-1"]
    assert counts == {"site-0": 2, "site-1": 4}
    # Another process spends the last of it after this one has looked.
    monkeypatch.setattr(Ledger, "refusals", lambda *_: {})
    answers, counts = answers_alone(path, 3, [0, 1])
    assert answers.refused.keys() == {"site-0"}
    assert "no update was released" in answers.refused["site-0"]
    assert [message.client for message in answers.messages] == ["site-1"]
    assert counts == {"site-0": 2, "site-1": 6}


class Twice(Algorithm):
    """Trains two times a round and sends both halves of the way."""

    name = "twice"

    def init(self, parameters):
        return self.server.init(parameters)

    def client_step(self, received, state, train):
        start = received["model"].expand(len(train.clients), -1)
        middle = train(start)
        end = train(middle)
        return {"first": middle - start, "second": end - middle}, state

    def aggregate(self, server, messages):
        step = weighted_mean(messages, "first") + weighted_mean(messages, "second")
        return self.server.apply(server, step)


def test_a_method_that_trains_twice_pays_twice_and_gets_fresh_noise(federate):
    watch = Watch()
    result = federate(
        SEEDED,
        {"algorithm": f"{__name__}:Twice", "rounds": 4, "local_steps": 2},
        loss=without_gradient,
        net=nn.Linear(4, 300),
        observers=[watch],
    )
    for message in watch.messages:
        first, second = message.tensors["first"], message.tensors["second"]
        assert torch.corrcoef(torch.stack([first, second]))[0, 1].abs() < 0.15
        assert len(message.events) == 2
    noises = [tensor for message in watch.messages for tensor in message.tensors.values()]
    assert len({tuple(noise.tolist()) for noise in noises}) == 2 * 2 * 3
    for name in ("client-0", "client-1", "client-2"):
        assert [(e.round, e.count) for e in charged(result, name)] == [(1, 4), (2, 4)]


def test_a_method_that_trains_more_than_planned_stops_at_the_budget(federate):
    result = federate(None, {"algorithm": f"{__name__}:Twice", "rounds": 4})
    assert len(result.metrics) == 2
    assert result.stopped.startswith("no client is left to train")
    assert 7.5 < result.privacy.epsilon <= 8.0


class DeclaredTwice(Twice):
    name = "declared-twice"
    trainings = 2


def test_a_method_that_declares_its_trainings_has_noise_for_all_of_them(federate):
    method = {"algorithm": f"{__name__}:DeclaredTwice", "rounds": 4}
    result = federate(None, method)
    assert len(result.metrics) == 4
    assert result.stopped is None
    assert 7.5 < result.privacy.epsilon <= 8.0
