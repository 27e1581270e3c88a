"""One conformance suite for every mechanism: a new one is one line in `MATRIX`.

Noise of whole vectors has one of its own: test_radial.py.
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass, field, replace

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from tests.conftest import Box, Logistic, Student, TwoHumps
from tests.oracles import renyi_by_cells, renyi_by_quadrature
from udpfl import Gaussian, InvalidInput, Laplace, Mechanism, R2dp, Staircase, Tabulated
from udpfl.mechanisms import BUILT_IN, Radial, arrays

MATRIX: list[Mechanism] = [
    Gaussian(1.3),
    Laplace(0.7),
    Staircase(1.0, 1.0),
    Staircase(0.3, 2.5, 0.8),
    Staircase(4.0, 0.5, 0.0),
    Staircase(1e-4, 0.01),
    R2dp(1.0),
    R2dp(0.4, 20.0),
    Logistic(2.0),
    Student(1.0),
    TwoHumps(0.5),
]
N = 20_000


def test_every_built_in_mechanism_is_in_the_matrix():
    kinds = {kind for kind in BUILT_IN.values() if not issubclass(kind, Radial)}
    assert {type(mechanism) for mechanism in MATRIX} >= kinds


def distribution(mechanism: Mechanism):
    """The distribution function, by integrating the density numerically."""
    tails = 2.0 ** -np.linspace(0, 50, 4001)
    half = np.asarray(mechanism.magnitude(tails))
    x = np.unique(np.concatenate([-half, half, np.linspace(-half[1000], half[1000], 60_001)]))
    middle = (x[1:] + x[:-1]) / 2
    mass = np.exp(mechanism.log_density(middle)) * np.diff(x)
    cdf = np.append(0.0, np.cumsum(mass))
    assert abs(cdf[-1] - 1) < 2e-3, "the density must integrate to 1"
    return lambda y: np.interp(y, x, cdf / cdf[-1])


@pytest.mark.parametrize("mechanism", MATRIX, ids=repr)
class TestConformance:
    def test_accepts_the_right_scale_and_rejects_the_wrong_ones(self, mechanism):
        noise = mechanism.sample(N, np.random.default_rng(7))
        cdf = distribution(mechanism)
        assert stats.kstest(noise, cdf).pvalue > 1e-3
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(noise * wrong, cdf).pvalue < 1e-6

    def test_moments(self, mechanism):
        noise = np.abs(mechanism.sample(N, np.random.default_rng(8)))
        assert noise.mean() == pytest.approx(mechanism.mean_abs, abs=5 * noise.std() / math.sqrt(N))
        if not isinstance(mechanism, Student):  # its fourth moment is infinite
            spread = (noise**2).std() / math.sqrt(N)
            assert (noise**2).mean() == pytest.approx(mechanism.variance, abs=5 * spread)
        assert mechanism.noise_std == pytest.approx(math.sqrt(mechanism.variance))

    def test_symmetry(self, mechanism):
        x = np.linspace(0.01, 5, 50) * mechanism.noise_std
        np.testing.assert_array_equal(mechanism.log_density(x), mechanism.log_density(-x))
        u = np.linspace(0.01, 0.49, 25)
        np.testing.assert_allclose(mechanism.from_uniform(u), -mechanism.from_uniform(1 - u))
        np.testing.assert_allclose(mechanism.renyi(3, -0.4), mechanism.renyi(3, 0.4))

    def test_scale_equivariance(self, mechanism):
        shifts = np.asarray([0.1, 0.7, 2.3]) * mechanism.noise_std
        for factor in (1e-3, 0.3, 40.0):
            scaled = mechanism.scaled(factor)
            assert scaled.noise_std == pytest.approx(factor * mechanism.noise_std)
            assert scaled.mean_abs == pytest.approx(factor * mechanism.mean_abs)
            np.testing.assert_allclose(
                scaled.renyi(5, factor * shifts), mechanism.renyi(5, shifts), rtol=1e-6
            )

    def test_divergence_is_zero_without_shift_and_grows_with_the_order(self, mechanism):
        orders = np.asarray([1.0, 1.01, 1.5, 2, 7, 64, 1024])
        assert np.all(mechanism.renyi(orders, 0.0) == 0)
        values = mechanism.renyi(orders, 0.8 * mechanism.noise_std)
        assert np.all(np.isfinite(values))
        assert np.all(np.diff(values) >= -1e-9)
        assert mechanism.renyi(math.inf, 0.8 * mechanism.noise_std) >= values[-1] * (1 - 1e-9)

    def test_divergence_grows_with_the_shift_if_unimodal(self, mechanism):
        if not mechanism.unimodal:
            pytest.skip("not unimodal")
        shifts = np.linspace(0.01, 4, 80) * mechanism.noise_std
        assert np.all(np.diff(mechanism.renyi(6, shifts)) >= -1e-9)

    def test_hockey_stick_is_the_mean_of_the_excess_loss(self, mechanism):
        """delta(eps) = E max(0, 1 - e^{eps - loss}), here by 400,000 stratified samples."""
        u = (np.arange(400_000) + 0.5) / 400_000
        x = mechanism.from_uniform(u)
        for shift in (0.2 * mechanism.noise_std, 1.7 * mechanism.noise_std):
            loss = mechanism.log_density(x) - mechanism.log_density(x - shift)
            for epsilon in (-0.5, 0.0, 0.05, 0.3, 1.0):
                expected = -np.expm1(np.minimum(epsilon - loss, 0.0)).mean()
                got = float(mechanism.hockey_stick(epsilon, shift))
                assert got == pytest.approx(expected, abs=2e-5)

    def test_torch_and_numpy_agree_and_float32_has_far_tails(self, mechanism):
        torch = pytest.importorskip("torch")
        words = torch.randint(-(2**63), 2**63 - 1, (4000,), generator=torch.manual_seed(3))
        single = mechanism.from_bits(words)
        double = mechanism.from_bits(words.numpy(), np.float64)
        assert single.dtype == torch.float32
        np.testing.assert_allclose(
            single.double(), double, rtol=1e-3, atol=1e-4 * mechanism.noise_std
        )
        far = mechanism.from_bits(torch.tensor([0, -1, 2**23]))  # tails of 5e-20 and 1e-12
        assert far[0] == -far[1]
        assert far[0] > far[2] > 0
        assert far[2] > mechanism.magnitude(np.asarray([1.1e-12]))[0] * (1 - 1e-4)
        u = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
        np.testing.assert_allclose(
            mechanism.from_uniform(u), mechanism.from_uniform(u.numpy()), rtol=1e-6, atol=1e-9
        )
        assert torch.all(torch.isfinite(mechanism.from_uniform(torch.tensor([0.0, 1.0]))))

    def test_immutable_and_described_by_its_parameters(self, mechanism):
        assert type(mechanism)(**mechanism.parameters) == mechanism
        name = next(iter(mechanism.parameters))
        with pytest.raises(AttributeError):
            setattr(mechanism, name, 1.0)
        for bad in (0.0, -1.0, math.nan, math.inf, "1", True):
            with pytest.raises(InvalidInput):
                replace(mechanism, **{name: bad})


@pytest.mark.parametrize(
    ("decay", "order", "expected"),
    [(0.1, 8, 0.0366800), (1, 2, 0.7105769), (1, 8, 0.9483873), (3, 32, 2.9961841)],
)
def test_staircase_check_values_at_one_period(decay, order, expected):
    assert Staircase(decay, 1.0).renyi(order, 1.0) == pytest.approx(expected, rel=1e-6, abs=5e-8)


@pytest.mark.parametrize(("order", "expected"), [(2, 1.3395605), (8, 1.8824680)])
def test_staircase_check_values_at_a_general_shift(order, expected):
    value = Staircase(0.7, 1.0, 0.4).renyi(order, 2.3)
    assert value == pytest.approx(expected, rel=1e-6, abs=5e-8)


@given(
    decay=st.floats(0.02, 6),
    split=st.floats(0, 1),
    periods=st.one_of(st.floats(1e-3, 12), st.integers(1, 8).map(float)),
    order=st.sampled_from([1.0, 1.05, 1.7, 2.0, 5.0, 40.0]),
)
def test_staircase_divergence_against_a_sum_over_all_cells(decay, split, periods, order):
    noise = Staircase(decay, 0.5, split)
    reach = math.ceil(80 / decay + periods) + 2
    whole = np.arange(-reach, reach + 1) * 0.5
    edges = np.unique(np.concatenate([whole, whole + split / 2, -(whole + split / 2)]))
    expected = renyi_by_cells(noise.log_density, edges, order, periods / 2)
    assert noise.renyi(order, periods / 2) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@settings(max_examples=12)
@given(order=st.sampled_from([1.0, 1.1, 2.0, 9.0, 30.0]), shift=st.floats(0.01, 3))
def test_smooth_closed_forms_against_quadrature(order, shift):
    with mp.workdps(30):
        gauss = renyi_by_quadrature(
            lambda x: -((x / mp.mpf("1.3")) ** 2) / 2 - mp.log(mp.mpf("1.3") * mp.sqrt(2 * mp.pi)),
            order, shift, [-200, -40, -(order - 1) * shift, -5, 5, 20, 70],
        )  # fmt: skip
        laplace = renyi_by_quadrature(
            lambda x: -abs(x) / mp.mpf("0.7") - mp.log(mp.mpf("1.4")),
            order, shift, [-60, -10, -2, 5, 12, 60],
        )  # fmt: skip
    assert Gaussian(1.3).renyi(order, shift) == pytest.approx(gauss, rel=1e-6)
    assert Laplace(0.7).renyi(order, shift) == pytest.approx(laplace, rel=1e-6)


@dataclass(frozen=True)
class Bell(Tabulated):
    """Losses that grow up to the end of the table: at high orders its tail decides."""

    def shape(self, x):
        return -x * x / 2


@pytest.mark.parametrize(
    "mechanism", [Logistic(2.0), Student(1.0), TwoHumps(0.5), Bell(1.0)], ids=repr
)
@pytest.mark.parametrize("order", [1.0, 1.5, 4.0, 64.0])
def test_table_divergence_against_quadrature_of_the_table(mechanism, order):
    """The accountant accounts the density that the sampler samples: the table's, tails included."""
    for shift in (0.05, 0.9, 4.0):
        knots = mechanism._table.knots * mechanism.scale
        end = 3 * knots[-1]
        breaks = np.unique(np.concatenate([-knots, knots, knots + shift, shift - knots]))
        outer = np.geomspace(knots[-1] + shift, end + 100 * mechanism.scale, 400)
        x = np.unique(np.concatenate([breaks, outer, -outer]))
        nodes, weights = np.polynomial.legendre.leggauss(8)
        points = ((x[1:] + x[:-1]) / 2)[:, None] + (np.diff(x) / 2)[:, None] * nodes
        w = (np.diff(x) / 2)[:, None] * weights
        p, q = mechanism.log_density(points), mechanism.log_density(points - shift)
        if order == 1:
            expected = float(np.sum(w * np.exp(p) * (p - q)))
        else:
            expected = float(logsumexp(p + (order - 1) * (p - q), b=w) / (order - 1))
        assert mechanism.renyi(order, shift) == pytest.approx(expected, rel=1e-6, abs=1e-10)


def test_a_density_that_vanishes_makes_the_divergence_infinite():
    values = Box(1.0).renyi([1.0, 2.0, 64.0, math.inf], 0.01)
    assert np.all(values == math.inf)
    assert Box(1.0).hockey_stick(50.0, 0.5) == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("decay", [1e-4, 1e-2, 1.0, 10.0, 50.0])
@pytest.mark.parametrize("split", [-1.0, 0.0, 0.3, 0.5, 1.0])
def test_staircase_extremes_neither_overflow_nor_turn_into_nan(decay, split):
    noise = Staircase(decay, 1.0, split)
    orders = np.asarray([1.0, 1.0001, 2.0, 128.0, 1024.0, math.inf])[:, None]
    shifts = np.asarray([1e-9, 0.3, 1.0, 7.7, 1e4])
    values = noise.renyi(orders, shifts)
    assert np.all(np.isfinite(values))
    assert np.all(values >= 0)
    assert np.all(values <= decay * np.ceil(shifts) * (1 + 1e-12))
    assert math.isfinite(noise.variance)
    assert noise.variance > 0
    noise32 = noise.magnitude(np.asarray([1.0, 0.5, 1e-10, 1e-19], dtype=np.float32))
    assert np.all(np.isfinite(noise32))
    assert np.all(np.diff(noise32) >= 0)


@pytest.mark.parametrize("order", [1.0001, 2.0, 1024.0])
def test_laplace_extremes(order):
    for shift in (1e-12, 1e-4, 1.0, 1e3, 1e6):
        value = Laplace(1.0).renyi(order, shift)
        assert 0 < value <= min(shift, order * shift**2 / 2) * (1 + 1e-9)


def test_expected_size_check_values():
    for decay in (0.1, 1.0, 3.0):
        expected = 2.0 * math.exp(decay / 2) / math.expm1(decay)
        assert Staircase(decay, 2.0).mean_abs == pytest.approx(expected, rel=1e-12)
    assert Gaussian(1.7).mean_abs == pytest.approx(1.7 * math.sqrt(2 / math.pi))
    assert Laplace(0.4).mean_abs == 0.4


@pytest.mark.parametrize(("decay", "ratio"), [(0.1, 2.0), (1, 2.09), (4, 3.84), (8, 19.5)])
def test_the_squared_mean_size_is_not_the_variance(decay, ratio):
    """The paper's convergence bound uses (E|x|)^2 where the variance belongs."""
    noise = Staircase(decay, 1.0)
    assert noise.variance / noise.mean_abs**2 == pytest.approx(ratio, rel=5e-3)


@given(decay=st.floats(0.05, 5), split=st.floats(0, 1))
def test_staircase_moments_against_the_density(decay, split):
    noise = Staircase(decay, 1.0, split)
    edges = np.arange(math.ceil(60 / decay) + 2, dtype=float)
    edges = np.unique(np.concatenate([edges, edges + split]))
    height = np.exp(noise.log_density((edges[1:] + edges[:-1]) / 2))
    first = 2 * np.sum(height * np.diff(edges**2) / 2)
    second = 2 * np.sum(height * np.diff(edges**3) / 3)
    assert noise.mean_abs == pytest.approx(first, rel=1e-9)
    assert noise.variance == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.2])
def test_staircase_saves_variance_against_laplace_at_small_epsilon(epsilon):
    """Geng et al.: the best split saves period^2 (1/12 - eps^2/720 + O(eps^4))."""
    splits = np.linspace(0.4, 0.6, 2001)
    best = min(Staircase(epsilon, 1.0, s).variance for s in splits)
    saved = Laplace(1 / epsilon).variance - best
    assert saved == pytest.approx(1 / 12 - epsilon**2 / 720, abs=epsilon**4 / 100 + 1e-6)


@pytest.mark.parametrize("split", [-0.1, 1.1, math.nan, "a"])
def test_staircase_refuses_a_split_outside_its_range(split):
    with pytest.raises(InvalidInput, match="split"):
        Staircase(1.0, 1.0, split)


@dataclass(frozen=True)
class Cliff(Tabulated):
    """Almost flat, then a drop of 45 nats within a single cell."""

    def shape(self, x):
        return -0.1 * x - 1e5 * np.maximum(x - 1, 0)


@dataclass(frozen=True)
class Plateau(Tabulated):
    """Steeper and steeper towards 1."""

    def shape(self, x):
        return -(np.minimum(x, 3.0) ** 3000.0)


@pytest.mark.parametrize("noise", [Cliff(1.0), Plateau(1.0), Logistic(1.0)], ids=repr)
@pytest.mark.parametrize(("order", "shift"), [(2.0, 1e-5), (8.0, 1e-7), (1.0, 1e-6), (3.0, 0.4)])
def test_steep_tables_are_exact_too(noise, order, shift):
    """Piece by piece in 60 digits: exponentials of lines have closed-form integrals."""
    with mp.workdps(20 if order == 1 else 60):
        table = noise._table
        knots = [mp.mpf(float(x)) for x in table.knots]
        values = [mp.mpf(float(y)) for y in table.log_density]
        s, a, rate = mp.mpf(shift), mp.mpf(order), mp.mpf(table.tail_rate)

        def log_p(x):
            x = abs(x)
            if x >= knots[-1]:
                return values[-1] - rate * (x - knots[-1])
            i = bisect.bisect_right(knots, x) - 1
            return values[i] + (values[i + 1] - values[i]) * (x - knots[i]) / (
                knots[i + 1] - knots[i]
            )

        ends = [-k for k in knots[:0:-1]] + knots
        cuts = sorted({*ends, *(k + s for k in ends)})
        total = mp.mpf(0)
        for x0, x1 in itertools.pairwise(cuts):
            p0, p1 = log_p(x0), log_p(x1)
            l0, l1 = p0 - log_p(x0 - s), p1 - log_p(x1 - s)
            if order == 1:
                nodes = mp.linspace(x0, x1, 2)
                total += mp.quad(lambda x: mp.e ** log_p(x) * (log_p(x) - log_p(x - s)), nodes)
                continue
            e0, e1 = p0 + (a - 1) * l0, p1 + (a - 1) * l1
            total += (x1 - x0) * (mp.e**e0 if e0 == e1 else (mp.e**e1 - mp.e**e0) / (e1 - e0))
        tail = mp.e ** values[-1] / rate
        if order == 1:
            expected = total + tail * rate * s * (1 - mp.e ** (-rate * s))
        else:
            total += tail * mp.e ** ((a - 1) * rate * s) + tail * mp.e ** (-a * rate * s)
            expected = mp.log(total) / (a - 1)
        # the table's own float normalisation limits what can be compared
        slack = 1e-15 if order == 1 else 3e-16 * len(cuts) / (order - 1) * 0.05
    assert float(noise.renyi(order, shift)) == pytest.approx(float(expected), rel=1e-6, abs=slack)


def test_random_words_must_be_signed_64_bit():
    """Anything else would silently give one-sided or almost constant noise."""
    for dtype in (np.uint64, np.int32, np.float64):
        with pytest.raises(InvalidInput, match="64-bit"):
            Laplace(1.0).from_bits(np.arange(4, dtype=dtype))
    with pytest.raises(InvalidInput, match="float32"):
        Laplace(1.0).from_bits(np.arange(4, dtype=np.int64), np.float16)
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        Laplace(1.0).from_uniform(np.asarray([-0.2, 0.5]))


def test_a_mechanism_without_a_name_is_called_after_its_class():
    @dataclass(frozen=True)
    class Bump(Tabulated):
        def shape(self, x):
            return -x * x

    assert Bump(1.0).name == "bump"


def test_staircase_refuses_a_decay_beyond_floating_point():
    with pytest.raises(InvalidInput, match="decay"):
        Staircase(740.0, 1.0)
    assert np.isfinite(Staircase(600.0, 1.0).renyi(2.0, 1.0))


@pytest.mark.parametrize("mechanism", MATRIX, ids=repr)
def test_float32_stays_float32_whatever_the_parameters_are(mechanism):
    name = next(iter(mechanism.parameters))
    noise = replace(mechanism, **{name: np.float64(getattr(mechanism, name))})
    words = np.arange(-500, 500, dtype=np.int64) << 50
    assert noise.from_bits(words).dtype == np.float32
    assert noise.from_uniform(np.full(3, 0.2, dtype=np.float32)).dtype == np.float32


def test_tiny_divergences_of_a_table_keep_their_digits():
    """A tabulated Laplace density against the closed form, where 1 + D rounds to 1."""

    class TableLaplace(Logistic):
        def shape(self, x):
            return -x

    for scale in (1e3, 1e7):
        expected = Laplace(scale).renyi([1.02, 2.0, 30.0], 1.0)
        got = TableLaplace(scale).renyi([1.02, 2.0, 30.0], 1.0)
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_table_refuses_what_is_not_a_density():
    class Flat(Logistic):
        def shape(self, x):
            return np.zeros_like(x)

    with pytest.raises(InvalidInput, match="shape"):
        _ = Flat(1.0).variance


@pytest.fixture(params=[True, False], ids=["tangents", "sines"])
def both_formulas(request, monkeypatch):
    """Pairs of Gaussian numbers by the formula for AVX-512 and by the other one."""
    monkeypatch.setattr(arrays, "_HAS_AVX512", request.param)


@pytest.mark.usefixtures("both_formulas")
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (2,), (5, 7), (4, 50_001)])
def test_gaussian_draws_in_pairs_are_independent_normals(kind, dtype, shape):
    torch = pytest.importorskip("torch")
    uniform = np.random.default_rng(3).uniform(-1, 1, shape).astype(dtype)
    noise = Gaussian(2.5)
    drawn = noise.draw(uniform.copy() if kind == "numpy" else torch.tensor(uniform))
    assert drawn.shape == shape
    assert str(drawn.dtype).removeprefix("torch.") == dtype
    by_row = [noise.draw(row.copy()) for row in uniform.reshape(-1, shape[-1])]
    assert np.allclose(np.concatenate(by_row), np.asarray(drawn).ravel(), rtol=1e-4, atol=1e-5)
    z = np.asarray(drawn, dtype=np.float64).ravel() / 2.5
    if z.size < 1000:
        return
    assert stats.kstest(z, "norm").pvalue > 1e-6
    half, pairs = z.size // 2, shape[-1] // 2
    rows = z.reshape(shape)
    # Halves of all numbers, and the two values of every pair.
    for first, second in (
        (z[:half], z[half : 2 * half]),
        (rows[:, :pairs].ravel(), rows[:, pairs : 2 * pairs].ravel()),
    ):
        for a, b in ((first, second), (first**2, second**2), (np.abs(first), second)):
            assert abs(np.corrcoef(a, b)[0, 1]) < 6 / math.sqrt(len(a))
    assert abs(np.corrcoef(z[1:], z[:-1])[0, 1]) < 6 / math.sqrt(half)


@pytest.mark.usefixtures("both_formulas")
@pytest.mark.parametrize("std", [1.0, 0.03, 700.0])
def test_gaussian_pairs_are_the_two_sides_of_a_triangle(std):
    """The formula of Box and Muller, number by number: neither scale nor sign may be off."""
    u = np.random.default_rng(3).uniform(-1, 1, (3, 200))
    radius, angle = std * np.sqrt(-2 * np.log(np.abs(u[:, :100]))), math.pi * u[:, 100:]
    sides = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    assert np.allclose(Gaussian(std).draw(u.copy()), sides, rtol=1e-13, atol=1e-13 * std)


def test_a_table_goes_on_beyond_its_last_knot():
    """The tail of logistic noise in closed form, as far out as two random words reach."""
    tails = 2.0 ** -np.arange(60.0, 121.0, 10.0)
    wanted = 2.0 * np.log(2 / tails)  # but for e^-40
    assert np.allclose(Logistic(2.0).magnitude(tails), wanted, rtol=1e-3)


@pytest.mark.usefixtures("both_formulas")
def test_gaussian_pairs_reach_far_tails():
    extreme = Gaussian(1.0).draw(np.array([2.0**-63, 0.5, 2.0**-120, 2.0**-64]))
    assert extreme[0] == pytest.approx(math.sqrt(2 * 63 * math.log(2)))  # at angle 0
    assert np.isfinite(extreme).all()


@dataclass(frozen=True)
class _Quiet(Laplace):
    """A parameter that its author did not want to be compared."""

    louder: float = field(default=1.0, compare=False)


class _Bare(Laplace):
    """Not a dataclass: what it adds is no field."""

    def __init__(self, scale: float, extra: object) -> None:
        super().__init__(scale)
        object.__setattr__(self, "extra", extra)


def test_noises_that_differ_in_anything_are_not_equal():
    """What is known of one is kept under it, and must not be told of another."""
    assert Laplace(1.0) == Laplace(1.0)
    assert hash(Laplace(1.0)) == hash(Laplace(1.0))
    assert Laplace(1.0) != Laplace(2.0)
    assert Laplace(1.0) != Gaussian(1.0)
    assert _Quiet(1.0, 1.0) != _Quiet(1.0, 2.0)
    assert _Bare(1.0, 1) != _Bare(1.0, 2)
    assert _Bare(1.0, np.ones(3)) == _Bare(1.0, np.ones(3))
    assert _Bare(1.0, np.ones(3)) != _Bare(1.0, np.zeros(3))
    assert hash(_Bare(1.0, [1, {"a": np.ones(3)}])) == hash(_Bare(1.0, [1, {"a": np.ones(3)}]))
    assert _Bare(1.0, 1) != Laplace(1.0)
