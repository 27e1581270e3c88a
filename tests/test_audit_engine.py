"""The real engine under audit, and engines that are broken in one way each.

Every setting was fixed beforehand, with a power of 99 % by calculation.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from udpfl import Gaussian, Laplace, Release, Sensitivity
from udpfl.audit import Subject, audit_engine
from udpfl.audit.verdict import Test as Counted
from udpfl.engine import Keyed, MechanismNoiser, NormClipper, Unclipped, training
from udpfl.engine.clipping import Clipped
from udpfl.errors import InvalidInput

DELTA, TRIALS = 0.05, 4_000
FEATURES = 6
DIMENSION = 2 * FEATURES


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


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


def power(claimed, rates, trials=TRIALS, tests=3, error=0.05):
    """Of a threshold chosen on other trials: not the best of these pairs of rates, the fourth."""
    half = Counted("", 0, trials // 2, 0, trials // 2, DELTA, error / tests)
    return sorted(half.would_refute(claimed, rate, false) for rate, false in rates)[-4]


def shifted(shift, std):
    """Rates of a Gaussian that a record shifts."""
    return [
        (stats.norm.sf(edge, shift, std), stats.norm.sf(edge, 0, std))
        for edge in np.linspace(-1, 6, 71)
    ]


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
    "sampled": lambda: subject(Gaussian(0.7), rate=0.2, steps=5),
}


@pytest.mark.parametrize("case", CASES)
def test_the_real_engine_is_not_refuted(case):
    """Five audits of each case: twenty in all, with a family-wise error of 5 %."""
    for _ in range(5):
        verdict = audit_engine(CASES[case](), DELTA, trials=1_500, error=0.05 / 20)
        assert not verdict.refuted, str(verdict)


def test_half_the_noise():
    broken = subject(Gaussian(1.0), protection=with_noise(Gaussian(0.5)))
    verdict = audit_engine(broken, DELTA, trials=TRIALS)
    assert power(verdict.epsilon, shifted(1.0, 0.5)) >= 0.99
    assert verdict.refuted


def test_no_clipping():
    broken = subject(
        Gaussian(1.0), protection=lambda n: (Unclipped(), MechanismNoiser([Gaussian(1.0)] * n))
    )
    verdict = audit_engine(broken, DELTA, trials=TRIALS)
    assert power(verdict.epsilon, shifted(10.0, 1.0)) >= 0.99
    assert verdict.refuted


def test_noise_for_the_mean_added_to_the_sum():
    broken = subject(Gaussian(2.0), others=5, protection=with_noise(Gaussian(2.0 / 6)))
    verdict = audit_engine(broken, DELTA, trials=TRIALS)
    assert power(verdict.epsilon, shifted(1.0, 2.0 / 6)) >= 0.99
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
    assert power(verdict.epsilon, shifted(2.0, 1.0)) >= 0.99
    assert verdict.refuted


def test_fixed_batches(monkeypatch):
    """In five steps at rate 0.2 a third of the records would never be seen; here each is, once."""
    kept = subject(Gaussian(0.3), rate=0.2, steps=5)

    def once(stream, key, records, rate):
        return records if key.step == int(key.client.split("-")[1]) % 5 else records[:0]

    monkeypatch.setattr(training, "poisson_indices", once)
    verdict = audit_engine(kept, 0.5, trials=TRIALS)
    # Whoever looks at the largest of five steps: the canary's is N(1 / 0.3, 1), the others N(0, 1).
    rates = [
        (
            1 - stats.norm.cdf(edge - 1 / 0.3) * stats.norm.cdf(edge) ** 4,
            1 - stats.norm.cdf(edge) ** 5,
        )
        for edge in np.linspace(0, 5, 51)
    ]
    half = Counted("", 0, TRIALS // 2, 0, TRIALS // 2, 0.5, 0.05 / 8)
    assert sorted(half.would_refute(verdict.epsilon, *pair) for pair in rates)[-4] >= 0.99
    assert verdict.refuted


def test_a_leaked_seed_of_the_sampling():
    """Whoever knows when the canary takes part is owed no amplification."""
    noise, rate, steps, trials = 0.7, 0.2, 5, 6_000
    verdict = audit_engine(
        subject(Gaussian(noise), rate=rate, steps=steps), DELTA, trials=trials, stream=Keyed(7)
    )
    chance = stats.binom.pmf(np.arange(steps + 1), steps, rate)
    # Its score with k steps is N(+-k / 2 sigma^2, k / sigma^2); without any it is zero.
    rates = []
    for edge in np.linspace(0.1, 5, 50):
        hits = false = 0.0
        for k in range(1, steps + 1):
            spread = np.sqrt(k) / noise
            hits += chance[k] * stats.norm.sf(edge, spread**2 / 2, spread)
            false += chance[k] * stats.norm.sf(edge, -(spread**2) / 2, spread)
        rates.append((hits, false))
    assert power(verdict.epsilon, rates, trials, tests=12) >= 0.99
    assert verdict.refuted
    sound = audit_engine(subject(Gaussian(noise), rate=rate, steps=steps), DELTA, trials=TRIALS)
    assert not sound.refuted
