"""Federated methods. Each is one file with both halves, the client's and the server's."""

from udpfl import engine as _engine  # noqa: F401  (says which extra is missing)
from udpfl.algorithms.base import Algorithm, LocalTraining, ServerStep, weighted_mean
from udpfl.algorithms.bezier import Bezier
from udpfl.algorithms.fedavg import FedAvg
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.mode_connectivity import ModeConnectivity
from udpfl.algorithms.public import PublicData

BUILT_IN: dict[str, type[Algorithm]] = {
    "bezier": Bezier,
    "fedavg": FedAvg,
    "mode-connectivity": ModeConnectivity,
}

__all__ = [
    "BUILT_IN",
    "Algorithm",
    "Bezier",
    "ClientMessage",
    "FedAvg",
    "LocalTraining",
    "ModeConnectivity",
    "PublicData",
    "ServerStep",
    "Tensors",
    "weighted_mean",
]
