"""Stages: each does its one thing, keeps its state as named tensors, and has its place."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import udpfl
from tests import small
from udpfl import Gaussian
from udpfl.algorithms import ClientMessage
from udpfl.config import load
from udpfl.engine import Entropy
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation import ReleasePlan, RunFolder
from udpfl.federation.stage_builder import StageParts, build_stages, sum_noise
from udpfl.federation.stages import Stage
from udpfl.federation.stages.adaptive_clip import AdaptiveClip
from udpfl.federation.stages.averaging import Averaging
from udpfl.federation.stages.budget_pull import BudgetPull
from udpfl.federation.stages.downlink_noise import DownlinkNoise
from udpfl.federation.stages.shuffler import Shuffler
from udpfl.federation.stages.trusted_server import TrustedServer


def message(client, size=1, **tensors):
    named = {name: torch.tensor(value) for name, value in tensors.items()}
    return ClientMessage(client, 1, named, (), {"declared_size": size})


def test_a_stage_that_says_nothing_changes_nothing():
    stage, messages = Stage(), [message("a", update=[1.0]), message("b", update=[2.0])]
    server = {"model": torch.zeros(1)}
    assert stage.receive(1, server, messages) == messages
    assert stage.sort(messages) == messages
    assert stage.publish(1, server) is server
    assert (stage.state(), stage.request(), stage.measure()) == ({}, {}, {})


def test_the_clip_moves_towards_its_quantile():
    """Two rounds by hand: half of the records within, then all; the quantile is 0.7."""
    stage = AdaptiveClip(quantile=0.7, rate=0.2)
    assert stage.request() == {}
    stage.receive(1, {}, [message("a", 30, within=0.25), message("b", 10, within=1.25)])
    expected = math.exp(-0.2 * (0.5 - 0.7))
    assert float(stage.request()["clip"]) == pytest.approx(expected, rel=1e-6)
    later = AdaptiveClip(quantile=0.7, rate=0.2)
    later.restore(stage.state())
    for own in (stage, later):
        own.receive(2, {}, [message("a", within=1.5)])  # noise: no share is above one
        factor = expected * math.exp(-0.2 * 0.3)
        assert own.measure() == {"clip_factor": pytest.approx(factor, abs=1e-6)}


def test_the_pull_is_towards_clients_with_the_largest_budget():
    stage = BudgetPull(["a", "b"])
    server = {"model": torch.tensor([10.0])}
    sent = [
        message("a", 3, update=[1.0]),
        message("b", 1, update=[5.0]),
        message("c", update=[9.0]),
    ]
    assert stage.receive(1, server, sent) == sent
    assert stage.request()["weakest"].tolist() == [12.0]  # 10 + (3 * 1 + 1 * 5) / 4
    stage.receive(2, server, sent[2:])  # none of them took part: the last one stays
    later = BudgetPull(["a", "b"])
    later.restore(stage.state())
    assert later.request()["weakest"].tolist() == [12.0]
    with pytest.raises(Unsupported, match="clients send updates"):
        stage.receive(3, server, [message("a", other=[1.0])])


def test_models_are_averaged_over_rounds():
    stage = Averaging(torch.tensor([0.0]), decay=0.5)
    # The first rounds count for less: 2/11 and 3/12 of what was before, and the rest anew.
    for round_, (model, expected) in enumerate([(1.1, 0.9), (3.0, 2.475)], start=1):
        server = {"model": torch.tensor([model])}
        assert stage.publish(round_, server) is server
        assert stage.model.tolist() == pytest.approx([expected])
    later = Averaging(torch.tensor([0.0]), decay=0.5)
    later.restore({**stage.state(), "server.model": torch.tensor([3.0])})
    assert later.model.tolist() == stage.model.tolist()
    last = Averaging(torch.tensor([0.0]), decay=0.0)
    last.publish(1, {"model": torch.tensor([7.0])})
    assert (last.model.tolist(), last.state()) == ([7.0], {})
    last.restore({"server.model": torch.tensor([8.0])})
    assert last.model.tolist() == [8.0]


def test_whoever_adds_noise_comes_first_and_names_are_taken_off_last():
    own = f"{__name__}:Doubled"
    pulled = {"training": {"penalty": 1.0}, "privacy": {"epsilon": [1.0, 8.0]}}
    shuffled = {"training": {"shuffle": True, "stages": [own]}, "privacy": {"clip_quantile": 0.5}}
    noise = sum_noise([ReleasePlan("a", 10, 1.0, 5, 1)])
    trusted = TrustedServer(RunFolder(Path()), "key", Entropy(), noise)
    parts = StageParts("key", Entropy(), float, trusted, ["a"], down=Gaussian(1.0))

    def kinds(config):
        return [type(stage) for stage in build_stages(load(config), parts)]

    assert kinds(pulled) == [TrustedServer, BudgetPull, DownlinkNoise]
    assert kinds(shuffled) == [TrustedServer, AdaptiveClip, Shuffler, Doubled, DownlinkNoise]
    assert build_stages(load(), StageParts("key", Entropy(), float)) == []


class Doubled(Stage):
    """A stage of one's own."""

    def receive(self, round_, server, messages):
        return [replace(own, tensors={"update": 2 * own.tensors["update"]}) for own in messages]


class Demanding(Stage):
    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    ("name", "why"),
    [("Demanding", "without arguments"), ("message", "is not a Stage"), ("Nobody", "Nobody")],
)
def test_what_is_no_stage_is_refused(name, why):
    config = load({"training": {"stages": [f"{__name__}:{name}"]}})
    with pytest.raises(InvalidInput, match=why):
        build_stages(config, StageParts("key", Entropy(), float))


@pytest.fixture
def federate(tmp_path):
    def start(name, **sections):
        config = {**sections, "data": {"clients": 3}, "out": str(tmp_path / name)}
        return udpfl.run(config, data=small.blobs(), model=small.linear())

    return start


def test_a_stage_of_ones_own_changes_what_is_aggregated(federate):
    """Twice the update moves the model twice as far, and costs the same."""
    config = {
        "privacy": {"randomness": "seeded"},
        "training": {"rounds": 1, "server_momentum": 0.0, "averaging": 0.0},
    }
    plain = federate("plain", **config)
    config["training"]["stages"] = [f"{__name__}:Doubled"]
    doubled = federate("doubled", **config)
    start, first, second = (
        torch.cat([p.detach().flatten() for p in network.parameters()])
        for network in (small.linear(), plain.model, doubled.model)
    )
    assert torch.allclose(second - start, 2 * (first - start), atol=1e-6)
    assert len(list(plain.ledger.history())) == len(list(doubled.ledger.history()))


def test_a_stage_that_a_folder_names_is_imported_only_if_somebody_says_so(federate):
    result = federate("run", training={"rounds": 1})
    config = (result.folder / "config.toml").read_text()
    edited = config.replace("stages = []", 'stages = ["nowhere.to.be.found:Stage"]')
    assert edited != config
    (result.folder / "config.toml").write_text(edited)
    with pytest.raises(Unsupported, match="--trust"):
        udpfl.federation.run(resume=result.folder)


class Remembering(Stage):
    """Counts the rounds that it has seen, in whichever run."""

    def __init__(self):
        self.rounds = 0

    def publish(self, round_, server):
        self.rounds += 1
        return server

    def measure(self):
        return {"remembered": self.rounds}


REMEMBERING = Remembering()
"""A stage that is named as an instance."""


def test_a_named_instance_carries_nothing_from_run_to_run(federate):
    """What it saw in another run was charged there: it would make this run's epsilon false."""
    training = {"rounds": 2, "stages": [f"{__name__}:REMEMBERING"]}
    for name in ("first", "second"):
        result = federate(name, training=training)
        assert [row["remembered"] for row in result.metrics] == [1, 2]
    assert REMEMBERING.rounds == 0


def test_a_stage_that_cannot_be_found_reserves_nothing(federate, tmp_path):
    ledger = tmp_path / "site.sqlite"
    wrong = {"rounds": 1, "stages": [f"{__name__}:Doubledd"]}
    with pytest.raises(InvalidInput, match="Doubledd"):
        federate("wrong", training=wrong, privacy={"ledger": str(ledger)})
    assert not ledger.exists()
    assert not (tmp_path / "wrong").exists()
