"""Kernels that draw noise, against what mechanisms draw and against their laws: on CUDA, or where
Triton interprets them on a CPU."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import stats

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed")
import triton
import triton.language as tl

from tests.conftest import Logistic, Student
from tests.engine.philox import philox
from tests.mechanisms import exactly
from tests.mechanisms.shells import radius_law
from udpfl import Gaussian, InvalidInput, Laplace, R2dp, Staircase, StaircaseL1, Tabulated
from udpfl.engine import Entropy, Key, Keyed, MechanismNoiser
from udpfl.engine import _triton_noise as kernels
from udpfl.engine import noise as drawing
from udpfl.engine._fused import FUSED, law_of
from udpfl.mechanisms import BUILT_IN, Radial
from udpfl.mechanisms.grid import grid_of

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KEY = Key("run", "client", 1, 0)


@dataclass(frozen=True)
class Box(Tabulated):
    """Noise that ends somewhere."""

    def shape(self, x):
        return np.where(x <= 1, -0.5 * x, -np.inf)


@dataclass(frozen=True)
class Turned(Laplace):
    """Draws in another way than Laplace noise does."""

    def magnitude(self, tail):
        return 3 * super().magnitude(tail)


NOISES = {
    "gaussian": Gaussian(1.1),
    "laplace": Laplace(0.77),
    "staircase": Staircase(1.0, 1.0),
    "fine staircase": Staircase(0.05, 0.05),
    "steep staircase": Staircase(4.0, 1.0),
    "staircase on its edge": Staircase(0.5, 1.0, 1.0),
    "staircase without a high step": Staircase(0.5, 1.0, 0.0),
    "r2dp": R2dp(0.7, 6.0),
    "heavy r2dp": R2dp(1.3, 2.1),
    "logistic": Logistic(0.9),
    "student": Student(0.9),
    "flat": exactly.Flat(1.3),
    "box": Box(2.0),
}
"""Noise of independent numbers."""


def some_keys(lanes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(9)
    keys = torch.randint(-(2**63), 2**63 - 1, (lanes, 4), generator=generator)
    return keys.to(DEVICE)


def laws_of(*noises) -> torch.Tensor:
    return torch.tensor([law_of(own).numbers for own in noises], dtype=torch.float64, device=DEVICE)


def fused(noise, columns: int, lanes: int = 1, sums=None, laws=None, keys=None) -> torch.Tensor:
    """What a kernel adds, in double."""
    sums = torch.zeros(lanes, columns, dtype=torch.float64, device=DEVICE) if sums is None else sums
    noisy = torch.empty_like(sums)
    laws = laws_of(*[noise] * lanes) if laws is None else laws
    keys = some_keys(lanes) if keys is None else keys
    if isinstance(noise, Radial):
        kernels.add_vectors(sums, noisy, keys, laws, noise.dimension)
    else:
        kernels.add_noise(law_of(noise).kernel, sums, noisy, keys, laws)
    return noisy


def finely(noise) -> torch.Tensor:
    """A law on a grid that is far finer than what is used: what is drawn shows."""
    grid = grid_of(noise) * 2.0**-40
    kind = next(own for own in type(noise).__mro__ if own in FUSED)
    numbers = [grid, *FUSED[kind][1](noise.scaled(1 / grid))]
    return torch.tensor([numbers], dtype=torch.float64, device=DEVICE)


def uniform(keys: torch.Tensor, lane: int, place: int) -> float:
    """The number (w + f) 2^-63 with Python's integers."""
    high, low = (int(word) % 2**64 for word in keys[lane, :2])
    one, two = (w - 2**64 if w >= 2**63 else w for w in philox(high, low, place))
    return (one + (two * 2.0**-64 * (1 - 2.0**-50) + 0.5)) * 2.0**-63


def test_uniform_numbers_have_two_words_each():
    keys = some_keys(2)
    found = kernels.signed_numbers(keys, 1500).cpu()
    expected = [[uniform(keys, lane, place) for place in range(1500)] for lane in range(2)]
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=4e-16, atol=0
    )


def test_every_built_in_noise_has_a_kernel():
    assert {law_of(kind(1.0, 1.0) if "period" in kind.__dataclass_fields__ else kind(1.0)).kernel
            for kind in BUILT_IN.values()} == {*kernels.KINDS, "vectors"}  # fmt: skip
    assert all(law_of(noise).kernel in kernels.KINDS for noise in NOISES.values())


@pytest.mark.parametrize("columns", [1, 2, 7, 2500])
@pytest.mark.parametrize("name", NOISES)
def test_noise_is_what_is_drawn_of_the_same_numbers_on_a_grid(name, columns):
    """Of two lanes with other laws of the same kind, around sums that are on no grid."""
    noises = [NOISES[name], NOISES[name].scaled(3.7)]
    generator = torch.Generator().manual_seed(1)
    sums = 3 * torch.randn(2, columns, generator=generator, dtype=torch.float64).to(DEVICE)
    noisy = fused(noises[0], columns, 2, sums, laws_of(*noises))
    signed = kernels.signed_numbers(some_keys(2), columns + columns % 2)
    for lane, noise in enumerate(noises):
        grid = grid_of(noise)
        if isinstance(noise, Gaussian):  # an odd number is one of a pair here
            wanted = noise.scaled(1 / grid).draw(signed[lane].clone())[:columns]
        else:
            wanted = noise.scaled(1 / grid).draw(signed[lane, :columns].clone())
        units = noisy[lane] / grid
        assert torch.equal(units, units.round())
        assert float((units - wanted - sums[lane] / grid).abs().max()) <= 0.5 + 1e-6


def test_noise_that_is_given_is_rounded_to_the_nearer_point():
    noise, sums = (torch.rand(2, 1500, dtype=torch.float64, device=DEVICE) - 0.5 for _ in "12")
    laws = torch.tensor([[0.25, 7.0], [2.0**-9, 7.0]], dtype=torch.float64, device=DEVICE)
    noisy = torch.empty(2, 1500, device=DEVICE)
    kernels.add_rounded(9 * noise, 9 * sums, noisy, laws)
    units = noisy.double() / laws[:, :1]
    assert torch.equal(units, units.round())
    assert float((units - 9 * noise - 9 * sums / laws[:, :1]).abs().max()) <= 0.5 + 1e-9


def exact(noise, signed):
    if isinstance(noise, Tabulated):
        return exactly.exact_table(noise, signed)
    kinds = {Gaussian: exactly.exact_gaussian, Laplace: exactly.exact_laplace}
    return kinds.get(type(noise), exactly.exact_staircase)(noise, signed)


@pytest.mark.parametrize("name", NOISES.keys() - {"box"})
def test_noise_is_as_exact_as_is_said_of_it(name):
    """Against 50 digits."""
    noise, count, law = NOISES[name], 1000, finely(NOISES[name])
    made, grid = kernels.signed_numbers(some_keys(1), count), float(law[0, 0])
    drawn = fused(noise, count, laws=law)[0].tolist()
    with mp.workdps(50):
        wanted = exact(noise, [mp.mpf(own) for own in made[0].tolist()])
        off = [float(mp.mpf(n) - e) for n, e in zip(drawn, wanted, strict=True)]
    mean_square = sum(own * own for own in off) / count - grid**2 / 12
    unit = 2.0**-53 * noise.noise_std
    together = math.sqrt(2) if isinstance(noise, Gaussian) else 1.0  # two numbers are off together
    assert together * math.sqrt(max(mean_square, 0.0)) <= noise.rounding * unit + grid / 100


@pytest.mark.parametrize("name", NOISES)
def test_noise_has_the_law_of_its_mechanism(name):
    """By its density, integrated, and no other scale."""
    noise = NOISES[name]
    found = fused(noise, 20_000)[0].cpu().numpy()
    # Rounding shows where a density is as steep as that of a heavy tail at zero.
    found = found + grid_of(noise) * np.random.default_rng(0).uniform(-0.5, 0.5, found.size)
    edges = np.linspace(0, float(noise.magnitude(np.asarray([1e-3]))[0]) * (1 - 1e-12), 200_001)
    middle = (edges[1:] + edges[:-1]) / 2
    half = np.append(0.0, np.cumsum(np.exp(noise.log_density(middle)) * np.diff(edges)))

    def cdf(x):
        return 0.5 + np.sign(x) * np.interp(np.abs(x), edges, half)

    assert half[-1] == pytest.approx(0.4995, abs=3e-5)
    assert stats.kstest(found, cdf).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * found, cdf).pvalue < 1e-6
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.05
    assert abs((found > 0).mean() - 0.5) < 5 * 0.5 / math.sqrt(found.size)


# Noise of whole vectors


@pytest.mark.parametrize(("dimension", "decay", "split"), [
    (2, 2.0, -1.0), (10, 40.0, 0.3), (1500, 1.0, -1.0),
])  # fmt: skip
def test_vectors_have_the_law_of_their_mechanism(dimension, decay, split):
    noise, lanes = StaircaseL1(decay, 1.0, split, dimension), 2
    count = {2: 90, 10: 60, 1500: 20}[dimension]
    drawn = fused(noise, count * dimension, lanes).cpu().view(-1, dimension)
    vectors = drawn.numpy()
    radii = np.abs(vectors).sum(1)
    assert stats.kstest(radii, radius_law(noise)).pvalue > 1e-4
    for wrong in (0.6, 1.7):
        assert stats.kstest(wrong * radii, radius_law(noise)).pvalue < 1e-6
    assert len(np.unique(radii)) > 0.9 * lanes * count
    assert abs((vectors > 0).mean() - 0.5) < 5 * 0.5 / math.sqrt(vectors.size)
    if dimension > 1:
        share = np.abs(vectors[:, 0]) / radii
        assert stats.kstest(share, stats.beta(1, dimension - 1).cdf).pvalue > 1e-4
        both = np.corrcoef(np.sign(vectors[:, 0]), np.sign(vectors[:, 1]))[0, 1]
        assert abs(both) < 5 / math.sqrt(lanes * count)
    assert abs(np.corrcoef(radii[1:], radii[:-1])[0, 1]) < 5 / math.sqrt(lanes * count)


def vector_parts(noise, count: int, keys: torch.Tensor):
    """Uniform numbers of directions and of the Laplace noise on top, and those of tried radii."""
    columns, tries = count * noise.dimension, 4 * 128
    numbers = kernels.signed_numbers(keys, 2 * columns + 3 * count * tries)[0].cpu().numpy()
    directions, blur = numbers[: 2 * columns].reshape(2, count, noise.dimension)
    return directions, blur, numbers[2 * columns :].reshape(tries, 3, count)


@pytest.mark.parametrize(("dimension", "count"), [(1, 60), (2, 40), (10, 12), (300, 2)])
@pytest.mark.parametrize("decay", [0.3, 2.0])
def test_vectors_are_as_exact_as_is_said(dimension, count, decay):
    """Which try is kept is computed here once more, the vector then in 50 digits."""
    noise, keys = StaircaseL1(decay, 1.0, dimension=dimension), some_keys(1)
    law = finely(noise)
    grid = float(law[0, 0])
    found = fused(noise, count * dimension, laws=law, keys=keys)[0].cpu().view(count, dimension)
    directions, blur, radii = vector_parts(noise, count, keys)
    shape, errors = noise.dimension - mp.mpf(1) / 3, []
    for vector in range(count):
        with mp.workdps(50):
            for one, two, coin in (map(mp.mpf, t.tolist()) for t in radii[:, :, vector]):
                y = mp.sqrt(-2 * mp.log(abs(one))) * mp.cos(mp.pi * two) / mp.sqrt(9 * shape)
                if y <= -1:
                    continue
                periods = shape * (1 + y) ** 3 / mp.mpf(decay)
                past = periods - mp.mpf(noise.split)
                kept = shape * (3 * (mp.log1p(y) - y + y * y / 2) - y**3)
                if mp.log(abs(coin)) < kept - mp.mpf(decay) * (1 - past + mp.floor(past)):
                    break
            sizes = [-mp.log(abs(mp.mpf(float(s)))) for s in directions[vector]]
            total = mp.fsum(sizes)
            for place, size in enumerate(sizes):
                own = mp.sign(directions[vector, place]) * periods * size / total
                on_top = mp.mpf(float(blur[vector, place]))
                own -= mp.sign(on_top) * grid * mp.log(abs(on_top))
                errors.append(float(mp.mpf(float(found[vector, place])) - own))
    mean_square = np.mean(np.square(errors)) - grid**2 / 12
    unit = 2.0**-53 * noise.noise_std
    assert math.sqrt(max(mean_square, 0.0)) <= noise.rounding * unit + grid / 100


@triton.jit
def _compute(x, beyond, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(beyond + place, kernels._beyond_square(tl.load(x + place)))


def test_what_decides_on_a_radius_loses_nothing():
    """No digits cancel where numbers are small."""
    sizes = [2.0**-k * f for k in range(60) for f in (0.51, 0.499999, 0.73, 0.99)]
    y = torch.tensor([*sizes, *(-own for own in sizes)], dtype=torch.float64, device=DEVICE)[:256]
    beyond = torch.empty(256, dtype=torch.float64, device=DEVICE)
    _compute[(1,)](y, beyond, 256)
    with mp.workdps(60):
        for own, rest in zip(y.tolist(), beyond.tolist(), strict=True):
            exact_log, x = mp.log1p(mp.mpf(own)), mp.mpf(own)
            wanted = exact_log - x + x * x / 2
            within = 8 * 2.0**-53 * (abs(wanted) if abs(own) < 0.25 else abs(exact_log))
            assert abs(mp.mpf(rest) - wanted) <= within


def test_every_coordinate_is_blurred_by_itself():
    noise, count, keys = StaircaseL1(1.0, 1.0, dimension=40), 20, some_keys(1)
    steps = fused(noise, count * 40, keys=keys)[0].cpu().numpy() / grid_of(noise)
    assert np.array_equal(steps, np.round(steps))
    directions, blur, _ = vector_parts(noise, count, keys)
    assert not np.any(directions == blur)
    finer = fused(noise, count * 40, laws=finely(noise), keys=keys)[0].cpu().numpy()
    rest = steps - finer / grid_of(noise)  # on the fine grid a step of it lies on top
    drawn = -np.sign(blur.ravel()) * np.log(np.abs(blur.ravel()))
    assert np.abs(rest - drawn).max() <= 0.5 + 1e-6


# The engine's noiser, with kernels


@pytest.fixture
def by_kernels(monkeypatch):
    monkeypatch.setattr(drawing, "noise_kernels_for", lambda tensor: kernels)


MIXED = [
    Gaussian(1.0), Gaussian(2.0), Laplace(0.3), R2dp(0.7, 6.0), R2dp(0.7, 3.0), Logistic(1.0),
    Turned(1.0), Staircase(1.0, 1.0), Staircase(0.5, 0.2), StaircaseL1(1.0, 1.0, dimension=30),
    StaircaseL1(2.0, 1.0, dimension=30), StaircaseL1(2.0, 1.0, dimension=20), Laplace(0.3),
]  # fmt: skip


def test_noise_of_a_lane_does_not_depend_on_the_others(by_kernels):
    sums = torch.zeros(len(MIXED), 60, dtype=torch.float64, device=DEVICE)
    keys = [KEY._replace(client=str(lane)) for lane in range(len(MIXED))]
    noiser = MechanismNoiser(MIXED)
    together = noiser.add(sums, Keyed(1), keys)
    assert torch.equal(together, noiser.add(sums, Keyed(1), keys))  # with laws that were kept
    assert len({tuple(row) for row in together.tolist()}) == len(MIXED)
    for lane, noise in enumerate(MIXED):
        alone = MechanismNoiser([noise]).add(sums[:1], Keyed(1), keys[lane : lane + 1])
        assert torch.equal(alone[0], together[lane])
    part = MechanismNoiser(MIXED).lanes(slice(3, 6)).add(sums[3:6], Keyed(1), keys[3:6])
    assert torch.equal(part, together[3:6])


def test_every_lane_has_the_noise_of_its_own_mechanism(by_kernels):
    """Neighbours that one kernel serves differ in their laws."""
    noises = [own for own in MIXED if not isinstance(own, Radial)]
    sums = torch.zeros(len(noises), 3000, dtype=torch.float64, device=DEVICE)
    keys = [KEY._replace(client=str(lane)) for lane in range(len(noises))]
    drawn = MechanismNoiser(noises).add(sums, Keyed(2), keys).double()
    for row, noise in zip(drawn, noises, strict=True):
        median = float(noise.magnitude(torch.tensor([0.5], dtype=torch.float64))[0])
        inside = float((row.abs() < median).double().mean())
        assert abs(inside - 0.5) < 5 * 0.5 / math.sqrt(3000)


def test_a_mechanism_that_draws_in_its_own_way_has_no_kernel(by_kernels):
    assert law_of(Turned(1.0)).kernel == ""
    assert law_of(Logistic(1.0)).kernel == "tabulated"  # a shape of one's own is a table
    sums = torch.zeros(1, 4000, dtype=torch.float64, device=DEVICE)
    drawn = MechanismNoiser([Turned(1.0)]).add(sums, Entropy(), [KEY])
    assert float(drawn.abs().mean()) == pytest.approx(3.0, rel=0.1)


def test_fresh_noise_each_time(by_kernels):
    sums = torch.zeros(2, 50, dtype=torch.float64, device=DEVICE)
    noiser, keys = MechanismNoiser([Staircase(1.0, 1.0)] * 2), [KEY, KEY]
    one, two = (noiser.add(sums, Entropy(), keys) for _ in "12")
    assert not torch.equal(one, two)
    assert not torch.equal(one[0], one[1])


def test_a_row_that_is_no_whole_number_of_vectors_is_refused(by_kernels):
    for columns in (9, 11, 25):
        with pytest.raises(InvalidInput, match="staircase-l1 noise is for vectors of 10"):
            MechanismNoiser([StaircaseL1(1.0, 1.0, dimension=10)]).add(
                torch.zeros(1, columns, device=DEVICE), Entropy(), [KEY]
            )


def test_sums_that_do_not_lie_side_by_side_are_not_read_as_if_they_did():
    sums = torch.zeros(5, 2, dtype=torch.float64, device=DEVICE).t()
    with pytest.raises(ValueError, match="contiguous"):
        fused(Laplace(1.0), 5, 2, sums)
    with pytest.raises(ValueError, match="contiguous"):
        fused(StaircaseL1(1.0, 1.0, dimension=5), 5, 2, sums)
