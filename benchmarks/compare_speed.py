"""What a comparison gains from processes (`--jobs`).

    python benchmarks/compare_speed.py [--device auto] [--jobs 1 4] [--models logistic cnn-small]
                                       [--rounds 80] [--turns 2] [--save results/compare-gpu.json]

One grid (two mechanisms, two budgets, three seeds: 12 runs of the embedded data) is compared by
`udpfl compare` from beginning to end with every number of jobs, each time in a process of its own
with a folder of its own: start-up, planning, ledgers, checkpoints and reports are part of it. The
numbers take turns; a ratio is the quickest turn of the first number over that of each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from machine import described

VARY = ("mechanism=gaussian,laplace", "epsilon=2,8")
SEEDS = 3


def measure(
    model: str, numbers: Sequence[int], rounds: int, turns: int, device: str
) -> list[dict[str, Any]]:
    """Seconds with every number of jobs, and how much quicker that is than with the first."""
    took: dict[int, list[float]] = {jobs: [] for jobs in numbers}
    for _ in range(turns):
        for jobs in numbers:
            took[jobs].append(seconds(model, jobs, rounds, device))
    first = min(took[numbers[0]])
    return [
        {
            "model": model,
            "jobs": jobs,
            "seconds": [round(turn, 2) for turn in took[jobs]],
            "ratio": round(first / min(took[jobs]), 2),
        }
        for jobs in numbers
    ]


def seconds(model: str, jobs: int, rounds: int, device: str) -> float:
    """One comparison from beginning to end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "udpfl", "compare", "--seeds", str(SEEDS), "--json"]
        command += [part for varied in VARY for part in ("--vary", varied)]
        settings = (f"model.name={model}", f"training.rounds={rounds}", f"device={device}")
        command += [part for setting in settings for part in ("--set", setting)]
        command += ["--jobs", str(jobs), "--out", str(Path(folder) / "grid")]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    assert json.loads(done.stdout)["trained"] == SEEDS * 4
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--models", nargs="+", default=["logistic", "cnn-small"])
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    rows = []
    for model in options.models:
        for row in measure(model, options.jobs, options.rounds, options.turns, options.device):
            print(json.dumps(row), flush=True)
            rows.append(row)
    cuda = torch.cuda.is_available() and options.device != "cpu"
    report = {
        "command": " ".join(["python", *sys.argv]),
        "grid": {"vary": VARY, "seeds": SEEDS, "rounds": options.rounds},
        "machine": described(torch.get_num_threads())
        | {"gpu": torch.cuda.get_device_name() if cuda else None},
        "rows": rows,
    }
    if options.save:
        options.save.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
