"""One round of the engine, or of the ledger, in two versions of this package, side by side.

    python benchmarks/versions.py --before REVISION|FOLDER [--rounds 10] [--starts 5]
                                  [--models cnn-small cnn] [--device cpu] [--save FILE]

`charging-10` in place of a model charges ten clients and stores their answers, 100 kB each, on a
ledger whose budget holds all rounds.

Each version has a process of its own and trains the same workload (that of `training.py`: 10 of 20
clients, 10 local steps on Poisson samples of 25 MNIST-shaped records), on the same samples. They
take turns, A B B A, so that a busy machine slows both alike. The first turns of each warm up: that
is when widths of passes are tried; their ratio is saved by itself. As some processes are lucky with
their memory and others are not, they are started several times. The ratio is the median over all
turns of the round of this version over that of the other. FOLDER holds a checkout; a revision is
taken from git.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import ROOT, described, environment, write

HERE = Path(__file__).resolve()
BEFORE, NOW = "before", "now"
CHARGING = "charging-"
WARM_UP = 6
"""Turns that do not count."""


class Version:
    """A process with one version of the package, which trains a round whenever it is asked."""

    def __init__(self, source: Path, model: str, device: str) -> None:
        paths = [str(source), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), "--serve", model, "--device", device],
            env=environment("default") | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def round(self) -> float:
        """Seconds of one round."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("round", file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def measure(before: Path, model: str, rounds: int, starts: int, device: str) -> dict[str, Any]:
    """Seconds of every round of both versions, and the median of their ratios."""
    first: dict[str, list[float]] = {BEFORE: [], NOW: []}
    took: dict[str, list[float]] = {BEFORE: [], NOW: []}
    for _ in range(starts):
        for name, seconds in _one_start(before, model, rounds, device).items():
            first[name] += seconds[1:WARM_UP]  # the very first one loads what it needs
            took[name] += seconds[WARM_UP:]
    return {
        "model": model,
        "ratio": _ratio(took),
        "ratio_of_first_rounds": _ratio(first),
        "seconds": {name: [round(own, 4) for own in seconds] for name, seconds in took.items()},
    }


def _ratio(took: dict[str, list[float]]) -> float:
    """The median of the ratios of rounds side by side."""
    ratios = [now / old for old, now in zip(took[BEFORE], took[NOW], strict=True)]
    return round(statistics.median(ratios), 3)


def _one_start(before: Path, model: str, rounds: int, device: str) -> dict[str, list[float]]:
    """The rounds of two new processes."""
    sources = {BEFORE: before / "src", NOW: ROOT / "src"}
    versions = {name: Version(source, model, device) for name, source in sources.items()}
    took: dict[str, list[float]] = {BEFORE: [], NOW: []}
    for turn in range(rounds + WARM_UP):
        for name in (BEFORE, NOW) if turn % 2 else (NOW, BEFORE):
            took[name].append(versions[name].round())
    for version in versions.values():
        version.end()
    return took


@contextmanager
def checkout(wanted: str) -> Iterator[Path]:
    """The folder itself, or that revision in a folder for a while."""
    if Path(wanted).is_dir():
        yield Path(wanted).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", wanted, "src"], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def serve(what: str, device: str) -> None:
    """In a version's process: one round for every line that comes in."""
    with tempfile.TemporaryDirectory() as folder:
        clients = what.removeprefix(CHARGING)
        step = training(what, device) if clients == what else charging(int(clients), Path(folder))
        for number, _ in enumerate(sys.stdin):
            began = time.perf_counter()
            step(number)
            print(time.perf_counter() - began, flush=True)


def charging(clients: int, folder: Path) -> Callable[[int], None]:
    """Ask whether a round fits, and charge it."""
    from udpfl import Budget, Gaussian, PoissonSampled, Release, Repeated, Sensitivity
    from udpfl.ledger.charges import Charge
    from udpfl.ledger.ledger import Ledger

    release = PoissonSampled(0.05, Release(Gaussian(2.0), Sensitivity(1.0)))
    ledger = Ledger(folder / "ledger.sqlite")
    ledger.begin_run("run", randomness="entropy", accounting="vector", description={})
    accounts = [ledger.account(f"client-{i}", f"{i:032x}") for i in range(clients)]
    for account in accounts:
        ledger.set_budget(account, Budget(8.0, 1e-5))
    plan, new = Repeated(release, 1000), hasattr(ledger, "reserve")
    if new:
        ledger.reserve("run", dict.fromkeys(accounts, plan))
    else:
        for account in accounts:
            assert ledger.certify(account, plan)
    message = bytes(100_000)

    def step(number: int) -> None:
        if new:
            refused = getattr(ledger, "refusals", None) or ledger.short_of
            assert not refused("run", dict.fromkeys(accounts, release))
        else:
            assert not any(ledger.would_exceed(own, release) for own in accounts)
        charges = [Charge(own, "run", number, (release,), message) for own in accounts]
        ledger.commit(charges, settled=number - 2)

    return step


def training(model: str, device: str) -> Callable[[int], None]:
    """Train a round."""
    import torch
    from workload import CLIP, Workload

    from udpfl import Gaussian
    from udpfl.engine import Keyed, LaneModel, Lanes, MechanismNoiser, NormClipper, train_round
    from udpfl.engine.limits import choose_limits

    work, where = Workload(model), torch.device(device)
    lanes, size = work.picked, work.records
    own = LaneModel(
        work.network(), lambda o, t: torch.nn.functional.cross_entropy(o, t, reduction="none")
    ).to(where)
    x, y = (t.to(where) for t in work.data())
    start = own.initial().to(where)
    per_sample = own.check(start, x[:3], y[:3])
    everyone = Lanes(
        runs=("run",) * lanes,
        clients=tuple(map(str, range(lanes))),
        records=tuple(torch.arange(i * size, (i + 1) * size, device=where) for i in range(lanes)),
        rates=(work.rate,) * lanes,
        denominators=torch.full((lanes,), work.rate * size, device=where),
        learning_rates=torch.full((lanes,), 0.5, device=where),
        steps=(work.steps,) * lanes,
        clipper=NormClipper("l2", [CLIP] * lanes),
        noiser=MechanismNoiser([Gaussian(1.0)] * lanes),
    )
    limits = choose_limits(
        "auto", lanes=lanes, dimension=own.layout.dimension, bytes_per_sample=per_sample,
        memory=2048 << 20, chunk=None, device=where, threads=torch.get_num_threads(),
    )  # fmt: skip
    stream = Keyed(0)  # the same samples in both versions

    def step(number: int) -> None:
        parameters = start.expand(lanes, -1)
        trained = train_round(own, x, y, parameters, everyone, number, stream, limits)
        float(trained.parameters.sum())  # waits for the device

    return step


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["cnn-small", "cnn"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.serve:
        serve(asked.serve, asked.device)
        return
    with checkout(asked.before) as before:
        found = [
            measure(before, model, asked.rounds, asked.starts, asked.device)
            for model in asked.models
        ]
    for row in found:
        print(f"{row['model']}: {row['ratio']} times as long as {asked.before}")
    if asked.save:
        machine = described(threads=0)
        write(asked.save, {"before": asked.before, "machine": machine, "rounds": found})


if __name__ == "__main__":
    main()
