"""Where the time of a round goes, stage by stage, for a real run of the training workload.

    python benchmarks/profile_training.py [--rounds 15] [--setting default] [--operators]

Writes results/profile-cpu.json, .md and .png. `--operators` prints torch's own profile of one round
as well: which operators the stages consist of.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from figures import profile_figure
from machine import RESULTS, SETTINGS, described, in_child, write
from stages import DURABLE, OPTIONAL, REST, on_the_clock
from tables import profile_table
from workload import TOY, Stopwatch, Workload

import udpfl


def profile(workload: Workload, rounds: int) -> dict[str, Any]:
    """Median seconds of every stage of a round, and of the whole round; evaluated every round."""
    # One thread: where clients are trained side by side, stages overlap and cannot be told apart.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, on_the_clock() as clock:
        laps: list[dict[str, float]] = []
        watch = Stopwatch(lambda: laps.append(clock.lap()))
        arguments = workload.federation(rounds + 2, Path(folder) / "run", evaluate_every=1)
        udpfl.run(**arguments, observers=[watch])
    whole = [used.seconds for used in watch.rounds()]
    stages = {stage: statistics.median(lap[stage] for lap in laps[1:-1]) for stage in laps[0]}
    stages[REST] = statistics.median(
        seconds - sum(lap.values()) for seconds, lap in zip(whole, laps[1:-1], strict=True)
    )
    median = statistics.median(whole)
    training = median - sum(stages[stage] for stage in OPTIONAL)
    return {
        "parameters": sum(p.numel() for p in workload.network().parameters()),
        "round": median,
        "seconds": whole,
        "stages": stages,
        # Shares of a round that is not evaluated: how often that is done is up to the user.
        "durable_share": sum(stages[stage] for stage in DURABLE) / training,
        "charging_and_checkpoint_share": (stages["charging"] + stages["checkpoint"]) / training,
    }


def operators(workload: Workload) -> str:
    """Torch's own view of two rounds."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with tempfile.TemporaryDirectory() as folder:
        arguments = workload.federation(2, Path(folder) / "run")
        with torch_profile(activities=[ProfilerActivity.CPU]) as seen:
            udpfl.run(**arguments)
    return seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=["cnn-small", "cnn"])
    parser.add_argument("--setting", default="default", choices=list(SETTINGS))
    parser.add_argument("--quick", action="store_true", help="a toy, to see that it works")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "profile-cpu.json")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    base = TOY if options.quick else Workload()
    workloads = [replace(base, model=name) for name in options.models]
    if options.answer:
        write(options.answer, {w.model: profile(w, options.rounds) for w in workloads})
        return
    same = ["--rounds", str(options.rounds)]
    same += ["--quick"] * options.quick
    report = {
        "machine": described(1),
        "workload": {**asdict(base), "model": options.models},
        "setting": options.setting,
        "rounds": options.rounds,
        "quick": options.quick,
        "models": in_child(Path(__file__), [*same, "--models", *options.models], options.setting),
    }
    write(options.out, report)
    options.out.with_suffix(".md").write_text(profile_table(report))
    profile_figure(report, options.out.with_suffix(".png"))
    print(profile_table(report))
    if options.operators:
        for workload in workloads:
            print(workload.model, operators(workload), sep="\n")


if __name__ == "__main__":
    main()
