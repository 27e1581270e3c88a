"""Federated methods. Each is one file with both halves, the client's and the server's."""

from udpfl import engine as _engine  # noqa: F401  (says which extra is missing)
from udpfl.algorithms.als_dpfl import AlsDpfl
from udpfl.algorithms.base import (
    Algorithm,
    LocalTraining,
    OwnNoise,
    ServerStep,
    Target,
    Terms,
    local_update,
    stacked,
    weighted_mean,
)
from udpfl.algorithms.bezier import Bezier
from udpfl.algorithms.cldp_sgd import CldpSgd
from udpfl.algorithms.client_bezier import ClientBezier
from udpfl.algorithms.cofel_avg import CofelAvg
from udpfl.algorithms.dp_fedavg import DpFedAvg
from udpfl.algorithms.fedavg import FedAvg
from udpfl.algorithms.fedmed import FedMed
from udpfl.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from udpfl.algorithms.fedprox import FedProx
from udpfl.algorithms.fedsgd import FedSGD
from udpfl.algorithms.ldp_fed import LdpFed
from udpfl.algorithms.ldp_fl import LdpFl
from udpfl.algorithms.median import Median
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.mode_connectivity import ModeConnectivity
from udpfl.algorithms.nbafl import NbAFL
from udpfl.algorithms.public import PublicData
from udpfl.algorithms.rdp_pfl import RdpPfl
from udpfl.algorithms.scaffold import Scaffold
from udpfl.algorithms.trimmed_mean import TrimmedMean

# Names are written out, so that completion can read them without importing torch.
BUILT_IN: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedsgd": FedSGD,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "fedmed": FedMed,
    "mode-connectivity": ModeConnectivity,
    "bezier": Bezier,
    "client-bezier": ClientBezier,
    "dp-fedavg": DpFedAvg,
    "nbafl": NbAFL,
    "rdp-pfl": RdpPfl,
    "als-dpfl": AlsDpfl,
    "ldp-fed": LdpFed,
    "cldp-sgd": CldpSgd,
    "ldp-fl": LdpFl,
    "cofel-avg": CofelAvg,
}

__all__ = [
    "BUILT_IN",
    "Algorithm",
    "AlsDpfl",
    "Bezier",
    "CldpSgd",
    "ClientBezier",
    "ClientMessage",
    "CofelAvg",
    "DpFedAvg",
    "FedAvg",
    "LdpFed",
    "LdpFl",
    "LocalTraining",
    "ModeConnectivity",
    "NbAFL",
    "OwnNoise",
    "PublicData",
    "RdpPfl",
    "ServerStep",
    "Target",
    "Tensors",
    "Terms",
    "local_update",
    "stacked",
    "weighted_mean",
]
