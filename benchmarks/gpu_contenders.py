"""Who is measured on a GPU: this engine, plain PyTorch, Opacus and torch.func, one round each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from gpu_works import CLIP, NOISE, RATE, Problem, Round
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from udpfl import Gaussian, Laplace, R2dp, Staircase, StaircaseL1
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
from udpfl.mechanisms import Mechanism

NOISES: dict[str, Callable[[int], Mechanism]] = {
    "gaussian": lambda dimension: Gaussian(NOISE),
    "laplace": lambda dimension: Laplace(NOISE),
    "staircase": lambda dimension: Staircase(2.0, NOISE),
    "staircase-l1": lambda dimension: StaircaseL1(2.0, NOISE, dimension=dimension),
    "r2dp": lambda dimension: R2dp(NOISE),
}
"""One of every built-in kind, for vectors of a dimension; how much it is does not matter here."""


def engine(problem: Problem, precision: str, noise: str | None) -> Round:
    """This library's engine, without its federation; `noise` None is training without privacy."""
    work, count = problem.work, problem.work.clients
    loss = lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none")  # noqa: E731
    network = problem.network().cpu()
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
        noiser=MechanismNoiser([NOISES[noise](len(start))] * count) if noise else Noiseless(),
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
