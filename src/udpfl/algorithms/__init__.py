"""Federated methods. Each is one file with both halves, the client's and the server's."""

from udpfl import engine as _engine  # noqa: F401  (says which extra is missing)
from udpfl.algorithms.base import Algorithm, LocalTraining, ServerStep, weighted_mean
from udpfl.algorithms.dp_fedavg import DpFedAvg
from udpfl.algorithms.fedavg import FedAvg
from udpfl.algorithms.message import ClientMessage, Tensors

BUILT_IN: dict[str, type[Algorithm]] = {method.name: method for method in (FedAvg, DpFedAvg)}

__all__ = [
    "BUILT_IN",
    "Algorithm",
    "ClientMessage",
    "DpFedAvg",
    "FedAvg",
    "LocalTraining",
    "ServerStep",
    "Tensors",
    "weighted_mean",
]
