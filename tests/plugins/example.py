"""The example package as pip would leave it, and short runs with it."""

from __future__ import annotations

from tests.repository import EXAMPLES

PLUGIN = EXAMPLES / "plugin"
PLACES = {
    "wide": "udpfl_example.networks:wide",
    "blobs": "udpfl_example.blobs:load",
    "fedcm": "udpfl_example.fedcm:FedCM",
    "logistic": "udpfl_example.noise:Logistic",
    "power": "udpfl_example.noise:POWER",
}
BLOBS = {"records": 60, "features": 5, "classes": 3}

QUICK = {"rounds": 2, "local_steps": 1, "learning_rate": 0.5, "evaluate_every": 2}
