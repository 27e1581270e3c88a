"""What is said of rounding: the error of noise against exact arithmetic, and what it adds up to."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import udpfl
from tests.mechanisms.exactly import (
    Flat,
    exact_gaussian,
    exact_laplace,
    exact_staircase,
    exact_table,
)
from tests.small import blobs, linear
from udpfl import Gaussian, Laplace, R2dp, Staircase
from udpfl.accounting import Composed, PoissonSampled, Release, Repeated, Sensitivity
from udpfl.accounting.rounding import rounding_of_event
from udpfl.config import load
from udpfl.mechanisms import arrays
from udpfl.mechanisms.grid import Rounding, grid_of, rounding_of
from udpfl.models import build

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("noise", "exact", "together"),
    [
        (R2dp(1.3, 2.1), exact_table, 1.0), (R2dp(0.7, 6.0), exact_table, 1.0),
        (R2dp(1.0, 24.0), exact_table, 1.0), (Flat(1.3), exact_table, 1.0),
        (Gaussian(1.7), exact_gaussian, math.sqrt(2)), (Laplace(1.3), exact_laplace, 1.0),
        (Staircase(0.05, 0.05), exact_staircase, 1.0), (Staircase(1.0, 1.0), exact_staircase, 1.0),
        (Staircase(3.0, 1.0), exact_staircase, 1.0),
        (Staircase(0.5, 1.0, 1.0), exact_staircase, 1.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_avx512", [True, False])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_noise_is_as_exact_as_is_said(noise, exact, together, device, has_avx512, monkeypatch):
    """Against 50 digits: the root mean square, and far out in the tail."""
    monkeypatch.setattr(arrays, "_HAS_AVX512", has_avx512)
    rng, unit = np.random.default_rng(0), 2.0**-53 * noise.noise_std
    ordinary = rng.uniform(-1, 1, 4_000)
    far = np.copysign(2.0 ** -rng.uniform(0, 100, 1_000), rng.uniform(-1, 1, 1_000))
    if isinstance(noise, Gaussian):
        far = np.concatenate([far, rng.uniform(-1, 1, 1_000)])
    errors = {}
    for name, signed in (("ordinary", ordinary), ("far", far)):
        got = noise.draw(torch.tensor(signed, device=device)).cpu().numpy()
        with mp.workdps(50):
            wanted = exact(noise, [mp.mpf(float(s)) for s in signed])
            errors[name] = np.array(
                [float((mp.mpf(float(g)) - w) / unit) for g, w in zip(got, wanted, strict=True)]
            )
            sizes = np.array([abs(float(w)) for w in wanted]) / noise.noise_std
    assert together * np.sqrt((errors["ordinary"] ** 2).mean()) <= noise.rounding
    if isinstance(noise, Gaussian):  # off by a part of the radius of its pair
        sizes = np.tile(np.hypot(*sizes.reshape(2, -1)), 2)
    assert (np.abs(errors["far"]) <= 4 * noise.rounding * (1 + sizes)).all()


@given(st.integers(0, 2**32), st.floats(1e-6, 1e-2), st.floats(1.0, 6.0))
def test_small_factors_multiply_as_is_said(seed, most, exponent):
    """D_a of two distributions whose probabilities differ by factors within e^(+-h) is at most
    0.6 a E h^2, for orders up to 0.1 / max h: directly, for a thousand points."""
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.ones(1000))
    h = most * rng.uniform(0, 1, 1000) ** exponent
    p = q * np.exp(h * rng.choice([-1, 1], 1000) * 0.5)
    p /= p.sum()
    factor = np.abs(np.log(p / q))
    order = max(12.0, 0.1 / factor.max())
    divergence = math.log(float((q * (p / q) ** order).sum())) / (order - 1)
    assert divergence <= 0.6 * order * float((q * factor**2).sum()) * (1 + 1e-9)


@given(st.integers(0, 2**32), st.floats(1e-10, 1e-8), st.floats(1.5, 4.0))
def test_factors_far_out_may_be_larger_where_they_are_rare(seed, least, power):
    """The same with factors that grow like a heavy tail: those above a tenth are added up."""
    rng = np.random.default_rng(seed)
    tail = np.append(2.0 ** -np.arange(40.0), 0.0)
    q, h = -np.diff(tail), least * tail[:-1] ** (-1 / power)
    loss = h * rng.uniform(0, 1, 40) * rng.choice([-1, 1], 40) * 0.5
    loss -= math.log1p((q * np.expm1(loss)).sum())
    factor = np.abs(loss)
    for order in 0.1 / factor.max() * np.array([1.0, 10.0, 100.0]):
        if order <= 2:
            continue
        # The sums of p and q are alike, which takes the linear part off: it would hide the rest.
        excess = (q * (np.expm1(order * loss) - order * np.expm1(loss))).sum()
        divergence = math.log1p(excess) / (order - 1)
        rare = order * factor > 0.1
        far = (q * factor**2 * np.exp(order * factor))[rare].sum()
        allowed = order * (0.6 * float((q * factor**2).sum()) + 0.5 * float(far))
        assert divergence <= allowed * (1 + 1e-9)


def test_heavy_tails_are_looked_at_as_far_as_they_count():
    """What is said covers sums of simulated factors, and is small where the tail is not extreme."""
    assert rounding_of([(R2dp(1.0, 6.0), 7_803_000)], 8.0).total < 1e-7
    assert rounding_of([(R2dp(1.0, 3.0), 7_803_000)], 8.0).total < 1e-5
    heavier = [rounding_of([(R2dp(1.0, k), 1000)], 8.0).total for k in (24.0, 6.0, 3.0, 2.1)]
    assert heavier == sorted(heavier)
    noise, numbers = R2dp(1.0, 3.0), 2_000
    unit = 2 * noise.noise_std / grid_of(noise) * 2.0**-53 * noise.rounding
    rng = np.random.default_rng(0)
    sizes = noise.magnitude(rng.uniform(size=(3_000, numbers))) / noise.noise_std
    signs = rng.choice([-1, 1], sizes.shape)
    added = np.abs((4 * unit * (1 + sizes) * signs).sum(1))
    assert np.quantile(added, 0.999) < rounding_of([(noise, numbers)], 8.0).epsilon


def test_runs_with_a_number_further_out_are_counted():
    """Of a heavy tail not everything is looked at: the rest is in delta, in both worlds."""
    light, heavy = (rounding_of([(R2dp(1.0, k), 1000)], 1.0) for k in (24.0, 2.1))
    assert light.delta < 3 * math.exp(-32) + 1e-8
    assert heavy.delta > 1e-8
    assert heavy.delta > 3 * math.exp(-32)


def test_what_rounding_adds_grows_with_the_root_of_the_numbers():
    few, many = (rounding_of([(Gaussian(1.0), n)], 8.0) for n in (10**8, 4 * 10**8))
    assert many.epsilon == pytest.approx(2 * few.epsilon, rel=0.05)
    assert few.delta == many.delta < 1e-13
    split = rounding_of([(Gaussian(1.0), 10**8)] * 4, 8.0)
    assert split.epsilon == pytest.approx(many.epsilon, rel=1e-6)
    assert rounding_of([], 8.0) == Rounding(0.0, 0.0)
    assert math.isfinite(rounding_of([(Laplace(1.0), 10)], math.inf).total)
    assert Rounding(0.1, 0.2).total == pytest.approx(math.exp(0.1) - 0.8)
    assert Rounding(0.9, 0.2).total == Rounding(1e300, 0.0).total == 1.0


@pytest.mark.parametrize("noise", [Gaussian(1.0), Laplace(3.0)], ids=lambda noise: noise.name)
def test_what_is_said_covers_both_worlds_rounded_in_opposite_ways(noise):
    """Each point of the grid off by a factor e^h in one world and e^-h in the other, or the other
    way round, as often as not: the logarithms of n such numbers add up to a normal law."""
    numbers = 10**8
    h = 2 * (noise.rounding + 1) * 2.0**-53 * noise.noise_std / grid_of(noise)
    for epsilon in (0.1, 8.0):
        found = rounding_of([(noise, numbers)], epsilon)
        spread = 2 * h * math.sqrt(numbers)
        assert stats.norm.sf(found.epsilon / spread) <= found.delta
        assert found.epsilon < 14 * spread


def test_an_event_is_rounded_once_for_every_number_it_releases():
    release = Release(Laplace(1.0), Sensitivity(1.0, "l2", 1000))
    event = Composed((Repeated(PoissonSampled(0.1, release), 30), Repeated(release, 12)))
    found, wanted = rounding_of_event(event, 3.0), rounding_of([(Laplace(1.0), 42_000)], 3.0)
    assert found.epsilon == pytest.approx(wanted.epsilon, rel=0.02)
    one = Repeated(PoissonSampled(0.1, release), 42)
    assert rounding_of_event(one, 3.0) == wanted
    unknown = Release(Gaussian(1.0), Sensitivity(1.0, "l2"))
    assert rounding_of_event(unknown, 3.0) == Rounding(0.0, 0.0)


SHAPES = {
    "mnist5k": ((1, 28, 28), 10), "mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10),
    "medical-mnist": ((1, 28, 28), 6), "utkface": ((3, 32, 32), 2),
    "gefcom2012-wind": ((7, 72), 48),
}  # fmt: skip
"""Records and outputs of the data sets: what counts is the number of parameters."""


@pytest.mark.parametrize(
    "name",
    ["default", "mnist", "cifar10", "cifar10-scattering", "medical-mnist", "utkface", "wind"],
)
def test_what_rounding_adds_is_a_hundredth_of_delta_in_every_shipped_configuration(name):
    config = load(f"configs/{name}.toml")
    shape, outputs = SHAPES[config.data.name]
    network = build(config.model.name, shape, outputs, seed=0, **config.model.options)
    dimension = sum(p.numel() for p in network.parameters())
    numbers = dimension * config.training.rounds * config.training.local_steps
    for noise in (Gaussian(1.0), Laplace(1.0)):
        total = rounding_of([(noise, numbers)], config.privacy.epsilon).total
        assert total < config.privacy.delta / 100


def test_a_run_says_what_rounding_adds(tmp_path):
    result = udpfl.run(
        {"out": str(tmp_path / "run"), "data": {"clients": 3}, "training": {"rounds": 2}},
        data=blobs(), model=linear(),
    )  # fmt: skip
    summary = (result.folder / "summary.json").read_text()
    assert '"rounding"' in summary
    assert "This adds at most" in result.report.read_text()
    assert "Rounding: computers add noise" in result.report.read_text()
