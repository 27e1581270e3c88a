"""Messages as bytes."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from udpfl import ClientMessage

NAMES = st.text(max_size=12)
EVENTS = st.lists(
    st.dictionaries(NAMES, st.none() | st.floats(allow_nan=False) | NAMES, max_size=3).map(
        json.dumps
    ),
    max_size=3,
)
KINDS = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
TENSORS = st.dictionaries(
    st.text("abc_", min_size=1, max_size=9),
    st.builds(
        lambda shape, kind: torch.ones(shape, dtype=kind),
        st.lists(st.integers(0, 11), max_size=3),
        KINDS,
    ),
    min_size=1,
    max_size=4,
)


@given(NAMES, st.integers(0, 10**6), TENSORS, EVENTS, st.dictionaries(NAMES, st.integers()))
def test_the_size_is_that_of_the_file(client, round_, tensors, events, said):
    message = ClientMessage(client, round_, tensors, tuple(events), said)
    assert message.size == len(message.to_bytes())


@pytest.mark.parametrize("name", ['"quoted"', "back\\slash", "Ärztin", "line\nbreak", "\x00", "🎲"])
def test_the_size_counts_what_is_escaped(name):
    message = ClientMessage(name, 1, {"update": torch.zeros(26010)})
    assert message.size == len(message.to_bytes()) > 4 * 26010
    assert ClientMessage.from_bytes(message.to_bytes()).client == name
