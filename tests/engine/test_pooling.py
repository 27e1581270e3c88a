"""Records of several calls in one place: equal ones once, and never those of another call."""

from __future__ import annotations

import pytest
import torch

from udpfl.engine import pooling
from udpfl.engine.pooling import RecordPool
from udpfl.errors import InvalidInput

X, OTHER = torch.arange(6.0).reshape(3, 2), torch.arange(8.0).reshape(4, 2) + 10
Y, OTHER_Y = torch.tensor([0, 1, 0]), torch.tensor([1, 1, 0, 0])


def found(pool, x, y, rows):
    """The records that these rows are, by way of the joined ones."""
    (places,) = pool.places(x, y, [rows])
    inputs, targets = pool.joined(x, y)
    return inputs[places], targets[places]


def test_every_row_is_found_again():
    pool = RecordPool()
    known = [(X, Y), (OTHER, OTHER_Y), (X.clone(), Y.clone()), (X, 1 - Y)]
    for own in known:
        pool.note(*own)
    for x, y in known:
        rows = torch.tensor([2, 0, 1]).byte()
        inputs, targets = found(pool, x, y, rows)
        assert torch.equal(inputs, x[rows.long()])
        assert torch.equal(targets, y[rows.long()])
    assert len(pool.joined(X, Y)[0]) == 3 + 4 + 3


def test_records_of_one_kind_are_joined_once_and_compared_once(monkeypatch):
    compared, same = [], pooling._are_same
    monkeypatch.setattr(pooling, "_are_same", lambda *two: compared.append(two) or same(*two))
    pool = RecordPool()
    for _ in range(3):
        for own in ((X, Y), (OTHER, OTHER_Y)):
            pool.note(*own)
        assert pool.joined(X, Y)[0] is pool.joined(OTHER, OTHER_Y)[0]
        first = pool.joined(X, Y)[0].data_ptr()
    assert len(compared) == 1
    assert pool.joined(X, Y)[0].data_ptr() == first
    rows = torch.tensor([1])
    assert pool.places(OTHER, OTHER_Y, [rows])[0] is pool.places(OTHER, OTHER_Y, [rows])[0]


def test_one_pair_of_tensors_stays_where_it_is():
    pool = RecordPool()
    pool.note(X, Y)
    pool.note(X.clone(), Y)
    assert pool.joined(X, Y)[0] is X


def test_what_was_known_is_found_after_more_has_come():
    pool, rows = RecordPool(), torch.tensor([0, 2])
    pool.note(X, Y)
    before = found(pool, X, Y, rows)
    pool.note(OTHER, OTHER_Y)
    after = found(pool, X, Y, rows)
    assert all(map(torch.equal, before, after))
    assert torch.equal(found(pool, OTHER, OTHER_Y, rows)[0], OTHER[rows])


def test_records_of_other_kinds_are_kept_apart():
    pool = RecordPool()
    for own in ((X, Y), (X.double(), Y), (X, Y.int()), (X.reshape(3, 1, 2), Y)):
        pool.note(*own)
        assert pool.joined(*own)[0].dtype == own[0].dtype
        assert len(pool.joined(*own)[0]) == 3


@pytest.mark.parametrize("rows", [[3], [-1], [0, 4]])
def test_a_row_of_another_call_is_refused(rows):
    pool = RecordPool()
    pool.note(X, Y)
    pool.note(OTHER, OTHER_Y)
    with pytest.raises(InvalidInput, match="records: must lie between 0 and 2"):
        pool.places(X, Y, [torch.tensor(rows)])


def test_zeros_of_two_signs_are_other_records():
    pool, targets = RecordPool(), torch.zeros(2)
    one, other = torch.zeros(2, 3), -torch.zeros(2, 3)
    pool.note(one, targets)
    pool.note(other, targets)
    assert len(pool.joined(one, targets)[0]) == 4
    (place,) = pool.places(other, targets, [torch.tensor([0])])
    assert place.tolist() == [2]


def test_rows_are_held_against_the_records_that_they_are_of():
    """Also those that were seen with other records."""
    pool, rows = RecordPool(), torch.tensor([7])
    known = [(torch.zeros(9, 3), torch.zeros(9)), (torch.zeros(3, 2), torch.zeros(3))]
    for own in known:
        pool.note(*own)
    assert pool.places(*known[0], [rows])[0].tolist() == [7]
    with pytest.raises(InvalidInput, match="between 0 and 2"):
        pool.places(*known[1], [rows])
