"""Randomised response on vectors: probabilities, likelihood ratios and means by other means."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from udpfl.accounting import PureDP, Repeated, account
from udpfl.accounting.randomised import Randomised
from udpfl.engine import Entropy, Key, Keyed, RandomisingNoiser
from udpfl.engine import randomising as engine
from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms import CoordinateResponse, DirectionResponse, Randomiser
from udpfl.mechanisms.randomiser import BUILT_IN, randomiser_of

KINDS = [CoordinateResponse, DirectionResponse]


def truth(t, epsilon):
    """Probability of the answer +1 to a question, as the definition has it."""
    return (1 + t * math.tanh(epsilon / 2)) / 2


def messages(randomiser, x, count, stream=None):
    rows = torch.tensor(x, dtype=torch.float64).expand(count, -1)
    keys = [Key("test", str(i), 1, 0) for i in range(count)]
    return RandomisingNoiser([randomiser] * count).add(rows, stream or Entropy(), keys).numpy()


class Fixed:
    """Words that were chosen, in the place of random ones."""

    def __init__(self, values):
        self.values = list(values)

    def __call__(self, row):
        row.copy_(torch.tensor([self.values.pop(0) for _ in range(row.numel())]).view(row.shape))


# What an answer gives away


@given(epsilon=st.floats(1e-6, 200.0))
@settings(max_examples=300, deadline=None)
def test_an_answer_is_private_in_whole_numbers(epsilon):
    """The words that mean +1 are counted: no ratio of two questions exceeds e^epsilon."""
    lean = CoordinateResponse(epsilon, 1.0, 1).lean
    edges = {t: int(torch.tensor(t * lean * 2.0**63, dtype=torch.float64).long()) for t in (-1, 1)}
    yes = {t: Fraction(edge + 2**63, 2**64) for t, edge in edges.items()}
    with mpmath.workdps(60):
        most = mpmath.exp(mpmath.mpf(epsilon))
        for ratio in (yes[1] / yes[-1], (1 - yes[-1]) / (1 - yes[1])):
            assert mpmath.mpf(ratio.numerator) / ratio.denominator <= most
    assert float(yes[1]) == pytest.approx(truth(1, epsilon), rel=1e-9)


@pytest.mark.parametrize("t", [-1.0, -0.4, 0.0, 0.7, 1.0, 3.0, -2.0])
def test_where_the_answers_change(t):
    """One word below the edge is a yes, the edge itself is a no; a question is 1 at most."""
    lean = 0.5
    edge = int(max(-1.0, min(1.0, t)) * lean * 2**63)
    ask = torch.tensor([t, t], dtype=torch.float64)
    found = engine._answers(ask, lean, Fixed([edge - 1, edge]))
    assert found.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_number_is_no_exception(kind, value):
    """Its answers have probabilities that a question may have."""
    randomiser = kind(1.0, 1.0, 3, 3)
    found = messages(randomiser, [value] * 3, 2_000)
    assert np.isfinite(found).all()
    share = (found > 0).mean()
    assert truth(-1, 1.0) - 0.05 < share < truth(1, 1.0) + 0.05


def probabilities(randomiser, x):
    """Of every message about x, by the definition: which coordinates are asked, and the answers."""
    found = {}
    asked = list(itertools.combinations(range(randomiser.dimension), randomiser.answers))
    for places in asked:
        for signs in itertools.product((-1, 1), repeat=randomiser.answers):
            chance = 1 / len(asked)
            for place, sign in zip(places, signs, strict=True):
                yes = truth(x[place] / randomiser.bound, randomiser.epsilon)
                chance *= yes if sign > 0 else 1 - yes
            message = [0] * randomiser.dimension
            for place, sign in zip(places, signs, strict=True):
                message[place] = sign
            found[tuple(message)] = chance
    return found


@pytest.mark.parametrize("answers", [1, 2, 3])
def test_coordinates_by_enumeration(answers):
    """All messages of a vector of three: ratios, the mean, and the frequencies of real ones."""
    own = CoordinateResponse(0.8, bound=0.5, dimension=3, answers=answers)
    corners = [np.array(c) * 0.5 for c in itertools.product((-1, 0, 1), repeat=3)]
    tables = [probabilities(own, x) for x in corners]
    largest = max(math.log(p[m] / q[m]) for p, q in itertools.product(tables, repeat=2) for m in p)
    assert largest == pytest.approx(0.8 * answers, abs=1e-9)  # all of it, and no more
    x = np.array([0.5, -0.2, 0.1])
    wanted = probabilities(own, x)
    assert sum(wanted.values()) == pytest.approx(1)
    mean = sum(np.array(m) * own.size * p for m, p in wanted.items())
    assert mean == pytest.approx(x, abs=1e-9)
    drawn = np.sign(messages(own, x, 4_000)).astype(int)
    counts = {m: int((drawn == np.array(m)).all(1).sum()) for m in wanted}
    assert sum(counts.values()) == 4_000
    found = stats.chisquare(list(counts.values()), 4_000 * np.array(list(wanted.values())))
    assert found.pvalue > 1e-6


def test_a_message_holds_nothing_but_the_constant():
    own = CoordinateResponse(1.0, bound=0.3, dimension=40, answers=12)
    found = messages(own, np.linspace(-0.3, 0.3, 40), 50)
    size = np.float32(40 / 12 * 0.3 / math.tanh(0.5))
    assert set(np.unique(np.abs(found))) <= {np.float32(0), size}
    assert ((found != 0).sum(1) == 12).all()


def test_a_direction_is_answered_as_often_as_it_should_be():
    """The sign of <message, x> is the answer: right with probability (1 + |x| tanh / bound) / 2."""
    for x, bound in (([0.3, -0.4, 0.0], 0.5), ([0.0, 0.2, 0.0], 0.8)):
        own = DirectionResponse(1.5, bound, 3)
        count = 16_000  # half the share is 9 standard deviations away
        found = messages(own, x, count)
        right = int((found @ np.array(x) > 0).sum())
        share = np.linalg.norm(x) / bound
        assert stats.binomtest(right, count, truth(share, 1.5)).pvalue > 1e-6
        assert stats.binomtest(right, count, truth(share / 2, 1.5)).pvalue < 1e-3
        assert np.linalg.norm(found, axis=1) == pytest.approx(own.size, rel=1e-5)


def test_directions_do_not_depend_on_the_vector():
    """Up to the sign: a message and its opposite are the same questions."""
    own = DirectionResponse(1.0, 1.0, 5, answers=1)
    some, other = (messages(own, x, 200, Keyed(3)) for x in ([1, 0, 0, 0, 0], [0, 0, 0.3, 0, -0.2]))
    same = np.isclose(np.abs(some), np.abs(other)).all(1)
    assert same.all()
    assert not np.allclose(some, other)


def test_coordinates_are_asked_without_a_look_at_the_vector():
    own = CoordinateResponse(1.0, 1.0, 30, answers=4)
    some, other = (messages(own, x, 100, Keyed(3)) for x in (np.zeros(30), np.ones(30)))
    assert ((some != 0) == (other != 0)).all()
    asked = (some != 0).sum(0)
    assert stats.chisquare(asked).pvalue > 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answers", [1, 2])
def test_messages_are_unbiased_and_as_wide_as_they_say(kind, answers):
    own = kind(4.0, bound=0.7, dimension=2, answers=answers)
    x = np.array([0.5, -0.3])
    found = messages(own, x, 2_500)
    spread = found.std(0) / math.sqrt(2_500)
    assert (np.abs(found.mean(0) - x) / spread).max() < 5
    for wrong in (2 / 3, 3 / 2):
        assert (np.abs(found.mean(0) - wrong * x) / spread).max() > 5
    zero = messages(own, np.zeros(2), 1_500)
    assert math.sqrt((zero**2).mean()) == pytest.approx(own.noise_std, rel=0.1)


@pytest.mark.parametrize("dimension", [1, 2, 3, 50, 26_010])
def test_the_length_of_a_direction(dimension):
    """E |u_1| of a uniform direction, by quadrature of its density (1 - u^2)^((d - 3) / 2)."""
    own = DirectionResponse(2.0, 1.0, dimension, answers=2)
    if dimension == 1:
        mean = 1.0
    else:
        power = mpmath.mpf(dimension - 3) / 2
        cut = min(1.0, 60 / math.sqrt(dimension))

        def density(u):
            return (1 - u * u) ** power

        mean = float(
            mpmath.quad(lambda u: u * density(u), [0, cut / 8, cut])
            / mpmath.quad(density, [0, cut / 8, cut])
        )
    assert own.size == pytest.approx(1 / mean / math.tanh(1.0) / 2, rel=1e-6)


# Releases made of them


def test_a_release_costs_all_its_answers():
    own = Randomised(CoordinateResponse(0.5, 1.0, 9, answers=6))
    assert own.event == Repeated(PureDP(0.5, "client", discrete=True), 6)
    assert account(own.event, 0).epsilon == pytest.approx(3.0)
    assert account(own.event, 1e-3).epsilon < 3.0
    assert own.sensitivity.norm == "linf"
    assert not Randomised(DirectionResponse(1.0, 1.0, 3)).event.event.discrete


@pytest.mark.parametrize("kind", BUILT_IN.values())
def test_a_randomiser_is_stored_and_read(kind):
    own = Randomised(kind(0.25, 2.0, 7, 3), "record")
    assert Randomised.from_dict(own.to_dict()) == own
    for wrong in ({**own.to_dict(), "unit": "city"}, {"unit": "client"}):
        with pytest.raises(InvalidInput, match="neither noise nor a randomiser"):
            Randomised.from_dict(wrong)
    for wrong in ({"name": "coins"}, {**own.randomiser.to_dict(), "more": 1}):
        with pytest.raises(InvalidInput, match="randomiser"):
            randomiser_of(wrong)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("numbers", "what"),
    [
        ((0.0, 1.0, 3), "epsilon"),
        ((1e-9, 1.0, 3), "of an answer"),
        ((math.inf, 1.0, 3), "epsilon"),
        ((1.0, -1.0, 3), "bound"),
        ((1.0, 1.0, 0), "dimension"),
        ((1.0, 1.0, 3, 0), "answers"),
        ((1.0, 1.0, 3, 1.5), "answers"),
    ],
)
def test_numbers_out_of_range_are_refused(kind, numbers, what):
    with pytest.raises(InvalidInput, match=what):
        kind(*numbers)


def test_what_no_sampler_knows_is_refused():
    class Other(Randomiser):
        size = noise_std = 1.0

        def score(self, messages, one, other): ...

    noiser = RandomisingNoiser([Other(1.0, 1.0, 2)])
    with pytest.raises(Unsupported, match="no sampler"):
        noiser.add(torch.zeros(1, 2), Entropy(), [Key("", "", 0, 0)])
    with pytest.raises(InvalidInput, match="for 2 lanes"):
        noiser.add(torch.zeros(2, 2), Entropy(), [Key("", "", 0, 0)])
    with pytest.raises(InvalidInput, match="for 2 numbers, not 3"):
        noiser.add(torch.zeros(1, 3), Entropy(), [Key("", "", 0, 0)])
    with pytest.raises(InvalidInput, match="at most the dimension"):
        CoordinateResponse(1.0, 1.0, 2, 3)
    assert noiser.lanes(slice(0, 1)).randomisers == noiser.randomisers
