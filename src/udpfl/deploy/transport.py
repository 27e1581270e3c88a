"""How a server reaches sites: one question to one node, one reply, whatever carries them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from udpfl.errors import UdpflError

NodeId = int


@dataclass(frozen=True)
class Node:
    """Somebody who can be asked.

    Example:
        >>> from udpfl.deploy import Node
        >>> Node(7, "clinic-a").name
        'clinic-a'
    """

    id: NodeId
    """Of the transport."""
    name: str = ""
    """Under which its key was registered; empty where nobody said it."""


@dataclass(frozen=True)
class Reply:
    """What a node sent back.

    Example:
        >>> from udpfl.deploy import Reply
        >>> Reply({"refused": "another model"}).body
        b''
    """

    about: Mapping[str, Any]
    """A table of plain data."""
    body: bytes = field(default=b"", repr=False)
    """A message, if there is one."""


class NoReply(UdpflError):
    """A node did not answer, or not in time; asking again may help."""


class Transport(Protocol):
    """Carries questions. Several threads ask at the same time."""

    def nodes(self) -> list[Node]:
        """Who is there now."""

    def ask(
        self,
        node: NodeId,
        about: Mapping[str, Any],
        body: bytes,
        timeout: float,
        stop: threading.Event,
    ) -> Reply:
        """Ask a node, and wait for its reply until the time is over or `stop` is set.

        Raises:
            NoReply: There was none.
        """
