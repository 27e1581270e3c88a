"""The real engine under audit, and engines that are broken in one way each.

Every setting was fixed beforehand, with a power of 99 % by calculation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

from tests.small import cross_entropy
from udpfl import Gaussian, Laplace, Release, Repeated, Sensitivity, account
from udpfl.audit import Subject, audit_engine
from udpfl.audit._tally import Tally, judged
from udpfl.audit.power import Spread, refuted_always
from udpfl.engine import (
    Entropy,
    Keyed,
    LaneModel,
    Lanes,
    Limits,
    MechanismNoiser,
    NormClipper,
    Unclipped,
    training,
)
from udpfl.engine.clipping import Clipped
from udpfl.errors import InvalidInput

DELTA, TRIALS = 0.05, 4_000
FEATURES = 6
DIMENSION = 2 * FEATURES


def subject(noise, *, others=0, rate=1.0, steps=1, size=10.0, protection=None):
    """A classifier of two classes before training: a record's two labels pull in opposite ways.

    The canary's gradient has `size` times the clip; the others have the other label.
    """
    network = nn.Linear(FEATURES, 2, bias=False)
    nn.init.zeros_(network.weight)
    x = torch.ones(others + 1, FEATURES) * size * 2 / np.sqrt(2 * FEATURES)
    y = torch.tensor([1] * others + [0])
    release = Release(noise, Sensitivity(1.0, "l2", DIMENSION))
    return Subject(network, cross_entropy, x, y, release, rate, steps, protection)


def with_noise(noise, clipper=NormClipper):
    return lambda lanes: (clipper("l2", [1.0] * lanes), MechanismNoiser([noise] * lanes))


DRAWS = 400_000


def found_always(verdict, there, away, adversaries=1, trials=TRIALS):
    """Whether an audit with so many trials refutes 99 % of the time where scores are like these.

    The scores are drawn here, from what theory says of the broken engine.
    """
    spreads = [
        Spread(np.sort(scores), np.full(len(scores), 1 / len(scores))) for scores in (there, away)
    ]
    return refuted_always(
        *spreads, trials, verdict.epsilon, verdict.delta, 0.05 / adversaries, both=adversaries > 1
    )


def shifted(shift, std, claimed=1.0):
    """Scores of noise thought to be N(0, claimed^2), where the record adds `shift`, not 1."""
    noise = np.random.default_rng(0).normal(0.0, std, (2, DRAWS))
    return [(x - 0.5) / claimed**2 for x in (noise[0] + shift, noise[1])]


def test_gradients_are_known_in_closed_form():
    gradients = subject(Gaussian(1.0), others=2).clipped()
    assert np.linalg.norm(gradients, axis=1) == pytest.approx([1.0] * 3)
    assert gradients[0] == pytest.approx(-gradients[-1])
    loose = subject(Gaussian(1.0), size=0.25).clipped()
    assert np.linalg.norm(loose) == pytest.approx(0.25)


def test_releases_are_the_clipped_sum_and_noise():
    there, away = (
        next(subject(Gaussian(0.01), others=3).released(50, present=here, stream=Keyed(1)))
        for here in (True, False)
    )
    gradients = subject(Gaussian(0.01), others=3).clipped()
    assert there[0].mean(0) == pytest.approx(gradients.sum(0), abs=0.01)
    assert away[0].mean(0) == pytest.approx(gradients[:-1].sum(0), abs=0.01)
    assert there[0].std(0).mean() == pytest.approx(0.01, rel=0.1)


def test_other_records_have_to_take_part_for_certain():
    with pytest.raises(InvalidInput, match="rate"):
        subject(Gaussian(1.0), others=2, rate=0.5)


CASES = {
    "alone": lambda: subject(Gaussian(1.0)),
    "laplace": lambda: subject(Laplace(1.0)),
    "in a crowd": lambda: subject(Gaussian(1.0), others=5),
    "in passes": lambda: replace(subject(Gaussian(1.0), others=5), chunk=2),
    "sampled": lambda: subject(Gaussian(0.7), rate=0.2, steps=5),
}


@pytest.mark.parametrize("case", CASES)
def test_the_real_engine_is_not_refuted(case):
    """Four audits of each case: twenty in all, with a family-wise error of 5 %."""
    for _ in range(4):
        verdict = audit_engine(CASES[case](), DELTA, trials=1_500, error=0.05 / 20)
        assert not verdict.refuted, str(verdict)


def test_half_the_noise():
    broken = subject(Gaussian(1.0), protection=with_noise(Gaussian(0.5)))
    verdict = audit_engine(broken, DELTA, trials=TRIALS)
    assert found_always(verdict, *shifted(1.0, 0.5))
    assert verdict.refuted


def test_no_clipping():
    broken = subject(
        Gaussian(1.0), protection=lambda n: (Unclipped(), MechanismNoiser([Gaussian(1.0)] * n))
    )
    verdict = audit_engine(broken, DELTA, trials=TRIALS)
    assert found_always(verdict, *shifted(10.0, 1.0))
    assert verdict.refuted


def test_noise_for_the_mean_added_to_the_sum():
    broken = subject(Gaussian(2.0), others=5, protection=with_noise(Gaussian(2.0 / 6)))
    verdict = audit_engine(broken, DELTA, trials=TRIALS)
    assert found_always(verdict, *shifted(1.0, 2.0 / 6, claimed=2.0))
    assert verdict.refuted


class OfTheBatch(NormClipper):
    """Clips the gradient of the whole batch: what one record changes is twice the bound."""

    def lanes(self, which):
        return OfTheBatch(self.norm, self.bounds[which])

    def clipped_sum(self, gradients):
        total = gradients.weighted_sum(gradients.real.float())
        factor = (self.bounds[0] / total.norm(dim=1, keepdim=True)).clamp(max=1)
        return Clipped(total * factor, torch.zeros(len(total)))


def test_clipping_the_gradient_of_the_batch():
    """One other record of a tenth of the canary's size: the sum turns round."""
    broken = subject(Gaussian(1.0), others=1, protection=with_noise(Gaussian(1.0), OfTheBatch))
    broken.inputs[0] /= 10
    verdict = audit_engine(broken, DELTA, trials=TRIALS)
    assert found_always(verdict, *shifted(2.0, 1.0))
    assert verdict.refuted


def test_fixed_batches(monkeypatch):
    """In five steps at rate 0.2 a third of the records would never be seen; here each is, once."""
    kept = subject(Gaussian(0.3), rate=0.2, steps=5)

    def once(stream, keys, records, rates):
        return [
            own if key.step == int(key.client.split("-")[1]) % 5 else own[:0]
            for key, own in zip(keys, records, strict=True)
        ]

    monkeypatch.setattr(training, "poisson_samples", once)
    verdict = audit_engine(kept, 0.5, trials=TRIALS)
    rng = np.random.default_rng(0)
    noise = rng.normal(0.0, 0.3, (2, 5, DRAWS))
    noise[0, 0] += 1.0
    there, away = logsumexp((noise - 0.5) / 0.3**2, axis=1) - np.log(5)
    assert found_always(verdict, there, away, adversaries=2)
    assert verdict.refuted


def test_a_leaked_seed_of_the_sampling():
    """Whoever knows when the canary takes part is owed no amplification."""
    noise, rate, steps, trials = 0.7, 0.2, 5, 6_000
    verdict = audit_engine(
        subject(Gaussian(noise), rate=rate, steps=steps), DELTA, trials=trials, stream=Keyed(7)
    )
    # Its score after k steps is N(+-k / 2 sigma^2, k / sigma^2); without any it is zero.
    rng = np.random.default_rng(0)
    count, spread = rng.binomial(steps, rate, (2, DRAWS)), rng.normal(size=(2, DRAWS)) / noise
    middle = np.array([[0.5], [-0.5]]) / noise**2
    there, away = count * middle + np.sqrt(count) * spread
    assert found_always(verdict, there, away, adversaries=3, trials=trials)
    assert verdict.refuted
    sound = audit_engine(subject(Gaussian(noise), rate=rate, steps=steps), DELTA, trials=TRIALS)
    assert not sound.refuted


class OnlyAtTheEnd(MechanismNoiser):
    """Noise in the last step of a round, as if the others were nobody's business."""

    def lanes(self, which):
        return OnlyAtTheEnd(self.mechanisms[which])

    def add(self, sums, stream, keys):
        return super().add(sums, stream, keys) if keys[0].step == STEPS - 1 else sums


STEPS = 4


def several_steps(present, noiser):
    """All steps of one round in one call, of a loss whose gradient is the same everywhere."""
    network = nn.Linear(3, 1, bias=False)
    model = LaneModel(network, lambda outputs, _: outputs.squeeze(1))
    x, trials = torch.tensor([[0.6, 0.8, 0.0]]), 3_000
    names = tuple(f"{present}-{i}" for i in range(trials))
    lanes = Lanes(
        runs=("audit",) * trials, clients=names, records=(torch.arange(present * 1),) * trials,
        rates=(1.0,) * trials, denominators=torch.ones(trials), learning_rates=torch.ones(trials),
        steps=(STEPS,) * trials, clipper=NormClipper("l2", [1.0] * trials),
        noiser=noiser([Gaussian(2.0)] * trials),
    )  # fmt: skip
    start = torch.zeros(trials, 3)
    trained = training.train_round(
        model, x, torch.zeros(1), start, lanes, 0, Entropy(), Limits(500, 8, workers=2)
    )
    seen = (start - trained.parameters).double().numpy() @ x[0].double().numpy()
    return (seen - STEPS / 2) / 2.0**2  # log-likelihood ratio of N(4, 4 * 2^2) to N(0, 4 * 2^2)


@pytest.mark.parametrize(("noiser", "refuted"), [(MechanismNoiser, False), (OnlyAtTheEnd, True)])
def test_the_steps_of_a_round_together(noiser, refuted):
    there, away = (several_steps(present, noiser) for present in (True, False))
    claim = Repeated(Release(Gaussian(2.0), Sensitivity(1.0, "l2", 3)), STEPS)
    epsilon = account(claim, DELTA, "pld").epsilon
    tests = judged(Tally.of(there, away), epsilon, DELTA, 1e-3)
    assert (max(test.proved for test in tests) > epsilon) == refuted
