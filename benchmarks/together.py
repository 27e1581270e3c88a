"""What small federations gain when they are trained together (`udpfl.run_together`).

    python benchmarks/together.py [--device auto] [--runs 16] [--rounds 20] [--turns 3]
                                  [--model cnn-small] [--threads N] [--save results/NAME.json]

So many federations (the embedded data, ten clients of two local steps, four budgets times some
seeds) are trained one after the other and together. Both take turns in one process, in folders of
their own. `whole` is a turn from settings to reports: planning, trials, ledgers, evaluation.
`rounds` is what lies between the end of the first round and the end of the last one, of each run or
of all. Beside the seconds on the clock there are those of the processor, which others on the
machine do not lengthen as much. A ratio is that of medians over the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from machine import described

import udpfl

BUDGETS = (1.0, 2.0, 4.0, 8.0)
Grid = list[dict[str, Any]]


class Clock(udpfl.Observer):
    """Notes when rounds end, on the clock and on the processor."""

    shows_progress = True

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def on_round(self, row: dict[str, Any]) -> None:
        self.ends.append(now())

    @staticmethod
    def between(clocks: Sequence[Clock]) -> tuple[float, float]:
        """From the end of the last first round to the end of the last round."""
        began, ended = (max(clock.ends[place] for clock in clocks) for place in (0, -1))
        return ended[0] - began[0], ended[1] - began[1]


def now() -> tuple[float, float]:
    """Seconds on the clock, and of the processor."""
    return time.perf_counter(), time.process_time()


def grid_of(options: argparse.Namespace) -> Grid:
    """The settings of all federations."""
    rounds = options.rounds
    return [
        {
            "seed": number // len(BUDGETS),
            "device": options.device,
            "threads": options.threads,
            "data": {"name": "mnist5k", "clients": 10},
            "model": {"name": options.model},
            "privacy": {"epsilon": BUDGETS[number % len(BUDGETS)]},
            "training": {"rounds": rounds, "local_steps": 2, "evaluate_every": rounds},
        }
        for number in range(options.runs)
    ]


def one_by_one(grid: Grid) -> tuple[float, float]:
    """Each by `udpfl.run`; returns the seconds of their rounds."""
    took = []
    for config in grid:
        clock = Clock()
        udpfl.run(config, observers=[clock])
        took.append(Clock.between([clock]))
    wall, processor = map(sum, zip(*took, strict=True))
    return wall, processor


def together(grid: Grid) -> tuple[float, float]:
    """All in one call."""
    clocks = [Clock() for _ in grid]
    runs = udpfl.run_together(grid, observers=lambda number: [clocks[number]])
    if failed := [run for run in runs if isinstance(run, Exception)]:
        raise failed[0]
    return Clock.between(clocks)


WAYS: dict[str, Callable[[Grid], tuple[float, float]]] = {
    "one by one": one_by_one,
    "together": together,
}
COLUMNS = ("whole", "whole_processor", "rounds", "rounds_processor")


def turn(way: Callable[[Grid], tuple[float, float]], grid: Grid) -> tuple[float, ...]:
    """Seconds by column."""
    with tempfile.TemporaryDirectory() as folder:
        placed = [
            {**config, "out": str(Path(folder) / str(number))} for number, config in enumerate(grid)
        ]
        began = now()
        rounds = way(placed)
        ended = now()
    return ended[0] - began[0], ended[1] - began[1], *rounds


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of every way by column, and how many times as fast as the first it is."""
    grid = grid_of(options)
    for way in WAYS.values():  # what is done once in a process
        turn(way, grid[:2])
    took: dict[str, list[tuple[float, ...]]] = {name: [] for name in WAYS}
    for _ in range(options.turns):
        for name, way in WAYS.items():
            took[name].append(turn(way, grid))
            print(name, [round(own, 2) for own in took[name][-1]], flush=True)
    columns = {name: list(zip(*turns, strict=True)) for name, turns in took.items()}
    medians = {name: list(map(statistics.median, own)) for name, own in columns.items()}
    first = medians[next(iter(WAYS))]
    return [
        {
            "way": name,
            **{
                column: [round(own, 2) for own in columns[name][place]]
                for place, column in enumerate(COLUMNS)
            },
            "ratios": {
                column: round(first[place] / medians[name][place], 2)
                for place, column in enumerate(COLUMNS)
            },
        }
        for name in WAYS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--model", default="cnn-small")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    rows = measure(options)
    for row in rows:
        print(json.dumps(row))
    cuda = torch.cuda.is_available() and options.device != "cpu"
    report = {
        "command": " ".join(["python", *sys.argv]),
        "grid": {"runs": options.runs, "budgets": BUDGETS, "rounds": options.rounds},
        "model": options.model,
        "machine": described(torch.get_num_threads())
        | {"gpu": torch.cuda.get_device_name() if cuda else None},
        "rows": rows,
    }
    if options.save:
        options.save.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
