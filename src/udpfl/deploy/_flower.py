"""Questions and replies as messages of Flower.

A message has the record "udpfl" with a table as JSON, and the record "body" with bytes as an array,
which Flower cuts into pieces and stores once, however many nodes get the same.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from udpfl.deploy.transport import Node, NodeId, NoReply, Reply
from udpfl.errors import MissingExtra

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
except ImportError:
    raise MissingExtra("flwr", "flower") from None

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger(__name__)

_ABOUT, _BODY = "udpfl", "body"
_MESSAGE_TYPES = {
    "describe": "query.describe",
    "finish": "query.finish",
    "shuffle": "query.shuffle",
    "train": "train",
}
_SLOWEST = 3.0
"""Most seconds between two looks for a reply."""


def to_records(about: Mapping[str, Any], body: bytes) -> RecordDict:
    """The content of a message."""
    records = RecordDict({_ABOUT: ConfigRecord({"about": json.dumps(dict(about))})})
    if body:
        array = Array("uint8", (len(body),), "bytes", body)
        records[_BODY] = ArrayRecord({"body": array})
    return records


def from_records(records: RecordDict) -> tuple[dict[str, Any], bytes]:
    """The inverse of `to_records`.

    Raises:
        ValueError: It is the content of another kind of message.
    """
    try:
        about = json.loads(str(records.config_records[_ABOUT]["about"]))
        body = records.array_records[_BODY]["body"].data if _BODY in records else b""
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a message of udpfl: {error!r}") from None
    if not isinstance(about, dict) or not isinstance(body, bytes):
        raise ValueError("not a message of udpfl")
    return about, body


class FlowerTransport:
    """Carries questions over Flower's grid.

    Args:
        grid: Of a ServerApp.
        poll_every: Seconds between two looks for a reply, at first.
    """

    def __init__(self, grid: Grid, poll_every: float = 0.3) -> None:
        self._grid, self._poll_every = grid, poll_every

    def nodes(self) -> list[Node]:
        """The nodes that are online, with the names under which their keys were registered."""
        try:
            found = getattr(self._grid, "get_nodes", None)
            if found is not None:
                return [Node(own.node_id, own.name) for own in found()]
            return [Node(node) for node in self._grid.get_node_ids()]
        except Exception as error:  # the link is down: whoever was there is not known
            log.warning("the SuperLink does not say who is there: %s", error)
            return []

    def ask(
        self,
        node: NodeId,
        about: Mapping[str, Any],
        body: bytes,
        timeout: float,
        stop: threading.Event,
    ) -> Reply:
        """Ask a node. Replies that came in pieces, or from a node that died, are none."""
        ends = time.monotonic() + timeout
        try:
            number = self._push(node, about, body, timeout)
            message = self._pull(number, ends, stop)
        except NoReply:
            raise
        except Exception as error:  # a link that is down, or that forgot the run
            raise NoReply(f"the message did not get through: {error}") from error
        if message.has_error():
            raise NoReply(f"{message.error.reason} (code {message.error.code})")
        try:
            return Reply(*from_records(message.content))
        except ValueError as error:
            return Reply({"error": str(error)})

    def _push(self, node: NodeId, about: Mapping[str, Any], body: bytes, timeout: float) -> str:
        kind = _MESSAGE_TYPES[str(about["ask"])]
        message = Message(to_records(about, body), node, kind, ttl=timeout + 60.0)
        (number,) = self._grid.push_messages([message])
        if not number:
            raise NoReply("the SuperLink did not take the message")
        return str(number)

    def _pull(self, number: str, ends: float, stop: threading.Event) -> Message:
        pause = self._poll_every
        while True:
            for message in self._grid.pull_messages([number]):
                return message
            if stop.wait(min(pause, max(0.0, ends - time.monotonic()))):
                raise NoReply("the round went on")
            if time.monotonic() >= ends:
                raise NoReply("no answer in time")
            pause = min(_SLOWEST, 1.1 * pause)
