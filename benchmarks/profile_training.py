"""Where the time of a round goes, stage by stage, for a real run of the training workload.

    python benchmarks/profile_training.py [--rounds 9] [--setting default] [--operators]

Writes results/profile-cpu.json, .md and .png. `--operators` prints torch's own profile of one round
as well: which operators the stages consist of.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from figures import profile_figure
from machine import RESULTS, SETTINGS, described, in_child, write
from stages import DURABLE, OPTIONAL, REST, STAGES, on_the_clock
from tables import profile_table
from workload import TOY, Stopwatch, Workload

import udpfl

Laps = list[dict[str, float]]


def timed(
    workload: Workload, rounds: int, stages: Sequence[str], **training: Any
) -> tuple[Laps, list[float]]:
    """Seconds of every stage and of the whole, round by round."""
    laps: Laps = []
    with tempfile.TemporaryDirectory() as folder, on_the_clock(stages) as clock:
        watch = Stopwatch(lambda: laps.append(clock.lap()))
        arguments = workload.federation(rounds + 2, Path(folder) / "run", **training)
        udpfl.run(**arguments, observers=[watch])
    return laps[1:-1], [used.seconds for used in watch.rounds()]


def side_by_side(workload: Workload, rounds: int, threads: int) -> dict[str, Any]:
    """What durability costs where clients are trained side by side; rounds without evaluation."""
    torch.set_num_threads(threads)
    laps, whole = timed(workload, rounds, DURABLE)
    median = statistics.median(whole)
    seconds = {stage: statistics.median(lap[stage] for lap in laps) for stage in DURABLE}
    return {
        "threads": threads,
        "round": median,
        "stages": seconds,
        "durable_share": sum(seconds.values()) / median,
        "charging_and_checkpoint_share": (seconds["charging"] + seconds["checkpoint"]) / median,
    }


def profile(workload: Workload, rounds: int, threads: int) -> dict[str, Any]:
    """Median seconds of every stage of a round, and of the whole round; evaluated every round."""
    # One thread: where clients are trained side by side, stages overlap and cannot be told apart.
    torch.set_num_threads(1)
    laps, whole = timed(workload, rounds, tuple(STAGES), evaluate_every=1)
    stages = {stage: statistics.median(lap[stage] for lap in laps) for stage in STAGES}
    stages[REST] = statistics.median(
        seconds - sum(lap.values()) for seconds, lap in zip(whole, laps, strict=True)
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
        "side_by_side": side_by_side(workload, rounds, threads),
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
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="for clients side by side")
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
        found = {w.model: profile(w, options.rounds, options.threads) for w in workloads}
        write(options.answer, found)
        return
    same = ["--rounds", str(options.rounds), "--threads", str(options.threads)]
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
