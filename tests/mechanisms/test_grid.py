"""Noise on a grid: nothing of what it is made of shows, at its centre or in its tail.

The adversary of `udpfl.audit.lattice` looks at noise as it was made before (in double, from one
word, rounded to float32 and no more), at noise that lacks one half of the remedy, and at the
engine's own.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import udpfl
from tests.conftest import Logistic, Student
from tests.small import blobs, linear
from udpfl import Gaussian, Laplace, R2dp, Staircase, Tabulated
from udpfl.audit.lattice import CENTRE, TAIL, LatticeTest, audit_lattice
from udpfl.engine import Entropy, Key, Keyed, MechanismNoiser, PrivateStream
from udpfl.engine.noise import _COLUMNS as BLOCK
from udpfl.engine.noise import _draw_uniform
from udpfl.mechanisms import Mechanism
from udpfl.mechanisms.arrays import to_unit
from udpfl.mechanisms.grid import SECOND_WORD, grid_of

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
NOISES = {
    "gaussian": Gaussian(1.1),
    "laplace": Laplace(0.77),
    "staircase": Staircase(0.05, 0.05),
    "steep staircase": Staircase(1.0, 1.0),
    "logistic": Logistic(0.9),
    "student": Student(0.9),
}
KEY = Key("run", "client", 1, 0)


@given(st.floats(1e-12, 1e12))
def test_the_grid_is_a_power_of_two_near_a_thousandth_of_the_deviation(std):
    grid = grid_of(Gaussian(std))
    assert math.frexp(grid)[0] == 0.5
    assert std / 1024 <= grid < std / 512
    assert grid**2 / 12 < 4e-7 * std**2  # what rounding adds to the variance


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 70_001)])
def test_what_leaves_lies_on_the_grid(name, shape):
    noise = NOISES[name]
    sums = 3 * torch.randn(shape, dtype=torch.float64)
    keys = [KEY._replace(client=str(i)) for i in range(shape[0])]
    noisy = MechanismNoiser([noise] * shape[0]).add(sums, Entropy(), keys)
    assert noisy.dtype == torch.float32
    steps = noisy.double() / grid_of(noise)
    few = steps.abs() < 2**24  # float32 itself is coarser beyond
    assert few.double().mean() > 0.99
    assert torch.equal(steps[few], steps[few].round())
    assert not torch.equal(noisy.double(), sums)


@pytest.mark.parametrize("name", NOISES)
def test_noise_is_still_what_it_is_said_to_be(name):
    """Around sums that are on no grid; too much and too little noise are told apart."""
    noise, count = NOISES[name], 60_000
    sums = torch.full((1, count), 0.1234567890123, dtype=torch.float64)
    seen = MechanismNoiser([noise]).add(sums, Entropy(), [KEY]).double().numpy()[0]
    x = seen - 0.1234567890123
    exact = noise.sample(count, np.random.default_rng(0))
    assert stats.ks_2samp(x, exact).pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2):
        assert stats.ks_2samp(x, wrong * exact).pvalue < 1e-9
    if name != "student":
        assert abs(x.mean()) < 5 * noise.noise_std / math.sqrt(count)


def test_a_large_sum_does_not_coarsen_the_noise():
    """A sum of thousands of clips: noise on it is as on a small one, but for a last rounding."""
    noise, rest = Laplace(1.3), 0.1234567
    plain, moved = (
        MechanismNoiser([noise])
        .add(torch.full((1, 500), size + rest, dtype=torch.float64), Keyed(3), [KEY])
        .double()
        for size in (0.0, 2.0**13)
    )
    assert torch.equal(plain, moved - 2.0**13)


def test_noise_is_rounded_to_the_nearer_point_of_the_grid():
    """Sum and noise come to the middle between two points, but for a ten-millionth of a step: if
    either were rounded to float32, or lost its last digits, many would go to the other point."""
    noise, step = Laplace(1.0), 2.0**-9
    places = torch.arange(100, 2000).double()
    for whole, rest in ((0, 0.0), (0, 0.1234567890123), (0, -1.23456789e-5), (2**13, 0.1)):
        sums = torch.full((1, len(places)), whole + rest, dtype=torch.float64)
        for beside in (-1e-7, 1e-7):
            size = (places + 0.5 + beside) * step - rest
            words = (torch.exp(-size) * 2.0**63).long()  # the tail of noise of this size
            seen = MechanismNoiser([noise]).add(sums, Words(words), [KEY])[0]
            assert torch.equal(seen.double(), whole + (places + (beside > 0)) * step)


@pytest.mark.parametrize(("lanes", "blocks"), [(2, 3), (8, 0.125)])
def test_no_lane_and_no_block_of_columns_has_the_noise_of_another(lanes, blocks):
    """Long rows are drawn a block of columns at a time, short ones several lanes at a time."""
    columns = int(blocks * BLOCK)
    keys = [KEY._replace(client=str(lane)) for lane in range(lanes)]
    sums = torch.zeros(lanes, columns, dtype=torch.float64)
    noisy = MechanismNoiser([Gaussian(1.0)] * lanes).add(sums, Entropy(), keys).double()
    parts = noisy.view(-1, min(columns, BLOCK)).numpy()
    found = np.corrcoef(parts) - np.eye(len(parts))
    assert np.abs(found).max() < 6.5 / math.sqrt(parts.shape[1])


@CUDA
@pytest.mark.parametrize("name", NOISES)
def test_noise_on_cuda_is_on_the_grid_and_of_the_right_size(name):
    noise, sums = NOISES[name], torch.full((2, 200_000), 0.3, dtype=torch.float64, device="cuda")
    keys = [KEY, KEY._replace(client="other")]
    noisy = MechanismNoiser([noise] * 2).add(sums, Entropy(), keys).double().cpu()
    assert torch.equal((noisy / grid_of(noise)).round() * grid_of(noise), noisy)
    assert float((noisy - 0.3).abs().mean()) == pytest.approx(noise.mean_abs, rel=2e-2)
    assert not torch.equal(noisy[0], noisy[1])


# The attacks


def made_from(words, bits):
    for fill, row in zip(words, bits, strict=True):
        fill(row)
    return to_unit(bits.double())


class Before(MechanismNoiser):
    """As it was: one word, added in double, rounded to float32."""

    def add(self, sums, stream, keys):
        words = [stream.words(key, sums.device) for key in keys]
        bits = torch.empty(sums.shape, dtype=torch.int64)
        return self.rounded(self.mechanisms[0].draw(made_from(words, bits)) + sums).float()

    def rounded(self, noisy):
        return noisy


class SingleWords(Before):
    """A grid, and tails of 63 bits."""

    def rounded(self, noisy):
        grid = grid_of(self.mechanisms[0])
        return (noisy / grid).round() * grid


class NoGrid(MechanismNoiser):
    """Tails of two words, and no grid."""

    def add(self, sums, stream, keys):
        words = [stream.words(key, sums.device) for key in keys]
        bits, (signed, spare) = (
            torch.empty(sums.shape, dtype=torch.int64),
            torch.empty(2, *sums.shape, dtype=torch.float64),
        )
        _draw_uniform(words, bits, signed, spare)
        return (self.mechanisms[0].draw(signed) + sums).float()


def refuted(noiser, noise, epsilon=1.0, numbers=10**8):
    """Where the statement about rounding is refuted. Of a heavy tail less is said than a lattice
    shows there, so what shows at all counts."""
    verdict = audit_lattice(noise, numbers, epsilon, noiser=noiser([noise]), trials=20_000)
    if isinstance(noise, Student):
        return {test.event: test.told > 1e-12 for test in verdict.tests}
    return {test.event: test.proved > epsilon for test in verdict.tests}


@pytest.mark.parametrize("name", NOISES)
def test_the_engine_shows_nothing(name):
    for epsilon in (0.1, 8.0):
        assert not any(refuted(MechanismNoiser, NOISES[name], epsilon).values())


@pytest.mark.parametrize("name", NOISES)
def test_noise_as_it_was_shows_its_sum_at_the_centre_and_in_the_tail(name):
    assert refuted(Before, NOISES[name]) == {"at the centre": True, "in the tail": True}


@pytest.mark.parametrize("name", NOISES)
def test_each_half_of_the_remedy_is_needed(name):
    assert refuted(NoGrid, NOISES[name]) == {"at the centre": True, "in the tail": False}
    if name != "gaussian":  # whose pairs leave no gaps as wide as the grid
        assert refuted(SingleWords, NOISES[name]) == {"at the centre": False, "in the tail": True}


def test_what_the_attack_was_first_found_with():
    """Laplace noise of a million parameters, one release: two sums told apart by the centre."""
    noise = Laplace(0.9)
    found = audit_lattice(noise, 10**6, 1.0, noiser=Before([noise]), trials=5_000)
    assert found.refuted
    assert found.tests[0].told > 2e-8  # of 2^-44 a number; a wider window shows more


def test_the_adversary_proves_no_more_than_it_saw():
    passed = LatticeTest("", 1000, 1000, 1000, 10**6, 1e-6, 1.0, 1e-9, 0.05)
    assert passed.told == 0
    never = LatticeTest("", 1000, 0, 1000, 10**3, 1e-6, 1.0, 1e-9, 0.05)
    assert 0.9e-3 < never.told < 1e-3
    some = LatticeTest("", 900, 100, 1000, 10**3, 1e-6, 1.0, 1e-9, 0.05)
    assert some.told < 1e-3 * (0.9 - math.e * 0.1)


class Words(PrivateStream):
    """First words of our choice; second ones come from the operating system, or another stream."""

    private = False

    def __init__(self, first, second=None):
        self._first, self._second = first, second or Entropy()
        self.asked = []

    def _bits(self, key):
        raise AssertionError

    def words(self, key, device):
        first, fresh = iter([self._first]), self._second.words(key, device)

        def fill(row):
            self.asked.append(len(row))
            given = next(first, None)
            return fresh(row) if given is None else row.copy_(given)

        return fill


def test_a_second_word_fills_the_gaps_of_the_tail():
    """The smallest first word stands for everything beyond 2^-63, and the second says where."""
    noise, count = Laplace(1.0), 4_000
    zero = torch.zeros(1, count, dtype=torch.float64)
    seen = MechanismNoiser([noise]).add(zero, Words(torch.zeros(count, dtype=torch.int64)), [KEY])
    sizes = seen.double().numpy()[0] + math.log(2.0**-63)  # beyond the last of 63 bits
    assert sizes.min() > -0.01
    assert stats.kstest(sizes, stats.expon.cdf).pvalue > 1e-6
    negative = MechanismNoiser([noise]).add(
        zero, Words(torch.full((count,), -1, dtype=torch.int64)), [KEY]
    )
    assert stats.kstest(-negative.double().numpy()[0] - 63 * math.log(2), "expon").pvalue > 1e-6


def test_second_words_are_drawn_for_small_numbers_alone_and_lane_by_lane():
    edge = int(SECOND_WORD * 2**63)
    first = torch.tensor([edge - 1, edge, -edge, -edge - 1, 5, 2**62])
    given, bits = Words(first), torch.empty(1, 6, dtype=torch.int64)
    both = torch.empty(2, 1, 6, dtype=torch.float64)
    _draw_uniform([given.words(KEY, torch.device("cpu"))], bits, both[0], both[1])
    assert given.asked == [6, 3]
    found, plain = both[0, 0], to_unit(first.double())
    assert torch.equal(found[[1, 3, 5]], plain[[1, 3, 5]])
    assert (found.abs() * 2**63).floor()[[0, 2, 4]].tolist() == [edge - 1, edge - 1, 5]
    assert torch.equal(found.sign(), plain.sign())


def test_noise_of_a_lane_does_not_depend_on_the_others():
    """Second words are taken from a lane's own stream."""
    noise, sums = Laplace(1.0), torch.zeros(3, 200_000, dtype=torch.float64)
    keys = [KEY._replace(client=name) for name in "abc"]
    together = MechanismNoiser([noise] * 3).add(sums, Keyed(1), keys)
    for row, key in zip(together, keys, strict=True):
        assert torch.equal(MechanismNoiser([noise]).add(sums[:1], Keyed(1), [key])[0], row)
    # Short rows are drawn together; here every number of theirs takes a second word.
    sums, stream = sums[:, :40], Words(torch.zeros(40, dtype=torch.int64), Keyed(1))
    together = MechanismNoiser([noise] * 3).add(sums, stream, keys)
    assert len(together.unique(dim=0)) == 3
    for row, key in zip(together, keys, strict=True):
        assert torch.equal(MechanismNoiser([noise]).add(sums[:1], stream, [key])[0], row)


# Every release of a run


PLAIN = {"rounds": 2, "learning_rate": 0.3, "averaging": 0.0}
RUNS = {
    "gradients": ({}, {}),
    "counts": ({"clip_quantile": 0.5}, {}),
    "updates": ({"unit": "client", "delta": 0.01}, {"algorithm": "scaffold"}),
    "a trusted server": ({"unit": "client", "delta": 0.01}, {"algorithm": "dp-fedavg"}),
    "downlink": (
        {"unit": "client", "delta": 0.01},
        {"algorithm": "nbafl", "rounds": 4, "options": {"exposures": 1}},
    ),
}
PURPOSES = {
    "gradients": {"noise"}, "counts": {"noise", "count"}, "updates": {"update"},
    "a trusted server": {"noise"}, "downlink": {"update", "downlink"},
}  # fmt: skip


@pytest.mark.parametrize("case", RUNS)
def test_every_release_of_a_run_is_on_its_grid(case, tmp_path, monkeypatch):
    seen, plain = {}, MechanismNoiser.add

    def add(self, sums, stream, keys):
        noisy = plain(self, sums, stream, keys)
        for noise, key, row in zip(self.mechanisms, keys, noisy, strict=True):
            seen.setdefault(key.purpose, []).append((noise, row.double()))
        return noisy

    monkeypatch.setattr(MechanismNoiser, "add", add)
    privacy, training = RUNS[case]
    result = udpfl.run(
        {"out": str(tmp_path / "run"), "data": {"clients": 3}, "training": {**PLAIN, **training},
         "privacy": {"mechanism": "gaussian", **privacy}},
        data=blobs(), model=linear(),
    )  # fmt: skip
    assert result.privacy.kind == "guarantee"
    assert set(seen) == PURPOSES[case]
    for released in seen.values():
        for noise, row in released:
            assert torch.equal((row / grid_of(noise)).round() * grid_of(noise), row)


def test_a_tail_that_nobody_has_looked_at_gets_two_words_everywhere():
    """In 63 bits the gaps of a heavy tail are wider than is counted for the others'."""
    assert R2dp.second_word == Tabulated.second_word == Mechanism.second_word == 1.0
    for kind in (Gaussian, Laplace, Staircase):
        assert kind.second_word == SECOND_WORD
    count = 500
    first = torch.full((count,), 3 << 61, dtype=torch.int64)  # the tail is 0.75 exactly
    zero = torch.zeros(1, count, dtype=torch.float64)
    for noise, asked in ((R2dp(1.0, 3.0), [count, count]), (Laplace(1.0), [count])):
        given = Words(first)
        MechanismNoiser([noise]).add(zero, given, [KEY])
        assert given.asked == asked


def test_windows_are_where_the_lattice_shows():
    assert CENTRE.probability == 2.0**-44
    assert TAIL.probability == pytest.approx(2.0**-60, rel=0.1)
