"""Messages as rows of one tensor: what is copied, what is not, and that numbers are the same."""

from __future__ import annotations

import pytest
import torch

from udpfl.algorithms import ClientMessage, local_update, stacked, weighted_mean
from udpfl.algorithms.rows import rows_of


def messages(rows, name="update"):
    return [
        ClientMessage(f"client-{i}", 1, {name: row}, (), {"declared_size": 3 + i})
        for i, row in enumerate(rows)
    ]


def shares(one, other):
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@pytest.mark.parametrize("shape", [(4, 6), (4, 2, 3), (1, 6), (4,)])
def test_rows_of_one_tensor_are_read_where_they_are(shape):
    whole = torch.randn(7, *shape[1:])[2 : 2 + shape[0]]  # it may begin anywhere
    found = rows_of(messages(whole), "update")
    assert torch.equal(found, whole)
    assert shares(found, whole)


_WHOLE = torch.arange(24.0).view(4, 6)


@pytest.mark.parametrize(
    "rows",
    [
        [_WHOLE[1], _WHOLE[0], _WHOLE[2]],
        [_WHOLE[0], _WHOLE[2]],
        [_WHOLE[0], _WHOLE[0]],
        [_WHOLE[0], _WHOLE[1].clone()],
        [_WHOLE[0], _WHOLE.clone()[1]],
        list(_WHOLE.T),
        [_WHOLE[0, :3], _WHOLE[0, 3:], _WHOLE[2, :3]],
        [torch.zeros(0), torch.zeros(0)],
    ],
    ids=[
        "mixed", "with a gap", "one twice", "one elsewhere", "another tensor", "columns", "pieces",
        "empty",
    ],
)  # fmt: skip
def test_anything_else_is_stacked(rows):
    found = rows_of(messages(rows), "update")
    assert torch.equal(found, torch.stack(rows))
    assert torch.equal(found, stacked(messages(rows), "update"))
    assert not shares(found, _WHOLE)


def test_pieces_of_one_row_that_follow_each_other_are_rows():
    found = rows_of(messages([_WHOLE[0, :3], _WHOLE[0, 3:], _WHOLE[1, :3]]), "update")
    assert torch.equal(found, _WHOLE.view(-1, 3)[:3])


def test_a_stack_may_be_changed_and_changes_no_message():
    whole = torch.ones(3, 2)
    stacked(messages(whole), "update").zero_()
    assert torch.equal(whole, torch.ones(3, 2))


def test_a_weighted_mean_has_the_bits_of_a_plain_loop():
    whole = torch.randn(9, 501)
    own = messages(whole)
    weights, mean = [message.weight for message in own], torch.zeros(501)
    for message, weight in zip(own, weights, strict=True):
        mean += (weight / sum(weights)) * message.tensors["update"]
    before = whole.clone()
    assert torch.equal(weighted_mean(own, "update"), mean)
    assert torch.equal(whole, before)


class Training:
    """Returns what it keeps."""

    clients = ("a", "b")

    def __init__(self, returned):
        self.returned = returned

    def __call__(self, start, correct=None, state=None):
        return self.returned


class Handing(Training):
    """Hands over what it returns."""

    hands_over = True


def test_an_update_is_computed_in_place_only_where_the_parameters_were_handed_over():
    received, trained = {"model": torch.ones(3)}, torch.full((2, 3), 4.0)
    kept = trained.clone()
    found = local_update(received, Training(kept))
    assert torch.equal(kept, trained)
    assert torch.equal(found, trained - 1)
    own = trained.clone()
    assert torch.equal(local_update(received, Handing(own)), trained - 1)
    assert torch.equal(own, trained - 1)


def test_an_update_never_writes_to_the_model_that_was_received():
    received = {"model": torch.ones(3)}
    stays = received["model"].expand(2, -1)
    assert torch.equal(local_update(received, Handing(stays)), torch.zeros(2, 3))
    assert torch.equal(received["model"], torch.ones(3))


@pytest.mark.parametrize("events", [(), ('{"a": 1}',), ('{"b": [1, 2], "a": "ε"}', "null")])
@pytest.mark.parametrize("metadata", [{}, {"declared_size": 7, "ward": "ε"}])
def test_a_message_is_as_large_as_its_numbers_and_its_header(events, metadata):
    message = ClientMessage("Zürich", 3, {"update": torch.zeros(5)}, events, metadata)
    assert message.size == len(message.to_bytes())
