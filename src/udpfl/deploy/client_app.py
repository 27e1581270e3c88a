"""The ClientApp: it passes requests on to the site, and what the site hands out back.

Flower starts a process for every message, and runs in it what the server has sent along. So this
file is small, starts quickly, and holds nothing that has to be kept from a server: records, ledger
and policy are in the site's service, which runs as another user (`udpfl site serve`). Without a
service the gate runs in this process; that is for trials, because a server that sends other code
can then read what this process can read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from udpfl.deploy._flower import from_records, to_records
from udpfl.errors import InvalidInput, MissingExtra
from udpfl.site.connection import ask

try:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
except ImportError:
    raise MissingExtra("flwr", "flower") from None

log = logging.getLogger(__name__)

SOCKET, POLICY, POLICIES = "site-socket", "site-policy", "site-policies"
"""Keys of the node's configuration; the last one is a folder with a policy for each node, and may
be a key of the run's configuration in a simulation."""
_FAILED = {"version": 1, "site": "", "refused": "the site could not answer", "is_final": False}


def client_app() -> ClientApp:
    """The app of a site, for `client_app.py` of a Flower app.

    Returns:
        It passes what it is asked to the site, and hands back what the site says.

    Example:
        >>> from udpfl.deploy import client_app
        >>> app = client_app()
    """
    app = ClientApp()

    def pass_on(message: Message, context: Context) -> Message:
        try:
            about, body = from_records(message.content)
            answer = _ask(context, about, body)
            content = to_records(*answer)
        except Exception:  # Flower would send the text of an error to the server
            log.exception("a request could not be passed on")
            content = to_records(_FAILED, b"")
        return Message(content, reply_to=message)

    app.train()(pass_on)
    for action in ("describe", "finish", "shuffle"):
        app.query(action)(pass_on)
    return app


def _ask(
    context: Context, about: Mapping[str, Any], body: bytes
) -> tuple[Mapping[str, Any], bytes]:
    """What the site answers: its service, or a gate in this process."""
    node = context.node_config
    if SOCKET in node:
        return ask(str(node[SOCKET]), about, body)
    from udpfl.site.gate import Gate
    from udpfl.site.policy import Policy

    gate = Gate(Policy.read(_policy(context)))
    try:
        return gate.handle(about, body)
    finally:
        gate.close()


def _policy(context: Context) -> Path:
    node = context.node_config
    if POLICY in node:
        return Path(str(node[POLICY]))
    folder = node.get(POLICIES) or context.run_config.get(POLICIES)
    if not folder or "partition-id" not in node:
        raise InvalidInput(
            "node-config",
            f"needs {SOCKET} (the socket of the site's service) or {POLICY} (a policy file)",
        )
    return sorted(Path(str(folder)).glob("*/policy.toml"))[int(str(node["partition-id"]))]
