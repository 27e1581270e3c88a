"""UDP-FL: differentially private federated learning with any noise, and proved accounting.

Names are imported when they are first used: `import udpfl` loads neither scipy nor torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from udpfl._version import __version__

if TYPE_CHECKING:
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
    from udpfl.algorithms import Algorithm, ClientMessage
    from udpfl.comparison import Comparison, compare
    from udpfl.errors import (
        BudgetExceeded,
        Infeasible,
        InvalidInput,
        LedgerError,
        LedgerUnavailable,
        MissingExtra,
        Refused,
        UdpflError,
        Unsupported,
    )
    from udpfl.federation import Observer, Run
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
    from udpfl.running import run, run_together
    from udpfl.trained import TrainedModel, load

_PLACES = {
    "Algorithm": "algorithms",
    "Budget": "accounting.budget",
    "BudgetExceeded": "errors",
    "Calibrated": "harmonizer",
    "Choice": "harmonizer",
    "Client": "harmonizer",
    "ClientMessage": "algorithms",
    "ClientPlan": "harmonizer",
    "Comparison": "comparison",
    "Composed": "accounting",
    "Gaussian": "mechanisms",
    "Infeasible": "errors",
    "InvalidInput": "errors",
    "Laplace": "mechanisms",
    "Ledger": "ledger",
    "LedgerError": "errors",
    "LedgerUnavailable": "errors",
    "Mechanism": "mechanisms",
    "MissingExtra": "errors",
    "Observer": "federation",
    "Plan": "planning",
    "PlanRow": "planning",
    "PoissonSampled": "accounting",
    "PrivacyStatement": "accounting",
    "PureDP": "accounting",
    "R2dp": "mechanisms",
    "Refused": "errors",
    "Release": "accounting",
    "Repeated": "accounting",
    "Run": "federation",
    "SecretlySelected": "accounting",
    "Sensitivity": "accounting",
    "Setting": "harmonizer",
    "Shuffled": "accounting",
    "Staircase": "mechanisms",
    "StaircaseL1": "mechanisms",
    "Tabulated": "mechanisms",
    "TrainedModel": "trained",
    "UdpflError": "errors",
    "Unsupported": "errors",
    "account": "accounting",
    "calibrate": "harmonizer",
    "choose": "harmonizer",
    "compare": "comparison",
    "harmonize": "harmonizer",
    "load": "trained",
    "match": "harmonizer",
    "plan": "planning",
    "rounds_left": "accounting.budget",
    "run": "running",
    "run_together": "running",
    "would_exceed": "accounting.budget",
}
"""The module below `udpfl` that each public name comes from."""

_MODULES = ("accounting", "errors", "harmonizer", "ledger", "mechanisms", "planning", "plugins",
            "sensitivity")  # fmt: skip
"""Parts that can be used as `udpfl.mechanisms` without an import of their own."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _PLACES:
        value = getattr(import_module(f"udpfl.{_PLACES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"udpfl.{name}")
    else:
        raise AttributeError(f"module 'udpfl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names only."""
    return __all__


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
    "Refused",
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
    "run_together",
    "would_exceed",
]
