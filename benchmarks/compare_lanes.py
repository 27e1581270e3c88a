"""What a comparison gains from jobs, and would gain from K federations as lanes of one call.

    python benchmarks/compare_lanes.py [--device cpu] [--threads 2] [--rounds 9] [--jobs] [--toy]

One round of local training of K federations: with a call for each, as `udpfl compare` does it; with
all their clients in one call; and with `--jobs` in K processes at the same time, as `udpfl compare
--jobs K` does it. The federations have one model architecture and one set of records, and differ in
parameters, partition and noise: cells of a grid. Turns alternate, and a ratio is that of the
medians: of the time, and of the processor time, which says more where the machine is busy with
other work. Only the engine is timed; what a run does beside it (ledger, messages, evaluation) is
the same either way, and side by side only with jobs. Needs no more than torch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from udpfl.engine import (
    Entropy,
    LaneModel,
    Lanes,
    MechanismNoiser,
    NormClipper,
    PrivateStream,
    train_round,
)
from udpfl.engine.limits import choose_limits
from udpfl.mechanisms import Gaussian
from udpfl.models import build

SHAPE, CLASSES, CLIP, LEARNING_RATE = (1, 28, 28), 10, 1.0, 0.5
MEMORY = 2048 << 20  # the default of training.memory


@dataclass(frozen=True)
class Setting:
    """What every federation trains."""

    model: str
    clients: int = 10
    records: int = 400
    rate: float = 0.5
    steps: int = 1


SETTINGS = (
    Setting("logistic"),
    Setting("logistic", rate=0.05, steps=10),
    Setting("cnn-small"),
    Setting("cnn-small", rate=0.05, steps=10),
)
"""The embedded default (all of a client's data in two steps), and small batches."""
TOY = (Setting("logistic", clients=2, records=20),)


class Grid:
    """K federations that are ready to train a round, apart or together."""

    def __init__(
        self,
        setting: Setting,
        federations: int,
        device: torch.device,
        stream: PrivateStream | None = None,
    ) -> None:
        self.setting, self.federations, self.device = setting, federations, device
        self.stream = stream or Entropy()
        network = build(setting.model, SHAPE, CLASSES, seed=0)
        loss = _cross_entropy
        self.model = LaneModel(network, loss).to(device)
        generator = torch.Generator().manual_seed(0)
        size = setting.clients * setting.records
        self.inputs = torch.randn(size, *SHAPE, generator=generator).to(device)
        self.targets = torch.randint(0, CLASSES, (size,), generator=generator).to(device)
        start = self.model.initial().to(device)
        self.bytes = self.model.check(start, self.inputs[:3], self.targets[:3])
        self.starts = [start + 0.01 * k for k in range(federations)]
        self.orders = [torch.randperm(size, generator=generator) for _ in range(federations)]

    def apart(self) -> list[Tensor]:
        """One call after the other."""
        return [self._trained([k]) for k in range(self.federations)]

    def together(self) -> Tensor:
        """All lanes in one call."""
        return self._trained(range(self.federations))

    def _trained(self, which: range | list[int]) -> Tensor:
        own = self.setting
        count = own.clients * len(which)
        records = [
            part.to(self.device) for k in which for part in self.orders[k].split(own.records)
        ]
        lanes = Lanes(
            runs=tuple(f"run-{k}" for k in which for _ in range(own.clients)),
            clients=tuple(f"client-{c}" for _ in which for c in range(own.clients)),
            records=tuple(records),
            rates=(own.rate,) * count,
            denominators=torch.full((count,), own.rate * own.records, device=self.device),
            learning_rates=torch.full((count,), LEARNING_RATE, device=self.device),
            steps=(own.steps,) * count,
            clipper=NormClipper("l2", [CLIP] * count),
            noiser=MechanismNoiser([Gaussian(1.0 + k) for k in which for _ in range(own.clients)]),
        )
        limits = choose_limits(
            "auto",
            lanes=count,
            dimension=self.model.layout.dimension,
            bytes_per_sample=self.bytes,
            memory=MEMORY,
            chunk=None,
            device=self.device,
            threads=torch.get_num_threads(),
        )
        starts = torch.stack([self.starts[k] for k in which for _ in range(own.clients)])
        return train_round(
            self.model, self.inputs, self.targets, starts, lanes, 1, self.stream, limits
        ).parameters


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def seconds(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """How long one call takes, to its very end; and its processor time."""
    began, busy = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began, time.process_time() - busy


def measure(
    setting: Setting, federations: int, rounds: int, device: torch.device
) -> dict[str, Any]:
    """Medians of both ways, in turns, after one turn to warm up."""
    grid = Grid(setting, federations, device)
    took: dict[str, list[tuple[float, float]]] = {"apart": [], "together": []}
    for turn in range(rounds + 1):
        for name in took:
            spent = seconds(getattr(grid, name), device)
            if turn:
                took[name].append(spent)
    apart, together = (statistics.median(wall for wall, _ in took[name]) for name in took)
    busy, less = (statistics.median(cpu for _, cpu in took[name]) for name in took)
    return {
        "model": setting.model,
        "rate": setting.rate,
        "steps": setting.steps,
        "clients": setting.clients,
        "federations": federations,
        "apart": round(apart, 5),
        "together": round(together, 5),
        "ratio": round(apart / together, 3),
        "cpu_ratio": round(busy / less, 3),
    }


def side_by_side(setting: Setting, jobs: int, rounds: int, device: torch.device) -> float:
    """Seconds of one round of that many federations in as many processes, threads shared out."""
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(jobs + 1)
    threads = max(1, torch.get_num_threads() // jobs)
    crew = [
        context.Process(target=_alone, args=(setting, rounds, device, threads, gate), daemon=True)
        for _ in range(jobs)
    ]
    for process in crew:
        process.start()
    gate.wait()  # all of them are warm
    began = time.perf_counter()
    gate.wait()
    took = (time.perf_counter() - began) / rounds
    for process in crew:
        process.join()
    return took


def _alone(
    setting: Setting, rounds: int, device: torch.device, threads: int, gate: Barrier
) -> None:
    torch.set_num_threads(threads)
    grid = Grid(setting, 1, device)
    seconds(grid.together, device)
    gate.wait()
    for _ in range(rounds):
        seconds(grid.together, device)
    gate.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--federations", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--jobs", action="store_true", help="measure processes side by side too")
    parser.add_argument("--toy", action="store_true", help="only to see that it works")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    for setting in TOY if options.toy else SETTINGS:
        for federations in options.federations:
            found = measure(setting, federations, options.rounds, device)
            if options.jobs:
                took = side_by_side(setting, federations, options.rounds, device)
                found |= {"jobs": round(took, 5), "jobs_ratio": round(found["apart"] / took, 3)}
            print(json.dumps({**found, "device": str(device), "threads": options.threads}))


if __name__ == "__main__":
    main()
