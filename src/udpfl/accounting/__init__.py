"""What releases cost: events, the accountants that interpret them, and the privacy statement."""

from udpfl.accounting.accountant import Accountant, Accounting, account
from udpfl.accounting.events import (
    Composed,
    Event,
    Neighbours,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    SecretlySelected,
    Shuffled,
    Unit,
)
from udpfl.accounting.statement import Kind, PrivacyStatement
from udpfl.accounting.worst_case import worst_case
from udpfl.sensitivity import Norm, Sensitivity

__all__ = [
    "Accountant",
    "Accounting",
    "Composed",
    "Event",
    "Kind",
    "Neighbours",
    "Norm",
    "PoissonSampled",
    "PrivacyStatement",
    "PureDP",
    "Release",
    "Repeated",
    "SecretlySelected",
    "Sensitivity",
    "Shuffled",
    "Unit",
    "account",
    "worst_case",
]
