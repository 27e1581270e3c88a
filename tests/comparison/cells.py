"""What the cells of small comparisons train."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import numpy as np

from udpfl.algorithms import FedAvg

BASE = {
    "threads": 1,
    "data": {"name": "tests.comparison.cells:records", "clients": 2},
    "model": {"name": "logistic"},
    "privacy": {"mechanism": "gaussian", "accountant": "rdp"},
    "training": {"rounds": 2, "learning_rate": 0.5},
}
TOML = """
threads = 1
[data]
name = "tests.comparison.cells:records"
clients = 2
[model]
name = "logistic"
[privacy]
mechanism = "gaussian"
accountant = "rdp"
[training]
rounds = 2
learning_rate = 0.5
"""


def records(**_):
    rng = np.random.default_rng(3)
    labels = np.arange(120) % 3
    inputs = rng.normal(size=(120, 4)) + 1.5 * np.eye(4)[labels]
    return inputs.astype(np.float32), labels


class Troubled(FedAvg):
    """A method whose server gets into some kind of trouble in every round."""

    def __init__(self, server, *, trouble="none"):
        super().__init__(server)
        self.trouble = trouble

    def aggregate(self, server, messages):
        if self.trouble == "dies":
            os._exit(7)
        if self.trouble == "notes":
            logging.getLogger("udpfl.tests").warning("something is odd")
        if self.trouble == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.trouble == "waits":
            Path(f"waits-{os.getpid()}").touch()
            while not Path("go").exists():
                time.sleep(0.01)
        return super().aggregate(server, messages)
