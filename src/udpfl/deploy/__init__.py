"""The same federation on Flower, across machines: ServerApp and ClientApp are thin adapters.

Names are imported when they are first used: a ClientApp lives for one message, and loads no torch
to pass it on.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udpfl.deploy.client_app import client_app
    from udpfl.deploy.server_app import server_app
    from udpfl.deploy.serving import run_federation
    from udpfl.deploy.settings import Federation
    from udpfl.deploy.sites import RunPaused
    from udpfl.deploy.transport import Node, NoReply, Reply, Transport

_PLACES = {
    "Federation": "settings",
    "NoReply": "transport",
    "Node": "transport",
    "Reply": "transport",
    "RunPaused": "sites",
    "Transport": "transport",
    "client_app": "client_app",
    "run_federation": "serving",
    "server_app": "server_app",
}

__all__ = [
    "Federation",
    "NoReply",
    "Node",
    "Reply",
    "RunPaused",
    "Transport",
    "client_app",
    "run_federation",
    "server_app",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module 'udpfl.deploy' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"udpfl.deploy.{_PLACES[name]}"), name)
    return value
