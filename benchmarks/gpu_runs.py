"""Whole runs of `udpfl run` on a GPU: rounds, what they store, the paper's and FLUTE's tasks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gpu_works import CLIP, RATE, Problem, Work, median, wait
from stages import DURABLE, on_the_clock
from torch import nn

import udpfl

STORED = "every message stored"
"""The road that a run takes where an observer sees messages, or a plugin does."""


class Clock:
    """An observer that notes when each round was over, on the GPU as well, and bytes written."""

    def __init__(self, device: torch.device, note: Callable[[], object] = lambda: None) -> None:
        self._device, self._note = device, note
        self.ends: list[float] = []
        self.written: list[int] = []

    def on_round(self, row: dict[str, Any]) -> None:
        wait(self._device)
        self.ends.append(time.perf_counter())
        self.written.append(_bytes_written())
        self._note()


class SeeingClock(Clock):
    """One that sees messages: then a run stores all of them."""

    def on_message(self, message: Any) -> None: ...


def _bytes_written() -> int:
    """What this process has handed to `write`, whichever file it was for; Linux only."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


@dataclass(frozen=True)
class Measured:
    """Rounds of one run."""

    seconds: list[float]
    stored_bytes: float
    """Written in a round: ledger, checkpoint, metrics."""
    stored_seconds: float
    """Of a round: charging, packing of messages, checkpoint and metrics."""


def federation(
    problem: Problem, rounds: int, precision: str, noise: str, *, stored: bool = False
) -> Measured:
    """Whole rounds of `udpfl run`, after two to warm up and without the last one."""
    laps: list[float] = []
    with on_the_clock(DURABLE) as stages:
        watch = (SeeingClock if stored else Clock)(
            problem.device, lambda: laps.append(sum(stages.lap().values()))
        )
        once(problem, watch, rounds + 3, rounds + 3, noise=noise, precision=precision)
    return Measured(
        [later - earlier for earlier, later in pairwise(watch.ends[1:-1])],
        median([later - earlier for earlier, later in pairwise(watch.written[1:-1])]),
        median(laps[2:-1]),
    )


def once(
    problem: Problem,
    watch: Clock,
    rounds: int,
    evaluate_every: int,
    *,
    noise: str = "gaussian",
    precision: str = "float32",
    network: nn.Module | None = None,
    tested: int = 100,
    **training: Any,
) -> float:
    """Seconds of one whole run: calibration, ledger, rounds, evaluation, results on disk."""
    work = problem.work
    x, y = problem.x.cpu(), problem.y.cpu()
    generator = torch.Generator().manual_seed(1)
    test = (
        torch.randn(tested, *work.shape, generator=generator),
        torch.randint(0, work.outputs, (tested,), generator=generator),
    )
    y[: work.outputs] = torch.arange(work.outputs)  # every class is there, however few records
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        udpfl.run(
            {
                "out": str(Path(folder) / "run"), "device": str(problem.device),
                "data": {"clients": work.clients, "declared_sizes": work.records},
            },
            model=network or problem.network().cpu(), data=(x, y), test=test,
            privacy={
                "mechanism": noise, "epsilon": 8.0, "clip": CLIP, "accountant": "rdp",
                "norm": "l1" if noise == "staircase-l1" else "l2",
            },
            training={
                "rounds": rounds, "local_steps": work.steps, "sampling_rate": work.rate,
                "learning_rate": RATE, "evaluate_every": evaluate_every, "precision": precision,
                **training,
            },
            observers=[watch],
        )  # fmt: skip
        wait(problem.device)
        return time.perf_counter() - began


# The paper's table of running times, on "two servers", which one is not said.

PAPER_SECONDS: Mapping[tuple[str, int], Mapping[int, float]] = {
    ("MNIST", 50): {50: 1049.71, 100: 2056.34, 500: 10500.80, 1000: 20803.10},
    ("Medical", 50): {50: 644.97, 100: 1328.23, 500: 6482.50, 1000: 13177.98},
    ("CIFAR-10", 50): {50: 1808.67, 100: 3515.08, 500: 16443.23, 1000: 31956.76},
    ("MNIST", 100): {50: 1108.91, 100: 2196.13, 500: 10934.62, 1000: 21579.99},
    ("Medical", 100): {50: 714.02, 100: 1445.75, 500: 7064.78, 1000: 14353.64},
    ("CIFAR-10", 100): {50: 1873.93, 100: 3653.36, 500: 17215.17, 1000: 33562.24},
}
_PAPER_DATA = {
    "MNIST": ("cnn", (1, 28, 28), 60_000, 10),
    "Medical": ("medical-cnn", (1, 28, 28), 58_954, 6),
    "CIFAR-10": ("resnet18", (3, 32, 32), 50_000, 10),
}
EPOCHS = {"two steps": 2, "two epochs": 40}
"""What an iteration of the paper is: it has q = 0.05 and "2 local epochs", which are two samples
of one twentieth of a client's records, or forty."""


def paper_work(data: str, clients: int, epochs: str) -> Work:
    """A client's work in one iteration."""
    model, shape, size, outputs = _PAPER_DATA[data]
    records, steps = size // clients, EPOCHS[epochs]
    name = f"{data}, {clients} clients, {epochs}: {steps} × {round(0.05 * records)} records each"
    return Work(name, model, shape, clients, records, steps, 0.05, outputs)


@dataclass(frozen=True)
class Task:
    """One of FLUTE's published simulations, as a private run."""

    name: str
    work: Work
    """Of the clients of one round: all records of the federation are its clients' times more."""
    population: int
    clients_per_round: int
    rounds: int
    evaluate_every: int
    tested: int
    published: float
    """Seconds, on several GPUs, without privacy."""


_LR = Work("LR-MNIST", "logistic", (1, 28, 28), 1000, 60, 6, 10 / 60)
_FEMNIST = Work("FEMNIST", "cnn", (1, 28, 28), 3400, 198, 10, 20 / 198, 62)
FLUTE = (
    Task("LR-MNIST", _LR, 1000, 10, 100, 20, 10_000, 91.0),
    Task("CNN-FEMNIST", _FEMNIST, 3400, 10, 1500, 50, 10_000, 502.0),
)


def femnist_network(toy: bool) -> nn.Module:
    """The shape of FLUTE's network for FEMNIST, 1,206,590 parameters; its dropout is left out."""
    torch.manual_seed(0)
    if toy:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 62))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 62),
    )  # fmt: skip
