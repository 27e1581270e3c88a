"""Federated training: setup, plans, clients, server, stages, the loop, and `run`."""

from udpfl import engine as _engine  # noqa: F401  (says which extra is missing)
from udpfl.federation.client import InProcessClients, LocalClient
from udpfl.federation.local_training import Trainer
from udpfl.federation.loop import train
from udpfl.federation.observers import Observer
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.protection import Protection
from udpfl.federation.request import Answers, Request
from udpfl.federation.result import Run
from udpfl.federation.run import run
from udpfl.federation.selection import ClientSelection
from udpfl.federation.server import Server
from udpfl.federation.setup import Setup
from udpfl.federation.stages import Stage
from udpfl.federation.together import Resumed, run_together
from udpfl.federation.watchers import Interrupted, Watcher
from udpfl.runs.folder import RunFolder

__all__ = [
    "Answers",
    "ClientSelection",
    "InProcessClients",
    "Interrupted",
    "LocalClient",
    "Observer",
    "Protection",
    "ReleasePlan",
    "Request",
    "Resumed",
    "Run",
    "RunFolder",
    "Server",
    "Setup",
    "Stage",
    "Trainer",
    "Watcher",
    "run",
    "run_together",
    "train",
]
