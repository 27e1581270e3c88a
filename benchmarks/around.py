"""What a round of `udpfl run` costs beside the engine: the same run with nothing computed.

    python benchmarks/around.py [--clients 50 100 300 1000] [--rounds 10] [--profile]

`train_round` is replaced by one that returns prepared parameters at once, so what is timed is
planning, budgets, charging, messages, aggregation, metrics and checkpoints. Every number of clients
is measured three times: as it is, with an evaluation of every round, and with an observer that sees
messages, so that all of them are stored.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import udpfl
from udpfl.engine import Lanes, Trained
from udpfl.federation import local_training
from udpfl.models import build

ROADS = ("run", "evaluated", "stored")


class Clock:
    """An observer that notes when each round was over; what happens before the second and after
    the last of those that are timed does not count."""

    def __init__(self, profile: cProfile.Profile | None = None, rounds: int = 0) -> None:
        self.ends: list[float] = []
        self.used: list[float] = []
        self.left_out = [0.0, 0.0]
        """Seconds of the stand-in so far, by both clocks, which do not count."""
        self._profile, self._rounds = profile, rounds

    def on_round(self, row: dict[str, Any]) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter() - self.left_out[0])
        self.used.append(time.process_time() - self.left_out[1])
        if self._profile is not None and len(self.ends) == 2:
            self._profile.enable()
        if self._profile is not None and len(self.ends) == 2 + self._rounds:
            self._profile.disable()

    def seconds(self) -> list[tuple[float, float]]:
        """Of every round but the first two and the last, which have work of their own: by the wall
        clock, and of the processor."""
        both = zip(self.ends[1:-1], self.used[1:-1], strict=True)
        return [(late - soon, busy - idle) for (soon, idle), (late, busy) in pairwise(both)]


class SeeingClock(Clock):
    """One that sees messages, so that a run stores them all."""

    def on_message(self, message: Any) -> None: ...


@contextmanager
def nothing_computed(clock: Clock) -> Iterator[None]:
    """The engine returns at once with prepared parameters, in new memory as it would."""
    genuine, prepared = local_training.train_round, {}

    def stand_in(model: Any, x: Any, y: Any, parameters: Tensor, lanes: Lanes, *_: Any) -> Trained:
        began, busy, shape = time.perf_counter(), time.process_time(), parameters.shape
        if shape not in prepared:
            prepared[shape] = torch.randn(shape, device=parameters.device)
        moved, zeros = prepared[shape].clone(), torch.zeros(len(lanes), device=parameters.device)
        clock.left_out[0] += time.perf_counter() - began
        clock.left_out[1] += time.process_time() - busy
        return Trained(moved, zeros, zeros)

    local_training.train_round = stand_in  # type: ignore[assignment]
    try:
        yield
    finally:
        local_training.train_round = genuine


def measure(
    model: str, clients: int, road: str, rounds: int, profile: cProfile.Profile | None = None
) -> list[tuple[float, float]]:
    """Seconds of rounds in which nothing is computed, and those of the processor in them."""
    records = 20
    x = torch.randn(clients * records, 1, 28, 28)
    y = torch.randint(0, 10, (len(x),))
    clock = (SeeingClock if road == "stored" else Clock)(profile, rounds)
    with tempfile.TemporaryDirectory() as folder, nothing_computed(clock):
        udpfl.run(
            {
                "out": str(Path(folder) / "run"), "threads": torch.get_num_threads(),
                "device": "cuda" if torch.cuda.is_available() else "cpu",
                "data": {"clients": clients, "declared_sizes": records},
            },
            model=build(model, (1, 28, 28), 10, seed=0), data=(x, y),
            test=(x[:20].clone(), y[:20].clone()),
            privacy={"mechanism": "gaussian", "epsilon": 8.0, "clip": 1.0, "accountant": "rdp"},
            training={
                "rounds": rounds + 3, "local_steps": 2, "sampling_rate": 0.1,
                "evaluate_every": 1 if road == "evaluated" else rounds + 3,
            },
            observers=[clock],
        )  # fmt: skip
    return clock.seconds()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 100, 300, 1000])
    parser.add_argument("--roads", nargs="+", choices=ROADS, default=["run"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile", action="store_true", help="what takes how long, by function")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for road in options.roads:
        for clients in options.clients:
            profile = cProfile.Profile() if options.profile else None
            found = measure(options.model, clients, road, options.rounds, profile)
            seconds, busy = (statistics.median(column) for column in zip(*found, strict=True))
            print(
                f"{road}, {options.model}, {clients} clients: {seconds:.4f} s a round, "
                f"{busy:.4f} s of the processor: {1000 * busy / clients:.3f} ms a client",
                flush=True,
            )
            if profile is not None:
                pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
