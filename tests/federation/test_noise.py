"""Noise that is really there, and clipping and noise that are replaced: nothing is claimed."""

from __future__ import annotations

import math

import pytest
from torch import nn

import udpfl
from tests.federation.samples import Watch, blobs, noise_of, read, without_gradient
from udpfl import Gaussian, InvalidInput, Laplace
from udpfl.engine import Noiseless, NormClipper, train_round
from udpfl.federation.protection import planned_protection

pytestmark = pytest.mark.usefixtures("one_thread")


# Noise that is really there


def test_the_noise_in_an_update_has_the_planned_size_and_shape(federate):
    watch, rate, sampling, steps = Watch(), 0.01, 0.25, 3
    sizes = [11, 40, 23]
    result = federate(
        {"mechanism": ["gaussian", "laplace", "gaussian"], "clip": [1.0, 2.0, 0.1]},
        {"rounds": 1, "local_steps": steps, "sampling_rate": sampling, "learning_rate": rate},
        {"declared_sizes": sizes},
        loss=without_gradient,
        net=nn.Linear(4, 2000),
        observers=[watch],
    )
    people = {row["name"]: row for row in read(result, "participants.json")}
    assert len(watch.messages) == 3
    for message, size in zip(watch.messages, sizes, strict=True):
        noise = noise_of(people[message.client])
        assert type(noise) is (Laplace if message.client == "client-1" else Gaussian)
        std = noise.std if isinstance(noise, Gaussian) else noise.scale * math.sqrt(2)
        wanted = rate * std / (sampling * size) * math.sqrt(steps)
        found = message.tensors["update"].double()

        def right(factor, found=found, wanted=wanted):
            return found.std().item() == pytest.approx(factor * wanted, rel=0.08)

        assert right(1.0)
        assert not right(2 / 3)
        assert not right(3 / 2)
        assert abs(found.mean().item()) < 5 * wanted / math.sqrt(len(found))


def test_each_mechanism_adds_noise_of_its_own_shape(federate):
    watch = Watch()
    federate(
        {"mechanism": ["gaussian", "laplace"]},
        {"rounds": 1, "local_steps": 1},
        {"clients": 2},
        loss=without_gradient,
        net=nn.Linear(4, 4000),
        observers=[watch],
    )
    normal, laplace = (message.tensors["update"] for message in watch.messages)
    for noise, ratio in ((normal, math.sqrt(2 / math.pi)), (laplace, 1 / math.sqrt(2))):
        assert (noise.abs().mean() / noise.std()).item() == pytest.approx(ratio, abs=0.02)


def test_an_update_moves_no_further_than_clip_and_noise_allow(federate):
    """Clipping is at work: without noise, one step of n records is at most lr n C / (q N)."""

    def clipped_only(people):
        return planned_protection(people)[0], Noiseless()

    watch = Watch()
    x, y = blobs()
    federate(
        {"clip": 0.01},
        {"rounds": 1, "local_steps": 1, "sampling_rate": 1.0, "learning_rate": 1.0},
        given=(100 * x, y),
        protection=clipped_only,
        observers=[watch],
    )
    sizes = [float(message.tensors["update"].norm()) for message in watch.messages]
    assert all(1e-4 < size <= 0.01 * (1 + 1e-5) for size in sizes)


# Clipping and noise replaced: nothing is claimed, anywhere


def test_nobody_replaces_the_training(federate, tmp_path, monkeypatch):
    """A run that claims privacy trains with this engine and no other."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="engine: unknown key"):
        udpfl.run(engine=train_round)
    assert list(tmp_path.iterdir()) == []
    finished = federate()
    with pytest.raises(InvalidInput, match="resume"):
        udpfl.run(resume=finished.folder, engine=train_round)


def test_replaced_protection_claims_nothing(federate, tmp_path):
    def noiseless(people):
        return NormClipper("l2", [1.0] * len(people)), Noiseless()

    result = federate(protection=noiseless)
    assert {statement.kind for statement in result.clients.values()} == {"none"}
    assert result.privacy.kind == "none"
    assert "replaced" in str(result.privacy)
    assert [row["privacy"] for row in result.metrics] == ["none"] * 3
    assert read(result, "summary.json")["privacy"]["kind"] == "none"
    assert read(result, "run.json")["privacy"]["kind"] == "none"
    with result.ledger as ledger:
        for found in ledger.accounts():
            assert ledger.statement(found.id, 1e-5).kind == "none"
    with pytest.raises(InvalidInput, match=r"privacy\.ledger"):
        federate({"ledger": str(tmp_path / "shared.sqlite")}, protection=noiseless)
    assert not (tmp_path / "shared.sqlite").exists()
