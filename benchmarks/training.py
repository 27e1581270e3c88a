"""One round of federated training on the CPU: this engine beside plain PyTorch and Opacus.

20 clients with 250 MNIST-shaped records each, 10 of them a round, 10 local steps at rate 0.1. All
contenders take turns in one process, so that a busy machine slows all of them alike; what counts is
the ratio to the plain, non-private loop. Opacus is measured where it is installed.

    python benchmarks/training.py [--rounds 7] [--threads 2] [--out results/training-cpu.json]
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from udpfl import Gaussian
from udpfl.engine import Entropy, LaneModel, Lanes, MechanismNoiser, NormClipper, train_round
from udpfl.engine.limits import choose_limits
from udpfl.models import build

CLIENTS, PICKED, RECORDS, STEPS, RATE, LEARNING_RATE = 20, 10, 250, 10, 0.1, 0.5
STD = 1.0


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * RECORDS, 1, 28, 28, generator=generator)
    y = torch.randint(0, 10, (CLIENTS * RECORDS,), generator=generator)
    return x, y


def averaged(models: list[nn.Module], into: nn.Module) -> None:
    with torch.no_grad():
        for name, p in into.named_parameters():
            p.copy_(torch.stack([dict(m.named_parameters())[name] for m in models]).mean(0))


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """FedAvg as everybody writes it, without any privacy."""
    server = copy.deepcopy(model)

    def round_() -> None:
        done = []
        for client in range(PICKED):
            own = copy.deepcopy(server)
            optimizer = torch.optim.SGD(own.parameters(), lr=LEARNING_RATE)
            first = client * RECORDS
            for _ in range(STEPS):
                chosen = first + torch.nonzero(torch.rand(RECORDS) < RATE).flatten()
                optimizer.zero_grad()
                F.cross_entropy(own(x[chosen]), y[chosen]).backward()
                optimizer.step()
            done.append(own)
        averaged(done, server)

    return round_


def opacus(
    mode: str, model: nn.Module, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], None] | None:
    """The same loop around Opacus, made private once per client."""
    try:
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset
    except ImportError:
        return None
    server = copy.deepcopy(model)
    sites = []
    for client in range(PICKED):
        part = slice(client * RECORDS, (client + 1) * RECORDS)
        own = copy.deepcopy(server)
        loader = DataLoader(TensorDataset(x[part], y[part]), batch_size=int(RATE * RECORDS))
        made = PrivacyEngine().make_private(
            module=own,
            optimizer=torch.optim.SGD(own.parameters(), lr=LEARNING_RATE),
            data_loader=loader,
            noise_multiplier=STD,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
            **({"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}),
        )
        private, optimizer, *rest, sampled = made
        sites.append((own, private, optimizer, rest[0] if rest else nn.CrossEntropyLoss(), sampled))

    def round_() -> None:
        for own, private, optimizer, criterion, loader in sites:
            own.load_state_dict(server.state_dict())
            private.train()
            taken = 0
            while taken < STEPS:
                for inputs, targets in loader:
                    if taken == STEPS:
                        break
                    optimizer.zero_grad()
                    criterion(private(inputs), targets).backward()
                    optimizer.step()
                    taken += 1
        averaged([site[0] for site in sites], server)

    return round_


def ours(stacking: str, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    lane_model = LaneModel(model, lambda o, t: F.cross_entropy(o, t, reduction="none"))
    parameters = lane_model.initial()
    per_sample = lane_model.check(parameters, x[:3], y[:3])
    limits = choose_limits(
        stacking,
        lanes=PICKED,
        dimension=parameters.numel(),
        bytes_per_sample=per_sample,
        memory=2 << 30,
        chunk=None,
        device=torch.device("cpu"),
    )
    records = torch.arange(CLIENTS * RECORDS).split(RECORDS)[:PICKED]
    lanes = Lanes(
        runs=("benchmark",) * PICKED,
        clients=tuple(str(i) for i in range(PICKED)),
        records=records,
        rates=(RATE,) * PICKED,
        denominators=torch.full((PICKED,), RATE * RECORDS),
        learning_rates=torch.full((PICKED,), LEARNING_RATE),
        steps=(STEPS,) * PICKED,
        clipper=NormClipper("l2", [1.0] * PICKED),
        noiser=MechanismNoiser([Gaussian(STD)] * PICKED),
    )
    server = [parameters]

    def round_() -> None:
        start = server[0].expand(PICKED, -1)
        server[0] = train_round(
            lane_model, x, y, start, lanes, 1, Entropy(), limits
        ).parameters.mean(0)

    return round_


def measure(name: str, rounds: int) -> dict[str, float]:
    x, y = data()
    model = build(name, (1, 28, 28), 10, seed=0)
    contenders: dict[str, Callable[[], None] | None] = {
        "plain (not private)": plain(model, x, y),
        "udpfl": ours("auto", model, x, y),
        "udpfl stacked": ours("stacked", model, x, y),
        "udpfl one by one": ours("single", model, x, y),
    }
    for mode in ("hooks", "ew", "ghost"):
        contenders[f"opacus {mode}"] = opacus(mode, model, x, y)
    running = {key: round_ for key, round_ in contenders.items() if round_ is not None}
    times: dict[str, list[float]] = {key: [] for key in running}
    for turn in range(rounds + 1):  # the first turn warms up
        for key, round_ in running.items():
            began = time.perf_counter()
            round_()
            if turn:
                times[key].append(time.perf_counter() - began)
    return {key: statistics.median(seconds) for key, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=["cnn-small", "cnn"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    results = {name: measure(name, options.rounds) for name in options.models}
    for name, seconds in results.items():
        base = seconds["plain (not private)"]
        print(f"{name}: ratio of the median round to the plain loop ({base:.3f} s)")
        for key, value in seconds.items():
            print(f"  {key:22} {value / base:6.2f}")
    if options.out:
        report = {
            "workload": f"{PICKED} of {CLIENTS} clients, {RECORDS} records, {STEPS} steps, "
            f"rate {RATE}, {options.rounds} rounds, {options.threads} threads",
            "torch": torch.__version__,
            "machine": platform.machine(),
            "median_seconds_per_round": results,
        }
        options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
