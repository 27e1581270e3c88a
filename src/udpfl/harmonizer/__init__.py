"""From budgets to noise: calibration, matching, mechanism choice, heterogeneous clients."""

from udpfl.harmonizer.calibrate import Calibrated, calibrate, least_reference
from udpfl.harmonizer.choose import Choice, choose, ranked
from udpfl.harmonizer.clients import Client, ClientPlan, harmonize
from udpfl.harmonizer.match import Matched, match
from udpfl.harmonizer.setting import Setting
from udpfl.mechanisms import Rank

__all__ = [
    "Calibrated",
    "Choice",
    "Client",
    "ClientPlan",
    "Matched",
    "Rank",
    "Setting",
    "calibrate",
    "choose",
    "harmonize",
    "least_reference",
    "match",
    "ranked",
]
