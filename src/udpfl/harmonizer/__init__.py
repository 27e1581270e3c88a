"""From budgets to noise: calibration, matching, mechanism choice, heterogeneous clients."""

from udpfl.harmonizer.budget import Budget, rounds_left, would_exceed
from udpfl.harmonizer.calibrate import Calibrated, Setting, calibrate
from udpfl.harmonizer.choose import Choice, Rank, choose
from udpfl.harmonizer.clients import Client, ClientPlan, harmonize
from udpfl.harmonizer.match import match

__all__ = [
    "Budget",
    "Calibrated",
    "Choice",
    "Client",
    "ClientPlan",
    "Rank",
    "Setting",
    "calibrate",
    "choose",
    "harmonize",
    "match",
    "rounds_left",
    "would_exceed",
]
