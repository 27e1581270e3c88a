"""What every training benchmark trains: the clients, their records, the model and the privacy."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import udpfl
from udpfl.models import build

SHAPE, CLASSES = (1, 28, 28), 10
EPSILON, DELTA, CLIP, LEARNING_RATE = 8.0, 1e-5, 1.0, 0.5


@dataclass(frozen=True)
class Workload:
    """Some of the clients train in each round, each for a number of steps on Poisson samples."""

    model: str = "cnn-small"
    clients: int = 20
    picked: int = 10
    records: int = 250
    steps: int = 10
    rate: float = 0.1

    @property
    def batch(self) -> int:
        """The expected size of a Poisson sample: the fixed batch of whoever has no privacy."""
        return round(self.rate * self.records)

    def network(self) -> nn.Module:
        """The model with its initial weights, the same for every contender."""
        return build(self.model, SHAPE, CLASSES, seed=0)

    def data(self) -> tuple[Tensor, Tensor]:
        """Random records of the shape of MNIST: what they show does not change the time."""
        generator = torch.Generator().manual_seed(0)
        size = self.clients * self.records
        x = torch.randn(size, *SHAPE, generator=generator)
        return x, torch.randint(0, CLASSES, (size,), generator=generator)

    def part(self, client: int) -> slice:
        """Where a client's records lie."""
        return slice(client * self.records, (client + 1) * self.records)

    def choice(self) -> Callable[[], list[int]]:
        """Draws the clients of the next round."""
        rng = np.random.default_rng(0)
        return lambda: sorted(int(i) for i in rng.choice(self.clients, self.picked, replace=False))

    def federation(self, rounds: int, out: Path, **training: Any) -> dict[str, Any]:
        """The arguments of `udpfl.run` for this workload, evaluated in the last round only."""
        x, y = self.data()
        return {
            "config": {
                "out": str(out),
                "device": "cpu",
                "data": {"clients": self.clients, "declared_sizes": self.records},
            },
            "model": self.network(),
            "data": (x, y),
            "test": (x[:100].clone(), y[:100].clone()),
            "privacy": {
                "mechanism": "gaussian",
                "epsilon": EPSILON,
                "delta": DELTA,
                "clip": CLIP,
                "accountant": "rdp",
            },
            "training": {
                "rounds": rounds,
                "clients_per_round": self.picked,
                "local_steps": self.steps,
                "sampling_rate": self.rate,
                "learning_rate": LEARNING_RATE,
                "evaluate_every": rounds,
                **training,
            },
        }


TOY = Workload(clients=4, picked=2, records=40, steps=2, rate=0.25)
"""To see that a benchmark works; its times mean nothing."""


@dataclass(frozen=True)
class Used:
    """What this process has used: time, time on its cores, and pages it had to be given."""

    seconds: float
    cpu_seconds: float
    page_faults: int

    def __sub__(self, before: Used) -> Used:
        return Used(
            self.seconds - before.seconds,
            self.cpu_seconds - before.cpu_seconds,
            self.page_faults - before.page_faults,
        )


def so_far() -> Used:
    """Everything that this process has used up to now, all its threads together."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Used(time.perf_counter(), usage.ru_utime + usage.ru_stime, usage.ru_minflt)


class Stopwatch(udpfl.Observer):
    """An observer that notes what every round took, all of it: from row to row of metrics.

    `between` runs after every round and is not counted.
    """

    def __init__(self, between: Callable[[], object] = lambda: None) -> None:
        self._used: list[Used] = []
        self._between = between
        self._began = so_far()

    def on_round(self, row: dict[str, Any]) -> None:
        self._used.append(so_far() - self._began)
        self._between()
        self._began = so_far()

    def rounds(self) -> list[Used]:
        """Without the first, which begins with the planning, and the last, which evaluates."""
        return self._used[1:-1]


def timed_rounds(
    workload: Workload, rounds: int, out: Path, **training: Any
) -> tuple[list[float], udpfl.Run]:
    """Seconds of that many rounds of `udpfl.run`, after one to warm up, and what came of them."""
    watch = Stopwatch()
    result = udpfl.run(**workload.federation(rounds + 2, out, **training), observers=[watch])
    assert result.privacy.kind == "guarantee", "a benchmark of private training has to be private"
    return [used.seconds for used in watch.rounds()], result
