"""Noise with one density for a whole vector, accounted: by Rényi, loss distribution, pure DP."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udpfl import (
    Gaussian,
    InvalidInput,
    Laplace,
    PoissonSampled,
    R2dp,
    Release,
    Repeated,
    Sensitivity,
    Setting,
    StaircaseL1,
    account,
    calibrate,
    choose,
    match,
)
from udpfl.accounting import worst_case
from udpfl.accounting.accountant import as_scalar
from udpfl.accounting.described import described
from udpfl.accounting.serial import event_from_json, event_to_json
from udpfl.accounting.worst_case import worst_loss
from udpfl.audit._costs import bounds
from udpfl.audit._events import read


def release(noise, bound=1.0, norm="l1"):
    return Release(noise, Sensitivity(bound, norm, noise.dimension))


@pytest.mark.parametrize("dimension", [1, 2, 10, 26_010])
def test_the_pure_epsilon_is_the_decay_whatever_the_dimension(dimension):
    noise = StaircaseL1(0.7, 1.0, dimension=dimension)
    assert account(release(noise), delta=0).epsilon == 0.7
    assert account(release(noise, 1.0001), delta=0).epsilon == 1.4  # beyond a step it doubles
    assert account(Repeated(release(noise), 5), delta=0).epsilon == pytest.approx(3.5)


def test_other_norms_pay_for_the_largest_l1_norm():
    noise = StaircaseL1(0.7, 1.0, dimension=9)
    assert worst_loss(noise, Sensitivity(1.0, "l2", 9)) == pytest.approx(3 * 0.7)
    assert worst_loss(noise, Sensitivity(1.0, "linf", 9)) == pytest.approx(9 * 0.7)
    orders = np.asarray([1.5, 2.0, 30.0])
    np.testing.assert_allclose(
        worst_case(noise, Sensitivity(1.0, "l2", 9), orders), noise.renyi(orders, 3.0)
    )
    # and it is a bound for gradients within the l2 ball, here for spread ones, by samples
    rng = np.random.default_rng(0)
    x = noise.sample((40_000, 9), rng)
    for shift in (np.full(9, 1 / 3), rng.normal(size=9)):
        v = shift / np.linalg.norm(shift)
        loss = noise.log_density(x) - noise.log_density(x - v)
        assert loss.max() <= worst_loss(noise, Sensitivity(1.0, "l2", 9)) + 1e-9
        assert math.log(np.exp(loss).mean()) <= float(noise.renyi(2.0, 3.0)) + 0.02


def test_loss_distributions_under_other_norms():
    noise = StaircaseL1(0.7, 1.0, dimension=9)
    wide = account(Release(noise, Sensitivity(1.0, "l2", 9)), 1e-5, "pld").epsilon
    assert wide == account(Release(noise, Sensitivity(3.0, "l1", 9)), 1e-5, "pld").epsilon
    assert 2 < wide <= 3 * 0.7


def test_the_second_accountant_knows_other_norms():
    event = Release(StaircaseL1(0.7, 1.0, dimension=9), Sensitivity(1.0, "linf", 9))
    least, most = bounds(read(event_to_json(event)), 0.0)
    assert (least, most) == pytest.approx((0.7, 9 * 0.7))
    assert account(event, delta=0).epsilon <= most
    heavy = Release(R2dp(3.0, 4.0), Sensitivity(1.0, "l2", 9))
    assert bounds(read(event_to_json(heavy)), 0.0)[1] == pytest.approx(3 * 5 / 3.0)
    assert account(heavy, delta=0).epsilon <= 5.0


def three_points(decay, share):
    """Loss and probability of a pair with the losses -decay, 0, decay, as the mechanism has."""
    return {decay: share, 0.0: 1 - share * (1 + math.exp(-decay)), -decay: share * math.exp(-decay)}


@pytest.mark.parametrize(("dimension", "decay"), [(1, 0.5), (3, 1.0), (10, 0.3), (26_010, 0.5)])
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_the_accountants_against_an_enumeration(dimension, decay, rate):
    """Six releases, every combination of their losses; the share of the losses from overlaps of
    balls, summed up term by term."""
    noise, count, delta = StaircaseL1(decay, 1.0, dimension=dimension), 6, 1e-3
    m = np.arange(int((dimension + 14 * math.sqrt(dimension) + 60) / decay) + 4)
    sums = []
    for moved in (0.5, 0.0):
        r = np.maximum(m + noise.split - moved, 1e-300)
        sums.append(dimension * np.log(r) - decay * m)
    top = max(own.max() for own in sums)
    apart = 1 - np.exp(sums[0] - top).sum() / np.exp(sums[1] - top).sum()
    points = three_points(decay, apart / -math.expm1(-decay))

    def epsilon(losses):
        """For the mixture against the noise, or the reverse."""
        sets = itertools.combinations_with_replacement(losses.items(), count)
        totals = [
            (sum(k for k, _ in own), math.prod(p for _, p in own) * _orders(own)) for own in sets
        ]
        low, high = 0.0, count * decay
        for _ in range(60):
            middle = (low + high) / 2
            found = sum(p * -math.expm1(min(middle - k, 0.0)) for k, p in totals)
            low, high = (middle, high) if found > delta else (low, middle)
        return high

    mixed = {math.log1p(rate * math.expm1(k)): rate * p + (1 - rate) * p * math.exp(-k)
             for k, p in points.items()}  # fmt: skip
    other = {-k: p * math.exp(-k) for k, p in mixed.items()}
    exact = max(epsilon(mixed), epsilon(other))
    event = Repeated(PoissonSampled(rate, release(noise)), count)
    by_loss = account(event, delta, "pld").epsilon
    assert exact - 1e-9 <= by_loss <= exact * 1.005 + 1e-3
    assert account(event, delta, "rdp").epsilon >= exact
    least, most = bounds(read(event_to_json(event)), delta)
    assert exact * 0.99 - 1e-3 <= least <= exact + 1e-9 <= most + 2e-9


def _orders(chosen):
    """In how many orders these losses may come."""
    counts = [chosen.count(own) for own in set(chosen)]
    return math.factorial(len(chosen)) / math.prod(map(math.factorial, counts))


@settings(max_examples=12)
@given(
    decay=st.floats(0.05, 3), period=st.floats(0.2, 2), split=st.floats(0, 1),
    dimension=st.integers(1, 60), rate=st.sampled_from([1.0, 0.1]), times=st.integers(1, 400),
)  # fmt: skip
def test_the_second_accountant_encloses_the_first(decay, period, split, dimension, rate, times):
    event = PoissonSampled(rate, release(StaircaseL1(decay, period, split, dimension)))
    seen = dict.fromkeys(read(event_to_json(event)), times)
    least, most = bounds(seen, 1e-5)
    stated = account(Repeated(event, times), 1e-5).epsilon
    assert least * (1 - 1e-6) <= stated
    assert least <= most * (1 + 1e-9)
    if stated < 100:
        assert least >= 0.9 * stated - 0.02


def test_laplace_noise_under_l1_has_one_worst_coordinate_in_every_divergence():
    """So that the loss distribution of one number is that of a gradient."""
    wide, one = (Sensitivity(1.0, "l1", d) for d in (26_010, 1))
    events = [Repeated(PoissonSampled(0.05, Release(Laplace(0.9), s)), 300) for s in (wide, one)]
    found = [account(event, 1e-5, "pld").epsilon for event in events]
    assert found[0] == found[1]
    assert found[0] < 0.95 * account(events[0], 1e-5, "rdp").epsilon
    # No other gradient is worse, by a grid in two dimensions.
    middle = (np.arange(2_000) + 0.5) / 100 - 10
    x, y = np.meshgrid(middle, middle, indexing="ij", sparse=True)
    for v in ((0.5, 0.5), (0.9, -0.1), (0.3, 0.7)):
        p = np.exp(-(np.abs(x) + np.abs(y)) / 0.9)
        q = np.exp(-(np.abs(x - v[0]) + np.abs(y - v[1])) / 0.9)
        for epsilon in (0.0, 0.3, 0.8, 1.05):
            delta = np.maximum(p - math.exp(epsilon) * q, 0).sum() / p.sum()
            assert delta <= float(Laplace(0.9).hockey_stick(epsilon, 1.0)) + 1e-5


def test_noise_has_to_be_for_the_dimension_of_the_sum():
    noise = StaircaseL1(1.0, 1.0, dimension=10)
    for dimension in (1, 9, 11, None):
        with pytest.raises(InvalidInput, match=r"vectors of 10 coordinates does not fit"):
            Release(noise, Sensitivity(1.0, "l1", dimension))
    scalar = as_scalar(release(noise))
    assert scalar.mechanism.dimension == scalar.sensitivity.dimension == 1
    scaled = release(noise).scaled(noise=2.0, clip=3.0)
    assert scaled.mechanism == StaircaseL1(1.0, 6.0, noise.split, 10)


def test_it_is_stored_and_read_and_described():
    event = Repeated(PoissonSampled(0.1, release(StaircaseL1(0.3, 1.1, dimension=26_010))), 7)
    text = event_to_json(event)
    assert event_from_json(text) == event
    assert '"dimension": 26010' in text
    assert "26,010" in described(event)
    with pytest.raises(InvalidInput):
        event_from_json(text.replace('"dimension": 26010, "period"', '"dimension": 7, "period"'))
    (seen,) = read(text)
    assert seen.noise.numbers[1] == 26_010
    with pytest.raises(ValueError, match="vectors of 7"):
        read(text.replace('"dimension": 26010, "period"', '"dimension": 7, "period"'))


@pytest.mark.parametrize("dimension", [1, 2, 100])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_calibration_keeps_the_budget_and_wastes_little_of_it(dimension, delta, norm):
    goal = Setting(2.0, delta, 10, Sensitivity(0.3, norm, dimension))
    found = calibrate("staircase-l1", goal)
    assert found.mechanism.dimension == dimension
    assert 1.98 < found.statement.epsilon <= 2
    if delta == 0 and (dimension == 1 or norm == "l1"):
        laplace = calibrate("laplace", goal).mechanism
        assert found.mechanism.noise_std < laplace.noise_std * (1 + 1e-5)


def test_calibration_of_other_kinds():
    sensitivity = Sensitivity(1.0, "l1", 50)
    own = calibrate(StaircaseL1(3.0, 1.0), Setting(2.0, 1e-5, 10, sensitivity)).mechanism
    assert (own.decay, own.dimension) == (3.0, 50)
    nominal = calibrate("staircase-l1", Setting(2.0, 1e-5, 10, sensitivity, accounting="scalar"))
    assert nominal.statement.kind == "nominal"
    assert nominal.mechanism.dimension == 50
    assert nominal.mechanism.period == 1.0
    matched = match("staircase-l1", Gaussian(5.0), sensitivity)
    orders = np.arange(2.0, 200.0)
    leaked = worst_case(matched, sensitivity, orders)
    assert np.all(leaked <= worst_case(Gaussian(5.0), sensitivity, orders) * (1 + 1e-9))


def test_one_noise_under_two_names_goes_by_the_first():
    names = [c.name for c in choose(Setting(6.0, 1e-5, 3, Sensitivity(1.0, dimension=1)))]
    assert names.index("staircase") + 1 == names.index("staircase-l1")
    found = choose(Setting(6.0, 0.0, 3, Sensitivity(1.0, dimension=1)))
    assert [c.name for c in found][:2] == ["staircase", "staircase-l1"]
    assert found[0].error("l2") == pytest.approx(found[1].error("l2"), rel=1e-6)
