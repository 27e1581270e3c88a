"""Modules that leave a mark when they are imported."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

import udpfl
from udpfl.accounting.serial import behaviour, event_to_dict
from udpfl.cli.app import app

STEP = udpfl.Release(udpfl.Gaussian(1.0), udpfl.Sensitivity(1.0, dimension=10))
SOURCE = """
from dataclasses import dataclass
from pathlib import Path
import udpfl
from udpfl.algorithms import FedAvg
from udpfl.federation import Stage
from udpfl.models.logistic import Logistic as build
Path({marker!r}).touch()

@dataclass(frozen=True)
class Noise(udpfl.Gaussian):
    name = "strange"

class Method(FedAvg):
    pass

class Cap(Stage):
    pass

def load(*, seed, directory, test, options):
    from tests.small import blobs
    return blobs()
"""
numbers = itertools.count()


@dataclass(frozen=True)
class Stranger:
    """A module in the current folder that leaves a mark when it is imported."""

    module: str
    marker: Path

    @property
    def noise(self) -> str:
        return f"{self.module}:Noise"

    @property
    def was_imported(self) -> bool:
        return self.marker.exists() or self.module in sys.modules

    def event(self, event: udpfl.Release = STEP) -> dict:
        """The event, with noise of the stranger's class in the place of Gaussian noise."""
        std = event.mechanism.std
        mechanism = {
            "class": self.noise,
            "parameters": {"std": std},
            "digest": behaviour(event.mechanism),
        }
        return {**event_to_dict(event), "mechanism": mechanism}

    def named_in(self, said: object) -> bool:
        return f"--trust {self.noise}" in " ".join(str(said).split())


def invoke(*arguments: object):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "300"})


def settings(folder: Path, **training: object) -> dict:
    quick = {"rounds": 2, "local_steps": 1, "evaluate_every": 2, **training}
    return {
        "data": {"clients": 2, "declared_sizes": 20, "test": 0.4},
        "privacy": {"mechanism": "gaussian", "epsilon": 4.0, "accountant": "rdp"},
        "training": quick,
        "out": str(folder),
    }
