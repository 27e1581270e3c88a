"""From budgets to noise: calibration, matching, mechanism choice, heterogeneous clients."""

from udpfl.harmonizer.calibrate import Calibrated, calibrate
from udpfl.harmonizer.choose import Choice, choose
from udpfl.harmonizer.clients import Client, ClientPlan, harmonize
from udpfl.harmonizer.match import match
from udpfl.harmonizer.setting import Setting
from udpfl.mechanisms import Rank

__all__ = [
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
]
