"""What leaves a client, and who may look at it."""

from __future__ import annotations

import json

import pytest
import torch

from tests.federation.samples import DIMENSION, SEEDED, Watch, flat, read
from udpfl import InvalidInput
from udpfl.accounting.serial import event_to_json
from udpfl.algorithms import ClientMessage
from udpfl.federation import ReleasePlan
from udpfl.runs.schema import ClientRow

pytestmark = pytest.mark.usefixtures("one_thread")


class Vandal(Watch):
    """Changes everything it is shown."""

    def on_message(self, message):
        for tensor in message.tensors.values():
            tensor.fill_(torch.nan)
        message.tensors.clear()
        message.metadata.clear()

    def on_model(self, round_, model):
        for tensor in model.values():
            tensor.zero_()

    def on_round(self, row):
        row.clear()


def test_observers_see_copies(federate):
    quiet, watch = federate(SEEDED, {"averaging": 0.5}), Watch()
    disturbed = federate(SEEDED, {"averaging": 0.5}, observers=[Vandal(), watch])
    assert torch.equal(flat(quiet.model), flat(disturbed.model))
    assert disturbed.accuracy == quiet.accuracy
    assert disturbed.loss == quiet.loss
    assert len(watch.messages) == 9
    assert all(message.tensors["update"].isfinite().all() for message in watch.messages)
    assert {message.weight for message in watch.messages} == {24.0}
    assert torch.equal(flat(watch.models[3]), flat(disturbed.model))
    assert [row["round"] for row in watch.rows] == [1, 2, 3]


def test_recorded_updates_are_the_released_messages(federate):
    watch = Watch()
    result = federate(
        None, {"rounds": 4}, {"declared_sizes": 17}, record_updates=[2, 4], observers=[watch]
    )
    files = sorted((result.folder / "updates").iterdir())
    assert [path.name for path in files] == [
        f"round-{round_:06d}-client-{client}.safetensors"
        for round_ in (2, 4)
        for client in range(3)
    ]
    people = {
        row["name"]: ReleasePlan.from_row(ClientRow.from_dict(row))
        for row in read(result, "participants.json")
    }
    sent = {(message.round, message.client): message for message in watch.messages}
    for path in files:
        kept = ClientMessage.from_bytes(path.read_bytes())
        seen = sent[kept.round, kept.client]
        assert kept.tensors.keys() == seen.tensors.keys() == {"update"}
        assert torch.equal(kept.tensors["update"], seen.tensors["update"])
        assert kept.events == seen.events == (event_to_json(people[kept.client].round_event(1)),)
        # 24 records are held and 17 declared: only what is declared may be known.
        assert kept.metadata == {"declared_size": 17}
        header = path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")]
        public = json.loads(json.loads(header)["__metadata__"]["udpfl"])
        assert public.keys() == {"client", "round", "events", "metadata"}
        assert kept.to_bytes() == path.read_bytes() == seen.to_bytes()
    by_round = [sum(len(m.to_bytes()) for m in watch.of(round_)) for round_ in range(1, 5)]
    assert [row["bytes_up"] for row in result.metrics] == by_round
    assert [row["bytes_down"] for row in result.metrics] == [3 * 4 * DIMENSION] * 4


def test_a_damaged_message_is_refused():
    message = ClientMessage("a", 1, {"update": torch.arange(3.0)}, (), {"declared_size": 2})
    data = message.to_bytes()
    again = ClientMessage.from_bytes(data)
    assert (again.client, again.round, again.weight) == ("a", 1, 2.0)
    assert torch.equal(again.tensors["update"], torch.arange(3.0))
    for broken in (b"", data[:-1], data[:20], b"x" * len(data)):
        with pytest.raises(InvalidInput, match="message"):
            ClientMessage.from_bytes(broken)
