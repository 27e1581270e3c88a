"""What is measured on a GPU: the pieces of work, their random records, the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor, nn

from udpfl.engine.precision import Precision
from udpfl.models import build

Round = Callable[[], object]
CLIP, NOISE, RATE = 1.0, 1.0, 0.1


@dataclass(frozen=True)
class Work:
    """Clients that all take part in every round."""

    name: str
    model: str
    shape: tuple[int, int, int]
    clients: int
    records: int
    """Of each client."""
    steps: int
    rate: float
    outputs: int = 10

    @property
    def batch(self) -> int:
        """The expected size of a sample."""
        return round(self.rate * self.records)


CNN = Work("cnn, 50 clients × 40 steps × 60 records", "cnn", (1, 28, 28), 50, 1200, 40, 0.05)
FEW_STEPS = replace(CNN, name="cnn, 50 clients × 2 steps × 60 records", steps=2)
RESNET = Work(
    "resnet18, 10 clients × 10 steps × 128 records", "resnet18", (3, 32, 32), 10, 1280, 10, 0.1
)
MANY = [
    replace(FEW_STEPS, name=f"cnn, {count} clients × 2 steps × 60 records", clients=count)
    for count in (100, 300, 1000)
]
"""Beside `FEW_STEPS`: does time grow with the clients in a straight line?"""


def toy(work: Work) -> Work:
    """The same work for two clients with few records, to see that the benchmark works."""
    model = "cnn-small" if work.model == "cnn" else "logistic"
    return replace(work, model=model, clients=min(work.clients, 2), records=40, steps=2, rate=0.25)


class Problem:
    """Random records of the right shape; what they show does not change the time."""

    def __init__(self, work: Work, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        size = work.clients * work.records
        self.work, self.device = work, device
        self.x = torch.randn(size, *work.shape, generator=generator).to(device)
        self.y = torch.randint(0, work.outputs, (size,), generator=generator).to(device)

    def network(self) -> nn.Module:
        """With the weights that all contenders begin with."""
        work = self.work
        return build(work.model, work.shape, work.outputs, seed=0).to(self.device)

    def samples(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For every client and step the records of a Poisson sample."""
        work = self.work
        for client in range(work.clients):
            part = slice(client * work.records, (client + 1) * work.records)
            x, y = self.x[part], self.y[part]
            for _ in range(work.steps):
                rows = (torch.rand(work.records, device=self.device) < work.rate).nonzero()[:, 0]
                yield client, x[rows], y[rows]


def precisions(device: torch.device) -> list[str]:
    """Those that the engine has on this device; the table has float32 first."""
    return list(get_args(Precision)) if device.type == "cuda" else ["float32"]


def wait(device: torch.device) -> None:
    """Until everything that was started there is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release_memory(device: torch.device) -> None:
    """Give back what one contender held, so that the next one has the whole card."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def timed(round_: Round, rounds: int, device: torch.device, warm: int = 2) -> list[float]:
    """Seconds of each round."""
    found = []
    for number in range(warm + rounds):
        wait(device)
        began = time.perf_counter()
        round_()
        wait(device)
        if number >= warm:
            found.append(time.perf_counter() - began)
    return found


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


def card(device: torch.device) -> dict[str, float]:
    """What the device reaches: operations a second in each precision, bytes a second of a copy."""
    side = 8192 if device.type == "cuda" else 256
    a = torch.randn(side, side, device=device)
    half = a.bfloat16()
    found = {}
    for name, tf32, factor in (("float32", False, a), ("tf32", True, a), ("bfloat16", False, half)):
        with rounded(tf32):
            seconds = min(timed(lambda f=factor: torch.mm(f, f), 3, device))  # type: ignore[misc]
        found[name] = 2 * side**3 / seconds
    source = torch.empty(1 << (30 if device.type == "cuda" else 22), device=device)
    target = torch.empty_like(source)
    seconds = min(timed(lambda: target.copy_(source), 5, device))
    found["bytes"] = 2 * source.numel() * source.element_size() / seconds  # read, and written
    return found


def arithmetic(problem: Problem) -> float:
    """Floating-point operations of a round: forward and backward of every record, no more."""
    from torch.utils.flop_counter import FlopCounterMode

    network, work = problem.network(), problem.work
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(network(problem.x[:8]), problem.y[:8]).backward()
    each: float = counter.get_total_flops() / 8
    return each * work.clients * work.steps * work.batch


def least_bytes(work: Work) -> float:
    """Bytes that every round has to move at least: the records of each step read once, and
    parameters, sum and noise of each client read or written once a step."""
    network = build(work.model, work.shape, work.outputs, seed=0)
    parameters = sum(own.numel() for own in network.parameters())
    record = 4 * work.shape[0] * work.shape[1] * work.shape[2]
    return float(work.clients * work.steps * (work.batch * record + 4 * 4 * parameters))


def median(seconds: list[float]) -> float:
    """Of the rounds that were timed."""
    return statistics.median(seconds)
