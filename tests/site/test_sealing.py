"""Sealed messages: only the shuffler opens them, and only known sites sign them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udpfl import InvalidInput
from udpfl.site.sealing import (
    Letter,
    NotSealed,
    new_key,
    opening_public,
    read_key,
    seal,
    signing_public,
    unseal,
)

SHUFFLER, SITE, OTHER = new_key(), new_key(), new_key()
KNOWN = {"clinic-a": signing_public(SITE), "clinic-b": signing_public(OTHER)}
LETTER = Letter("clinic-a", "run-1", 3, "aa", b"some tensors")


def sealed(letter=LETTER, by=SITE):
    return seal(letter, by, opening_public(SHUFFLER))


@given(message=st.binary(max_size=10_000), round_=st.integers(1, 2**31))
def test_what_is_sealed_is_what_is_opened(message, round_):
    letter = Letter("clinic-a", "run-1", round_, "aa", message)
    data = sealed(letter)
    assert unseal(data, SHUFFLER, KNOWN) == letter
    assert message not in data or len(message) < 3


def test_two_seals_of_one_message_have_nothing_in_common():
    one, other = sealed(), sealed()
    assert one != other
    assert len(one) == len(other)
    assert len(sealed(Letter("clinic-b", "run-1", 10**6, "aa", b"x" * 900), OTHER)) == len(one)


@pytest.mark.parametrize("place", [0, 31, 32, 44, 60, -1])
def test_what_was_changed_is_not_opened(place):
    data = bytearray(sealed())
    data[place] ^= 1
    with pytest.raises(NotSealed):
        unseal(bytes(data), SHUFFLER, KNOWN)


def test_nobody_else_opens_or_signs():
    with pytest.raises(NotSealed):
        unseal(sealed(), new_key(), KNOWN)
    with pytest.raises(NotSealed):  # a site in the name of another one
        unseal(sealed(by=OTHER), SHUFFLER, KNOWN)
    with pytest.raises(NotSealed):  # a site that the shuffler does not know
        unseal(sealed(Letter("clinic-c", "run-1", 3, "aa", b"")), SHUFFLER, KNOWN)
    for data in (b"", b"x" * 31, b"x" * 5000):
        with pytest.raises(NotSealed):
            unseal(data, SHUFFLER, KNOWN)


def test_a_file_without_a_key_is_refused(tmp_path):
    (tmp_path / "key").write_text("not a key")
    for path in (tmp_path / "key", tmp_path / "none"):
        with pytest.raises(InvalidInput, match="key"):
            read_key(path)
    (tmp_path / "key").write_text(SITE + "\n")
    assert read_key(tmp_path / "key") == SITE
