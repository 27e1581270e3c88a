"""One round of federated training on a GPU: this engine, plain PyTorch, Opacus and torch.func.

    python benchmarks/gpu.py [--rounds 5] [--only cnn] [--quick]

Writes results/gpu.json and .md. Every contender trains the same clients for as many steps on
Poisson samples of the same expected size, in one process, one after the other; times are wall-clock
seconds of whole rounds, medians of `--rounds` after two to warm up (of one, for loops over
clients that take seconds). Loops over clients get their samples as index sets on the GPU, without a
data loader, so what they are compared with is arithmetic.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from machine import RESULTS, described, installed, write
from tables import rows
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import udpfl
from udpfl import Gaussian, Laplace, Staircase
from udpfl.engine import (
    Entropy,
    LaneModel,
    Lanes,
    MechanismNoiser,
    Noiseless,
    NormClipper,
    Unclipped,
    train_round,
)
from udpfl.engine.limits import choose_limits
from udpfl.models import build

Round = Callable[[], None]
CLIP, NOISE, RATE = 1.0, 1.0, 0.1
NOISES = {
    "gaussian": Gaussian(NOISE),
    "laplace": Laplace(NOISE),
    "staircase": Staircase(2.0, NOISE),
}


@dataclass(frozen=True)
class Work:
    """Clients that all take part in every round."""

    name: str
    model: str
    shape: tuple[int, int, int]
    clients: int
    records: int
    steps: int
    rate: float

    @property
    def batch(self) -> int:
        """The expected size of a sample."""
        return round(self.rate * self.records)


CNN = Work("cnn, 50 clients × 40 steps × 60 records", "cnn", (1, 28, 28), 50, 1200, 40, 0.05)
FEW_STEPS = replace(CNN, name="cnn, 50 clients × 2 steps × 60 records", steps=2)
RESNET = Work(
    "resnet18, 10 clients × 10 steps × 128 records", "resnet18", (3, 32, 32), 10, 1280, 10, 0.1
)
TOY = replace(CNN, name="a toy", model="cnn-small", clients=2, records=40, steps=2, rate=0.25)


class Problem:
    """Random records of the right shape; what they show does not change the time."""

    def __init__(self, work: Work, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        size = work.clients * work.records
        self.work, self.device = work, device
        self.x = torch.randn(size, *work.shape, generator=generator).to(device)
        self.y = torch.randint(0, 10, (size,), generator=generator).to(device)

    def network(self) -> nn.Module:
        """With the weights that all contenders begin with."""
        return build(self.work.model, self.work.shape, 10, seed=0).to(self.device)

    def samples(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For every client and step the records of a Poisson sample."""
        work = self.work
        for client in range(work.clients):
            part = slice(client * work.records, (client + 1) * work.records)
            x, y = self.x[part], self.y[part]
            for _ in range(work.steps):
                rows = (torch.rand(work.records, device=self.device) < work.rate).nonzero()[:, 0]
                yield client, x[rows], y[rows]


def engine(problem: Problem, precision: str, noise: str | None) -> Round:
    """This library's engine, without its federation; `noise` None is training without privacy."""
    work, count = problem.work, problem.work.clients
    loss = lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none")  # noqa: E731
    network = build(work.model, work.shape, 10, seed=0)
    model = LaneModel(network, loss, precision).to(problem.device)  # type: ignore[arg-type]
    start = model.initial().to(problem.device)
    limits = choose_limits(
        "auto", lanes=count, dimension=len(start), memory=None, chunk=None, device=problem.device,
        bytes_per_sample=model.check(start, problem.x[:3], problem.y[:3]),
    )  # fmt: skip
    everyone = torch.arange(len(problem.x), device=problem.device)
    lanes = Lanes(
        runs=("benchmark",) * count, clients=tuple(map(str, range(count))),
        records=everyone.split(work.records), rates=(work.rate,) * count,
        denominators=torch.full((count,), work.rate * work.records, device=problem.device),
        learning_rates=torch.full((count,), RATE, device=problem.device),
        steps=(work.steps,) * count,
        clipper=NormClipper("l2", [CLIP] * count) if noise else Unclipped(),
        noiser=MechanismNoiser([NOISES[noise]] * count) if noise else Noiseless(),
    )  # fmt: skip
    rounds = iter(range(1 << 30))

    def round_() -> None:
        train_round(
            model, problem.x, problem.y, start.expand(count, -1), lanes, next(rounds), Entropy(),
            limits,
        )  # fmt: skip

    return round_


def loop(
    problem: Problem,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: Callable[..., Any] = F.cross_entropy,
) -> Round:
    """A loop over clients and steps."""

    def round_() -> None:
        for _, x, y in problem.samples():
            optimizer.zero_grad()
            criterion(network(x), y).backward()
            optimizer.step()

    return round_


def plain(problem: Problem) -> Round:
    """No clipping, no noise."""
    network = problem.network()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    return loop(problem, network, optimizer)


def opacus_hooks(problem: Problem) -> Round:
    """The same loop around Opacus's per-sample gradients."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    network = GradSampleModule(problem.network())
    optimizer = DPOptimizer(
        torch.optim.SGD(network.parameters(), lr=RATE), noise_multiplier=NOISE,
        max_grad_norm=CLIP, expected_batch_size=problem.work.batch,
    )  # fmt: skip
    return loop(problem, network, optimizer)


def opacus_ghost(problem: Problem) -> Round:
    """The same loop around Opacus's ghost clipping, which writes no per-sample gradient."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    network = GradSampleModuleFastGradientClipping(problem.network(), max_grad_norm=CLIP)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(network.parameters(), lr=RATE), noise_multiplier=NOISE,
        max_grad_norm=CLIP, expected_batch_size=problem.work.batch,
    )  # fmt: skip
    criterion = DPLossFastGradientClipping(network, optimizer, nn.CrossEntropyLoss())
    return loop(problem, network, optimizer, criterion)


def by_func(problem: Problem) -> Round:
    """The same loop around torch.func: every gradient written out, clipped, added up."""
    network = problem.network()
    weights = {name: own.detach() for name, own in network.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(network, weights, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def round_() -> None:
        for _, x, y in problem.samples():
            gradients = each(weights, x, y)
            squares = sum(own.flatten(1).square().sum(1) for own in gradients.values())
            factors = (CLIP / torch.sqrt(torch.as_tensor(squares))).clamp(max=1.0)
            for name, own in gradients.items():
                total = torch.einsum("b,b...->...", factors, own)
                total += NOISE * torch.randn_like(total)
                weights[name] = weights[name] - RATE / problem.work.batch * total

    return round_


class Clock:
    """An observer that notes when each round was over, on the GPU as well."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_message(self, message: Any) -> None: ...

    def on_model(self, round_: int, model: Any) -> None: ...

    def on_round(self, row: dict[str, Any]) -> None:
        torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def federation(problem: Problem, rounds: int, precision: str, noise: str) -> list[float]:
    """Seconds of whole rounds of `udpfl run`: ledger, messages, checkpoints."""
    work, watch = problem.work, Clock()
    x, y = problem.x.cpu(), problem.y.cpu()
    with tempfile.TemporaryDirectory() as folder:
        udpfl.run(
            {
                "out": str(Path(folder) / "run"), "device": str(problem.device),
                "data": {"clients": work.clients, "declared_sizes": work.records},
            },
            model=build(work.model, work.shape, 10, seed=0), data=(x, y),
            test=(x[:100].clone(), y[:100].clone()),
            privacy={"mechanism": noise, "epsilon": 8.0, "clip": CLIP, "accountant": "rdp"},
            training={
                "rounds": rounds + 4, "local_steps": work.steps, "sampling_rate": work.rate,
                "learning_rate": RATE, "evaluate_every": rounds + 4, "precision": precision,
            },
            observers=[watch],
        )  # fmt: skip
    return [later - earlier for earlier, later in pairwise(watch.ends[1:-1])]


@contextmanager
def rounded(tf32: bool) -> Iterator[None]:
    """Whether torch's own products and convolutions may use TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def timed(round_: Round, rounds: int, warm: int = 2) -> list[float]:
    """Seconds of each round."""
    found = []
    for number in range(warm + rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        round_()
        torch.cuda.synchronize()
        if number >= warm:
            found.append(time.perf_counter() - began)
    return found


def floor(problem: Problem) -> dict[str, float]:
    """Seconds that the arithmetic of a round takes at the rates of this card."""
    from torch.utils.flop_counter import FlopCounterMode

    network, work = problem.network(), problem.work
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(problem.x[:8]), problem.y[:8]).backward()
    flops = counter.get_total_flops() / 8 * work.clients * work.steps * work.batch
    found = {"flops": flops}
    a = torch.randn(8192, 8192, device=problem.device)
    for name, tf32 in (("float32", False), ("tf32", True)):
        with rounded(tf32):
            seconds = min(timed(lambda: torch.mm(a, a), 3))
        found[name] = flops * seconds / (2 * 8192**3)
    return found


def measured(work: Work, rounds: int, mechanisms: list[str]) -> dict[str, Any]:
    """All contenders on one piece of work."""
    problem, found = Problem(work, torch.device("cuda")), {}

    def note(name: str, seconds: list[float]) -> None:
        found[name] = seconds
        print(f"{work.name}: {name}: {statistics.median(seconds):.3f} s", flush=True)
        torch.cuda.empty_cache()

    for precision in ("float32", "tf32"):
        for noise in mechanisms:
            note(
                f"udpfl engine, {noise}, {precision}",
                timed(engine(problem, precision, noise), rounds),
            )
        note(
            f"udpfl engine, not private, {precision}",
            timed(engine(problem, precision, None), rounds),
        )
        if work.model != "resnet18":
            note(
                f"udpfl run, gaussian, {precision}",
                federation(problem, rounds, precision, "gaussian"),
            )
    for tf32 in (False, True):
        end = "tf32" if tf32 else "float32"
        with rounded(tf32):
            note(f"plain PyTorch loop, not private, {end}", timed(plain(problem), 1, 1))
            if installed("opacus"):
                note(f"Opacus hooks, {end}", timed(opacus_hooks(problem), 1, 0))
                note(f"Opacus ghost, {end}", timed(opacus_ghost(problem), 1, 0))
            if work.model != "resnet18":
                note(f"torch.func vmap, {end}", timed(by_func(problem), 1, 0))
    return {"work": asdict(work), "floor": floor(problem), "seconds": found}


def table(report: dict[str, Any]) -> str:
    """Medians, and multiples of the engine with Gaussian noise in the same precision."""
    text = ""
    for own in report["works"]:
        medians = {name: statistics.median(values) for name, values in own["seconds"].items()}
        names = list(dict.fromkeys(name.rsplit(", ", 1)[0] for name in medians))
        body = []
        for name in names:
            cells = []
            for precision in ("float32", "tf32"):
                seconds = medians.get(f"{name}, {precision}")
                reference = medians[f"udpfl engine, gaussian, {precision}"]
                cells += (
                    ["", ""]
                    if seconds is None
                    else [f"{seconds:.3f}", f"{seconds / reference:.2f}"]
                )
            body.append([name, *cells])
        least = own["floor"]
        body.append(["arithmetic alone", f"{least['float32']:.3f}", "", f"{least['tf32']:.3f}", ""])
        head = [own["work"]["name"], "float32, s", "×", "TF32, s", "×"]
        text += rows(head, body) + "\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="work with this in its name")
    parser.add_argument("--quick", action="store_true", help="a toy, to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "this benchmark needs a CUDA device\n")
    works = [TOY] if options.quick else [CNN, FEW_STEPS, RESNET]
    mechanisms = {CNN: list(NOISES)}
    report = {
        "machine": {**described(torch.get_num_threads()), "gpu": torch.cuda.get_device_name()},
        "rounds": options.rounds,
        "quick": options.quick,
        "works": [],
    }
    for work in works:
        if options.only in work.name:
            found = measured(work, options.rounds, mechanisms.get(work, ["gaussian"]))
            report["works"].append(found)
            write(options.out, report)  # as far as it got
    options.out.with_suffix(".md").write_text(table(report))
    print(table(report))


if __name__ == "__main__":
    main()
