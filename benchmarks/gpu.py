"""One round of federated training on a GPU: this engine, whole runs, plain PyTorch and Opacus.

    python benchmarks/gpu.py [--part engine run mechanisms clients paper flute] [--rounds 5]
        [--precision float32 tf32] [--only cnn] [--device cpu --quick]

Writes results/gpu.json and .md: every part adds what it measured to what other parts have left
there, so they may be measured by one command each. Every contender trains the same clients for as
many steps on Poisson samples of the same expected size, in one process, one after the other; times
are wall-clock seconds of whole rounds, medians of `--rounds` after two to warm up (of one, for
loops over clients that take seconds). Loops over clients get their samples as index sets on the
GPU, without a data loader, so what they are compared with is arithmetic.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gpu_contenders import (
    NOISES,
    by_func,
    engine,
    opacus_ghost,
    opacus_hooks,
    plain,
)
from gpu_runs import (
    EPOCHS,
    FLUTE,
    PAPER_SECONDS,
    STORED,
    Clock,
    Task,
    federation,
    femnist_network,
    once,
    paper_work,
)
from gpu_tables import tables
from gpu_works import (
    CNN,
    FEW_STEPS,
    MANY,
    RESNET,
    Problem,
    Work,
    arithmetic,
    card,
    median,
    precisions,
    release_memory,
    rounded,
    timed,
    toy,
)
from machine import RESULTS, ROOT, described, installed, write

Report = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Measures parts, and keeps the report up to date."""

    report: Report
    device: torch.device
    options: argparse.Namespace

    @property
    def rounds(self) -> int:
        """How many are timed."""
        return int(self.options.rounds)

    def works(self, works: Sequence[Work]) -> list[Work]:
        """Those that were asked for, or toys in their places."""
        asked = [work for work in works if self.options.only in work.name]
        return [toy(work) for work in asked] if self.options.quick else asked

    def precisions(self) -> list[str]:
        """Those that were asked for and exist."""
        known, asked = precisions(self.device), self.options.precision
        return [name for name in known if not asked or name in asked]

    def save(self) -> None:
        """As far as it got."""
        write(self.options.out, self.report)

    def of(self, work: Work) -> Report:
        """What is known of a work."""
        works = self.report.setdefault("works", [])
        for own in works:
            if own["work"]["name"] == work.name:
                return own  # type: ignore[no-any-return]
        works.append({"work": asdict(work), "floor": {}, "seconds": {}})
        return works[-1]  # type: ignore[no-any-return]

    def note(
        self, work: Work, name: str, seconds: list[float], stored: dict[str, float] | None = None
    ) -> None:
        """Put a contender's times into the report, and what it stores in a round."""
        own = self.of(work)
        own["seconds"][name] = seconds
        own.setdefault("revisions", {})[name] = self.report["revision"]
        if stored is not None:
            own.setdefault("stored", {})[name] = stored
        print(f"{work.name}: {name}: {median(seconds):.4f} s", flush=True)
        release_memory(self.device)
        self.save()

    def note_run(self, problem: Problem, noise: str, precision: str, stored: bool = False) -> None:
        """Measure whole rounds of one road, and put them into the report."""
        found = federation(problem, self.rounds, precision, noise, stored=stored)
        name = f"udpfl run{f', {STORED}' if stored else ''}, {noise}, {precision}"
        more = {"bytes": found.stored_bytes, "seconds": found.stored_seconds}
        self.note(problem.work, name, found.seconds, more)

    def note_engine(self, problem: Problem, noise: str | None, precision: str) -> None:
        """Measure the engine alone, and put it into the report."""
        round_ = engine(problem, precision, noise)
        name = f"udpfl engine, {noise or 'not private'}, {precision}"
        self.note(problem.work, name, timed(round_, self.rounds, self.device))

    def problem(self, work: Work) -> Problem:
        """Its records, and how much arithmetic it is."""
        problem, own = Problem(work, self.device), self.of(work)
        floor = {"flops": arithmetic(problem)}
        peaks = self.card()
        own["floor"] = floor | {
            name: floor["flops"] / peak for name, peak in peaks.items() if name != "bytes"
        }
        return problem

    def card(self) -> dict[str, float]:
        """What the device reaches, measured once in a process."""
        if self.report.get("card_of") != self.report["revision"] or "card" not in self.report:
            self.report["card"] = card(self.device)
            self.report["card_of"] = self.report["revision"]
            release_memory(self.device)
        return self.report["card"]  # type: ignore[no-any-return]


def engine_part(bench: Bench) -> None:
    """The engine beside the loops over clients."""
    for work in bench.works([CNN, FEW_STEPS, RESNET]):
        problem = bench.problem(work)
        for precision in bench.precisions():
            for noise in ("gaussian", None):
                bench.note_engine(problem, noise, precision)
        for tf32 in (False, True):
            end = "tf32" if tf32 else "float32"
            loops: dict[str, tuple[Callable[[Problem], Any], int]] = {
                "plain PyTorch loop, not private": (plain, 1)
            }
            if installed("opacus"):
                loops |= {"Opacus hooks": (opacus_hooks, 0), "Opacus ghost": (opacus_ghost, 0)}
            if work.model != "resnet18":
                loops["torch.func vmap"] = (by_func, 0)
            if end in bench.precisions():
                with rounded(tf32):
                    for name, (made, warm) in loops.items():
                        seconds = timed(made(problem), 1, bench.device, warm)
                        bench.note(work, f"{name}, {end}", seconds)


def run_part(bench: Bench) -> None:
    """Whole rounds as users have them, and with every message stored."""
    for work in bench.works([CNN, FEW_STEPS]):
        problem = bench.problem(work)
        for precision in bench.precisions():
            for stored in (False, True):
                bench.note_run(problem, "gaussian", precision, stored)


def mechanisms_part(bench: Bench) -> None:
    """Every built-in noise: engine and whole rounds."""
    for work in bench.works([CNN]):
        problem = bench.problem(work)
        for noise in NOISES:
            for precision in bench.precisions():
                bench.note_engine(problem, noise, precision)
            bench.note_run(problem, noise, bench.precisions()[0])


def clients_part(bench: Bench) -> None:
    """Does time grow with the clients in a straight line?"""
    for work in bench.works([FEW_STEPS, *MANY]):
        problem, precision = bench.problem(work), bench.precisions()[0]
        bench.note_engine(problem, "gaussian", precision)
        bench.note_run(problem, "gaussian", precision)
        if work.clients <= 100:  # of a thousand they are 1.7 GB a round
            bench.note_run(problem, "gaussian", precision, stored=True)


def paper_part(bench: Bench) -> None:
    """The paper's table of running times: runs of so many iterations, as a whole."""
    for data, clients in PAPER_SECONDS:
        for epochs in EPOCHS:
            work = paper_work(data, clients, epochs)
            if bench.options.only not in work.name:
                continue
            own = toy(work) if bench.options.quick else work
            problem, precision = Problem(own, bench.device), bench.precisions()[0]
            for iterations in bench.options.iterations:
                clock = Clock(bench.device)
                seconds = once(problem, clock, iterations, iterations, precision=precision)
                between = [later - earlier for earlier, later in pairwise(clock.ends[1:-1])]
                found = {
                    "work": asdict(own), "data": data, "epochs": epochs, "iterations": iterations,
                    "seconds": seconds, "iteration": median(between), "precision": precision,
                    "paper": PAPER_SECONDS[data, clients].get(iterations),
                    "revision": bench.report["revision"],
                }  # fmt: skip
                rows = bench.report.setdefault("paper", {})
                rows[f"{work.name}, {iterations} iterations"] = found
                print(f"{work.name}: {iterations} iterations: {seconds:.2f} s", flush=True)
                bench.save()
            release_memory(bench.device)


def flute_part(bench: Bench) -> None:
    """FLUTE's published simulations, with privacy."""
    for task in FLUTE:
        if bench.options.only in task.name:
            seconds = _flute(bench, task)
            found = {
                "seconds": seconds, "published": task.published, "rounds": task.rounds,
                "work": asdict(task.work), "population": task.population,
                "clients_per_round": task.clients_per_round,
                "revision": bench.report["revision"],
            }  # fmt: skip
            bench.report.setdefault("flute", {})[task.name] = found
            print(f"{task.name}: {task.rounds} rounds: {seconds:.1f} s", flush=True)
            bench.save()
            release_memory(bench.device)


def _flute(bench: Bench, task: Task) -> float:
    quick = bench.options.quick
    work = replace(toy(task.work), clients=3, model="logistic") if quick else task.work
    problem = Problem(work, bench.device)
    network = femnist_network(quick) if work.outputs == 62 else None
    return once(
        problem, Clock(bench.device), 3 if quick else task.rounds, task.evaluate_every,
        network=network, tested=100 if quick else task.tested,
        precision=bench.precisions()[0],
        clients_per_round=2 if quick else task.clients_per_round,
    )  # fmt: skip


PARTS: dict[str, Callable[[Bench], None]] = {
    "engine": engine_part,
    "run": run_part,
    "mechanisms": mechanisms_part,
    "clients": clients_part,
    "paper": paper_part,
    "flute": flute_part,
}


def known(path: Path, quick: bool) -> Report:
    """What earlier commands have left there; a quick try and a measurement are never mixed."""
    report: Report = json.loads(path.read_text()) if path.exists() else {}
    return report if report.get("quick", quick) == quick else {}


def revision() -> str:
    """Of the code that is measured; empty outside a repository."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def arguments() -> argparse.Namespace:
    """What is to be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, nargs="+", default=[50], help="of the paper")
    parser.add_argument("--precision", nargs="+", default=[], help="those that exist, if left out")
    parser.add_argument("--only", default="", help="work with this in its name")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--revision", default="", help="of the code, where git cannot say it")
    parser.add_argument("--quick", action="store_true", help="toys, to see that it works")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.exit(2, "this benchmark needs a CUDA device, or --device cpu --quick\n")
    if options.device == "cpu" and not options.quick:
        parser.error("--device cpu measures toys only: add --quick")
    if min([options.rounds, *(own - 3 for own in options.iterations)]) < 1:
        parser.error("at least one round and four iterations")
    if options.out is None:  # a quick try leaves no numbers
        folder = Path(tempfile.mkdtemp()) if options.quick else RESULTS
        options.out = folder / "gpu.json"
    return options


def main() -> None:
    options = arguments()
    report = known(options.out, options.quick)
    report |= {"quick": options.quick, "revision": options.revision or revision()}
    machine = described(torch.get_num_threads())
    report.setdefault("machine", machine)
    report.setdefault("rounds", options.rounds)
    bench = Bench(report, torch.device(options.device), options)
    for name in options.part:
        PARTS[name](bench)
        report.setdefault("parts", {})[name] = {
            "machine": machine, "revision": report["revision"], "rounds": options.rounds,
        }  # fmt: skip
        bench.save()
    text = tables(report)
    options.out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
