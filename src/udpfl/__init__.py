"""UDP-FL: differentially private federated learning with any noise, and proved accounting."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from udpfl._version import __version__
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
from udpfl.accounting.budget import Budget, rounds_left, would_exceed
from udpfl.errors import (
    BudgetExceeded,
    Infeasible,
    InvalidInput,
    LedgerError,
    LedgerUnavailable,
    MissingExtra,
    UdpflError,
    Unsupported,
)
from udpfl.harmonizer import (
    Calibrated,
    Choice,
    Client,
    ClientPlan,
    Setting,
    calibrate,
    choose,
    harmonize,
    match,
)
from udpfl.ledger import Ledger
from udpfl.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    R2dp,
    Staircase,
    StaircaseL1,
    Tabulated,
)
from udpfl.planning import Plan, PlanRow, plan

if TYPE_CHECKING:
    from udpfl.algorithms import Algorithm, ClientMessage
    from udpfl.comparison import Comparison, compare
    from udpfl.federation import Observer, Run
    from udpfl.running import run
    from udpfl.trained import TrainedModel, load

_NEEDS_TORCH = {
    "Algorithm": "udpfl.algorithms",
    "ClientMessage": "udpfl.algorithms",
    "Comparison": "udpfl.comparison",
    "Observer": "udpfl.federation",
    "Run": "udpfl.federation",
    "compare": "udpfl.comparison",
    "TrainedModel": "udpfl.trained",
    "load": "udpfl.trained",
    "run": "udpfl.running",
}


def __getattr__(name: str) -> Any:
    """Training is imported when it is first asked for, so that planning needs no torch."""
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'udpfl' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_NEEDS_TORCH[name]), name)
    return value


__all__ = [
    "Algorithm",
    "Budget",
    "BudgetExceeded",
    "Calibrated",
    "Choice",
    "Client",
    "ClientMessage",
    "ClientPlan",
    "Comparison",
    "Composed",
    "Gaussian",
    "Infeasible",
    "InvalidInput",
    "Laplace",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "Mechanism",
    "MissingExtra",
    "Observer",
    "Plan",
    "PlanRow",
    "PoissonSampled",
    "PrivacyStatement",
    "PureDP",
    "R2dp",
    "Release",
    "Repeated",
    "Run",
    "SecretlySelected",
    "Sensitivity",
    "Setting",
    "Shuffled",
    "Staircase",
    "StaircaseL1",
    "Tabulated",
    "TrainedModel",
    "UdpflError",
    "Unsupported",
    "__version__",
    "account",
    "calibrate",
    "choose",
    "compare",
    "harmonize",
    "load",
    "match",
    "plan",
    "rounds_left",
    "run",
    "would_exceed",
]
