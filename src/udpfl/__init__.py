"""UDP-FL: differentially private federated learning with any noise and a number that is true."""

from importlib.metadata import version as _version

from udpfl.accounting import (
    Composed,
    PoissonSampled,
    PrivacyStatement,
    PureDP,
    Release,
    Repeated,
    SecretlySelected,
    Sensitivity,
    Shuffled,
    account,
)
from udpfl.errors import (
    BudgetExceeded,
    Infeasible,
    InvalidInput,
    MissingExtra,
    UdpflError,
    Unsupported,
)
from udpfl.harmonizer import (
    Budget,
    Calibrated,
    Client,
    Setting,
    calibrate,
    choose,
    harmonize,
    match,
    rounds_left,
    would_exceed,
)
from udpfl.mechanisms import Gaussian, Laplace, Mechanism, Staircase, Tabulated
from udpfl.planning import Plan, PlanRow, plan

__version__ = _version("udpfl")

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Calibrated",
    "Client",
    "Composed",
    "Gaussian",
    "Infeasible",
    "InvalidInput",
    "Laplace",
    "Mechanism",
    "MissingExtra",
    "Plan",
    "PlanRow",
    "PoissonSampled",
    "PrivacyStatement",
    "PureDP",
    "Release",
    "Repeated",
    "SecretlySelected",
    "Sensitivity",
    "Setting",
    "Shuffled",
    "Staircase",
    "Tabulated",
    "UdpflError",
    "Unsupported",
    "__version__",
    "account",
    "calibrate",
    "choose",
    "harmonize",
    "match",
    "plan",
    "rounds_left",
    "would_exceed",
]
