"""Events and mechanisms as JSON: read back exactly, or refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.accounting.samples import STEP, TENTH
from tests.conftest import Logistic
from udpfl import (
    Composed,
    Gaussian,
    InvalidInput,
    Laplace,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    SecretlySelected,
    Sensitivity,
    Shuffled,
    Staircase,
    Unsupported,
)
from udpfl.accounting import serial
from udpfl.accounting.events import NominallyShuffled
from udpfl.accounting.serial import event_from_dict, event_from_json, event_to_dict, event_to_json
from udpfl.mechanisms import tabulated

numbers = st.floats(1e-3, 1e3)
whole_numbers = st.integers(1, 10**12)
mechanisms = st.one_of(
    st.builds(Gaussian, numbers),
    st.builds(Laplace, numbers),
    st.builds(Staircase, st.floats(1e-2, 100.0), numbers, st.floats(0.0, 1.0)),
    st.builds(Staircase, st.floats(1e-2, 100.0), numbers),
    st.builds(Logistic, numbers),
)
sensitivities = st.builds(
    Sensitivity,
    st.floats(1e-100, 1e100),
    st.sampled_from(["l1", "l2", "linf"]),
    st.none() | whole_numbers,
)
units = st.sampled_from(["record", "client"])
rates = st.floats(1e-9, 1.0)
releases = st.builds(Release, mechanisms, sensitivities, units)
pure = st.builds(PureDP, numbers, units, st.just("add-remove"), st.booleans())
replaced = st.builds(PureDP, numbers, units, st.just("replace-one"), st.booleans())
answers = st.one_of(releases, pure, st.builds(PoissonSampled, rates, releases | pure))
shuffled = st.builds(Shuffled, answers, whole_numbers, st.booleans(), whole_numbers)
events = st.recursive(
    answers | shuffled | replaced,
    lambda inner: st.one_of(
        st.builds(Repeated, inner, whole_numbers),
        st.builds(Composed, st.lists(inner, max_size=3)),
        st.builds(SecretlySelected, rates, inner),
    ),
    max_leaves=5,
)


@given(events)
def test_every_event_survives_json_exactly(event):
    text = json.dumps(event_to_dict(event), allow_nan=False)
    back = event_from_dict(json.loads(text))
    assert back == event
    assert repr(back) == repr(event)  # every float to the last digit
    assert event_from_json(event_to_json(event)) == event


def test_equal_events_have_equal_texts_whatever_the_number_types():
    plain = PoissonSampled(0.5, Release(Gaussian(2.0), Sensitivity(1.0, "l2", 10)))
    odd = PoissonSampled(
        np.float32(0.5), Release(Gaussian(np.float64(2)), Sensitivity(1, "l2", np.int64(10)))
    )
    assert plain == odd
    event_to_json.cache_clear()
    first = event_to_json(plain)
    event_to_json.cache_clear()
    assert event_to_json(odd) == first


def test_how_many_releases_a_message_holds_is_read_from_older_texts_as_one():
    """An earlier version knew no others, and wrote no such field."""
    one, several = Shuffled(TENTH, 10), Shuffled(TENTH, 10, releases=4)
    former = {"type": "Shuffled", "event": event_to_dict(TENTH), "clients": 10, "identical": False}
    assert event_to_dict(one) == former
    assert event_from_dict(former) == event_from_dict({**former, "releases": 1}) == one
    assert event_to_dict(several) == {**former, "releases": 4}
    assert event_from_dict({**former, "releases": 4}) == several
    for wrong in (0, 2.5, True, None, "3"):
        with pytest.raises(InvalidInput, match="releases"):
            event_from_dict({**former, "releases": wrong})
    with pytest.raises(InvalidInput, match="unknown field"):
        event_from_dict({**event_to_dict(STEP), "releases": 1})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: inner,
        lambda inner: Repeated(inner, 3),
        lambda inner: Composed([inner]),
        lambda inner: SecretlySelected(0.5, inner),
    ],
)
def test_a_nominal_shuffle_is_refused(wrap):
    with pytest.raises(Unsupported, match="nominal"):
        event_to_dict(wrap(NominallyShuffled(TENTH, 10)))


@pytest.mark.parametrize(
    "change",
    [
        {"type": "Guess"},
        {"type": None},
        {"type": ["Release"]},
        {"type": "NominallyShuffled"},
        {"rate": "0.5"},
        {"rate": True},
        {"rate": math.nan},
        {"rate": 1.5},
        {"colour": "red"},
        {"rate": ...},
        {"event": None},
        {"event": {"type": "PureDP", "epsilon": 1.0, "unit": "galaxy", "neighbours": "add-remove",
                   "discrete": False}},
        {"event": {"type": "PureDP", "epsilon": 1.0, "unit": "record", "neighbours": "add-remove",
                   "discrete": "no"}},
    ],
)  # fmt: skip
def test_what_is_not_exactly_an_event_is_refused(change):
    data = {**event_to_dict(STEP), **change}
    with pytest.raises(InvalidInput):
        event_from_dict({name: value for name, value in data.items() if value is not ...})


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "uniform", "parameters": {}},
        {"name": "gaussian", "parameters": {}},
        {"name": "gaussian", "parameters": {"std": 1.0, "scale": 1.0}},
        {"name": "gaussian", "parameters": {"std": -1.0}},
        {"name": "gaussian", "parameters": [1.0]},
        {"name": "gaussian"},
        {"class": "tests.conftest:Logistic", "parameters": {"scale": 1.0}},
        None,
    ],
)
def test_what_is_not_exactly_a_mechanism_is_refused(mechanism):
    data = {**event_to_dict(STEP.event), "mechanism": mechanism}
    with pytest.raises(InvalidInput):
        event_from_dict(data)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"type": {}}', "[" * 100_000])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(InvalidInput):
        event_from_json(text)


@dataclass(frozen=True)
class Sly(Gaussian):
    """A subclass that borrows a built-in name."""

    name = "gaussian"


def test_a_mechanism_of_ones_own_is_stored_by_its_class():
    event = Release(Sly(1.0), Sensitivity(1.0))
    data = event_to_dict(event)
    assert data["mechanism"]["class"] == "tests.accounting.test_serial:Sly"
    assert type(event_from_dict(data).mechanism) is Sly


@pytest.mark.parametrize("path", ["no.such.module:Noise", "tests.conftest:Gone", "json:loads"])
def test_a_mechanism_that_cannot_be_loaded_is_refused_by_name(path):
    data = event_to_dict(Release(Logistic(1.0), Sensitivity(1.0, dimension=1)))
    data["mechanism"]["class"] = path
    with pytest.raises(Unsupported, match=path):
        event_from_dict(data)


def test_a_mechanism_whose_code_changed_is_refused(monkeypatch):
    data = event_to_dict(Release(Logistic(2.0), Sensitivity(1.0, dimension=1)))
    assert event_from_dict(data).mechanism == Logistic(2.0)
    tabulated._tabulate.cache_clear()  # a change of code means another process
    monkeypatch.setattr(Logistic, "shape", lambda self, x: -1.001 * x - 2 * np.log1p(np.exp(-x)))
    try:
        with pytest.raises(Unsupported, match=r"tests\.conftest:Logistic has another density"):
            event_from_dict(data)
    finally:
        tabulated._tabulate.cache_clear()


def test_a_mechanism_nobody_else_could_load_is_not_stored(monkeypatch):
    @dataclass(frozen=True)
    class Local(Gaussian):
        pass

    with pytest.raises(Unsupported, match="Local cannot be stored"):
        event_to_dict(Release(Local(1.0), Sensitivity(1.0)))
    monkeypatch.setattr(Sly, "__module__", "__main__")
    with pytest.raises(Unsupported, match="__main__:Sly cannot be stored"):
        event_to_dict(Release(Sly(1.0), Sensitivity(1.0)))


def test_texts_of_several_clients_are_those_of_each(monkeypatch):
    shared, other = Repeated(STEP, 2), Repeated(TENTH, 3)
    several = [(shared,), (other, shared), (), (Repeated(STEP, 2),)]
    wanted = [tuple(map(event_to_json, events)) for events in several]
    written = []
    monkeypatch.setattr(
        serial, "event_to_json", lambda event: written.append(event) or event_to_json(event)
    )
    assert serial.event_texts(iter(several)) == wanted
    assert len(written) == 3  # each object once
