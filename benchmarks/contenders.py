"""One round of federated training, as this library, plain PyTorch and Opacus do it.

Every contender is a function that trains the clients of one round and averages what they learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from machine import installed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from workload import CLIP, LEARNING_RATE, Workload

from udpfl import Gaussian
from udpfl.engine import Entropy, LaneModel, Lanes, MechanismNoiser, NormClipper, train_round
from udpfl.engine.limits import choose_limits

Round = Callable[[], None]

PLAIN, ENGINE, FEDERATION = "plain PyTorch, not private", "udpfl engine alone", "udpfl"
OPACUS = {
    "hooks": "Opacus hooks",
    "ghost": "Opacus ghost clipping",
    "ew": "Opacus expanded weights",
}
NOISE_STD = 1.0


class Plain:
    """FedAvg without privacy: shuffled fixed batches, one working copy of the model, SGD."""

    def __init__(self, workload: Workload) -> None:
        self._workload, self._chosen = workload, workload.choice()
        self._x, self._y = workload.data()
        self.server, self._own = workload.network(), workload.network()
        self._optimizer = torch.optim.SGD(self._own.parameters(), lr=LEARNING_RATE)

    def __call__(self) -> None:
        mean = [torch.zeros_like(p) for p in self.server.parameters()]
        for client in self._chosen():
            self._own.load_state_dict(self.server.state_dict())
            part = self._workload.part(client)
            for inputs, targets in _batches(self._x[part], self._y[part], self._workload):
                self._optimizer.zero_grad()
                F.cross_entropy(self._own(inputs), targets).backward()
                self._optimizer.step()
            _add(mean, self._own, self._workload.picked)
        _replace(self.server, mean)


def _batches(x: Tensor, y: Tensor, workload: Workload) -> Iterator[tuple[Tensor, Tensor]]:
    """Fixed batches, one pass over the records after the other."""
    taken = 0
    while taken < workload.steps:
        for rows in torch.randperm(len(x)).split(workload.batch)[: workload.steps - taken]:
            yield x[rows], y[rows]
            taken += 1


def _add(mean: list[Tensor], model: nn.Module, among: int) -> None:
    with torch.no_grad():
        for total, parameter in zip(mean, model.parameters(), strict=True):
            total.add_(parameter, alpha=1 / among)


def _replace(model: nn.Module, mean: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), mean, strict=True):
            parameter.copy_(value)


def engine(workload: Workload, lanes: str = "auto") -> Round:
    """This library's engine without its federation: no ledger, no messages, no checkpoints."""
    x, y = workload.data()
    model = LaneModel(workload.network(), lambda o, t: F.cross_entropy(o, t, reduction="none"))
    parameters = model.initial()
    limits = choose_limits(
        lanes,  # type: ignore[arg-type]
        lanes=workload.picked,
        dimension=parameters.numel(),
        bytes_per_sample=model.check(parameters, x[:3], y[:3]),
        memory=2 << 30,
        chunk=None,
        device=torch.device("cpu"),
        threads=torch.get_num_threads(),
    )
    records, chosen, several = torch.arange(len(x)), workload.choice(), workload.picked
    server, rounds = [parameters], iter(range(1, 1 << 30))

    def round_() -> None:
        picked = chosen()
        trained = train_round(
            model,
            x,
            y,
            server[0].expand(several, -1),
            Lanes(
                runs=("benchmark",) * several,
                clients=tuple(str(client) for client in picked),
                records=tuple(records[workload.part(client)] for client in picked),
                rates=(workload.rate,) * several,
                denominators=torch.full((several,), workload.rate * workload.records),
                learning_rates=torch.full((several,), LEARNING_RATE),
                steps=(workload.steps,) * several,
                clipper=NormClipper("l2", [CLIP] * several),
                noiser=MechanismNoiser([Gaussian(NOISE_STD)] * several),
            ),
            next(rounds),
            Entropy(),
            limits,
        )
        server[0] = trained.parameters.mean(0)

    return round_


@cache
def kept_data(workload: Workload) -> tuple[Tensor, Tensor]:
    """The records, made once by each worker process, not for every client."""
    return workload.data()


class OpacusSite:
    """A client that trains with Opacus: made private once, given new weights every round."""

    def __init__(self, mode: str, workload: Workload, x: Tensor, y: Tensor) -> None:
        from opacus import PrivacyEngine

        self.own, self._steps = workload.network(), workload.steps
        extra: dict[str, Any] = {"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}
        made = PrivacyEngine().make_private(
            module=self.own,
            optimizer=torch.optim.SGD(self.own.parameters(), lr=LEARNING_RATE),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=workload.batch),
            noise_multiplier=NOISE_STD,
            max_grad_norm=CLIP,
            grad_sample_mode=mode,
            poisson_sampling=True,
            **extra,
        )
        self._private, self._optimizer, *rest, self._loader = made
        self._criterion = rest[0] if rest else nn.CrossEntropyLoss()
        self._private.train()

    def train(self) -> None:
        """The local steps of one round."""
        taken = 0
        while taken < self._steps:
            for inputs, targets in self._loader:
                if taken == self._steps:
                    break
                self._optimizer.zero_grad()
                self._criterion(self._private(inputs), targets).backward()
                self._optimizer.step()
                taken += 1


def opacus(mode: str, workload: Workload) -> Round:
    """The plain loop around Opacus, with Poisson sampling."""
    x, y = workload.data()
    server, chosen = workload.network(), workload.choice()
    parts = [workload.part(client) for client in range(workload.clients)]
    sites = [OpacusSite(mode, workload, x[part], y[part]) for part in parts]

    def round_() -> None:
        mean = [torch.zeros_like(p) for p in server.parameters()]
        for client in chosen():
            site = sites[client]
            site.own.load_state_dict(server.state_dict())
            site.train()
            _add(mean, site.own, workload.picked)
        _replace(server, mean)

    return round_


def guests(workload: Workload) -> dict[str, Round]:
    """Everyone who takes turns with the federation; Opacus where it is installed."""
    found = {PLAIN: Plain(workload), ENGINE: engine(workload)}
    if installed("opacus"):
        found |= {name: opacus(mode, workload) for mode, name in OPACUS.items()}
    return found
