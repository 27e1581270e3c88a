"""Samples that are split into batches: which records every step of every epoch gets."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from tests.engine.kept_sums import Recorder
from tests.engine.oracle import Noted, lanes_of
from udpfl.engine import (
    Entropy,
    Key,
    Keyed,
    LaneModel,
    Limits,
    MechanismNoiser,
    NormClipper,
    train_round,
)
from udpfl.engine.randomness import random_batches
from udpfl.mechanisms import Gaussian

RECORDS = 300
KEY = Key("run", "client", 1, 0, "batches")
STREAMS = [Entropy(), Keyed(3)]


def drawn(stream, *, epochs, batches, samples=1, rate=0.5, records=None):
    """Which records were in which step [samples, epochs, batches, lanes, records].

    Record i has the i-th unit vector for its gradient, so a sum says who was there.
    """
    kept, steps = [], samples * epochs * batches
    model = LaneModel(nn.Linear(RECORDS, 1, bias=False), lambda outputs, _: outputs.squeeze(1))
    rows = [torch.arange(RECORDS)] * 2 if records is None else records
    lanes = lanes_of(
        rows, clipper=NormClipper("l2", [9.0] * 2), noiser=Recorder(kept), steps=(steps,) * 2,
        rate=rate,
    )  # fmt: skip
    lanes = dataclasses.replace(lanes, epochs=epochs, batches=batches)
    start = model.initial().expand(2, -1)
    x, y = torch.eye(RECORDS), torch.zeros(RECORDS)
    train_round(model, x, y, start, lanes, 1, stream, Limits(2, 512))
    return torch.stack(kept).view(samples, epochs, batches, 2, RECORDS)


@pytest.mark.parametrize("stream", STREAMS, ids=["entropy", "keyed"])
def test_a_record_of_the_sample_is_in_one_batch_of_every_epoch(stream):
    found = drawn(stream, epochs=3, batches=4, samples=2)
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(found, found[:, :1].expand_as(found))  # every epoch has the same batches
    members = found[:, 0].sum(1)
    assert set(members.unique().tolist()) == {0.0, 1.0}  # in no batch or in exactly one
    assert abs(float(members.mean()) - 0.5) < 6 / math.sqrt(4 * members.numel())


@pytest.mark.parametrize("stream", STREAMS, ids=["entropy", "keyed"])
def test_lanes_and_samples_are_split_independently(stream):
    """In a batch of its own or not, as signs without correlation."""
    found = drawn(stream, epochs=1, batches=2, samples=8, rate=1.0)[:, 0, 0].flatten(0, 1)
    signs = 2 * found - 1
    together = signs @ signs.T / RECORDS - torch.eye(len(signs))
    assert float(together.abs().max()) < 6 / math.sqrt(RECORDS)


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("stream", STREAMS, ids=["entropy", "keyed"])
def test_batches_are_uniform(stream, count):
    sample = torch.arange(20_000)
    batches = random_batches(stream, [KEY], [sample], count)
    assert len(batches) == count
    everyone = torch.cat([batch[0] for batch in batches])
    assert torch.equal(everyone.sort().values, sample)
    sizes = [len(batch[0]) for batch in batches]
    assert stats.chisquare(sizes).pvalue > 1e-6
    place = np.empty(len(sample))
    for number, batch in enumerate(batches):
        place[batch[0].numpy()] = number
    assert abs(np.corrcoef(place[:-1], place[1:])[0, 1]) < 6 / math.sqrt(len(sample))


def test_one_record_decides_nothing_about_the_others():
    """With and without the last record, the same draws: the others stay where they are."""
    sample = torch.arange(50)
    with_it, without = (random_batches(Keyed(1), [KEY], [own], 4) for own in (sample, sample[:-1]))
    changed = [len(a[0]) - len(b[0]) for a, b in zip(with_it, without, strict=True)]
    assert sorted(changed) == [0, 0, 0, 1]
    for one, other in zip(with_it, without, strict=True):
        assert torch.equal(one[0][one[0] < 49], other[0])


def test_an_empty_batch_is_a_step_with_noise():
    model = LaneModel(nn.Linear(500, 1, bias=False), lambda outputs, _: outputs.squeeze(1))
    start, seen = model.initial().expand(1, -1), []

    def note(gradient, parameters, state):
        seen.append(gradient[0])
        return gradient

    lanes = lanes_of(
        [torch.arange(0)], clipper=NormClipper("l2", [1.0]),
        noiser=MechanismNoiser([Gaussian(2.0)]), steps=(6,),
    )  # fmt: skip
    lanes = dataclasses.replace(lanes, epochs=2, batches=3)
    train_round(
        model, torch.eye(500), torch.zeros(500), start, lanes, 1, Entropy(), Limits(1, 8), note
    )
    assert len(seen) == 6
    for gradient in seen:
        assert float(gradient.std()) == pytest.approx(2.0, rel=0.2)
    together = torch.corrcoef(torch.stack(seen)) - torch.eye(6)
    assert float(together.abs().max()) < 6 / math.sqrt(500)


def test_no_two_draws_share_a_key_and_one_sample_has_one():
    stream = Noted()
    drawn(stream, epochs=3, batches=2, samples=2)
    asked = [(key.purpose, key.step) for key in stream.keys if key.client == "client-0"]
    assert len(set(stream.keys)) == len(stream.keys)
    assert {step for purpose, step in asked if purpose == "sampling"} == {0, 6}
    assert {step for purpose, step in asked if purpose == "batches"} == {0, 6}


def test_a_single_batch_draws_nothing_more():
    stream = Noted()
    drawn(stream, epochs=3, batches=1)
    assert "batches" not in {key.purpose for key in stream.keys}
