"""Epochs over one sample under audit: the engine replayed, and charges computed a second time."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

from tests import small
from udpfl import (
    Gaussian,
    InvalidInput,
    Laplace,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    Sensitivity,
    Staircase,
    account,
)
from udpfl.accounting.serial import event_to_json
from udpfl.audit import Subject, audit_engine, audit_run
from udpfl.audit._costs import bounds
from udpfl.audit._events import read
from udpfl.audit.power import Spread, TooLittleNoise, refuted_always
from udpfl.config import load
from udpfl.engine import training

DELTA = 0.05
FEATURES = 6


def subject(noise, **more):
    """A record alone, whose gradient is ten times the clip and evenly spread."""
    network = nn.Linear(FEATURES, 2, bias=False)
    nn.init.zeros_(network.weight)
    x = torch.full((1, FEATURES), 20 / math.sqrt(2 * FEATURES))
    release = Release(noise, Sensitivity(1.0, "l2", 2 * FEATURES))
    return Subject(network, small.cross_entropy, x, torch.tensor([0]), release, **more)


CASES = {
    "epochs": lambda: subject(Gaussian(1.0), steps=3, epochs=3),
    "sampled epochs": lambda: subject(Gaussian(0.9), rate=0.3, steps=3, epochs=3),
    "batches": lambda: subject(Gaussian(0.8), rate=0.5, steps=4, batches=4),
    "epochs of batches": lambda: subject(Laplace(0.9), rate=0.4, steps=6, epochs=3, batches=2),
    "several samples": lambda: subject(Gaussian(1.0), rate=0.3, steps=8, epochs=2, batches=2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_real_engine_is_not_refuted(case):
    """Five audits in all, with a family-wise error of 1 %."""
    verdict = audit_engine(CASES[case](), DELTA, trials=800, error=0.01 / 5)
    assert not verdict.refuted


def test_what_is_claimed_is_one_sample_with_several_passes():
    own = CASES["several samples"]()
    assert own.samples == 2
    assert own.claim == Repeated(PoissonSampled(0.3, Repeated(own.release, 2)), 2)


def test_batches_need_a_record_alone():
    other = subject(Gaussian(1.0), steps=2, batches=2)
    crowd = torch.cat([other.inputs] * 2), torch.cat([other.targets] * 2)
    with pytest.raises(InvalidInput, match="batches"):
        Subject(other.network, other.loss, *crowd, other.release, steps=2, batches=2)


def drawn_scores(epochs, batches, std, hit, claimed=1.0, draws=200_000):
    """Scores of one sample where the record is in these batches, from what theory says [2, draws].

    Noise has `std`; the score is for Gaussian noise of `claimed` and a record in one batch.
    """
    rng = np.random.default_rng(0)
    noise = rng.normal(0.0, std, (2, epochs, batches, draws))
    noise[0, :, hit] += 1.0
    score = ((noise - 0.5) / claimed**2).sum(1)
    return logsumexp(score, axis=1) - math.log(batches)


def found_always(verdict, there, away, trials):
    spreads = [Spread(np.sort(own), np.full(len(own), 1 / len(own))) for own in (there, away)]
    return refuted_always(*spreads, trials, verdict.epsilon, verdict.delta, 0.05)


def test_a_record_in_every_batch_is_found(monkeypatch):
    """Batches that overlap: the claim is for one of them."""
    kept, trials = subject(Gaussian(1.5), steps=8, epochs=2, batches=4), 1_500

    def everyone(stream, keys, samples, count):
        return [list(samples)] * count

    monkeypatch.setattr(training, "random_batches", everyone)
    verdict = audit_engine(kept, DELTA, trials=trials)
    assert found_always(verdict, *drawn_scores(2, 4, 1.5, slice(None), claimed=1.5), trials)
    assert verdict.refuted


@pytest.mark.parametrize(("epochs", "batches", "rate"), [(3, 1, 0.4), (1, 3, 1.0), (2, 3, 0.5)])
def test_calculated_scores_are_those_that_are_drawn(epochs, batches, rate):
    calculated = TooLittleNoise(
        Gaussian(1.0), np.ones(4) / 2, rate, 1, 100, 0.05, batches=batches, epochs=epochs
    ).scores(0.7)
    there, away = drawn_scores(epochs, batches, 0.7, 0)
    in_it = np.random.default_rng(1).random(len(there)) < rate
    for drawn, spread in zip((np.where(in_it, there, away), away), calculated, strict=True):
        if rate < 1:
            drawn = np.logaddexp(math.log1p(-rate), math.log(rate) + drawn)
        reached = np.cumsum(spread.masses)
        for edge in np.quantile(drawn, [0.003, 0.1, 0.5, 0.9, 0.997]) + 0.007:
            below = reached[np.searchsorted(spread.values, edge) - 1]
            assert np.mean(drawn < edge) == pytest.approx(below, abs=0.006)


def test_what_scaled_noise_costs_is_the_accountants():
    shift = np.ones(1)
    for epochs, rate, samples in ((4, 0.2, 3), (2, 1.0, 5)):
        event = PoissonSampled(rate, Repeated(Release(Gaussian(1.0), Sensitivity(1.0)), epochs))
        own = TooLittleNoise(Gaussian(2.0), shift, rate, samples, 100, 0.05, epochs=epochs)
        wanted = account(Repeated(event, samples), 1e-5, "pld").epsilon
        assert own.epsilon(0.5, 1e-5) == pytest.approx(wanted, rel=5e-3)
    pure = TooLittleNoise(Laplace(2.0), shift, 0.3, 2, 100, 0.05, epochs=3).epsilon(0.5, 0)
    assert pure == pytest.approx(2 * math.log1p(0.3 * math.expm1(3.0)))


def test_an_audited_run_replays_its_epochs():
    config = load(
        {"data": {"clients": 2}, "model": {"name": "logistic"},
         "privacy": {"mechanism": "gaussian", "epsilon": 4.0, "delta": 1e-3},
         "training": {"local_epochs": 4, "batches": 30, "sampling_rate": 0.3, "rounds": 5}},
    )  # fmt: skip
    found = audit_run(config, data=small.blobs(), trials=500, canaries=0, error=1e-3)
    assert not any(verdict.refuted for verdict in found)
    assert "record alone, 4 epochs of 2 batches as sampled" in found[0].claim


# Charges, computed a second time

ONE = Sensitivity(1.0, "l2", 1)
EVENTS = {
    "gaussian": PoissonSampled(0.1, Repeated(Release(Gaussian(2.0), ONE), 5)),
    "everybody": PoissonSampled(1.0, Repeated(Release(Gaussian(6.0), ONE), 5)),
    "laplace": PoissonSampled(0.1, Repeated(Release(Laplace(3.0), ONE), 5)),
    "staircase": PoissonSampled(0.1, Repeated(Release(Staircase(0.5, 1.0), ONE), 3)),
    "wide laplace": PoissonSampled(
        0.1, Repeated(Release(Laplace(4.0), Sensitivity(1.0, "l2", 40)), 5)
    ),
    "any answer": PoissonSampled(0.1, Repeated(PureDP(0.4), 5)),
}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("times", [1, 30])
def test_a_second_computation_encloses_the_cost(name, times):
    event = EVENTS[name]
    least, most = bounds({own: n * times for own, n in read(event_to_json(event)).items()}, 1e-5)
    stated = account(Repeated(event, times), 1e-5).epsilon
    assert 0.7 * stated < least <= stated <= most * (1 + 1e-6)
    # A charge for as many samples would be found out.
    release, passes = event.passes
    apart = Repeated(PoissonSampled(event.rate, release), passes * times)
    if event.rate < 1:
        assert account(apart, 1e-5).epsilon < least


def test_a_second_computation_of_pure_epsilons():
    event = EVENTS["laplace"]
    least, most = bounds(read(event_to_json(event)), 0.0)
    exact = math.log1p(0.1 * math.expm1(5 / 3))
    assert least == pytest.approx(exact) == most


def test_only_one_kind_of_release_is_read_inside_a_sample():
    plain = json.loads(event_to_json(EVENTS["gaussian"]))
    release = plain["event"]["event"]
    for inner in (
        plain,
        {"type": "Repeated", "count": 2, "event": plain["event"]},
        {"type": "Repeated", "count": 0, "event": release},
        {"type": "Composed", "events": [release]},
    ):
        with pytest.raises(ValueError, match=r"one kind of release|whole number"):
            read(json.dumps({"type": "PoissonSampled", "rate": 0.1, "event": inner}))
