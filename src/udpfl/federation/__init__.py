"""The round loop, the client half, the run folder, and `run`, which ties them together."""

from udpfl import engine as _engine  # noqa: F401  (says which extra is missing)
from udpfl.federation.clients import Clients, Site
from udpfl.federation.local_training import Protection, Request, Trainer
from udpfl.federation.observers import Observer
from udpfl.federation.outcome import Run
from udpfl.federation.participants import Participant
from udpfl.federation.rounds import Federation, Interrupted
from udpfl.federation.simulation import run
from udpfl.runs.folder import RunFolder

__all__ = [
    "Clients",
    "Federation",
    "Interrupted",
    "Observer",
    "Participant",
    "Protection",
    "Request",
    "Run",
    "RunFolder",
    "Site",
    "Trainer",
    "run",
]
