"""From budgets to noise: calibration, matching, mechanism choice, heterogeneous clients."""

from udpfl.harmonizer.budget import Budget, rounds_left, would_exceed
from udpfl.harmonizer.calibrate import Calibrated, Rank, calibrate
from udpfl.harmonizer.charges import Account, Charge, Entry
from udpfl.harmonizer.choose import Choice, choose
from udpfl.harmonizer.clients import Client, ClientPlan, harmonize
from udpfl.harmonizer.ledger import Ledger
from udpfl.harmonizer.match import match
from udpfl.harmonizer.setting import Setting

__all__ = [
    "Account",
    "Budget",
    "Calibrated",
    "Charge",
    "Choice",
    "Client",
    "ClientPlan",
    "Entry",
    "Ledger",
    "Rank",
    "Setting",
    "calibrate",
    "choose",
    "harmonize",
    "match",
    "rounds_left",
    "would_exceed",
]
