"""RDP-PFL, ALS-DPFL and COFEL-AVG: what each computes, by hand, and what it costs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import udpfl
from tests.algorithms.samples import messages
from tests.small import Seen, blobs, linear
from udpfl.accounting import PoissonSampled, Repeated, account
from udpfl.accounting.events import leaves
from udpfl.algorithms import PublicData, ServerStep, Terms
from udpfl.algorithms.als_dpfl import AlsDpfl
from udpfl.algorithms.cofel_avg import CofelAvg
from udpfl.algorithms.rdp_pfl import RdpPfl
from udpfl.audit import audit_run
from udpfl.config import load
from udpfl.engine import LaneModel
from udpfl.federation import ReleasePlan
from udpfl.ledger.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread", "no_report")


@pytest.fixture
def federate(tmp_path):
    numbers = itertools.count()

    def start(method, privacy=None, training=None, net=None, data=None, **more):
        seen = Seen()
        result = udpfl.run(
            {
                "out": str(tmp_path / f"run-{next(numbers)}"),
                "data": {"clients": 3} if data is None else {"declared_sizes": "partition"},
                "privacy": privacy or {"mechanism": "gaussian", "epsilon": 4.0, "delta": 1e-4},
                "training": {
                    "algorithm": method, "rounds": 3, "learning_rate": 0.5, "averaging": 0.0,
                    "server_momentum": 0.0, **(training or {}),
                },
            },
            data=blobs() if data is None else data,
            test=blobs() if data is None else data[0],
            model=net or linear(),
            observers=[seen],
            **more,
        )  # fmt: skip
        return result, seen

    return start


# RDP-PFL


def line(curvature, minimum, size=8):
    """Records whose loss is curvature (w - minimum)^2 / 2."""
    x = np.full((size, 1), math.sqrt(curvature / 2), np.float32)
    return x, x[:, 0] * np.float32(minimum)


def test_the_outer_stage_takes_the_gradient_where_the_inner_one_ended(federate):
    """One step each: w - alpha a (w - m) is the adapted model, and -beta a (w' - m) the update."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 5.0)
    data = [line(1.0, 3.0), line(2.0, -1.0)]
    _, seen = federate(
        "rdp-pfl", "none",
        {"rounds": 2, "learning_rate": 0.1, "sampling_rate": 1.0, "options": {"inner": 0.4}},
        net, data,
    )  # fmt: skip
    w = 5.0
    for round_ in range(2):
        found = [float(m.tensors["update"]) for m in seen.messages[2 * round_ :][:2]]
        wanted = []
        for a, m in ((1.0, 3.0), (2.0, -1.0)):
            adapted = w - 0.4 * 0.1 * a * (w - m)
            wanted.append(-0.1 * a * (adapted - m))
        assert found == pytest.approx(wanted, rel=1e-4)
        w += sum(wanted) / 2
        assert float(seen.models[round_]) == pytest.approx(w, rel=1e-4)


def test_both_stages_are_paid_for(federate):
    result, _ = federate("rdp-pfl", training={"local_steps": 3})
    with Ledger(result.ledger_path, read_only=True) as ledger:
        for account_ in ledger.accounts():
            entries = list(ledger.history(account_.id))
            assert sum(entry.count for entry in entries) == 3 * 2 * 3
            (event,) = {entry.event for entry in entries}
            spent = account(Repeated(event, 18), 1e-4).epsilon
            assert 3.8 < spent <= 4.0
    assert RdpPfl.trainings == 2


# COFEL-AVG


def layered(keep):
    method = CofelAvg(ServerStep(), keep=keep)
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))  # layers of 4, 2, 2 and 1 weights
    method.prepare(PublicData(LaneModel(net, lambda o, t: o), torch.zeros(0, 2), torch.zeros(0), 0))
    return method


class Moved:
    """A training that leads to updates that were chosen."""

    def __init__(self, updates):
        self.updates = torch.tensor(updates)
        self.clients = tuple(f"c{i}" for i in range(len(updates)))

    def __call__(self, start, correct=None, state=None):
        return start + self.updates


def test_the_layers_that_changed_most_are_sent():
    """By root mean square: in the first row the layers are worth 1, 2, 0.5 and 3."""
    rows = [[1.0] * 4 + [2.0, -2.0] + [0.5] * 2 + [3.0], [0.3] * 4 + [0.0] * 2 + [0.2] * 2 + [0.1]]
    sent, _ = layered(0.5).client_step({"model": torch.zeros(9)}, {}, Moved(rows))
    assert sent["sent"].tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]
    assert sent["update"][0].tolist() == [0] * 4 + [2, -2] + [0] * 2 + [3]
    assert sent["update"][1].tolist() == pytest.approx([0.3] * 4 + [0] * 2 + [0.2] * 2 + [0])
    one, _ = layered(0.1).client_step({"model": torch.zeros(9)}, {}, Moved(rows))
    assert one["sent"].sum(1).tolist() == [1, 1]  # at least one


def test_a_layer_is_averaged_over_those_who_sent_it():
    own = messages([[1.0] * 4 + [0.0] * 5, [4.0] * 6 + [0.0] * 3], [3, 1])
    own[0].tensors["sent"] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    own[1].tensors["sent"] = torch.tensor([1.0, 1.0, 0.0, 0.0])
    moved = layered(0.5).aggregate({"model": torch.zeros(9)}, own)["model"]
    wanted = [(3 * 1 + 1 * 4) / 4] * 4 + [4.0] * 2 + [0.0] * 3
    assert moved.tolist() == pytest.approx(wanted)


def test_all_layers_are_fedavg(federate):
    seeded = {"mechanism": "laplace", "randomness": "seeded", "epsilon": 4.0}
    all_, _ = federate("cofel-avg", seeded, {"options": {"keep": 1.0}})
    plain, _ = federate("fedavg", seeded)
    for one, other in zip(all_.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_layers_are_chosen_by_what_has_noise(federate):
    """A training that is the same but for its noise sends other layers."""
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    _, seen = federate("cofel-avg", {"mechanism": "laplace", "epsilon": 0.5},
                       {"rounds": 8, "learning_rate": 1e-3}, net)  # fmt: skip
    chosen = {tuple(m.tensors["sent"].tolist()) for m in seen.messages}
    assert len(chosen) > 2
    for message in seen.messages:
        parts = message.tensors["update"].split([24, 6, 12, 2])
        for part, is_sent in zip(parts, message.tensors["sent"], strict=True):
            assert bool(part.any()) == bool(is_sent)


# ALS-DPFL


class Early(AlsDpfl):
    """Takes as many steps as it may, as early as it may."""

    def _wanted(self, server, gradient, apart, rate):
        return self.most


class Greedy(AlsDpfl):
    """Asks for five steps in every round, whatever is left."""

    def steps(self, server):
        return 5


EARLY = f"{__name__}:Early"


def sharing(rounds, steps, most=20, rate=0.5):
    method = AlsDpfl(ServerStep(), most=most)
    method.agree(Terms(3, 3, rounds, steps, lambda _: rate))
    return method


@given(
    rounds=st.integers(1, 12), steps=st.integers(1, 9), more=st.integers(0, 12),
    seed=st.integers(0, 2**31), size=st.sampled_from([0.0, 1e-20, 1e-3, 1.0, 1e9]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_whatever_is_estimated_the_total_is_the_planned_one(rounds, steps, more, seed, size):
    method, rng = sharing(rounds, steps, steps + more), np.random.default_rng(seed)
    server, taken = method.init(torch.zeros(4)), []
    for round_ in range(1, rounds + 1):
        taken.append(method.steps(server))
        updates = (size * rng.normal(size=(3, 4))).astype(np.float32).tolist()
        server = method.aggregate(server, messages(updates, [1, 2, 3], round_))
    assert sum(taken) == rounds * steps
    assert min(taken) >= 1
    assert max(taken) <= steps + more
    assert taken[0] == steps
    assert int(server["left"]) == 0


def test_the_formula_is_the_authors():
    """Three clients of equal size, by hand, from the second round on."""
    method, rate, rounds, steps = sharing(50, 4, most=1000), 0.5, 50, 4
    rng = np.random.default_rng(1)
    first, second = (rng.normal(size=(3, 6)).astype(np.float32) * 0.1 for _ in range(2))
    server = method.aggregate(method.init(torch.zeros(6)), messages(first.tolist(), [5] * 3, 1))
    assert method.steps(server) == 4  # no earlier round to compare with
    after = method.aggregate(server, messages(second.tolist(), [5] * 3, 2))
    g1, g2 = (-own.mean(0) / (rate * steps) for own in (first, second))
    c2 = (g2**2).sum()
    noise = ((second - second.mean(0)) ** 2).sum() / 2 / (rate**2 * steps)
    mu = np.linalg.norm(g2 - g1) / np.linalg.norm(first.mean(0))
    gamma = abs(g2 @ second.mean(0))
    total = min(rounds * steps, rounds * steps)
    upper = 4 / mu**2 + 3 * c2 + 2 * gamma * total * mu + noise
    wanted = math.sqrt(1 + upper / ((2 + 2 / total) * (c2 + noise)))
    assert wanted > 4.6
    assert method.steps(after) == round(wanted)


def test_steps_are_charged_round_by_round_and_come_to_the_plan(federate):
    result, _ = federate(EARLY, training={"rounds": 5, "local_steps": 3})
    taken = [row["local_steps"] for row in result.metrics]
    assert taken == [3, 9, 1, 1, 1]
    with Ledger(result.ledger_path, read_only=True) as ledger:
        for account_ in ledger.accounts():
            entries = list(ledger.history(account_.id))
            charged = {entry.round: entry.count for entry in entries}
            assert [charged[round_] for round_ in range(1, 6)] == taken
            (event,) = {entry.event for entry in entries}
            assert isinstance(event, PoissonSampled)
    assert result.privacy.epsilon == pytest.approx(account(Repeated(event, 15), 1e-4).epsilon)
    assert 3.8 < result.privacy.epsilon <= 4.0


def test_a_resumed_run_has_reserved_what_it_needs(federate, tmp_path):
    """After rounds with many steps: what is left is the plan less what was charged."""

    class Cut(udpfl.Observer):
        def on_message(self, message):
            if message.round == 3:
                raise RuntimeError("a power cut")

    own = {"rounds": 4, "local_steps": 3, "options": {"most": 6}}
    ledger = str(tmp_path / "shared.sqlite")
    privacy = {"mechanism": "gaussian", "epsilon": 4.0, "delta": 1e-4, "ledger": ledger}
    shared = {"data": {"clients": 3}, "privacy": privacy, "out": str(tmp_path / "cut"),
              "training": {"algorithm": EARLY, "learning_rate": 0.5, **own}}  # fmt: skip
    with pytest.raises(RuntimeError, match="power cut"):
        udpfl.run(shared, data=blobs(), model=linear(), observers=[Cut()])
    result = udpfl.run(resume=tmp_path / "cut", data=blobs(), model=linear())
    assert [row["local_steps"] for row in result.metrics] == [3, 6, 2, 1]
    with Ledger(ledger, read_only=True) as opened:
        for account_ in opened.accounts():
            assert sum(entry.count for entry in opened.history(account_.id)) == 12
            assert not opened.unfinished(account_.id)


def test_clients_refuse_more_steps_than_were_planned(federate):
    """Whatever the server asks for."""

    result, seen = federate(f"{__name__}:Greedy", training={"rounds": 4, "local_steps": 2})
    assert len(seen.messages) == 3  # of one round: a second one would be ten of eight steps
    with Ledger(result.ledger_path, read_only=True) as ledger:
        assert {sum(e.count for e in ledger.history(a.id)) for a in ledger.accounts()} == {5}
    assert result.privacy.epsilon <= 4.0


def test_what_is_left_of_a_plan_that_shares_steps():
    release = udpfl.Release(udpfl.Gaussian(2.0), udpfl.Sensitivity(1.0))
    plan = ReleasePlan("a", 10, 0.5, rounds=4, steps=3, release=release, shares_steps=True)
    assert sum(leaves(plan.rest_event()).values()) == 12
    assert sum(leaves(plan.rest_event(2, 9)).values()) == 3
    assert ReleasePlan.from_row(plan.to_row()) == plan
    plain = ReleasePlan("a", 10, 0.5, rounds=4, steps=3, release=release)
    assert sum(leaves(plain.rest_event(2, 9)).values()) == 6


def test_one_step_a_round_is_fedavg(federate):
    seeded = {"mechanism": "gaussian", "randomness": "seeded", "epsilon": 4.0}
    own, _ = federate("als-dpfl", seeded)
    plain, _ = federate("fedavg", seeded)
    for one, other in zip(own.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


# Audits


@pytest.mark.parametrize("method", ["rdp-pfl", "als-dpfl", "cofel-avg"])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_an_audit_of_a_run_does_not_refute_it(method, unit):
    config = load(
        {
            "data": {"clients": 2},
            "privacy": {"unit": unit, "delta": 1e-3, "epsilon": 2.0},
            "training": {"algorithm": method, "rounds": 2, "local_steps": 2, "learning_rate": 0.5},
        }
    )
    data = (np.eye(4, dtype=np.float32).repeat(10, 0), np.arange(40) % 2)
    found = audit_run(config, data=data, model=linear(), trials=100, canaries=0, error=1e-6)
    assert found
    assert not any(verdict.refuted for verdict in found)
