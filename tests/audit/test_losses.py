"""The second computation of a cost encloses the first one, and knows closed forms."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting.samples import TENTH
from tests.audit.samples import GAUSSIAN, LAPLACE, ONE, STAIRCASE
from tests.conftest import Logistic
from udpfl import (
    Composed,
    Gaussian,
    Laplace,
    PoissonSampled,
    Release,
    Repeated,
    SecretlySelected,
    Sensitivity,
    Shuffled,
    Staircase,
    account,
)
from udpfl.accounting.serial import event_to_json
from udpfl.audit._costs import bounds
from udpfl.audit._events import Noise, flattened, read, same_text
from udpfl.audit._losses import pair_of


def enclosed(event, delta, times=1):
    seen = read(event_to_json(event))
    return bounds({release: count * times for release, count in seen.items()}, delta)


@pytest.mark.parametrize(
    ("noise", "epsilon"),
    [
        (Gaussian(1.947), 2), (Gaussian(1.225), 4), (Gaussian(0.983), 6), (Gaussian(0.857), 8),
        (Laplace(2.319 / math.sqrt(2)), 2), (Laplace(1.264 / math.sqrt(2)), 4),
        (Laplace(0.918 / math.sqrt(2)), 6), (Laplace(0.747 / math.sqrt(2)), 8),
    ],
)  # fmt: skip
def test_the_table_of_the_mathematics(noise, epsilon):
    """q = 0.05, T = 300, delta = 1e-5: deviations by PLD, rounded to three digits."""
    least, most = enclosed(PoissonSampled(0.05, Release(noise, ONE)), 1e-5, 300)
    assert least == pytest.approx(epsilon, rel=3e-3)
    assert most >= epsilon * (1 - 3e-3)


@pytest.mark.parametrize(("std", "epsilon"), [(2.089, 2), (1.299, 4), (1.038, 6), (0.902, 8)])
def test_the_upper_bound_is_that_of_the_table(std, epsilon):
    """The same by Rényi bounds with fractional orders."""
    _, most = enclosed(PoissonSampled(0.05, Release(Gaussian(std), ONE)), 1e-5, 300)
    assert most == pytest.approx(epsilon, rel=3e-3)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize(("shift", "times"), [(0.1, 1), (0.1, 400), (3.0, 1), (60.0, 1)])
def test_gaussian_releases_in_closed_form(shift, times, delta):
    least, most = enclosed(Release(Gaussian(1 / shift), Sensitivity(1.0)), delta, times)
    low, high, mu = 0.0, 1e4, shift * math.sqrt(times)
    for _ in range(100):
        middle = (low + high) / 2
        there = Gaussian(1.0).hockey_stick(middle, mu) > delta
        low, high = (middle, high) if there else (low, middle)
    assert least <= low + 1e-9 <= most + 2e-9
    if mu < 10:  # beyond that losses are cut off, which only lowers the bound
        assert least == pytest.approx(low, rel=2e-3, abs=1e-6)


def test_against_the_library():
    from dp_accounting.pld import privacy_loss_distribution as library

    for optimistic in (True, False):
        one = library.from_gaussian_mechanism(
            1.1,
            pessimistic_estimate=not optimistic,
            sampling_prob=0.02,
            value_discretization_interval=1e-3,
            use_connect_dots=not optimistic,
        )
        epsilon = one.self_compose(75).get_epsilon_for_delta(1e-5)
        least, most = enclosed(GAUSSIAN, 1e-5, 75)
        assert epsilon <= least * (1 + 1e-3) if optimistic else least <= epsilon <= most


@pytest.mark.parametrize(
    "noise",
    [
        *(Gaussian(0.7), Laplace(0.7), Staircase(0.9, 0.5)),
        *(Staircase(3.0, 1.3, 0.9), Staircase(40.0, 1.0)),
    ],
)
def test_bins_are_those_of_the_noise(noise):
    numbers = tuple(value for _, value in sorted(noise.parameters.items()))
    with_, without = pair_of(Noise(noise.name, numbers), 1.0)
    assert with_.sum() == pytest.approx(1, abs=1e-12)
    assert without.sum() == pytest.approx(1, abs=1e-12)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        exact = float(noise.hockey_stick(epsilon, 1.0))
        found = float(np.maximum(with_ - math.exp(epsilon) * without, 0).sum())
        assert found <= exact + 1e-12
        assert found == pytest.approx(exact, abs=1e-4)


@settings(max_examples=40)
@given(
    st.sampled_from(["gaussian", "laplace", "staircase"]),
    st.floats(0.3, 20.0),
    st.sampled_from([1.0, 0.3, 0.01]),
    st.integers(1, 3000),
    st.sampled_from([1e-8, 1e-5, 1e-2]),
    st.sampled_from([1, 3]),
    st.sampled_from(["l1", "l2", "linf"]),
)
def test_the_bounds_enclose_the_accountant(name, scale, rate, times, delta, dimension, norm):
    noise = {
        "gaussian": Gaussian(scale),
        "laplace": Laplace(scale),
        "staircase": Staircase(1 / scale, 0.7),
    }[name]
    event = PoissonSampled(rate, Release(noise, Sensitivity(1.0, norm, dimension)))
    least, most = enclosed(event, delta, times)
    stated = account(Repeated(event, times), delta).epsilon
    assert least * (1 - 1e-6) <= stated
    assert least <= most * (1 + 1e-9)
    if dimension == 1 and stated < 100:
        assert least >= 0.9 * stated - 0.01


@pytest.mark.parametrize(
    ("noise", "norm", "share"),
    [
        (Laplace(1.3), "l2", 0.99),
        (Staircase(0.5, 0.5), "l2", 0.95),
        (Laplace(5.0), "linf", 0.999),
        (Staircase(0.5, 1.0), "linf", 0.999),
        (Staircase(0.5, 0.5), "l1", 0.8),
    ],
)
def test_a_spread_record_comes_close_to_the_accountant(noise, norm, share):
    event = Release(noise, Sensitivity(1.0, norm, 10))
    least, _ = enclosed(event, 1e-5)
    stated = account(event, 1e-5).epsilon
    assert share * stated <= least <= stated


@pytest.mark.parametrize(
    "event",
    [
        Repeated(Composed([GAUSSIAN, Repeated(TENTH, 3), LAPLACE]), 4),
        Release(Logistic(2.0), ONE),
        Shuffled(STAIRCASE, 10),
        SecretlySelected(0.5, Composed([Repeated(GAUSSIAN, 2), TENTH])),
    ],
)
def test_both_readings_of_an_event_agree(event):
    from udpfl.accounting.events import leaves

    counted = Counter({same_text(event_to_json(leaf)): n for leaf, n in leaves(event).items()})
    assert flattened(event) == counted


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "7", '{"type": "Magic"}', '{"type": "PureDP", "epsilon": -1}',
        '{"type": "PureDP", "epsilon": NaN}', '{"type": "PureDP", "epsilon": true}',
        event_to_json(GAUSSIAN).replace("0.02", "1.5"),
        event_to_json(GAUSSIAN).replace("std", "scale"),
        event_to_json(GAUSSIAN).replace("gaussian", "cauchy"),
        event_to_json(GAUSSIAN).replace('"l2"', '"l7"'),
        event_to_json(Repeated(TENTH, 3)).replace("3", "0"),
    ],
)  # fmt: skip
def test_what_is_no_event_cannot_be_read(text):
    with pytest.raises(ValueError):  # noqa: PT011
        read(text)
