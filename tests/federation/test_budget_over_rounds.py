"""Budgets that are spread unevenly over the rounds, and clips that follow what is counted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import udpfl
from tests.small import WIDE, Seen, Wide, blobs, linear, people_of
from udpfl import (
    Gaussian,
    InvalidInput,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    Setting,
    account,
    calibrate,
)
from udpfl.accounting.events import leaves
from udpfl.accounting.pacing import noise_factors
from udpfl.accounting.serial import event_from_json
from udpfl.audit._bounds import gaussian_epsilon
from udpfl.engine import Keyed, LaneModel, Lanes, Limits, MechanismNoiser, NormClipper
from udpfl.engine.counting import counted_within
from udpfl.federation import ReleasePlan
from udpfl.ledger.ledger import Ledger


@pytest.fixture
def federate(tmp_path):
    numbers = itertools.count()

    def start(privacy=None, training=None, *, net=None, clients=3, observers=(), **more):
        seen = Seen()
        result = udpfl.run(
            {
                "out": str(tmp_path / f"run-{next(numbers)}"),
                "privacy": {"mechanism": "gaussian", "epsilon": 4.0, **(privacy or {})},
                "training": {"rounds": 4, "averaging": 0.0, **(training or {})},
                "data": {"clients": clients},
            },
            data=blobs(),
            model=net or nn.Linear(4, 2),
            observers=[seen, *observers],
            **more,
        )
        return result, seen

    return start


# Pace


@given(st.sampled_from(["increasing", "decaying"]), st.floats(1.01, 50), st.integers(2, 300))
def test_factors_go_from_one_to_the_ratio(pace, ratio, rounds):
    factors = noise_factors(pace, ratio, rounds)
    assert len(factors) == rounds
    assert min(factors) == pytest.approx(1.0)
    assert max(factors) == pytest.approx(ratio)
    assert len(set(factors)) == min(8, rounds)
    assert list(factors) == sorted(factors, reverse=pace == "increasing")
    assert noise_factors("uniform", ratio, rounds) == ()


def test_varying_noise_is_accounted_exactly():
    """Gaussian releases add up by the inverse of their variances: a closed form."""
    factors, one = ((1.0, 3), (1.5, 4), (2.0, 5)), Sensitivity(1.0, "l2", 9)
    each = tuple(factor for factor, times in factors for _ in range(times))
    plan = ReleasePlan("a", 10, 1.0, 12, 1, factors=each, asked=tuple(range(1, 13)))

    def pays_for(noise):
        return plan.with_noise(noise, one, "record").rest_event()

    setting = Setting(3.0, 1e-5, 12, one, pays_for=pays_for, accountant="pld")
    found = calibrate("gaussian", setting)
    std = found.mechanism.std
    shift = math.sqrt(sum(n / (f * std) ** 2 for f, n in factors))
    assert gaussian_epsilon(shift, 1e-5) == pytest.approx(3.0, rel=2e-3)
    assert found.statement.epsilon <= 3.0
    less = setting.event(Gaussian(0.995 * std))
    assert account(less, 1e-5, "pld").epsilon > 3.0


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("pace", ["increasing", "decaying"])
def test_rounds_carry_the_noise_they_are_charged_for(federate, pace, mechanism):
    result, seen = federate(
        {"pace": pace, "pace_ratio": 3.0, "mechanism": mechanism},
        {"learning_rate": 1.0, "sampling_rate": 1.0, "local_steps": 1},
        net=Wide(),
        loss=lambda outputs, _: 0.0 * outputs.sum(1),
    )
    factors = noise_factors(pace, 3.0, 4)
    for person in people_of(result):
        for round_, factor in enumerate(factors, 1):
            (message,) = [m for m in seen.messages if (m.client, m.round) == (person.name, round_)]
            noise = message.tensors["update"].numpy() * person.declared_size
            scale = factor * person.release.mechanism.noise_std
            known = stats.norm if mechanism == "gaussian" else stats.laplace
            size = scale if mechanism == "gaussian" else scale / math.sqrt(2)
            assert stats.kstest(noise, known(0, size).cdf).pvalue > 1e-6
            assert stats.kstest(noise, known(0, 2 * size).cdf).pvalue < 1e-9
            (leaf,) = leaves(event_from_json(message.events[0]))
            assert leaf.event.mechanism.noise_std == pytest.approx(scale)
    assert all(statement.epsilon <= 4.0 for statement in result.clients.values())
    assert result.privacy.epsilon == pytest.approx(4.0, rel=1e-2)


def test_whoever_is_asked_less_often_is_planned_by_its_own_rounds(federate):
    result, _ = federate(
        {"pace": "increasing"}, {"clients_per_round": 2, "rounds": 6, "sampling_rate": 0.5}
    )
    for person in people_of(result):
        assert len(person.asked) == person.rounds
        whole = account(person.rest_event(0), 1e-5).epsilon
        assert whole <= 4.0
        assert whole == pytest.approx(4.0, rel=1e-2)
        assert result.clients[person.name].epsilon == pytest.approx(whole, rel=1e-6)
        if person.rounds > 1:
            assert account(person.rest_event(1), 1e-5).epsilon < whole
    assert person.rest_event(person.rounds) is None


# An adaptive clip


def norms(model, x, y):
    """Every record's gradient norm, one backward pass each."""
    found = []
    for row, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(row[None]), label[None])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        found.append(float(torch.cat([part.flatten() for part in parts]).norm()))
    return np.array(found)


def in_lanes(model):
    return LaneModel(model, lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"))


def counted(model, x, y, bound, rate=1.0, samples=7):
    lane_model = model if isinstance(model, LaneModel) else in_lanes(model)
    lanes = Lanes(
        runs=("a",), clients=("b",), records=(torch.arange(len(x)),), rates=(rate,),
        denominators=torch.ones(1), learning_rates=torch.ones(1), steps=(1,),
        clipper=NormClipper("l2", [bound]), noiser=MechanismNoiser([Gaussian(1.0)]),
    )  # fmt: skip
    start = lane_model.initial().unsqueeze(0)
    return float(counted_within(lane_model, x, y, start, lanes, 1, Keyed(0), Limits(1, samples)))


def test_records_are_counted_one_by_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x, y = torch.randn(40, 4), torch.randint(0, 2, (40,))
    sizes = norms(model, x, y)
    for bound in np.quantile(sizes, [0.2, 0.5, 0.8]) + 1e-4:
        # 63/128 up to 0.95 of the bound, -63/128 from 1.05 of it on, and a line between.
        wanted = np.interp(sizes / bound, [0.95, 1.05], [63 / 128, -63 / 128]).sum()
        assert counted(model, x, y, bound) == pytest.approx(wanted, abs=1e-4)
        assert abs(wanted - ((sizes <= bound).sum() - 20)) < 3


def test_rounding_cannot_flip_the_counts_of_many_records():
    """A bound that is exactly everybody's norm: one step of float32 either way changes little."""
    model = nn.Linear(4, 2)
    x, y = torch.ones(512, 4), torch.zeros(512, dtype=torch.int64)
    norm = norms(model, x[:1], y[:1])[0]
    counts = [counted(model, x, y, norm * (1 + t * 2.0**-22), samples=512) for t in range(-2, 3)]
    assert max(counts) - min(counts) < 0.5 - 63 / 128


@pytest.fixture(scope="module")
def two_classes():
    """A model whose widths are tried once."""
    torch.manual_seed(0)
    return in_lanes(nn.Linear(4, 2))


@given(st.integers(0, 39), st.sampled_from([0.0, 1e-3, 1.0, 1e20, math.nan, math.inf]))
def test_one_record_changes_a_count_by_a_half(two_classes, which, scale):
    torch.manual_seed(0)
    model = two_classes
    x, y = torch.randn(40, 4), torch.randint(0, 2, (40,))
    x[which] *= scale
    without = torch.arange(40) != which
    change = counted(model, x, y, 0.7) - counted(model, x[without], y[without], 0.7)
    assert abs(change) <= 0.5
    assert scale < 1e20 or abs(change) == pytest.approx(63 / 128)


def test_counts_carry_the_noise_that_one_number_needs_and_are_charged(federate):
    rounds = 40
    result, seen = federate(
        {"clip_quantile": 0.5, "clip_rate": 1e-9, "clip": 1e-6},
        {"rounds": rounds, "sampling_rate": 1.0, "learning_rate": 1e-9, "evaluate_every": rounds},
        clients=6,
    )
    people = {person.name: person for person in people_of(result)}
    # No record is within such a clip: what a client sends is -1/2 + 1/2 and noise.
    unit = {
        p.name: 63 / 64 * p.declared_size / p.count.mechanism.noise_std for p in people.values()
    }
    noise = np.array([float(m.tensors["within"]) * unit[m.client] for m in seen.messages])
    assert len(noise) == 6 * rounds
    kind = people["client-0"].count.mechanism
    known = stats.norm if isinstance(kind, Gaussian) else None
    assert abs(noise.mean()) < 5 / math.sqrt(len(noise))
    assert noise.std() == pytest.approx(1.0, rel=0.25)
    if known:
        assert stats.kstest(noise, known.cdf).pvalue > 1e-6
    with Ledger(result.ledger_path, read_only=True) as ledger:
        for account_ in ledger.accounts():
            entries = list(ledger.history(account_.id))
            assert sum(e.count for e in entries) == 2 * rounds
            assert len({e.event_json for e in entries}) == 2  # whatever the clip is today
    for person in people.values():
        gradients = Repeated(PoissonSampled(1.0, person.release), rounds)
        alone = account(gradients, 1e-5).epsilon
        both = account(person.rest_event(0), 1e-5).epsilon
        assert alone < both <= 4.0
        assert result.clients[person.name].epsilon == pytest.approx(both, rel=1e-6)
        counts = Repeated(PoissonSampled(1.0, person.count), rounds)
        assert account(counts, 1e-6).epsilon <= 0.4


def test_the_clip_finds_the_quantile(federate):
    """A budget so large that noise hardly matters: 0.6 of all records, at the model they see."""
    torch.manual_seed(1)
    net = nn.Linear(4, 2)
    result, _ = federate(
        {"clip_quantile": 0.6, "epsilon": 3000.0, "clip": 0.05, "clip_rate": 0.3},
        {"rounds": 60, "sampling_rate": 1.0, "learning_rate": 1e-9, "evaluate_every": 60},
        net=net,
        clients=1,
    )
    x, y = blobs()
    with np.load(result.folder / "records.npz") as kept:
        train = kept["train"] if "train" in kept else np.arange(len(x))
        rows = train[kept["client-0"]]
    sizes = norms(net, torch.from_numpy(x)[rows], torch.from_numpy(y)[rows])
    clip = 0.05 * result.metrics[-1]["clip_factor"]
    assert np.mean(sizes <= clip) == pytest.approx(0.6, abs=0.08)


def test_noise_goes_with_the_clip(federate):
    """The noise of a round is the planned one times today's clip over the planned clip."""
    result, seen = federate(
        {"clip_quantile": 0.5, "clip_rate": 2.0, "clip_share": 0.5, "clip": 1e-6},
        {"rounds": 3, "sampling_rate": 1.0, "learning_rate": 1.0},
        net=Wide(),
        loss=lambda outputs, t: nn.functional.cross_entropy(outputs, t, reduction="none"),
    )
    factors = [1.0] + [row["clip_factor"] for row in result.metrics[:-1]]
    assert factors[-1] > 2  # nobody is within such a clip, so it grows
    person = people_of(result)[0]
    for round_, factor in enumerate(factors, 1):
        message = next(m for m in seen.messages if (m.client, m.round) == (person.name, round_))
        noise = message.tensors["update"].numpy() * person.declared_size
        # The clipped sum is at most declared_size * clip, against noise of sqrt(d) times as much.
        assert noise.std() == pytest.approx(
            factor * person.release.mechanism.std, rel=0.1 + 20 / math.sqrt(WIDE)
        )


@pytest.mark.parametrize(
    "privacy",
    [
        {"clip_quantile": 0.5, "unit": "client"},
        {"clip_quantile": 0.5, "norm": "linf"},
        {"clip_quantile": 0.0},
        {"pace": "sometimes"},
        {"pace_ratio": 0.5},
    ],
)
def test_what_is_not_available_is_refused(federate, privacy):
    with pytest.raises(InvalidInput, match=r"privacy\."):
        federate(privacy)


def test_a_resumed_run_has_the_same_clip(federate):
    settings = (
        {"clip_quantile": 0.5, "clip_share": 0.5, "randomness": "seeded", "pace": "decaying"},
        {"rounds": 4},
    )
    whole, again = (federate(*settings, net=linear())[0] for _ in range(2))
    (again.folder / "checkpoints" / "round-000004.safetensors").unlink()
    resumed = udpfl.run(resume=again.folder, model=linear(), data=blobs())
    assert resumed.metrics[-1]["clip_factor"] == whole.metrics[-1]["clip_factor"]
    for first, second in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(first, second)


def test_an_event_of_a_plain_setting_is_what_it_was():
    release = Release(Gaussian(1.0), Sensitivity(1.0))
    setting = Setting(1.0, 1e-5, 7, Sensitivity(1.0), 0.5)
    assert setting.event(Gaussian(1.0)) == Repeated(PoissonSampled(0.5, release), 7)


def test_dropout_does_not_tie_one_record_to_another():
    """Removing a record moves the count by a half, whatever state torch's generator is in."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    x, y = torch.randn(20, 4), torch.randint(0, 2, (20,))
    torch.manual_seed(7)
    first = torch.rand(1)
    torch.manual_seed(7)
    counted(model, x, y, 0.7)
    assert torch.equal(torch.rand(1), first)  # it drew nothing that others could know
