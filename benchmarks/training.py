"""One round of federated training on the CPU, as a multiple of plain PyTorch without privacy.

20 clients with 250 MNIST-shaped records each, 10 of them a round, 10 local steps at rate 0.1. All
contenders take turns in one process (A B C D A B C D ...), so that a busy machine slows all of them
alike. "udpfl" is a real run: `udpfl.run` with its ledger, messages, metrics and checkpoints. Opacus
and Flower are measured where they are installed; Flower starts processes of its own, between the
turns of nobody else.

    python benchmarks/training.py [--rounds 9] [--settings default tuned] [--no-flower]

Writes results/training-cpu.json, .md and .png.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from contenders import FEDERATION, PLAIN, Round, guests
from figures import training_figure
from machine import RESULTS, SETTINGS, described, in_child, installed, write
from tables import training_table
from workload import TOY, Stopwatch, Used, Workload, so_far

import udpfl

HERE = Path(__file__).parent
FLOWER = "Flower simulation + Opacus hooks"


class Turns:
    """Lets every guest train one round, and notes what each took."""

    def __init__(self, rounds: dict[str, Round]) -> None:
        self.used: dict[str, list[Used]] = {name: [] for name in rounds}
        self._rounds = rounds

    def __call__(self) -> None:
        for name, round_ in self._rounds.items():
            before = so_far()
            round_()
            self.used[name].append(so_far() - before)


def measure(workload: Workload, rounds: int) -> dict[str, list[Used]]:
    """What each round took, by contender, after a turn to warm up.

    The federation is the host: after each of its rounds everybody else has a turn.
    """
    turns = Turns(guests(workload))
    watch = Stopwatch(turns)
    with tempfile.TemporaryDirectory() as folder:
        arguments = workload.federation(rounds + 2, Path(folder) / "run")
        udpfl.run(**arguments, observers=[watch])
    # The first turn warms up; the host's last round evaluates, so the last turn has no host.
    found = {name: used[1:-1] for name, used in turns.used.items()}
    return {PLAIN: found.pop(PLAIN), FEDERATION: watch.rounds(), **found}


def summary(used: dict[str, list[Used]]) -> dict[str, dict[str, Any]]:
    """Median and least seconds of every contender, and both as multiples of the plain loop's."""
    return {
        name: {
            **compared([each.seconds for each in own], [each.seconds for each in used[PLAIN]]),
            "cpu_seconds": statistics.median(each.cpu_seconds for each in own),
            "page_faults": statistics.median(each.page_faults for each in own),
        }
        for name, own in used.items()
    }


def compared(seconds: list[float], plain: list[float]) -> dict[str, Any]:
    """Rounds beside the plain loop's rounds."""
    median, least = statistics.median(seconds), min(seconds)
    return {
        "median": median,
        "min": least,
        "median_ratio": median / statistics.median(plain),
        "min_ratio": least / min(plain),
        "seconds": seconds,
    }


def child(options: argparse.Namespace) -> dict[str, Any]:
    """One setting, in this process: all models."""
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    found = {}
    for name in options.models:
        workload = replace(options.workload, model=name)
        found[name] = summary(measure(workload, options.rounds))
    return found


def with_flower(found: dict[str, Any], options: argparse.Namespace, setting: str) -> dict[str, Any]:
    """Flower's rounds beside those of the same setting; its start-up apart."""
    for name in options.models:
        arguments = ["--model", name, *_repeated(options)]
        answer = in_child(HERE / "flower_simulation.py", arguments, setting)
        found[name][FLOWER] = {
            **compared(answer["seconds"], found[name][PLAIN]["seconds"]),
            "start_up": answer["start_up"],
        }
    return found


def _repeated(options: argparse.Namespace) -> list[str]:
    return ["--rounds", str(options.rounds), *(["--quick"] if options.quick else [])]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count, of each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=["cnn-small", "cnn"])
    parser.add_argument(
        "--settings", nargs="+", default=["default", "tuned"], choices=list(SETTINGS)
    )
    parser.add_argument("--no-flower", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a toy, to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS / "training-cpu.json")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.workload = TOY if options.quick else Workload()
    return options


def main() -> None:
    options = parsed()
    if options.answer:
        write(options.answer, child(options))
        return
    report: dict[str, Any] = {
        "machine": described(options.threads),
        "workload": {**asdict(options.workload), "model": options.models},
        "rounds": options.rounds,
        "quick": options.quick,
        "settings": {},
    }
    same = [*_repeated(options), "--threads", str(options.threads), "--models", *options.models]
    for setting in options.settings:
        found = in_child(Path(__file__), same, setting)
        if not options.no_flower and installed("ray"):
            found = with_flower(found, options, setting)
        report["settings"][setting] = {"environment": SETTINGS[setting], "models": found}
    write(options.out, report)
    table = training_table(report)
    options.out.with_suffix(".md").write_text(table)
    training_figure(report, options.out.with_suffix(".png"))
    print(table)


if __name__ == "__main__":
    main()
