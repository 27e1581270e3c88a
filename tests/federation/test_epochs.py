"""Local epochs: what a client charges is never below what its releases give away.

Every trial is a client with the same few records. The server sees all its noisy sums. How probable
they are with a record and without it is calculated over all samples and all splits into batches, so
that the adversary overlooks nothing.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.federation.samples import Watch, noise_of, read, without_gradient
from udpfl import (
    Gaussian,
    InvalidInput,
    Laplace,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    Unsupported,
    account,
)
from udpfl.accounting.events import Shuffled, leaves
from udpfl.algorithms import FedAvg, ServerStep
from udpfl.audit.ledger import audit_ledger
from udpfl.cli._decision_words import describe_decision
from udpfl.cli._ledgers import balance_of
from udpfl.config import load
from udpfl.engine import Entropy, LaneModel, Limits, MechanismNoiser
from udpfl.federation import ReleasePlan, Request, Trainer
from udpfl.federation._calibration import plan_releases
from udpfl.federation.builders import build_algorithm
from udpfl.federation.request import WITHIN
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")

START, LEARNING_RATE = 0.3, 0.8
ALONE = torch.tensor([[5.0, -20.0]])
"""Input and target of a record whose gradient is always at the clip."""
CROWD = torch.tensor([[0.7, 0.9], [-0.8, 0.4], [0.9, -0.2]])
"""Gradients of these depend on the model, and so on all releases before."""


def plan(noise, *, rate=0.4, epochs=1, batches=1, samples=1, size=3):
    release = Release(noise, Sensitivity(1.0, "l2", 1))
    steps = samples * epochs * batches
    return ReleasePlan("client", size, rate, 1, steps, release, batches=batches, epochs=epochs)


def squared(outputs, targets):
    return (outputs[:, 0] - targets).square() / 2


def released(plan, records, trials, monkeypatch):
    """The noisy sums of every step [trials, steps], out of the code that a run uses."""
    seen, add = [], MechanismNoiser.add

    def noted(self, sums, stream, keys):
        noisy = add(self, sums, stream, keys)
        seen.append(noisy[:, 0].double().numpy())
        return noisy

    monkeypatch.setattr(MechanismNoiser, "add", noted)
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, START)
    trainer = Trainer(
        "key", LaneModel(network, squared), records[:, :1], records[:, 1],
        FedAvg(ServerStep(1.0, 0.0)), Entropy(), Limits(trials, 8),
    )  # fmt: skip
    request = Request(1, {"model": torch.tensor([START])}, LEARNING_RATE)
    own = [replace(plan, name=f"client-{i}") for i in range(trials)]
    rows = [torch.arange(len(records))] * trials
    step = trainer.train(request, own, rows, {})
    monkeypatch.undo()
    assert step.events[0] == (plan.event(),)
    assert len(seen) == plan.steps
    return np.stack(seen, axis=1)


def likelihoods(plan, sums, records):
    """Log-probabilities of these noisy sums with all records, and without the last one [trials]."""
    model = START - LEARNING_RATE / plan.expected_batch * np.cumsum(sums, axis=1)
    model = np.column_stack([np.full(len(sums), START), model[:, :-1]])
    x, y = (column[:, None, None] for column in records.double().numpy().T)
    gradients = np.clip((model * x - y) * x, -1.0, 1.0)  # [records, trials, steps]
    with_it, without = np.zeros(len(sums)), np.zeros(len(sums))
    length = plan.epochs * plan.batches
    for first in range(0, plan.steps, length):  # given what came before, each sample by itself
        part = slice(first, first + length)
        one, other = _of_a_sample(plan, sums[:, part], gradients[:, :, part])
        with_it, without = with_it + one, without + other
    return with_it, without


def _of_a_sample(plan, sums, gradients):
    out = plan.batches  # where a record is that was not drawn
    with_it, without = [], []
    for places in itertools.product(range(out + 1), repeat=len(gradients)):
        chances = [1 - plan.rate if at == out else plan.rate / out for at in places]
        total = np.zeros_like(sums)
        for at, own in zip(places, gradients, strict=True):
            total += own * (np.arange(sums.shape[1]) % plan.batches == at)
        score = plan.release.mechanism.log_density(sums - total).sum(1)
        with_it.append(score + np.log(math.prod(chances)))
        if places[-1] == out:
            without.append(score + np.log(math.prod(chances[:-1])))
    return np.logaddexp.reduce(with_it), np.logaddexp.reduce(without)


def found_delta(plan, records, epsilons, trials, monkeypatch):
    """The delta that goes with each epsilon at least and at most, for all but 1 in 10,000 runs.

    E[(1 - e^(epsilon - loss))+] over the losses that were seen, in the direction in which it is
    larger, with the bound of Maurer and Pontil 2009 (empirical Bernstein) on either side.
    """
    found = []
    for present in (True, False):
        there = records if present else records[:-1]
        sums = released(plan, there, trials, monkeypatch)
        with_it, without = likelihoods(plan, sums, records)
        loss = (with_it - without) * (1 if present else -1)
        exceeded = np.maximum(0.0, -np.expm1(np.asarray(epsilons)[:, None] - loss))
        surely = math.log(2 * 4 * len(epsilons) / 1e-4)
        slack = np.sqrt(2 * exceeded.var(1) * surely / trials) + 7 * surely / (3 * (trials - 1))
        found.append((exceeded.mean(1) - slack, exceeded.mean(1) + slack))
    least, most = (np.max(own, axis=0) for own in zip(*found, strict=True))
    return least, most


CASES = {
    # plan, records, how far from the charge the delta may be that was found
    "one pass": (plan(Gaussian(0.7)), ALONE, 1.3),
    "epochs": (plan(Gaussian(1.0), epochs=3), ALONE, 1.3),
    "epochs, laplace": (plan(Laplace(1.0), epochs=3), ALONE, 1.4),
    "epochs and batches": (plan(Gaussian(1.0), epochs=3, batches=2), ALONE, math.inf),
    "in a crowd": (plan(Gaussian(0.8), epochs=2, batches=2), CROWD, math.inf),
    "in a crowd, laplace": (plan(Laplace(0.8), epochs=2, batches=2), CROWD, math.inf),
    "two samples": (plan(Gaussian(1.0), epochs=2, samples=2), ALONE, 1.4),
}
DELTAS, TRIALS = (0.02, 0.1), 2_500


@pytest.mark.parametrize("case", CASES)
def test_the_charge_is_never_below_what_the_server_can_find(case, monkeypatch):
    own, records, far = CASES[case]
    epsilons = [account(own.event(), delta).epsilon for delta in DELTAS]
    least, most = found_delta(own, records, epsilons, TRIALS, monkeypatch)
    for delta, low, high in zip(DELTAS, least, most, strict=True):
        assert low <= delta
        assert high >= delta / far  # the charge is not just large


@pytest.mark.parametrize("noise", [Gaussian(0.7), Laplace(0.6)])
def test_epochs_charged_as_samples_are_refuted(noise, monkeypatch):
    """As if a coin were thrown for every epoch: what the server finds is more."""
    own = plan(noise, rate=0.2, epochs=4)
    apart = replace(own, epochs=1).event()
    assert apart == Repeated(PoissonSampled(0.2, own.release), 4)
    epsilons = [account(event, 0.02).epsilon for event in (apart, own.event())]
    (low, charged), _ = found_delta(own, ALONE, epsilons, TRIALS, monkeypatch)
    assert charged <= 0.02 < low


def test_the_rate_of_a_batch_is_no_rate_of_a_record(monkeypatch):
    """A batch is half of the sample, and yet a record is not sampled half as often."""
    own = plan(Gaussian(0.5), rate=0.8, epochs=4, batches=2)
    halved = Repeated(PoissonSampled(0.4, own.release), 8)
    epsilons = [account(event, 0.02).epsilon for event in (halved, own.event())]
    (low, charged), _ = found_delta(own, ALONE, epsilons, TRIALS, monkeypatch)
    assert charged <= 0.02 < low


# Plans

RELEASE = Release(Gaussian(2.0), Sensitivity(1.0, "l2", 5))
WHOLE = replace(RELEASE, unit="client")
TWICE = PoissonSampled(0.5, Repeated(RELEASE, 2))
SIX = {"steps": 6, "batches": 3}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (SIX | {"epochs": 2}, {TWICE: 4}),
        (SIX | {"epochs": 2, "trainings": 2}, {TWICE: 8}),
        (SIX | {"epochs": 2, "shuffled": 9}, {Shuffled(TWICE, 9): 4}),
        (SIX | {"epochs": 1}, {PoissonSampled(0.5, RELEASE): 8}),
        (SIX | {"steps": 12, "epochs": 2}, {TWICE: 8}),
        (SIX | {"epochs": 2, "release": WHOLE}, {PoissonSampled(1.0, WHOLE): 4}),
    ],
)
def test_a_record_pays_for_one_release_of_every_epoch(own, expected):
    assert leaves(ReleasePlan("a", 10, 0.5, 4, **{"release": RELEASE} | own).rest_event()) == (
        expected
    )


@pytest.mark.parametrize(("steps", "batches", "epochs"), [(5, 2, 1), (6, 2, 2), (4, 0, 1)])
def test_a_plan_has_whole_epochs(steps, batches, epochs):
    with pytest.raises(InvalidInput, match="steps"):
        ReleasePlan("a", 10, 0.5, 4, steps, RELEASE, batches=batches, epochs=epochs)


def test_clients_that_train_together_have_the_same_epochs():
    """One lane of the engine may not get the batches that another one planned for."""
    plans = [plan(Gaussian(1.0), batches=2), plan(Gaussian(1.0), epochs=2)]
    trainer = Trainer(
        "key", LaneModel(nn.Linear(1, 1, bias=False), squared), CROWD[:, :1], CROWD[:, 1],
        FedAvg(ServerStep(1.0, 0.0)), Entropy(), Limits(2, 8),
    )  # fmt: skip
    request = Request(1, {"model": torch.zeros(1)}, 0.1)
    with pytest.raises(Unsupported, match="same batches and epochs"):
        trainer.train(request, plans, [torch.arange(3)] * 2, {})


def test_a_clip_that_adapts_counts_a_sample_of_its_own():
    """Everybody is within the clip, whatever the number of batches."""
    counts = Release(Gaussian(1e-4), Sensitivity(0.5, "l2", 1))
    for batches in (1, 4):
        own = plan(Gaussian(1.0), rate=1.0, batches=batches, epochs=2, size=len(CROWD))
        own = replace(own, count=counts)
        trainer = Trainer(
            "key", LaneModel(nn.Linear(1, 1, bias=False), squared), 1e-3 * CROWD[:, :1],
            CROWD[:, 1], FedAvg(ServerStep(1.0, 0.0)), Entropy(), Limits(1, 8),
        )  # fmt: skip
        request = Request(1, {"model": torch.zeros(1)}, 0.1)
        step = trainer.train(request, [own], [torch.arange(len(CROWD))], {})
        assert float(step.tensors[WITHIN]) == pytest.approx(1.0, abs=1e-3)
        assert step.events[0] == (own.event(), PoissonSampled(1.0, counts))


# Runs

EPOCHS = {"local_epochs": 2, "batches": 3, "sampling_rate": 0.25}


def test_a_run_is_charged_as_planned_and_agrees_with_a_second_computation(federate):
    result = federate({"mechanism": "gaussian", "delta": 1e-3}, EPOCHS)
    for row in RunFolder.open(result.folder, "clients").clients:
        own = ReleasePlan.from_row(row)
        (leaf,) = leaves(own.rest_event())
        assert leaf == PoissonSampled(0.25, Repeated(own.release, 2))
        charged = [e for e in result.ledger.history() if e.client == own.name]
        assert [(e.event, e.count) for e in charged] == [(leaf, 1)] * 3
        assert account(own.rest_event(), 1e-3).epsilon <= 8.0
    found = audit_ledger(result.folder)
    assert found.sound, str(found)
    for one in found.accounts:
        assert 0.9 * one.stated < one.least <= one.stated <= one.most


def planned_std(**training):
    config = load(
        {"data": {"clients": 1}, "training": {"sampling_rate": 0.25, "rounds": 2, **training},
         "privacy": {"mechanism": "gaussian", "accountant": "rdp"}},
    )  # fmt: skip
    (own,) = plan_releases(config, [30], [(0,), (0,)], 10, build_algorithm(config))
    return own.release.mechanism.std


def test_releases_are_counted_by_what_a_record_takes_part_in(federate):
    """Each sample has two epochs, of which a record is in one batch each."""
    result = federate({"mechanism": "gaussian", "delta": 1e-3}, EPOCHS | {"rounds": 3})
    samples = 3
    with Ledger(result.ledger_path, read_only=True) as ledger:
        entries = list(ledger.history(1))
        assert sum(entry.count for entry in entries) == samples
        balance = balance_of(ledger, ledger.accounts()[0], 1e-3)
        reserved = [said for own in ledger.decisions() if (said := describe_decision(own, {}))]
    releases = samples * EPOCHS["local_epochs"]
    assert balance.releases == sum(count for _, count in balance.versions) == releases
    assert {own.releases for own in audit_ledger(result.folder).accounts} == {releases}
    assert any(said.startswith(f"{releases} releases reserved") for said in reserved)


def test_noise_follows_the_epochs_and_not_the_batches():
    """By a closed form: epochs of a sample are one release with less noise by a root."""
    once = planned_std(local_steps=1)
    assert planned_std(local_epochs=1, batches=5) == once
    for batches in (1, 2):
        found = planned_std(local_epochs=4, batches=batches)
        assert found == pytest.approx(2 * once, rel=1e-3)


def test_a_new_sample_for_every_epoch_needs_less_noise():
    once, apart = planned_std(local_steps=1), planned_std(local_epochs=4, sample_per="epoch")
    assert apart == planned_std(local_steps=4)
    assert apart == planned_std(local_epochs=4, sample_per="epoch", batches=7)
    assert once < apart < 2 * once


@pytest.mark.parametrize("sample_per", ["round", "epoch"])
def test_the_noise_of_an_update_is_that_of_all_batches(federate, sample_per):
    """Each noisy sum is divided by the public size of a batch, not of the sample."""
    watch, size = Watch(), 30
    result = federate(
        {"mechanism": "gaussian"},
        EPOCHS | {"rounds": 1, "learning_rate": 0.01, "sample_per": sample_per},
        {"declared_sizes": size},
        loss=without_gradient,
        net=nn.Linear(4, 2000),
        observers=[watch],
    )
    std = noise_of(read(result, "participants.json")[0]).std
    wanted = 0.01 * std * 3 / (0.25 * size) * math.sqrt(2 * 3)
    for message in watch.messages:
        assert float(message.tensors["update"].std()) == pytest.approx(wanted, rel=0.06)


def test_a_whole_client_pays_once_for_all_epochs(federate):
    result = federate({"unit": "client", "mechanism": "gaussian", "delta": 1e-3}, EPOCHS)
    own = ReleasePlan.from_row(RunFolder.open(result.folder, "clients").clients[0])
    assert leaves(own.rest_event()) == {PoissonSampled(1.0, own.release): 3}
    assert own.release.unit == "client"


@pytest.mark.parametrize("method", ["scaffold", "fedprox", "median"])
def test_methods_run_and_are_charged_alike(federate, method):
    result = federate({"mechanism": "gaussian"}, EPOCHS | {"algorithm": method, "rounds": 2})
    found = audit_ledger(result.folder)
    assert found.sound
    assert [one.releases for one in found.accounts] == [4, 4, 4]  # two epochs of each sample


def test_a_nominal_shuffle_counts_the_message_of_a_sample(federate):
    """All that one message holds counts: one sample with its epochs, or a sample for each."""

    def charged(**training):
        result = federate(
            {"mechanism": "gaussian", "accounting": "scalar"}, EPOCHS | {"shuffle": True} | training
        )
        return next(iter(result.ledger.history())).event

    one, several = charged(), charged(sample_per="epoch")
    assert isinstance(one, Shuffled)
    assert isinstance(several, Shuffled)
    assert (one.releases, one.event.passes[1]) == (1, 2)
    assert (several.releases, several.event.passes[1]) == (2, 1)
